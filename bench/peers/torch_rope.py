"""The rope cases for the peers that hold their tensors in PyTorch."""

import torch

from common import BASE, QUICK, attempt, emit, time_graph

SEQLEN_LARGE = 512 if QUICK else 4096
BUDGET_MS = 40 if QUICK else 200

# name, dtype, layout, (batch, heads, tokens, head_dim), sets of buffers, launches in a graph
LARGE = [
    (f"rope_large_{short}_{layout}_tables_out", dtype, layout, (4, 32, SEQLEN_LARGE, 128), 2, 10)
    for short, dtype in (("bf16", torch.bfloat16), ("f32", torch.float32))
    for layout in ("bhnd", "bnhd")
]
CANONICAL = ("rope_canonical_f32_tables_graph_", torch.float32, "bhnd", (4, 8, 256, 64))
CANONICAL_COLD = (CANONICAL[0] + "cold", *CANONICAL[1:], 26, 208)
CANONICAL_HOT = (CANONICAL[0] + "hot", *CANONICAL[1:], 1, 208)
CASES = LARGE + [CANONICAL_COLD, CANONICAL_HOT]


class Case:
    """Random q and k for each set of buffers, and the tables [tokens, head_dim / 2] in float32."""

    def __init__(self, row):
        self.name, self.dtype, self.layout, size, self.sets, self.per_replay = row
        self.batch, self.heads, self.tokens, self.head_dim = size
        shape = [self.batch, self.heads, self.tokens, self.head_dim]
        if self.layout == "bnhd":
            shape[1], shape[2] = shape[2], shape[1]
        torch.manual_seed(1)
        self.q, self.k = (
            [(torch.rand(shape, device="cuda") * 2 - 1).to(self.dtype) for _ in range(self.sets)]
            for _ in range(2)
        )
        half = self.head_dim // 2
        index = torch.arange(half, dtype=torch.float64, device="cuda")
        position = torch.arange(self.tokens, dtype=torch.float64, device="cuda")
        angle = position[:, None] * BASE ** (-2.0 * index / self.head_dim)
        self.cos, self.sin = angle.cos(), angle.sin()

    def tables(self, dtype, repeat):
        """cos and sin as they broadcast against q; repeat 2: both halves of head_dim."""
        for table in (self.cos, self.sin):
            table = torch.cat([table] * repeat, dim=-1).to(dtype)
            yield table[None, :, None, :] if self.layout == "bnhd" else table[None, None, :, :]

    def check(self, q, k):
        """Against float64, for the last sequence of the batch."""
        cos, sin = (t[0] for t in self.tables(torch.float64, 1))
        half = self.head_dim // 2
        for got, x in ((q, self.q[0]), (k, self.k[0])):
            x = x[-1].double()
            a, b = x[..., :half], x[..., half:]
            want = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
            error = ((got[-1].double() - want).norm() / want.norm()).item()
            if not error < (1e-5 if self.dtype == torch.float32 else 1e-2):
                raise RuntimeError(f"wrong result: relative error {error}")


def measure(case, impl, work, note):
    """Checks work(set) -> (q_out, k_out), then times it."""
    case.check(*work(0))
    us, noise = time_graph(torch, work, case.sets, case.per_replay, BUDGET_MS)
    emit(case.name, impl, "time", us, "us", note)
    emit(case.name, impl, "noise", noise, "%", "between two halves of the samples")
    return us


def for_each_case(impl, run, rows=None):
    """run(case) for every row; a case that fails is recorded as not measured."""
    for row in rows or CASES:
        with torch.no_grad():
            attempt(row[0], impl, lambda row=row: run(Case(row)))
        torch.cuda.empty_cache()


def rotate_half_form(x, cos, sin):
    """The form most model code has: tables over all of head_dim."""
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return (x * cos + turned * sin).to(x.dtype)


def halves_form(x, cos, sin):
    """Tables over half of head_dim."""
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)
