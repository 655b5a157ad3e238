"""The main job, with the command-line tool: compile, find again, verify; then the examples. Prints
a table of each.

Usage: main_job.py TOOL CACHE_FOLDER      (the cache folder is emptied first)
"""

import glob
import json
import os
import shutil
import signal
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SHAPE = "dtype=f32 head_dim=64 style=half B=4 H=8 G=8 N=256".split()
OFFLINE = ["sm_80", "sm_90a", "sm_120a"]
COLUMNS = ["arch", "origin", "compile_ms", "registers", "spill_bytes", "smem_bytes", "cubin_bytes"]
VERIFIED = [
    ["rope", *SHAPE],
    "kv_update rotation=interleaved angles=tables B=2 T=16 G=4 D=32 L=128".split(),
    "lowrank_kv B=4 S=96 M=256 R=48 G=4 D=32".split(),
    "cross_attention rotation=interleaved B=4 Tq=64 Tk=128 C=256 H=8 G=8 D=32".split(),
]
OUTPUTS = ["out", "q_out", "k_out"]
TOLD = set()  # warnings


class Failed(Exception):
    pass


def fajit(tool, *arguments):
    """What `fajit --json` printed."""
    done = subprocess.run([tool, *arguments, "--json"], capture_output=True, text=True, check=False)
    try:
        answer = json.loads(done.stdout)
    except json.JSONDecodeError:
        answer = None
    if done.returncode or answer is None:
        raise Failed(f"fajit {' '.join(arguments)} ended with exit status {done.returncode}:\n"
                     f"{done.stderr or done.stdout}")
    for line in done.stderr.splitlines():
        if line not in TOLD:
            TOLD.add(line)
            print(line, file=sys.stderr)
    return answer


def rows_of(answer):
    return answer if isinstance(answer, list) else [answer]


def compile_all(tool, architectures):
    named = [word for arch in architectures for word in ("--arch", arch)]
    return rows_of(fajit(tool, "compile", "rope", *SHAPE, *named))


def cell(row, column):
    value = row.get(column, "")
    return f"{value:.1f}" if isinstance(value, float) else str(value)


def show(lines):
    widths = [max(map(len, column)) for column in zip(*lines)]
    for line in lines:
        print("  " + "  ".join(text.ljust(width) for text, width in zip(line, widths)).rstrip())
    sys.stdout.flush()


def table(rows):
    show([["process", *COLUMNS]] + [[label, *(cell(r, c) for c in COLUMNS)] for label, r in rows])


def verify(tool, *options):
    """Every operation of VERIFIED on one seed; what is wrong has been said when it raises."""
    lines = [["operation", "elements", "max_abs_error", "allowed", "result"]]
    for request in VERIFIED:
        answer = fajit(tool, "verify", *request, "--seeds", "1", *options)
        outputs = [t for t in answer["results"] if t["tensor"] in OUTPUTS]
        worst = max(outputs, key=lambda t: t["worst_ratio"])
        lines.append([answer["op"], str(sum(t["elements"] for t in outputs)),
                      f"{worst['max_abs_error']:.2g}",
                      f"{worst['atol']:.0e} + {worst['rtol']:.0e} of it", "PASS"])
    show(lines)


def run_examples(tool, launcher):
    """Every example, through `launcher`; those of a build without examples are none."""
    failed = 0
    for path in sorted(glob.glob(os.path.join(os.path.dirname(tool), "examples", "example_*"))):
        if os.path.isfile(path) and os.access(path, os.X_OK):
            print(f"\n{os.path.basename(path)}:")
            sys.stdout.flush()
            failed |= subprocess.run([*launcher, path], cwd=ROOT, check=False).returncode != 0
    return int(failed)


def emulate(tool):
    """Without a GPU: the same kernels, compiled for and run on the CPU."""
    launcher = os.path.join(os.path.dirname(tool), "emulator", "fajit-emulate")
    if not os.path.exists(launcher):
        print("Nothing was launched: this build has no emulator (it needs a C++ compiler).")
        return 0
    print("Running it and three more emulated on the CPU, against a double-precision reference:\n")
    sys.stdout.flush()
    verify(tool, "--emulate")
    print("\nThe examples, emulated too (their times mean nothing):")
    return run_examples(tool, [launcher])


def main():
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # a reader that has seen enough is no error
    tool, cache = sys.argv[1:]
    shutil.rmtree(cache, ignore_errors=True)
    os.environ["FAJIT_CACHE_DIR"] = cache
    os.environ.pop("FAJIT_CACHE_PATH", None)
    try:
        info = fajit(tool, "info")
        devices = info.get("devices") or []
        print(f"\nrope {' '.join(SHAPE)}\n")
        architectures = [] if devices else OFFLINE
        first = compile_all(tool, architectures)
        second = compile_all(tool, architectures)
        table([("first", row) for row in first] + [("second", row) for row in second])
        print()
        again = {row["origin"] for row in second}
        if again != {"disk"}:
            raise Failed(f"the second process should have found every kernel on disk, not: {again}")
        if not devices:
            print(
                "No GPU was found. The kernel was compiled offline for "
                f"{', '.join(OFFLINE)}, and a\nsecond process found each in the cache."
            )
            return emulate(tool)
        print(f"Running it and three more on {devices[0].get('name', 'device 0')}, against a\n"
              "double-precision reference:\n")
        sys.stdout.flush()
        verify(tool)
        return run_examples(tool, [])
    except Failed as problem:
        print(problem, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
