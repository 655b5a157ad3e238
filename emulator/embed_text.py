"""Writes one C++ file that holds texts as strings.

    embed_text.py OUTPUT FILE...

FILE prelude.h becomes `extern const char text_prelude[]`.
"""

import sys
from pathlib import Path


def main():
    output, *inputs = map(Path, sys.argv[1:])
    parts = ["// Generated from emulator/device/: do not edit."]
    for path in inputs:
        text = path.read_text(encoding="ascii")
        lines = "\n".join(f'R"fajit({line}\n)fajit"' for line in text.split("\n"))
        parts.append(f"extern const char text_{path.stem}[];\nconst char text_{path.stem}[] =\n{lines};")
    output.write_text("\n".join(parts) + "\n", encoding="ascii")


if __name__ == "__main__":
    sys.exit(main())
