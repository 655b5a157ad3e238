#!/usr/bin/env python3
"""cuda.core: the trivial kernel as a Program, in a fresh process and launched many times."""

import ctypes
import random
import time

import numpy

try:
    from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch
except ImportError:  # where it was before it was declared stable
    from cuda.core.experimental import Device, LaunchConfig, Program, ProgramOptions, launch

import common
from common import SCALE_BLOCK, SCALE_COUNT, SCALE_GRID, attempt, emit


class Scale:
    def __init__(self):
        self.device = Device(0)
        self.device.set_current()
        self.stream = self.device.create_stream()
        self.driver = common.Driver()
        array = ctypes.c_float * SCALE_COUNT
        self.before = array(*(random.uniform(-1, 1) for _ in range(SCALE_COUNT)))
        self.after = array(*([float("nan")] * SCALE_COUNT))
        self.x = self.driver.alloc(ctypes.sizeof(array))
        self.out = self.driver.alloc(ctypes.sizeof(array))
        self.driver.upload(self.x, self.before)
        self.driver.upload(self.out, self.after)
        self.driver.synchronize()
        self.config = LaunchConfig(grid=SCALE_GRID, block=SCALE_BLOCK)
        self.args = (self.out, self.x, numpy.int32(SCALE_COUNT), numpy.float32(2))

    def build(self):
        capability = self.device.compute_capability
        options = ProgramOptions(std="c++17", arch=f"sm_{capability[0]}{capability[1]}")
        program = Program(common.SCALE_SOURCE, code_type="c++", options=options)
        return program.compile("cubin").get_kernel("scale")

    def launch(self, kernel):
        launch(self.stream, self.config, kernel, *self.args)

    def result(self):
        self.stream.sync()
        self.driver.download(self.after, self.out)
        return self.after


def child_template():
    scale = Scale()
    begin = time.perf_counter_ns()
    scale.launch(scale.build())
    after = scale.result()
    common.print_ms("total_ms", begin)
    common.check_scale(scale.before, after)


def measure_launch():
    scale = Scale()
    kernel = scale.build()
    ns = common.launch_ns(lambda: scale.launch(kernel), scale.stream.sync)
    common.check_scale(scale.before, scale.result())
    emit("launch_template", "cuda_core", "launch", ns, "ns", common.LAUNCH_NOTE)


def main():
    attempt(
        "first_template",
        "cuda_core",
        common.cold_and_warm,
        "template",
        "cold_template",
        "first_template",
        "cuda_core",
        None,
        "cuda.core imported, context and memory there",
        2 if common.QUICK else 5,
    )
    attempt("launch_template", "cuda_core", measure_launch)


if __name__ == "__main__":
    {None: main, "template": child_template}[common.child_mode()]()
