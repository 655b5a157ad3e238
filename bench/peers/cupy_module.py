#!/usr/bin/env python3
"""CuPy: the trivial kernel as a RawModule, in a fresh process and launched many times."""

import time

import cupy
import numpy

import common
from common import SCALE_BLOCK, SCALE_COUNT, SCALE_GRID, attempt, emit


def scale_data():
    before = numpy.random.default_rng(1).uniform(-1, 1, SCALE_COUNT).astype(numpy.float32)
    x = cupy.asarray(before)
    out = cupy.asarray(numpy.full(SCALE_COUNT, numpy.nan, numpy.float32))
    cupy.cuda.runtime.deviceSynchronize()
    return before, x, out


def build():
    return cupy.RawModule(code=common.SCALE_SOURCE, options=("-std=c++17",)).get_function("scale")


def child_template():
    before, x, out = scale_data()
    begin = time.perf_counter_ns()
    build()((SCALE_GRID,), (SCALE_BLOCK,), (out, x, numpy.int32(SCALE_COUNT), numpy.float32(2)))
    after = cupy.asnumpy(out)
    common.print_ms("total_ms", begin)
    common.check_scale(before, after)


def measure_launch():
    before, x, out = scale_data()
    kernel, grid, block = build(), (SCALE_GRID,), (SCALE_BLOCK,)
    args = (out, x, numpy.int32(SCALE_COUNT), numpy.float32(2))
    ns = common.launch_ns(lambda: kernel(grid, block, args), cupy.cuda.runtime.deviceSynchronize)
    common.check_scale(before, cupy.asnumpy(out))
    emit("launch_template", "cupy", "launch", ns, "ns", common.LAUNCH_NOTE)
    emit(
        "launch_template",
        "python",
        "launch",
        common.call_ns(),
        "ns",
        "an empty call, measured the same way",
    )


def main():
    attempt(
        "first_template",
        "cupy",
        common.cold_and_warm,
        "template",
        "cold_template",
        "first_template",
        "cupy",
        "CUPY_CACHE_DIR",
        "cupy imported, context and arrays there",
        2 if common.QUICK else 5,
    )
    attempt("launch_template", "cupy", measure_launch)


if __name__ == "__main__":
    {None: main, "template": child_template}[common.child_mode()]()
