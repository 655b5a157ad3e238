#!/usr/bin/env python3
"""kv_update as PyTorch runs it operation by operation."""

from torch_kv import measure, run_all


def run(case):
    measure(case, "torch_eager", case.update, "indexed assignment, float32 tables, in a graph")


if __name__ == "__main__":
    run_all("torch_eager", run)
