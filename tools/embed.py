"""Writes one C file that holds kernel templates and device headers as strings.

    embed.py OUTPUT TEMPLATE.cu... HEADER.cuh...

It defines what the end of src/op.h declares: fa__template_NAME for each template, with the headers
that it includes and those that they include, and fa__device_headers with all, each under the name
"fajit/NAME.cuh". Refuses a source that includes anything else, because nothing else reaches the
compiler at run time.
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


def included(path, headers):
    """The headers that a source includes itself."""
    text = path.read_text(encoding="utf-8")
    names = re.findall(r'^\s*#\s*include\s*[<"]([^>"]*)[>"]', text, re.MULTILINE)
    for name in names:
        if name not in headers:
            known = ", ".join(sorted(headers)) or "none"
            raise ValueError(f"{path}: includes {name}, which is not a device header ({known})")
    return {headers[name] for name in names}


def reachable(path, headers):
    """Those, and the ones that they include, sorted."""
    found, left = set(), [path]
    while left:
        new = included(left.pop(), headers) - found
        found |= new
        left += new
    return sorted(found)


def header_table(head, headers):
    rows = [f'    {{"fajit/{path.name}", header_{path.stem}}},' for path in headers]
    return "\n".join([f"{head} = {{", *rows, "    {0, 0},", "};\n"])


def template(path, headers):
    own, name = reachable(path, headers), path.stem
    return (
        definition(f"static const char template_{name}[]", path)
        + header_table(f"static const fa__header_ref headers_{name}[]", own)
        + f"const fa__embedded fa__template_{name} = {{\n"
        + f'    "{path.name}", template_{name}, headers_{name}, {len(own)}}};\n'
    )


def render(templates, headers):
    by_name = {f"fajit/{path.name}": path for path in headers}
    for path in headers:
        included(path, by_name)
    parts = [
        "/* Generated from kernel_templates/: do not edit. */",
        '#include "op.h"\n',
        '#pragma GCC diagnostic ignored "-Woverlength-strings"\n',
    ]
    parts += [definition(f"static const char header_{path.stem}[]", path) for path in headers]
    parts += [template(path, by_name) for path in templates]
    parts.append(header_table("const fa__header_ref fa__device_headers[]", headers))
    parts.append(f"const size_t fa__device_header_count = {len(headers)};")
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
