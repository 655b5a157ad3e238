#!/usr/bin/env python3
"""Checks README.md and docs/ against the sources.

    check_docs.py [--root CHECKOUT] [--cc COMPILER] [--tool build/fajit]

- every status of fajit.h has a row in docs/errors.md, marked "reserved:" exactly when src/ never
  gives it, and every status named in a page exists
- every environment variable that src/ reads is documented, and every FAJIT_ name in a page is used
- every fa_ name in a page is in fajit.h or, for internals, in src/
- every `fajit` command in a code block is a command of the tool
- relative links lead to files, and their anchors to headings
- C blocks that begin with #include compile with --cc
Prints each problem as FILE:LINE: text and exits 1 when there is any.
"""

import argparse
import re
import shlex
import subprocess
import sys
from pathlib import Path


class Page:
    def __init__(self, root, path):
        self.name = str(path.relative_to(root))
        self.path = path
        self.text = path.read_text(encoding="utf-8")
        self.lines = self.text.splitlines()

    def anchors(self):
        headings = [line.lstrip("#").strip() for line in self.lines if re.match(r"#+ ", line)]
        return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}

    def code_blocks(self):
        """(first line number, language, lines) of fenced and of indented blocks."""
        block, start, fence = [], 0, None
        for number, line in enumerate([*self.lines, ""], 1):
            if fence is not None:
                if line.startswith("```"):
                    yield start, fence, block
                    block, fence = [], None
                else:
                    block.append(line)
            elif line.startswith("```"):
                fence, start, block = line[3:].strip(), number + 1, []
            elif line.startswith("    "):
                if not block:
                    start = number
                block.append(line[4:])
            elif block:
                yield start, "", block
                block = []


