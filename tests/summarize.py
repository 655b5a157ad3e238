"""Sums up Meson's testlog.json: what each Criterion program counted, what was skipped and why, and
one closing line. Fails when something failed and when no test ran at all."""

import json
import re
import sys
from pathlib import Path

COUNTS = re.compile(r"^\S+: (\d+) passed, (\d+) failed, (\d+) skipped$", re.MULTILINE)
SHOWN = re.compile(r"^(?:\[====\] Synthesis|\[SKIP\]|\[FAIL\]).*$", re.MULTILINE)


def main():
    log = Path(sys.argv[1])
    if not log.is_file():
        print("tests: FAILED, no test ran (Meson left no log)")
        return 1
    programs = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    passed = failed = skipped = 0
    broken = []
    for program in programs:
        output = (program.get("stdout") or "") + (program.get("stderr") or "")
        counts = COUNTS.search(program.get("stdout") or "")
        good = program["result"] in ("OK", "SKIP", "EXPECTEDFAIL")
        if counts:
            passed, failed, skipped = (
                total + int(n) for total, n in zip((passed, failed, skipped), counts.groups())
            )
        else:  # not a Criterion program: one check, one count
            passed += program["result"] == "OK"
            skipped += program["result"] == "SKIP"
        if not good:
            broken.append(f"{program['name']} ({program['result']})")
            failed += not counts or counts.group(2) == "0"
        lines = SHOWN.findall(output)
        if counts:
            print(f"{program['name']}: {program['result']}", *lines, sep="\n    ")
    if broken:
        print("failed:", ", ".join(broken))
    if passed + failed == 0:
        print(f"tests: FAILED, no test ran ({skipped} skipped)")
        return 1
    verdict = "FAILED" if failed else "passed"
    print(
        f"tests: {verdict}: {passed} passed, {failed} failed, {skipped} skipped "
        f"in {len(programs)} programs"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
