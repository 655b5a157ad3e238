#!/usr/bin/env python3
"""Rope as torch.compile fuses it: two ways to write it, the quicker one counts."""

import os
import tempfile
import time

FOLDER = tempfile.TemporaryDirectory()
os.environ["TORCHINDUCTOR_CACHE_DIR"] = FOLDER.name
os.environ["TRITON_CACHE_DIR"] = os.path.join(FOLDER.name, "triton")

import torch

from common import emit, time_graph
from torch_rope import BUDGET_MS, for_each_case, halves_form, rotate_half_form

first_call_ms = []


def time_form(case, form, repeat):
    cos, sin = case.tables(torch.float32, repeat)
    torch._dynamo.reset()

    @torch.compile(fullgraph=True, dynamic=False)
    def both(q, k):
        return form(q, cos, sin), form(k, cos, sin)

    begin = time.perf_counter()
    result = both(case.q[0], case.k[0])
    torch.cuda.synchronize()
    first_call_ms.append((time.perf_counter() - begin) * 1e3)
    case.check(*result)
    del result

    def work(i):
        return both(case.q[i], case.k[i])

    return time_graph(torch, work, case.sets, case.per_replay, BUDGET_MS)


def run(case):
    times = {
        "rotate_half": time_form(case, rotate_half_form, 2),
        "halves": time_form(case, halves_form, 1),
    }
    best = min(times, key=times.get)
    shown = ", ".join(f"{name} {us:.4g} us" for name, (us, _) in times.items())
    us, noise = times[best]
    note = f"best of {shown}; float32 tables, in a graph"
    emit(case.name, "torch_compile", "time", us, "us", note)
    emit(case.name, "torch_compile", "noise", noise, "%", "between two halves of the samples")


if __name__ == "__main__":
    for_each_case("torch_compile", run)
    if first_call_ms:
        emit(
            "cold_rope",
            "torch_compile",
            "time",
            first_call_ms[0],
            "ms",
            "the first call of a process, empty cache, torch imported",
        )
