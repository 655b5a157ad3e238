"""Sums up Meson's testlog.json: what each test program counted, what was skipped and why, the ends of
what failed programs printed, and one closing line. Fails when something failed and when no test ran
at all.

Usage: summarize.py TESTLOG_JSON
"""

import json
import re
import sys
from pathlib import Path

CRITERION = re.compile(r"^\S+: (\d+) passed, (\d+) failed, (\d+) skipped$", re.MULTILINE)
TAP = re.compile(r"^(not )?ok\b(?:.*?(# SKIP\b))?.*$", re.MULTILINE)
SHOWN = re.compile(
    r"^(?:\[====\] Synthesis|\[SKIP\]|\[FAIL\]|not ok|ok .*# SKIP).*$", re.MULTILINE
)
FAILED = re.compile(r"^(?:\[FAIL\]|not ok|\S+: not ended:).*$", re.MULTILINE)
# Of the ends of what failed programs printed: lines of one, and of all together.
END_LINES, ALL_LINES = 40, 150


def counts_of(program, output):
    """(passed, failed, skipped) inside one program: by run_test's line, by TAP, else it is one."""
    criterion = CRITERION.search(output)
    if criterion:
        return [int(n) for n in criterion.groups()]
    tap = [match.groups() for match in TAP.finditer(output)]
    if tap:
        bad = sum(bool(failed) for failed, _ in tap)
        skipped = sum(bool(skip) for failed, skip in tap if not failed)
        return [len(tap) - bad - skipped, bad, skipped]
    result = program["result"]
    return [int(result == "OK"), 0, int(result == "SKIP")]


def show_ends(broken):
    """The end of each broken program's output, and which of its tests failed further up."""
    lines_each = min(END_LINES, ALL_LINES // len(broken))
    for program, output in broken:
        lines = output.rstrip().splitlines()
        end = lines[len(lines) - lines_each :] if len(lines) > lines_each else lines
        failed = [line for line in FAILED.findall(output) if line not in end]
        print(
            f"\n--- {program['name']}: {program['result']}, status {program['returncode']}, "
            f"{program['duration']:.1f} s; the last {len(end)} of {len(lines)} lines"
        )
        print(*failed[:lines_each], *end, sep="\n")


def main():
    log = Path(sys.argv[1])
    if not log.is_file():
        print("tests: FAILED, no test ran (Meson left no log)")
        return 1
    programs = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    total = [0, 0, 0]
    broken = []
    for program in programs:
        output = (program.get("stdout") or "") + (program.get("stderr") or "")
        counts = counts_of(program, output)
        if program["result"] not in ("OK", "SKIP", "EXPECTEDFAIL"):
            broken.append((program, output))
            counts[1] = counts[1] or 1  # a crash, a time-out, a sanitizer's report
        total = [a + b for a, b in zip(total, counts)]
        lines = SHOWN.findall(output)
        if lines:
            print(f"{program['name']}: {program['result']}", *lines, sep="\n    ")
    if broken:
        show_ends(broken)
        names = (f"{program['name']} ({program['result']})" for program, _ in broken)
        print("\nfailed:", ", ".join(names))
    passed, failed, skipped = total
    if passed + failed == 0:
        print(f"tests: FAILED, no test ran ({skipped} skipped)")
        return 1
    print(
        f"tests: {'FAILED' if failed else 'passed'}: {passed} passed, {failed} failed, "
        f"{skipped} skipped in {len(programs)} programs"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
