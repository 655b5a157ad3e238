#!/usr/bin/env python3
"""The blocks of cross_attention as a model's code says them: F.linear, rotation of neighbours from
tables, scaled_dot_product_attention; eager and by torch.compile, in float32 without TF32 and in
bfloat16."""

import torch
import torch.nn.functional as F

from common import BASE, QUICK, attempt, emit, time_graph

BUDGET_MS = 40 if QUICK else 200

CANONICAL = (4, 64, 128, 256, 8, 32)
LARGE = (4, 512 if QUICK else 2048, 512 if QUICK else 2048, 2048, 16, 128)
# name, dtype, (batch, seqlen_q, seqlen_k, model_dim, heads, head_dim), whether the keys are kept,
# sets of buffers, launches in a graph
CASES = [
    ("cross_canonical_f32_graph_cold", torch.float32, CANONICAL, False, 56, 448),
    ("cross_canonical_f32_graph_hot", torch.float32, CANONICAL, False, 1, 448),
    ("cross_canonical_bf16_graph_cold", torch.bfloat16, CANONICAL, False, 64, 512),
    ("cross_canonical_bf16_graph_hot", torch.bfloat16, CANONICAL, False, 1, 512),
    ("cross_large_bf16", torch.bfloat16, LARGE, False, 2, 20),
    ("cross_decode_bf16", torch.bfloat16, (16, 1, 1500, 1024, 16, 64), True, 2, 20),
]


def rotate(x, cos, sin):
    """Neighbours of [B, H, N, D] are a pair; cos and sin are [N, D / 2] and float32."""
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2).to(x.dtype)


def heads_of(x, weight, heads):
    return F.linear(x, weight).unflatten(-1, (heads, -1)).transpose(1, 2)


def keys_of(inputs, heads):
    """k, rotated, and v."""
    k = heads_of(inputs["x_kv"], inputs["w_k"], heads)
    v = heads_of(inputs["x_kv"], inputs["w_v"], heads)
    return rotate(k, inputs["cos_k"], inputs["sin_k"]), v


def from_keys(inputs, k, v, heads):
    q = heads_of(inputs["x_query"], inputs["w_q"], heads)
    q = rotate(q, inputs["cos_q"], inputs["sin_q"])
    out = F.scaled_dot_product_attention(q, k, v)
    return F.linear(out.transpose(1, 2).flatten(-2), inputs["w_out"])


def whole(inputs, heads):
    return from_keys(inputs, *keys_of(inputs, heads), heads)


def queries(inputs, heads):
    return from_keys(inputs, inputs["k"], inputs["v"], heads)


class Case:
    def __init__(self, row):
        self.name, self.dtype, size, self.kept, self.sets, self.per_replay = row
        batch, seqlen_q, seqlen_k, model_dim, self.heads, head_dim = size
        torch.manual_seed(1)
        columns = self.heads * head_dim
        scale = 3 / model_dim**0.5  # q, k and v have a size of about 1
        self.inputs = []
        for _ in range(self.sets):
            own = {
                "x_query": self.random((batch, seqlen_q, model_dim), 1),
                "w_q": self.random((columns, model_dim), scale),
                "w_out": self.random((model_dim, columns), scale),
            }
            if self.kept:
                for name in ("k", "v"):
                    kept = self.random((batch, seqlen_k, self.heads, head_dim), 2)
                    own[name] = kept.transpose(1, 2)
            else:
                own["x_kv"] = self.random((batch, seqlen_k, model_dim), 1)
                own["w_k"] = self.random((columns, model_dim), scale)
                own["w_v"] = self.random((columns, model_dim), scale)
            own["cos_q"], own["sin_q"] = tables(seqlen_q, head_dim)
            own["cos_k"], own["sin_k"] = tables(seqlen_k, head_dim)
            self.inputs.append(own)

    def random(self, shape, scale):
        return ((torch.rand(shape, device="cuda") * 2 - 1) * scale).to(self.dtype)

    def check(self, function):
        """The first batch against float64."""
        first = {
            name: (x[:1] if x.dim() > 2 else x).double() for name, x in self.inputs[0].items()
        }
        want = (queries if self.kept else whole)(first, self.heads)
        have = function(self.inputs[0], self.heads)[:1].double()
        error = ((have - want).norm() / want.norm()).item()
        if not error < (1e-5 if self.dtype == torch.float32 else 3e-2):
            raise RuntimeError(f"wrong result: relative error {error}")


def tables(seqlen, head_dim):
    inv_freq = BASE ** (-2 * torch.arange(head_dim // 2, device="cuda").double() / head_dim)
    angles = torch.arange(seqlen, device="cuda").double()[:, None] * inv_freq
    return angles.cos().float(), angles.sin().float()


def measure(case, function):
    """Checked first. Microseconds, and the noise in percent."""
    case.check(function)
    return time_graph(
        torch,
        lambda i: function(case.inputs[i], case.heads),
        case.sets,
        case.per_replay,
        BUDGET_MS,
    )


def report(case, impl, us, noise, note):
    emit(case.name, impl, "time", us, "us", note)
    emit(case.name, impl, "noise", noise, "%", "between two halves of the samples")


def run_eager(case):
    us, noise = measure(case, queries if case.kept else whole)
    report(case, "torch_eager", us, noise, "in a graph")


def run_compiled(case):
    """By each mode, of which the quickest counts: the last of a name that is reported. Choosing among
    kernels takes long, and is left to products that are large enough for it to matter."""
    best = None
    choose = case.name == "cross_large_bf16" and not QUICK
    for mode in ["default", "max-autotune-no-cudagraphs"] if choose else ["default"]:
        torch.compiler.reset()
        function = torch.compile(
            queries if case.kept else whole, mode=mode, fullgraph=True, dynamic=False
        )
        us, noise = measure(case, function)
        if best is None or us < best:
            best = us
            report(case, "torch_compile", us, noise, f"mode {mode}, in a graph")


def main():
    torch.backends.cuda.matmul.allow_tf32 = False
    for row in CASES:
        with torch.no_grad():
            case = attempt(row[0], "torch_eager", Case, row)
            if case:
                attempt(row[0], "torch_eager", run_eager, case)
                attempt(row[0], "torch_compile", run_compiled, case)
        del case
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