class Checker:
    def __init__(self, root, cc, tool):
        self.root, self.cc, self.tool = root, cc, tool
        self.header = (root / "include/fajit.h").read_text(encoding="utf-8")
        self.pages = [Page(root, p) for p in [root / "README.md", *sorted((root / "docs").glob("*.md"))]]
        self.problems, self.checked = [], {}

    def problem(self, where, text):
        self.problems.append(f"{where}: {text}")

    def count(self, what, number=1):
        self.checked[what] = self.checked.get(what, 0) + number

    def matches(self, pattern):
        for page in self.pages:
            for number, line in enumerate(page.lines, 1):
                for match in re.finditer(pattern, line):
                    yield f"{page.name}:{number}", match

    def sources(self, *folders):
        for folder in folders:
            for path in sorted((self.root / folder).rglob("*")):
                if path.is_file() and path.suffix in (".c", ".cpp", ".h", ".cu", ".cuh", ".py", ".sh", ""):
                    yield path.read_text(encoding="utf-8", errors="replace")

    def statuses(self):
        defined = set(re.findall(r"X\((FA_OK|FA_ERR_\w+), \d+,", self.header))
        given = set(re.findall(r"\bFA_ERR_\w+", "\n".join(self.sources("src"))))
        rows, reserved = set(), set()
        for page in self.pages:
            if page.name == "docs/errors.md":
                rows = set(re.findall(r"^\| `(FA_\w+)` \|", page.text, re.M))
                reserved = set(re.findall(r"^\| `(FA_\w+)` \|.*\| reserved: ", page.text, re.M))
        for name in sorted(defined - rows):
            self.problem("docs/errors.md", f"no row for {name}")
        for name in sorted(reserved & given):
            self.problem("docs/errors.md", f"{name} is marked as reserved, but src/ gives it")
        for name in sorted(defined - given - reserved - {"FA_OK"}):
            self.problem("docs/errors.md", f"{name} is not marked as reserved, but src/ never gives it")
        for where, match in self.matches(r"\bFA_ERR_\w+"):
            if match.group() not in defined:
                self.problem(where, f"{match.group()} is no status")
        self.count("statuses", len(defined))

    def variables(self):
        read = set()
        for text in self.sources("src"):
            read |= set(re.findall(r'getenv\(\s*"(\w+)"', text))
            read |= set(re.findall(r'"(FAJIT_[A-Z_]+|[A-Z]+_HOME|CUDA_PATH|HOME)"', text))
        pages = "\n".join(page.text for page in self.pages)
        for name in sorted(read):
            if not re.search(rf"`{name}`", pages):
                self.problem("src", f"environment variable {name} is not documented")
        used = set()
        for text in self.sources("src", "tools", "scripts", "tests", "bench", "emulator"):
            used |= set(re.findall(r"\bFAJIT_[A-Z_]+\b", text))
        for where, match in self.matches(r"\bFAJIT_[A-Z_]+\b"):
            if match.group() not in used:
                self.problem(where, f"nothing uses {match.group()}")
        self.count("environment variables", len(read))

    def names(self):
        public = set(re.findall(r"\b(?:fa_\w+|FA_\w+)\b", self.header))
        internal = set(re.findall(r"\bfa__?\w+\b", "\n".join(self.sources("src", "tests/oracle"))))
        for where, match in self.matches(r"(?<![\w/.-])(fa_[a-z_]*[a-z]\w*|FA_[A-Z]\w*)(?![\w*])"):
            if match.group(1) not in public | internal:
                self.problem(where, f"{match.group(1)} is neither in fajit.h nor in src/")
            self.count("names")

    def commands(self):
        known = self.tool_commands()
        for page in self.pages:
            for start, _, block in page.code_blocks():
                for offset, line in enumerate(block):
                    match = re.match(r"(?:\w+=\S+ +)*(?:\S*/)?fajit +([a-z]+)(?: +([a-z]+))?", line)
                    if match:
                        self.command(f"{page.name}:{start + offset}", known, *match.groups())
        for where, match in self.matches(r"`(?:build/)?fajit ([a-z]+)(?: ([a-z]+))?"):
            self.command(where, known, *match.groups())

    def command(self, where, known, name, sub):
        self.count("commands")
        if name not in known:
            self.problem(where, f"'fajit {name}' is no command of the tool")
        elif known[name] and sub and sub not in known[name]:
            self.problem(where, f"'fajit {name} {sub}' is no command of the tool")

    def tool_commands(self):
        """The commands of the tool's own help, each with its fixed operands ("list|size")."""
        if not self.tool:
            return self.source_commands()
        out = subprocess.run([self.tool, "--help"], capture_output=True, text=True, check=False)
        if out.returncode != 0:
            self.problem(self.tool, f"--help exits {out.returncode}")
        return self.rows(re.findall(r"^  ([a-z]+) +(\S+)", out.stdout, re.M))

    def source_commands(self):
        """The same from the table in the tool's source."""
        table = (self.root / "tools/cli_commands.c").read_text(encoding="utf-8")
        return self.rows(re.findall(r'^    \{"([a-z]+)", "([^" ]*)', table, re.M))

    @staticmethod
    def rows(found):
        return {name: set(operand.split("|")) if "|" in operand else set() for name, operand in found}

    def links(self):
        anchors = {page.path.resolve(): page.anchors() for page in self.pages}
        for page in self.pages:
            for match in re.finditer(r"\]\(([^)\s]+)\)", page.text):
                where = f"{page.name}:{page.text.count(chr(10), 0, match.start()) + 1}"
                target, _, anchor = match.group(1).partition("#")
                if "://" in target:
                    continue
                path = (page.path.parent / target).resolve() if target else page.path.resolve()
                if not path.exists():
                    self.problem(where, f"{target} does not exist")
                elif anchor and anchor not in anchors.get(path, set()):
                    self.problem(where, f"no heading #{anchor} in {target or page.name}")
                self.count("links")

    def compile_blocks(self):
        if not self.cc:
            return
        for page in self.pages:
            for start, language, block in page.code_blocks():
                if language != "c" or not block or not block[0].startswith("#include"):
                    continue
                flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-xc", "-"]
                run = subprocess.run(
                    [*shlex.split(self.cc), f"-I{self.root / 'include'}", *flags],
                    input="\n".join(block) + "\n", capture_output=True, text=True, check=False)
                if run.returncode != 0:
                    self.problem(f"{page.name}:{start}", f"does not compile\n{run.stderr}")
                self.count("C blocks")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    parser.add_argument("--cc", default="", help="compiler for the C blocks")
    parser.add_argument("--tool", default="", help="the built fajit, asked for its commands")
    options = parser.parse_args()
    checker = Checker(options.root.resolve(), options.cc, options.tool)
    for check in (checker.statuses, checker.variables, checker.names, checker.commands,
                  checker.links, checker.compile_blocks):
        check()
    print("\n".join(checker.problems) if checker.problems else
          "checked " + ", ".join(f"{n} {what}" for what, n in checker.checked.items()))
    nothing = [what for what in ("statuses", "environment variables", "names", "commands", "links")
               if not checker.checked.get(what)]
    if nothing:
        print(f"found nothing to check for: {', '.join(nothing)}")
    return 1 if checker.problems or nothing else 0


if __name__ == "__main__":
    sys.exit(main())
