#!/usr/bin/env python3
"""NVRTC by itself: what opening it and a trivial compile take, with nothing around them."""

import ctypes
import os
import statistics
import time

import common
from common import attempt, emit

ARCH = "sm_90"


def open_library():
    names = ["libnvrtc.so.13", "libnvrtc.so.12"]
    for root in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"):
        if root:
            names += [f"{root}/lib64/{name}" for name in ("libnvrtc.so.13", "libnvrtc.so.12")]
    chosen = os.environ.get("FAJIT_NVRTC_LIBRARY")
    errors = []
    for name in [chosen] if chosen else names:
        try:
            return ctypes.CDLL(name)
        except OSError as error:
            errors.append(str(error))
    raise RuntimeError("; ".join(errors))


def compile_once(lib):
    program = ctypes.c_void_p()
    size = ctypes.c_size_t()
    options = (ctypes.c_char_p * 2)(f"--gpu-architecture={ARCH}".encode(), b"-std=c++17")
    source = common.SCALE_SOURCE.encode()
    codes = [lib.nvrtcCreateProgram(ctypes.byref(program), source, b"scale.cu", 0, None, None)]
    codes.append(lib.nvrtcCompileProgram(program, 2, options))
    codes.append(lib.nvrtcGetCUBINSize(program, ctypes.byref(size)))
    cubin = ctypes.create_string_buffer(size.value)
    codes.append(lib.nvrtcGetCUBIN(program, cubin))
    codes.append(lib.nvrtcDestroyProgram(ctypes.byref(program)))
    if any(codes) or size.value == 0:
        raise RuntimeError(f"NVRTC returned {codes} and {size.value} bytes")


def child_compile():
    begin = time.perf_counter_ns()
    lib = open_library()
    compile_once(lib)
    common.print_ms("first_ms", begin)
    begin = time.perf_counter_ns()
    for _ in range(10):
        compile_once(lib)
    print(f"next_ms {(time.perf_counter_ns() - begin) / 1e7:.6f}")


def measure():
    runs = [common.child("compile") for _ in range(2 if common.QUICK else 5)]
    emit(
        "nvrtc_start",
        "nvrtc",
        "time",
        statistics.median(r["first_ms"] for r in runs),
        "ms",
        "opening the library and a first trivial compile",
    )
    emit(
        "nvrtc_trivial",
        "nvrtc",
        "time",
        statistics.median(r["next_ms"] for r in runs),
        "ms",
        "a further trivial compile",
    )


if __name__ == "__main__":
    if common.child_mode():
        child_compile()
    else:
        attempt("nvrtc_start", "nvrtc", measure)
