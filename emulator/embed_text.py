"""Writes one C++ file that holds texts as strings.

    embed_text.py OUTPUT FILE... --digest SOURCE...

FILE prelude.h becomes `extern const char text_prelude[]`; `text_sources[]` is a digest of the
sources.
"""

import hashlib
import sys
from pathlib import Path


def main():
    mark = sys.argv.index("--digest")
    output, *inputs = map(Path, sys.argv[1:mark])
    digest = hashlib.sha256()
    for path in map(Path, sys.argv[mark + 1 :]):
        digest.update(path.read_bytes())
    parts = ["// Generated from emulator/device/: do not edit."]
    for path in inputs:
        text = path.read_text(encoding="ascii")
        lines = "\n".join(f'R"fajit({line}\n)fajit"' for line in text.split("\n"))
        parts.append(f"extern const char text_{path.stem}[];\nconst char text_{path.stem}[] =\n{lines};")
    parts.append(f'extern const char text_sources[];\nconst char text_sources[] = "{digest.hexdigest()}";')
    output.write_text("\n".join(parts) + "\n", encoding="ascii")


if __name__ == "__main__":
    sys.exit(main())
