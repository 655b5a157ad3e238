#!/usr/bin/env python3
"""kv_update as torch.compile fuses it."""

import os
import tempfile

FOLDER = tempfile.TemporaryDirectory()
os.environ["TORCHINDUCTOR_CACHE_DIR"] = FOLDER.name
os.environ["TRITON_CACHE_DIR"] = os.path.join(FOLDER.name, "triton")

import torch

from torch_kv import measure, run_all


def run(case):
    torch._dynamo.reset()
    compiled = torch.compile(case.update, fullgraph=True, dynamic=False)
    measure(case, "torch_compile", compiled, "indexed assignment, float32 tables, in a graph")


if __name__ == "__main__":
    run_all("torch_compile", run)
