"""The shared library shows exactly the functions that the header declares, and loads with exactly
the libraries that it promises.

Usage: check_symbols.py LIBRARY HEADER
"""

import re
import subprocess
import sys
from pathlib import Path

ALLOWED_LIBRARIES = re.compile(
    r"lib(c|dl|pthread|xxhash|m|gcc_s|asan|tsan|ubsan|lsan)\.so|ld-linux|linux-vdso"
)


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main():
    library, header = sys.argv[1:]
    text = re.sub(r"/\*.*?\*/", "", Path(header).read_text(encoding="utf-8"), flags=re.DOTALL)
    declared = set(re.findall(r"\bFA_API\b[^;]*?\b(fa_\w+)\s*\(", text))
    rows = [line.split() for line in run("nm", "-D", "--defined-only", library).splitlines()]
    # Sanitizers add symbols of their own, which no version script covers.
    shown = {
        row[2].split("@")[0]
        for row in rows
        if row[1] != "A" and not row[2].startswith(("__asan", "__ubsan", "__tsan", "__odr_asan"))
    }
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", run("readelf", "-d", library))
    problems = [f"declared but not exported: {name}" for name in sorted(declared - shown)]
    problems += [f"exported but not declared: {name}" for name in sorted(shown - declared)]
    problems += [f"needs {name} to load" for name in needed if not ALLOWED_LIBRARIES.match(name)]
    if not declared:
        problems.append(f"{header}: no FA_API function found")
    print(*problems, sep="\n", end="\n" if problems else "")
    print(f"symbols: {len(declared)} declared, {len(shown)} exported, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
