#!/usr/bin/env python3
"""The linear cases for PyTorch, which is cuBLAS: float32 in float32 (no TF32), and bfloat16."""

import sys

import torch

from common import QUICK, attempt, emit, time_graph

BUDGET_MS = 40 if QUICK else 200
ROWS = 1024 if QUICK else 8192
LARGE = [(512, 4096), (2048, 512), (4096, 512), (2048, 2048)]
SMALL = [(384, 48, 256, 192), (384, 256, 48, 192), (512, 256, 256, 80)]  # and sets of buffers
FEW_ROWS = [(1, 4096, 4096, 8), (16, 4096, 4096, 8)]


class Case:
    """Random x and W for each set, in [-1, 1)."""

    def __init__(self, dtype, m, n, k, sets):
        torch.manual_seed(1)
        self.size, self.sets = (m, n, k), sets
        self.x = [self.random((m, k), dtype) for _ in range(sets)]
        self.w = [self.random((n, k), dtype) for _ in range(sets)]
        self.y = [torch.empty((m, n), dtype=dtype, device="cuda") for _ in range(sets)]

    @staticmethod
    def random(shape, dtype):
        return (torch.rand(shape, device="cuda") * 2 - 1).to(dtype)

    def work(self, i):
        return torch.mm(self.x[i], self.w[i].t(), out=self.y[i])

    def error(self):
        """The largest of 4096 elements against float64."""
        m, n, _ = self.size
        rows, columns = torch.randint(m, (64,)), torch.randint(n, (64,))
        want = self.x[0][rows].double() @ self.w[0][columns].double().t()
        have = self.work(0)[rows][:, columns].double()
        return (have - want).abs().max().item()


def measure(name, case, per_replay):
    m, n, k = case.size
    error = case.error()
    allowed = 1 if case.x[0].dtype == torch.bfloat16 else 1e-3
    if not error < allowed:
        raise RuntimeError(f"wrong result: error {error}")
    us, noise = time_graph(torch, case.work, case.sets, per_replay, BUDGET_MS)
    emit(name, "cublas", "time", us, "us", "torch.mm in a graph")
    emit(name, "cublas", "noise", noise, "%", "between two halves of the samples")
    emit(name, "cublas", "rate", 2e-6 * m * n * k / us, "TFLOP/s")
    emit(name, "cublas", "error", error, "", "the largest of 4096 elements against float64")


def run(name, dtype, size, sets, per_replay):
    measure(name, Case(dtype, *size, sets), per_replay)
    torch.cuda.empty_cache()


def main():
    torch.backends.cuda.matmul.allow_tf32 = False
    for label, dtype in (("f32", torch.float32), ("bf16", torch.bfloat16)):
        for n, k in LARGE:
            name = f"linear_{label}_M8192_N{n}_K{k}"
            attempt(name, "cublas", run, name, dtype, (ROWS, n, k), 2, 20)
    for label, dtype, sizes in (
        ("f32", torch.float32, SMALL),
        ("bf16", torch.bfloat16, FEW_ROWS),
    ):
        for m, n, k, sets in sizes:
            for kind, used in (("graph_cold", sets), ("graph_hot", 1)):
                name = f"linear_{label}_M{m}_N{n}_K{k}_{kind}"
                attempt(name, "cublas", run, name, dtype, (m, n, k), used, 8 * sets)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
