"""What the peers share: result lines, the timing method of bench_common.c, fresh processes.

Every script prints the same JSON lines as the C programs and times in the same way: warm-up, device
events around replays of a graph of many launches that rotate over buffers, median; host time of a
launch as the median of batches that the device's queue takes without waiting.
"""

import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

# The text that bench_driver.c compiles.
SCALE_SOURCE = r"""
extern "C" __global__ void scale(float *out, const float *in, int n, float factor)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        out[i] = in[i] * factor;
}
"""
SCALE_COUNT = 1024
SCALE_BLOCK = 128
SCALE_GRID = SCALE_COUNT // SCALE_BLOCK

BATCH = 500  # launches between two synchronizations
BASE = 10000.0

QUICK = "--quick" in sys.argv


def emit(bench, impl, metric, value, unit, note=""):
    line = {"bench": bench, "impl": impl, "metric": metric}
    line.update(value=value, unit=unit, note=note)
    print(json.dumps(line), flush=True)
    shown = "not measured: " + note if value is None else f"{value:12.6g} {unit}"
    print(f"  {bench:<44} {impl:<13} {metric:<16} {shown}", file=sys.stderr, flush=True)


def missing(bench, impl, reason):
    lines = str(reason).strip().splitlines() or ["no reason given"]
    emit(bench, impl, "not_measured", None, "", lines[-1][:300])


def attempt(bench, impl, work, *args):
    """Runs one measurement; what goes wrong is recorded and does not stop the others."""
    try:
        return work(*args)
    except Exception as error:  # every reason is worth recording
        missing(bench, impl, f"{type(error).__name__}: {error}")
        return None


# --- host time ---


def launch_ns(launch, synchronize):
    """Median host nanoseconds of one launch among BATCH back-to-back ones."""
    samples = []
    for repeat in range(10 + (30 if QUICK else 120)):
        begin = time.perf_counter_ns()
        for _ in range(BATCH):
            launch()
        end = time.perf_counter_ns()
        synchronize()
        if repeat >= 10:
            samples.append((end - begin) / BATCH)
    return statistics.median(samples)


def call_ns():
    """What the loop and an empty call of Python cost themselves."""

    def nothing():
        pass

    return launch_ns(nothing, nothing)


LAUNCH_NOTE = f"median of batches of {BATCH} back-to-back launches"


# --- fresh processes ---


def child(mode, environment=None):
    """Runs this script again as `SCRIPT --child MODE` and returns the numbers that it prints."""
    env = dict(os.environ, **(environment or {}))
    done = subprocess.run(
        [sys.executable, sys.argv[0], "--child", mode],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
        check=False,
    )
    if done.returncode != 0:
        last = [line for line in done.stderr.strip().splitlines() if line.strip()][-1:]
        raise RuntimeError(f"the process \"{mode}\" ended with {done.returncode}: {''.join(last)}")
    pairs = (line.split() for line in done.stdout.splitlines())
    return {name: float(value) for name, value in pairs}


def child_mode():
    return sys.argv[sys.argv.index("--child") + 1] if "--child" in sys.argv else None


def cold_and_warm(mode, cold_bench, warm_bench, impl, cache_variable, note, runs):
    """First result of fresh processes, each with an empty cache of its own, then with a full one.
    cache_variable None: the peer keeps no cache, and its warm time is its cold time."""
    cold, warm = [], []
    with tempfile.TemporaryDirectory() as top:
        for run in range(runs):
            folder = os.path.join(top, str(run))
            os.mkdir(folder)
            environment = {cache_variable: folder} if cache_variable else {}
            cold.append(child(mode, environment)["total_ms"])
        if cache_variable:
            for _ in range(runs):
                warm.append(child(mode, {cache_variable: folder})["total_ms"])
    note += f"; median of {runs} processes; "
    emit(cold_bench, impl, "time", statistics.median(cold), "ms", note + "empty cache")
    note += "full cache" if cache_variable else "keeps no cache on disk"
    emit(warm_bench, impl, "time", statistics.median(warm or cold), "ms", note)


def print_ms(name, begin_ns):
    print(f"{name} {(time.perf_counter_ns() - begin_ns) / 1e6:.6f}", flush=True)


def check_scale(before, after):
    """Both are sequences of SCALE_COUNT floats."""
    bad = [i for i in range(SCALE_COUNT) if float(after[i]) != 2 * float(before[i])]
    if bad:
        raise RuntimeError(f"scale: wrong result at {bad[0]}")


# --- the driver, for peers that bring no memory of their own ---


class Driver:
    """Memory through libcuda in whatever context is current."""

    def __init__(self):
        self.lib = ctypes.CDLL("libcuda.so.1")

    def _call(self, name, *args):
        code = getattr(self.lib, name)(*args)
        if code != 0:
            raise RuntimeError(f"{name} failed with CUDA error {code}")

    def alloc(self, size):
        pointer = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
        return pointer.value

    def upload(self, pointer, array):
        size = ctypes.c_size_t(ctypes.sizeof(array))
        self._call("cuMemcpyHtoD_v2", ctypes.c_uint64(pointer), array, size)

    def download(self, array, pointer):
        size = ctypes.c_size_t(ctypes.sizeof(array))
        self._call("cuMemcpyDtoH_v2", array, ctypes.c_uint64(pointer), size)

    def synchronize(self):
        self._call("cuCtxSynchronize")


# --- device time, through PyTorch ---


def time_graph(torch, work, sets, per_replay, budget_ms):
    """Median device microseconds of one work(set) in a graph of per_replay of them, and the noise
    in percent. What work returns is kept until its set comes round again: outputs rotate too."""
    kept = [None] * sets
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for i in range(3):
            kept[i % sets] = work(i % sets)
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    kept = [None] * sets

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(per_replay):
            kept[i % sets] = work(i % sets)

    begin = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)

    def sample():
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end)

    until = time.perf_counter() + budget_ms / 3e3
    while time.perf_counter() < until:
        for _ in range(4):
            graph.replay()
        torch.cuda.synchronize()
    half = int(min(max(budget_ms / max(sample(), 1e-3), 20), 4000)) // 2
    samples = [sample() * 1e3 / per_replay for _ in range(2 * half)]
    first, second = statistics.median(samples[:half]), statistics.median(samples[half:])
    del graph, kept
    return statistics.median(samples), 100 * abs(first - second) / min(first, second)
