"""Writes one C file that holds kernel templates and device headers as strings.

    embed.py OUTPUT TEMPLATE.cu... HEADER.cuh...

It defines what the end of src/op.h declares: fa__template_NAME for each template, and
fa__device_headers with each header under the name "fajit/NAME.cuh". Refuses a source that includes
anything else, because nothing else reaches the compiler at run time.
"""

import re
import sys
from pathlib import Path

SIMPLE = {ord("\\"): "\\\\", ord('"'): '\\"', ord("?"): "\\?", ord("\t"): "\\t"}


def literal(line):
    """A C string literal of these bytes: octal escapes never run into the next character, and no
    trigraph is left."""
    body = "".join(
        SIMPLE.get(b) or (chr(b) if 32 <= b < 127 else f"\\{b:03o}") for b in line
    )
    return f'    "{body}\\n"'


def definition(head, path):
    data = path.read_bytes()
    if b"\0" in data:
        raise ValueError(f"{path}: holds a NUL byte")
    lines = data.removesuffix(b"\n").split(b"\n")
    return f"{head} =\n" + "\n".join(map(literal, lines)) + ";\n"


def check_includes(path, headers):
    text = path.read_text(encoding="utf-8")
    for name in re.findall(r'^\s*#\s*include\s*[<"]([^>"]*)[>"]', text, re.MULTILINE):
        if name not in headers:
            known = ", ".join(sorted(headers)) or "none"
            raise ValueError(f"{path}: includes {name}, which is not a device header ({known})")


def render(templates, headers):
    names = {f"fajit/{path.name}" for path in headers}
    for path in (*templates, *headers):
        check_includes(path, names)
    parts = [
        "/* Generated from kernel_templates/: do not edit. */",
        '#include "op.h"\n',
        '#pragma GCC diagnostic ignored "-Woverlength-strings"\n',
    ]
    parts += [definition(f"const char fa__template_{path.stem}[]", path) for path in templates]
    parts += [definition(f"static const char header_{path.stem}[]", path) for path in headers]
    table = [f'    {{"fajit/{path.name}", header_{path.stem}}},' for path in headers]
    parts.append(
        "const fa__header_ref fa__device_headers[] = {\n"
        + "\n".join([*table, "    {0, 0},"])
        + f"\n}};\n\nconst size_t fa__device_header_count = {len(headers)};"
    )
    return "\n".join(parts) + "\n"


def main():
    output, *inputs = map(Path, sys.argv[1:])
    unknown = [path for path in inputs if path.suffix not in (".cu", ".cuh")]
    try:
        if unknown:
            raise ValueError(f"{unknown[0]}: neither a .cu template nor a .cuh header")
        text = render(
            [path for path in inputs if path.suffix == ".cu"],
            [path for path in inputs if path.suffix == ".cuh"],
        )
    except (OSError, ValueError) as problem:
        print(f"embed.py: {problem}", file=sys.stderr)
        return 1
    output.write_text(text, encoding="ascii")
    return 0


if __name__ == "__main__":
    sys.exit(main())
