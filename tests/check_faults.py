"""Keeps FAULTS.md and the tests together: every tag there has tests, and every tag of a test has a
row there. `--write` fills in the column of tests.

Usage: check_faults.py [--write] TESTS_FOLDER
"""

import re
import sys
from pathlib import Path

TEST = re.compile(r"^Test\(\s*(\w+)\s*,\s*(\w+)", re.MULTILINE)
TAGS = re.compile(r"(?:^|(?<=_))[FK]\d+(?=_)")
ROW = re.compile(r"^\| ([FK]\d+) \| (.*?) \| .*\|$")


def tests_by_tag(folder):
    found = {}
    for path in sorted(folder.glob("test_*.c")):
        for suite, name in TEST.findall(path.read_text(encoding="utf-8")):
            for tag in TAGS.findall(name):
                found.setdefault(tag, []).append(f"`{suite}::{name}`")
    return found


def main():
    arguments = [a for a in sys.argv[1:] if a != "--write"]
    folder = Path(arguments[0])
    listing = folder / "FAULTS.md"
    tests = tests_by_tag(folder)
    old = listing.read_text(encoding="utf-8").splitlines()
    new, rows, problems = [], [], []
    for line in old:
        row = ROW.match(line)
        if row:
            tag, text = row.groups()
            rows.append(tag)
            line = f"| {tag} | {text} | {'<br>'.join(tests.get(tag, []))} |"
        new.append(line)
    problems += [f"{tag} has no test" for tag in rows if tag not in tests]
    problems += [f"{tag} has no row, but {tests[tag][0]}" for tag in sorted(tests) if tag not in rows]
    problems += [f"{tag} has two rows" for tag in sorted(set(rows)) if rows.count(tag) > 1]
    if "--write" in sys.argv:
        listing.write_text("\n".join(new) + "\n", encoding="utf-8")
    elif new != old:
        problems.append("FAULTS.md is stale: run check_faults.py --write")
    print(*problems, sep="\n", end="\n" if problems else "")
    print(f"faults: {len(rows)} tags, {sum(map(len, tests.values()))} tests, {len(problems)} problems")
    return 1 if problems or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
