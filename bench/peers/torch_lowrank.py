#!/usr/bin/env python3
"""lowrank_kv by matrix products of cuBLAS: latent, keys and values, stacked; in float32 (and TF32,
which is not accurate enough to compare with) and bfloat16."""

import torch

from common import QUICK, attempt, emit, time_graph

BUDGET_MS = 40 if QUICK else 200

# name, dtype, (tokens, model_dim, rank, heads, head_dim), sets of buffers, launches in a graph
CANONICAL = (384, 256, 48, 4, 32)
CASES = [
    ("lowrank_canonical_f32_graph_cold", torch.float32, CANONICAL, 128, 1024),
    ("lowrank_canonical_f32_graph_hot", torch.float32, CANONICAL, 1, 1024),
    ("lowrank_bf16_m4096_r512_g8", torch.bfloat16, (8192, 4096, 512, 8, 128), 2, 20),
    ("lowrank_bf16_m4096_r512_g16", torch.bfloat16, (8192, 4096, 512, 16, 128), 2, 20),
    ("lowrank_bf16_m1024_r64_g8", torch.bfloat16, (8192, 1024, 64, 8, 128), 3, 20),
]


def expand(hidden, down, up_k, up_v, heads):
    """What a model's code says."""
    latent = hidden @ down
    k, v = latent @ up_k, latent @ up_v
    return torch.stack((k.unflatten(-1, (heads, -1)), v.unflatten(-1, (heads, -1))), dim=1)


class Case:
    def __init__(self, row):
        self.name, self.dtype, size, self.sets, self.per_replay = row
        tokens, model_dim, rank, self.heads, head_dim = size
        torch.manual_seed(1)
        columns = self.heads * head_dim
        shapes = ((tokens, model_dim), (model_dim, rank), (rank, columns), (rank, columns))
        self.inputs = [[self.random(s) for s in shapes] for _ in range(self.sets)]

    def random(self, shape):
        return (torch.rand(shape, device="cuda") * 2 - 1).to(self.dtype)

    def check(self, function, limit):
        got = function(*self.inputs[0], self.heads).double()
        want = expand(*(x.double() for x in self.inputs[0]), self.heads)
        error = ((got - want).norm() / want.norm()).item()
        if not error < limit:
            raise RuntimeError(f"wrong result: relative error {error}")


def measure(row, impl, function, limit, note):
    case = Case(row)
    case.check(function, limit)
    us, noise = time_graph(
        torch, lambda i: function(*case.inputs[i], case.heads), case.sets, case.per_replay, BUDGET_MS
    )
    emit(case.name, impl, "time", us, "us", note)
    emit(case.name, impl, "noise", noise, "%", "between two halves of the samples")


def run(row):
    narrow = row[1] == torch.float32
    torch.backends.cuda.matmul.allow_tf32 = False
    limit = 1e-5 if narrow else 2e-2
    measure(row, "torch_eager", expand, limit, "cuBLAS, in a graph")
    compiled = torch.compile(expand, fullgraph=True, dynamic=False)
    attempt(row[0], "torch_compile",
            lambda: measure(row, "torch_compile", compiled, limit, "in a graph"))
    if narrow:
        torch.backends.cuda.matmul.allow_tf32 = True
        measure(row, "torch_tf32", expand, 1e-2, "cuBLAS with TF32: not float32-accurate")


if __name__ == "__main__":
    for case_row in CASES:
        with torch.no_grad():
            attempt(case_row[0], "torch_eager", lambda case_row=case_row: run(case_row))
        torch.cuda.empty_cache()
