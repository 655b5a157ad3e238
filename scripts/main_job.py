"""The main job, with the command-line tool: compile, find again, verify; then the examples. Prints
a table.

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
    sys.stderr.write(done.stderr)  # warnings
    return answer


def rows_of(answer):
    return answer if isinstance(answer, list) else [answer]


def compile_all(tool, architectures):
    named = [word for arch in architectures for word in ("--arch", arch)]
    return rows_of(fajit(tool, "compile", "rope", *SHAPE, *named))


def cell(row, column):
    value = row.get(column, "")
    return f"{value:.1f}" if isinstance(value, float) else str(value)


def table(rows):
    texts = [["process", *COLUMNS]] + [[label, *(cell(r, c) for c in COLUMNS)] for label, r in rows]
    widths = [max(map(len, column)) for column in zip(*texts)]
    for line in texts:
        print("  " + "  ".join(text.ljust(width) for text, width in zip(line, widths)).rstrip())


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
    """Without a GPU: the same kernel, compiled for and run on the CPU."""
    launcher = os.path.join(os.path.dirname(tool), "emulator", "fajit-emulate")
    if not os.path.exists(launcher):
        print("Nothing was launched: this build has no emulator (it needs a C++ compiler).")
        return 0
    print("Running it emulated on the CPU (results are real, times mean nothing), against a\n"
          "double-precision reference:\n")
    sys.stdout.flush()
    status = subprocess.run([tool, "verify", "--emulate", "rope", *SHAPE], check=False).returncode
    print("\nThe examples, emulated too (their times mean nothing):")
    return status or run_examples(tool, [launcher])


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
        print(f"Running on {devices[0].get('name', 'device 0')}, against a double-precision reference:\n")
        sys.stdout.flush()
        status = subprocess.run([tool, "verify", "rope", *SHAPE], check=False).returncode
        return status or run_examples(tool, [])
    except Failed as problem:
        print(problem, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
