"""Sums up Meson's testlog.json: what each test program counted, what was skipped and why, and one
closing line. Fails when something failed and when no test ran at all.

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
            broken.append(f"{program['name']} ({program['result']})")
            counts[1] = counts[1] or 1  # a crash, a time-out, a sanitizer's report
        total = [a + b for a, b in zip(total, counts)]
        lines = SHOWN.findall(output)
        if lines:
            print(f"{program['name']}: {program['result']}", *lines, sep="\n    ")
    if broken:
        print("failed:", ", ".join(broken))
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
