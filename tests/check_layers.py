"""Who may depend on whom in src/, as a check.

Usage: check_layers.py SOURCE_FOLDER

1. Each file of src/ belongs to one unit below. A unit includes its own headers and those of units
   in lower layers: never upward, never sideways.
2. Each outside interface belongs to one unit: the CUDA driver, NVRTC, the dynamic loader, files.
3. Nothing prints, ends the process or depends on the locale.
"""

import re
import sys
from pathlib import Path

# From the bottom up. A unit NAME is NAME.c and NAME.h; several files can make one unit.
LAYERS = [
    ["fajit"],
    ["status", "buf", "clock", "digest", "exit", "fork", "log", "template_text", "thread"],
    ["dynlib", "file", "json json_text", "pool", "compile_slots", "tensor", "ops/sizes"],
    ["op spec prologue", "entry"],
    ["arch", "key", "manifest manifest_template", "ops/params", "ops/rotary"],
    ["driver driver_impl driver_launch driver_load", "compiler compiler_find compiler_log", "ops/attention ops/attention_launch ops/attention_plan",
     "ops/kv_update ops/kv_update_arrays ops/kv_update_launch",
     "ops/linear ops/linear_cost ops/linear_launch ops/linear_layout ops/linear_plan", "ops/rope ops/rope_arrays ops/rope_launch", "ops/template"],
    ["ops/cross_attention ops/cross_attention_arrays ops/cross_attention_launch ops/cross_attention_plan",
     "ops/lowrank_kv ops/lowrank_kv_arrays ops/lowrank_kv_launch ops/lowrank_kv_plan ops/lowrank_kv_small"],
    ["cache cache_impl cache_dirs cache_lock cache_lru cache_visit"],
    ["kernel", "record"],
    ["kernels"],
    ["context"],
    ["compile", "load", "launch", "future", "info", "warm"],
]

# Outside headers -> the unit that owns them. Permission bits of <sys/stat.h> and <unistd.h> have uses
# elsewhere: there the calls below are watched.
OWNERS = {
    "cuda.h": "driver",
    "nvrtc.h": "compiler",
    "dlfcn.h": "dynlib",
    "link.h": "dynlib",
    "dirent.h": "file",
    "fcntl.h": "file",
    "sys/file.h": "file",
    "sys/mman.h": "file",
}
FILE_CALLS = (
    "open openat creat fopen freopen fdopen opendir fdopendir readdir closedir read pread write "
    "pwrite fread fwrite fsync fdatasync rename renameat link unlink unlinkat remove mkdir mkdirat "
    "mkstemp mkdtemp rmdir stat fstat lstat fstatat chmod fchmod truncate ftruncate flock lockf "
    "fcntl utime utimes futimens utimensat access faccessat mmap"
).split()
NOWHERE = (
    "printf vprintf fprintf vfprintf puts fputs putchar perror abort exit _exit quick_exit assert "
    "system popen setlocale localeconv strtod strtof strtold atof"
).split()


def code_of(path):
    """The text without comments, strings and character constants; line numbers are kept."""
    text = path.read_text(encoding="utf-8")
    blank = lambda m: re.sub(r"[^\n]", " ", m.group(0))  # noqa: E731
    return re.sub(
        r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', blank, text, flags=re.DOTALL
    )


def layers():
    """unit of each file stem, and level of each unit."""
    unit_of, level_of = {}, {}
    for level, row in enumerate(LAYERS):
        for names in row:
            unit = names.split()[0]
            level_of[unit] = level
            unit_of.update({name: unit for name in names.split()})
    return unit_of, level_of


def check_file(path, name, unit_of, level_of):
    stem = name.rsplit(".", 1)[0]
    unit = unit_of.get(stem)
    if unit is None:
        yield 1, f"{name} is in no layer: add it to LAYERS of {Path(__file__).name}"
        return
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        found = re.match(r'\s*#\s*include\s*([<"])([^>"]+)[>"]', line)
        if not found:
            continue
        quote, included = found.groups()
        owner = OWNERS.get(included)
        if owner and owner != unit:
            yield number, f"includes <{included}>, which belongs to {owner}"
        if quote == "<":
            continue
        target = unit_of.get(included.removeprefix("../").rsplit(".", 1)[0])
        if target is None:
            yield number, f'includes "{included}", which is in no layer'
        elif target != unit and level_of[target] >= level_of[unit]:
            yield number, f'includes "{included}" of {target}, which is not below {unit}'
    for number, line in enumerate(code_of(path).splitlines(), 1):
        for call in re.findall(r"(?<![\w.>])([a-z_]+)\s*\(", line):
            if call in NOWHERE:
                yield number, f"calls {call}, which the library never does"
            if call in FILE_CALLS and unit != "file":
                yield number, f"calls {call}, which belongs to file"


def main():
    source = Path(sys.argv[1])
    unit_of, level_of = layers()
    files = sorted(p for p in source.rglob("*.[ch]"))
    problems = []
    for path in files:
        name = path.relative_to(source).as_posix()
        problems += [f"src/{name}:{n}: {text}" for n, text in check_file(path, name, unit_of, level_of)]
    present = {p.relative_to(source).with_suffix("").as_posix() for p in files} | {"fajit"}
    problems += [f"LAYERS names {stem}, which does not exist" for stem in unit_of if stem not in present]
    if not files:
        problems.append(f"{source}: no sources")
    print(*problems, sep="\n", end="\n" if problems else "")
    print(f"layers: {len(files)} files, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
