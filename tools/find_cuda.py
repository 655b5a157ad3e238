"""Finds the CUDA headers to build with, and the NVRTC library to test with.

Prints three lines: the include folders (';' between them), the CUDA version of cuda.h, and the path
of libnvrtc or an empty line. Looks at --root alone when it is given, else at CUDA_HOME, CUDA_PATH,
/usr/local/cuda, /opt/cuda, /usr and the .deps/cuda folder that scripts/setup fills.

FAJIT_SETUP_IGNORE_TOOLKIT=1 hides every toolkit, which lets the wheels' path be tested on a machine
that has one.
"""

import argparse
import os
import re
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
OLDEST = 12000  # of cuda.h, as CUDA_VERSION
REMEDY = (
    "Run scripts/setup, which fetches what is missing into .deps/; or install a CUDA Toolkit "
    "(12.0 or newer); or name the folder of one with -Dcuda-root=FOLDER or CUDA_HOME."
)


def layouts(root):
    """(folders with headers, folders with libraries) of each way in which CUDA is laid out."""
    yield [root / "include"], [
        *(root / name for name in ("lib64", "lib")),
        *sorted((root / "lib").glob("*-linux-gnu")),
        *sorted((root / "targets").glob("*/lib")),
    ]
    for unified in sorted((root / "nvidia").glob("cu[0-9]*"), reverse=True):
        yield [unified / "include"], [unified / "lib"]
    split = [root / "nvidia" / part for part in ("cuda_runtime", "cuda_nvrtc")]
    yield [part / "include" for part in split], [part / "lib" for part in split]


def header_version(folders):
    for folder in folders:
        header = folder / "cuda.h"
        if header.is_file():
            found = re.search(r"#define\s+CUDA_VERSION\s+(\d+)", header.read_text(errors="replace"))
            return int(found.group(1)) if found else 0
    return 0


def nvrtc_library(folders):
    for folder in folders:
        for name in ("libnvrtc.so.13", "libnvrtc.so.12"):
            if (folder / name).is_file():
                return str(folder / name)
    return ""


def look(root, notes):
    """The three answers for `root`, or None after adding to `notes` what it lacks."""
    reason = "no cuda.h and nvrtc.h"
    for includes, libraries in layouts(root):
        missing = [h for h in ("cuda.h", "nvrtc.h") if not any((i / h).is_file() for i in includes)]
        version = header_version(includes)
        if missing:
            if len(missing) == 1:
                reason = f"no {missing[0]}"
            continue
        if version < OLDEST:
            reason = f"its cuda.h is of CUDA {version // 1000}.{version % 1000 // 10}, older than 12.0"
            continue
        return includes, f"{version // 1000}.{version % 1000 // 10}", nvrtc_library(libraries)
    notes.append(f"  {root}: {reason}")
    return None


def candidates(given):
    if given:
        return [Path(given).expanduser()]
    deps = CHECKOUT / ".deps" / "cuda"
    if os.environ.get("FAJIT_SETUP_IGNORE_TOOLKIT") == "1":
        return [deps]
    named = [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    return [Path(p) for p in (*named, "/usr/local/cuda", "/opt/cuda", "/usr")] + [deps]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", default="", help="look here alone")
    parser.add_argument("--print", choices=("all", "root", "nvrtc"), default="all", dest="what")
    options = parser.parse_args()
    notes = []
    for root in candidates(options.root):
        found = look(root, notes)
        if found:
            includes, version, nvrtc = found
            every = [";".join(map(str, includes)), version, nvrtc]
            print({"all": "\n".join(every), "root": str(root), "nvrtc": nvrtc}[options.what])
            return 0
    looked = "\n".join(notes)
    print(f"The CUDA headers cuda.h and nvrtc.h were not found. Looked at:\n{looked}\n{REMEDY}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
