"""Every source file and every test script is named in a meson.build: a test that no list names would
never run, and a file of the library that no list names would be missed only by whoever needs it.

Usage: check_lists.py CHECKOUT
"""

import re
import sys
from pathlib import Path

FOLDERS = ["src", "kernel_templates", "tools", "tests", "examples", "bench", "emulator"]
SOURCES = {".c", ".cpp", ".cu", ".cuh"}
SCRIPTS = re.compile(r"tests/(test|check)_\w+\.py$")
# tests/install holds sources of outside programs.
NOT_BUILT = re.compile(r"tests/install/")


def main():
    root = Path(sys.argv[1])
    named = set()
    for build_file in [root / "meson.build", *(f for d in FOLDERS for f in (root / d).rglob("meson.build"))]:
        named |= set(re.findall(r"'([^'\s]+)'", build_file.read_text(encoding="utf-8")))
    words = {Path(name).name for name in named}
    # A list may hold stems: 'launch' for test_launch.c, '01_own_template' for its .c.
    missing, count = [], 0
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            name = path.relative_to(root).as_posix()
            if NOT_BUILT.match(name) or not (path.suffix in SOURCES or SCRIPTS.match(name)):
                continue
            count += 1
            if not words & {path.name, path.stem, path.stem.removeprefix("test_")}:
                missing.append(name)
    print(*(f"{name} is in no meson.build" for name in missing), sep="\n", end="\n" if missing else "")
    print(f"lists: {count} sources, {len(missing)} missing")
    return 1 if missing or not count else 0


if __name__ == "__main__":
    sys.exit(main())
