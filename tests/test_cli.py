#!/usr/bin/env python3
"""Drives the built command-line tool. Usage: test_cli.py [FAJIT [NAME_PART]]

The tool is the first argument, else FAJIT_TEST_TOOL. Prints TAP; a case that needs NVRTC or the
look-alikes of the CUDA libraries (FAJIT_TEST_FAKES) reports a skip without them, and so does one
that needs the emulator where the build says that there is none (FAJIT_TEST_EMULATOR: none, plain,
or sanitized).
"""

import contextlib
import json
import os
import pty
import re
import shutil
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

TOOL = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("FAJIT_TEST_TOOL", "")
TOOL = TOOL and os.path.abspath(TOOL)  # cases run in folders of their own
ROOT = Path(__file__).resolve().parent.parent
CASES = []
KERNEL = """
#include "helper.cuh"
extern "C" __global__ void scale(float *x)
{
    long long i = blockIdx.x * 64ll + threadIdx.x;
    if (i < N)
        x[i] = helper(x[i]) * float(S);
}
"""


class Skip(Exception):
    pass


def case(function):
    CASES.append(function)
    return function


class Result:
    def __init__(self, done):
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr

    def __str__(self):
        return f"exit {self.code}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"

    @property
    def json(self):
        return json.loads(self.out)


class Room:
    """A folder for one case, with a cache of its own and no device unless asked for."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.cache = self.folder / "cache"
        self.env = dict(os.environ)
        for name in ("FAJIT_CACHE_PATH", "FAJIT_CACHE_MAX_BYTES", "CUDA_VISIBLE_DEVICES"):
            self.env.pop(name, None)
        self.env["FAJIT_CACHE_DIR"] = str(self.cache)
        self.env["FAJIT_CUDA_LIBRARY"] = str(self.folder / "no-driver.so")

    def run(self, *args, code=None, env=None, **more):
        done = subprocess.run(
            [TOOL, *map(str, args)], env={**self.env, **(env or {})}, cwd=self.folder,
            stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", timeout=110, **more)
        result = Result(done)
        if code is not None:
            assert result.code == code, f"fajit {' '.join(map(str, args))}: wanted exit {code}, {result}"
        for line in result.err.splitlines()[:1]:
            assert line.startswith("fajit: "), f"stderr without its prefix: {result}"
        return result

    def write(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def emulate(self, *args, **more):
        """With a kernel that runs so briefly that to optimize it takes longer than to run it."""
        compiler = os.environ.get("CXX") or ("clang++" if shutil.which("clang++") else "g++")
        return self.run(*args, "--emulate", env={"CXX": compiler + " -O0"}, **more)

    def needs_nvrtc(self):
        nvrtc = self.run("info", "--json", code=0).json["nvrtc"]
        if not nvrtc["found"]:
            raise Skip("no NVRTC: " + nvrtc["error"].splitlines()[0])

    def kernel(self):
        self.write("scale.cu", KERNEL)
        self.write("helper.cuh", "__device__ float helper(float x) { return x + 1; }\n")
        return ["template", "file=scale.cu", "header=helper.cuh", "entry=scale", "const.N=100",
                "const.S=2.5"]


def needs_emulator():
    said = os.environ.get("FAJIT_TEST_EMULATOR")
    beside = Path(TOOL).parent / "emulator" / "libfajit-emu-cuda.so"
    if said == "none" or (not said and not beside.exists()):
        raise Skip("built without the emulator")


def fake(name):
    folder = Path(os.environ.get("FAJIT_TEST_FAKES", "/nonexistent"))
    found = sorted(folder.glob(f"*{name}*.so*"))
    if not found:
        raise Skip("FAJIT_TEST_FAKES does not lead to the look-alikes")
    return str(found[0])


# --- the command line ---


@case
def version_and_help(r):
    out = r.run("--version", code=0).out
    assert re.fullmatch(r"fajit \d+\.\d+\.\d+\n", out), out
    top = r.run("--help", code=0).out
    commands = re.findall(r"^  (\w+) ", top, re.MULTILINE)
    assert commands == ["info", "ops", "compile", "verify", "bench", "source", "ptx", "sass", "warm",
                        "cache", "help"], commands
    for command in commands:
        for flag in ("--help", "-h"):
            text = r.run(command, flag, code=0).out
            assert text.startswith(f"Usage: fajit {command}") and "--json" in text, text
    assert "0 success, 1 failure" in " ".join(top.split())
    assert r.run("help", code=0).out == top
    assert r.run("help", "warm", code=0).out == r.run("warm", "--help", code=0).out
    assert "no command 'frob'" in r.run("help", "frob", code=2).err
    assert "one command" in r.run("help", "warm", "cache", code=2).err


@case
def usage_errors_exit_2(r):
    for args, words in [
        ((), "no command"),
        (("frobnicate",), "no command 'frobnicate'"),
        (("info", "--frob"), "no option '--frob'"),
        (("info", "-x"), "no option '-x'"),
        (("info", "extra"), "no operands"),
        (("info", "--seeds", "3"), "info has no option --seeds"),
        (("compile", "rope", "--yes"), "compile has no option --yes"),
        (("compile", "--arch"), "needs a value"),
        (("compile",), "needs an operation"),
        (("compile", "ropes"), "no operation 'ropes'; there are: template, rope"),
        (("compile", "rope", "head_dim"), "'head_dim' is not key=value"),
        (("compile", "rope", "=4"), "is not key=value"),
        (("compile", "rope", "frob=4"), "frob"),
        (("compile", "rope", "dtype=f64"), "f32, f16, bf16"),
        (("compile", "rope", "D=64", "head_dim=64"), "head_dim is given twice"),
        (("compile", "rope", "D=1e2"), "1e2"),
        (("compile", "rope", "N=99999999999"), "99999999999"),
        (("compile", "rope", "scaling=su"), "linear, ntk, dynamic_ntk, yarn, llama3"),
        (("compile", "rope", "factor=0.5"), "1 to 1000000"),
        (("verify", "rope", "--seeds", "0"), "--seeds takes a number from 1"),
        (("verify", "rope", "--seeds", "3x"), "--seeds takes a number"),
        (("verify", "template"), "no reference"),
        (("verify", "rope", "--dynamic=Q"), "'Q' is no dimension"),
        (("verify", "rope", "--dynamic=dtype"), "'dtype' is no dimension"),
        (("warm",), "warm needs one manifest"),
        (("cache",), "list, verify, size, clear, path"),
        (("cache", "frob"), "list, verify, size, clear, path"),
        (("ops", "frob"), "no operation 'frob'"),
        (("info", "--verbose=3"), "option '--verbose' takes no value"),
    ]:
        result = r.run(*args, code=2)
        assert words in result.err, f"{args}: wanted '{words}' in {result}"
        assert result.out == "", result
        for with_json in ((*args, "--json"), ("--json", *args)):
            if with_json[-2:] == ("--arch", "--json"):
                continue  # it is the architecture there
            found = r.run(*with_json, code=2).json
            assert set(found) == {"status", "error"} and found["status"] == "usage", found
            assert words in found["error"], f"{with_json}: wanted '{words}' in {found}"


@case
def a_misspelt_name_is_corrected(r):
    for args, meant in [
        (("comple",), "compile"),
        (("help", "comp"), "compile"),
        (("cache", "lst"), "list"),
        (("info", "--devcie=1"), "--device"),
        (("compile", "rpoe"), "rope"),
        (("compile", "rope", "headdim=64"), "head_dim"),
        (("compile", "template", "flie=k.cu"), "file"),
    ]:
        result = r.run(*args, code=2)
        assert f"did you mean '{meant}'?" in result.err, f"{args}: wanted '{meant}' in {result}"
    for args in (("frobnicate",), ("cache", "frob"), ("info", "--frob"), ("compile", "frob"),
                 ("compile", "rope", "frob=4"), ("compile", "template", "frob=4")):
        assert "did you mean" not in r.run(*args, code=2).err, args


@case
def ops_come_from_the_tables(r):
    assert [o["op"] for o in r.run("ops", "--json", code=0).json][:2] == ["template", "rope"]
    rope = {p["key"]: p for p in r.run("ops", "rope", "--json", code=0).json}
    assert rope["dtype"]["values"] == "f32|f16|bf16"
    assert rope["head_dim"]["alias"] == "D" and rope["head_dim"]["dynamic"] is True
    assert rope["head_dim"]["values"] == "2..1024"
    assert {rope[k]["alias"] for k in ("batch", "heads_q", "heads_k", "seqlen")} == set("BHGN")
    lines = r.run("ops", "rope", code=0).out.splitlines()
    assert lines[0].split()[:2] == ["key", "alias"]
    assert [line.split()[0] for line in lines[1:]] == list(rope)
    assert "const.NAME" in r.run("ops", "template", code=0).out


# --- surroundings ---


@case
def info_without_a_driver(r):
    info = r.run("info", "--json", code=0).json
    assert info["version"] in r.run("--version").out
    assert info["devices"] == [] and info["driver"]["found"] is False
    assert "no-driver.so" in info["driver"]["error"]
    assert info["cache"]["dir"] == str(r.cache)
    text = r.run("info", code=0).out
    assert "not usable" in text and str(r.cache) in text


@case
def info_without_nvrtc(r):
    missing = str(r.folder / "no-nvrtc.so")
    info = r.run("info", "--json", code=0, env={"FAJIT_NVRTC_LIBRARY": missing}).json
    assert info["nvrtc"]["found"] is False and "no-nvrtc.so" in info["nvrtc"]["error"]
    done = r.run("compile", *r.kernel(), "--arch", "sm_80", code=1,
                 env={"FAJIT_NVRTC_LIBRARY": missing})
    assert "FA_ERR_NVRTC_MISSING" in done.err and "no-nvrtc.so" in done.err and done.out == ""


@case
def info_lists_devices(r):
    env = {"FAJIT_CUDA_LIBRARY": fake("cuda"), "FAKE_DEVICES": "90,80"}
    info = r.run("info", "--json", code=0, env=env).json
    assert info["driver"]["found"] is True, info
    assert [d["arch"] for d in info["devices"]] == ["sm_90a", "sm_80"], info
    assert info["devices"][0]["multiprocessors"] > 0
    assert "sm_90a" in r.run("info", code=0, env=env).out


@case
def no_device_exits_3(r):
    result = r.run("compile", *r.kernel(), code=3)
    assert "FA_ERR_CUDA_MISSING" in result.err and "--arch" in result.err and result.out == ""
    found = r.run("compile", *r.kernel(), "--json", code=3).json
    assert set(found) == {"status", "error"} and found["status"] == "FA_ERR_CUDA_MISSING", found
    for command in ("verify", "bench"):
        result = r.run(command, "rope", "D=64", code=3)
        assert "needs a CUDA device" in result.err and result.out == "", result
        found = r.run(command, "rope", "D=64", "--json", code=3).json
        assert found["status"] == "FA_ERR_NO_DEVICE" and "CUDA device" in found["error"], found


@case
def cache_path_names_every_layer(r):
    layer = r.folder / "read only layer"
    layer.mkdir()
    layer.chmod(0o755)
    env = {"FAJIT_CACHE_PATH": str(layer)}
    assert r.run("cache", "path", code=0, env=env).out.splitlines() == [str(layer), str(r.cache)]
    found = r.run("cache", "path", "--json", code=0, env=env).json
    assert found == {"path": str(layer), "dir": str(r.cache), "error": ""}
    other = r.folder / "other"
    assert r.run("cache", "path", "--cache-dir", other, code=0).out == f"{other}\n"
    result = r.run("cache", "path", "--no-cache", code=0)
    assert result.out == "" and "no writable cache directory" in result.err
    assert "--no-cache" in result.err and "no_disk_cache" not in result.err
    for command in (("cache", "path"), ("info",)):
        found = r.run(*command, "--no-cache", "--json", code=0).json
        found = found.get("cache", found)
        assert "--no-cache" in found["error"] and "no_disk_cache" not in found["error"], found


@case
def a_bad_cache_directory_is_told_once(r):
    bad = r.folder / "everybody's"
    bad.mkdir()
    bad.chmod(0o777)
    for args, named, other, env in [
        (["--cache-dir", bad], "--cache-dir", "FAJIT_CACHE_DIR", {}),
        ([], "FAJIT_CACHE_DIR", "--cache-dir", {"FAJIT_CACHE_DIR": str(bad)}),
    ]:
        for command in (("cache", "path"), ("cache", "size"), ("info",)):
            result = r.run(*command, *args, code=0, env=env)
            everything = result.out + result.err
            assert everything.count("can be written by other users") == 1, result
            assert named in everything and other not in everything, result
    # What is not the reason is still told.
    layer = {"FAJIT_CACHE_PATH": str(r.folder / "nowhere")}
    assert "nowhere" in r.run("cache", "path", "--cache-dir", bad, code=0, env=layer).err


@case
def an_empty_cache(r):
    assert r.run("cache", "list", "--json", code=0).json == []
    assert r.run("cache", "size", "--json", code=0).json == {"entries": 0, "bytes": 0}
    assert r.run("cache", "verify", "--json", code=0).json == []
    assert not r.cache.exists(), "looking made a cache directory"


# --- template kernels ---


@case
def source_needs_neither_nvrtc_nor_a_device(r):
    env = {"FAJIT_NVRTC_LIBRARY": str(r.folder / "none.so")}
    text = r.run("source", *r.kernel(), "--arch", "sm_80", code=0, env=env).out
    assert KERNEL in text and re.search(r"\bN = 100\b", text), text
    found = r.run("source", *r.kernel(), "--arch", "sm_80", "--arch", "sm_90a", "--json", code=0,
                  env=env).json
    assert [f["arch"] for f in found] == ["sm_80", "sm_90a"] and KERNEL in found[0]["source"]
    assert r.run("source", *r.kernel(), code=0, env=env).out == text
    found = r.run("source", *r.kernel(), "--json", code=0, env=env).json
    assert [f["arch"] for f in found] == [""] and found[0]["source"] == text
    refused = r.run("source", "rope", "D=64", "R=128", "--json", code=1, env=env).json
    assert refused["status"] == "FA_ERR_ROTARY_DIM", refused
    for command in ("ptx", "sass"):
        assert "--arch" in r.run(command, *r.kernel(), code=3).err


@case
def constants_keep_their_types(r):
    text = r.run("source", *r.kernel(), "const.B=true", "const.T=dtype:bf16", "const.I=id:foo",
                 "const.F=float:3", "const.M=-9223372036854775808", "const.K=int:7",
                 "--arch", "sm_80", code=0).out
    prologue = text[:text.index(KERNEL)]
    for pattern in (r"bool B = true", r"\bT\b.*bf16", r"\bI\b.*foo", r"double F = 0x1\.8p\+1",
                    r"\bK = 7", r"9223372036854775807"):
        assert re.search(pattern, prologue), f"{pattern} not in {prologue}"
    for value in ("9223372036854775808", "1e999", "0x10", "int:1.5", "dtype:f64", "nan", "", "x y"):
        r.run("source", *r.kernel(), f"const.V={value}", "--arch", "sm_80", code=2)
    assert "FA_ERR_CONSTANT" in r.run("source", *r.kernel(), "const.V=id:a;b", "--arch", "sm_80",
                                      code=1).err


@case
def template_files_are_checked(r):
    kernel = r.kernel()
    result = r.run("compile", "template", "file=nowhere.cu", "entry=k", "--arch", "sm_80", "--json",
                   code=1)
    assert "nowhere.cu" in result.err and "nowhere.cu" in result.json["error"], result
    assert result.json["status"] == "FA_ERR_IO", result
    (r.folder / "nul.cu").write_bytes(b"int x;\0int y;")
    assert "NUL" in r.run("compile", "template", "file=nul.cu", "entry=k", "--arch", "sm_80",
                          code=1).err
    assert "needs file=PATH" in r.run("compile", "template", "entry=k", code=2).err
    assert "needs entry=NAME" in r.run("compile", "template", "file=scale.cu", code=2).err
    assert "no key 'frob'" in r.run("compile", *kernel, "frob=1", code=2).err
    assert "file is given twice" in r.run("compile", *kernel, "file=scale.cu", code=2).err
    for cluster in ("1,2", "1,2,3,4", "a,b,c", "1,,2"):
        r.run("compile", *kernel, f"cluster={cluster}", code=2)


@case
def compile_then_disk(r):
    r.needs_nvrtc()
    kernel = r.kernel()
    first = r.run("compile", *kernel, "--arch", "sm_80", "--arch", "sm_90a", "--json", code=0).json
    assert [f["arch"] for f in first] == ["sm_80", "sm_90a"]
    for f in first:
        assert list(f) == ["name", "origin", "compile_ms", "registers", "spill_bytes", "smem_bytes",
                           "cubin_bytes", "arch", "plan"], f
        assert f["origin"] == "compiled" and f["compile_ms"] > 0 and f["registers"] > 0
        assert f["spill_bytes"] == 0 and f["cubin_bytes"] > 500 and "scale" in f["name"]
    second = r.run("compile", *kernel, "--arch", "sm_80", "--json", code=0).json
    assert second[0]["origin"] == "disk" and second[0]["cubin_bytes"] == first[0]["cubin_bytes"]
    text = r.run("compile", *kernel, "--arch", "sm_80", code=0).out.splitlines()
    assert [*text[0].split(), "plan"] == list(first[0]) and "disk" in text[1]
    assert text[2:] == ["", "plan on sm_80: grid and block given at launch"], text
    changed = r.run("compile", *kernel[:-1], "const.S=2.75", "--arch", "sm_80", "--json", code=0)
    assert changed.json[0]["origin"] == "compiled"
    uncached = r.run("compile", *kernel, "--arch", "sm_80", "--no-cache", "--json", code=0)
    assert uncached.json[0]["origin"] == "compiled"


@case
def headers_by_name(r):
    r.needs_nvrtc()
    r.write("deep/place/h.txt", "__device__ float helper(float x) { return x; }\n")
    r.write("k.cu", KERNEL.replace("helper.cuh", "lib/helper.cuh"))
    r.run("compile", "template", "file=k.cu", "header.lib/helper.cuh=deep/place/h.txt",
          "entry=scale", "const.N=1", "const.S=1.0", "--arch", "sm_80", code=0)


@case
def compile_errors_carry_the_log(r):
    r.needs_nvrtc()
    r.write("bad.cu", 'extern "C" __global__ void k() { undeclared = 1; }\n')
    result = r.run("compile", "template", "file=bad.cu", "entry=k", "--arch", "sm_80", code=1)
    assert "FA_ERR_COMPILE" in result.err and "bad.cu(1)" in result.err and result.out == ""
    assert "undeclared" in result.err
    assert r.run("cache", "size", "--json", code=0).json["entries"] == 0
    found = r.run("compile", "template", "file=bad.cu", "entry=k", "--arch", "sm_80", "--arch",
                  "sm_86", "--json", code=1).json
    assert [(k["arch"], k["status"]) for k in found] == [
        ("sm_80", "FA_ERR_COMPILE"), ("sm_86", "FA_ERR_COMPILE")], found
    assert all("bad.cu(1)" in k["error"] and len(k) == 3 for k in found), found


@case
def json_has_an_element_for_each_architecture(r):
    r.needs_nvrtc()
    named = ["--arch", "sm_12", "--arch", "sm_80", "--arch", "sm_13", "--json"]
    for command in ("compile", "ptx", "source", "warm"):
        operands = r.kernel()
        if command == "warm":
            operands = [manifest(r, {"op": "rope", "head_dim": 64})]
        result = r.run(command, *operands, *named, code=1)
        found = result.json
        assert [k["arch"] for k in found] == ["sm_12", "sm_80", "sm_13"], result
        for k in (found[0], found[2]):
            assert set(k) == {"arch", "status", "error"} and k["status"] == "FA_ERR_ARCH", k
            assert k["arch"] in k["error"], k
        assert "error" not in found[1] and result.err.count("FA_ERR_ARCH") == 2, result


@case
def ptx(r):
    r.needs_nvrtc()
    text = r.run("ptx", *r.kernel(), "--arch", "sm_80", code=0).out
    assert ".target sm_80" in text and ".entry scale" in text


@case
def sass_runs_the_disassembler_without_a_shell(r):
    r.needs_nvrtc()
    tools = r.folder / "bin with space"
    tools.mkdir()
    script = tools / "nvdisasm"
    script.write_text('#!/bin/sh\necho "args: $1"\nhead -c 4 "$2"\necho\necho "file: $2"\n')
    script.chmod(0o755)
    env = {"PATH": f"{tools}:{os.environ.get('PATH', '')}", "TMPDIR": str(r.folder)}
    out = r.run("sass", *r.kernel(), "--arch", "sm_80", code=0, env=env).out
    assert "args: -c" in out and "ELF" in out, out
    path = re.search(r"file: (.*)", out).group(1)
    assert path.endswith(".cubin") and not Path(path).exists(), "the temporary file stays"
    script.write_text("#!/bin/sh\nexit 5\n")
    result = r.run("sass", *r.kernel(), "--arch", "sm_80", code=1, env=env)
    assert "exit code 5" in result.err
    result = r.run("sass", *r.kernel(), "--arch", "sm_80", "--json", code=1, env=env)
    assert result.json[0]["status"] == "failed" and "exit code 5" in result.json[0]["error"]
    assert not list(r.folder.glob("fajit-*.cubin"))


@case
def the_log_goes_to_stderr(r):
    r.needs_nvrtc()
    quiet = r.run("compile", *r.kernel(), "--arch", "sm_80", "--json", code=0)
    assert quiet.err == ""
    loud = r.run("compile", *r.kernel(), "--arch", "sm_80", "--json", "-vv", code=0)
    assert loud.err and loud.json[0]["origin"] == "disk"
    assert all(line.startswith("fajit: ") for line in loud.err.splitlines()), loud


# --- rope ---


@case
def rope_compiles_by_names_and_aliases(r):
    r.needs_nvrtc()
    by_name = r.run("compile", "rope", "dtype=f32", "head_dim=64", "style=half", "batch=4",
                    "heads_q=8", "seqlen=256", "--arch", "sm_90a", "--json", code=0).json
    by_alias = r.run("compile", "rope", "D=64", "B=4", "H=8", "N=256", "--arch", "sm_90a", "--json",
                     code=0).json
    assert by_name[0]["origin"] == "compiled" and by_alias[0]["origin"] == "disk"
    assert by_name[0]["spill_bytes"] == 0 and by_name[0]["name"] == by_alias[0]["name"]
    refused = r.run("compile", "rope", "D=64", "R=128", "--arch", "sm_90a", code=1)
    assert "FA_ERR_ROTARY_DIM" in refused.err
    scaled = r.run("source", "rope", "D=64", "scaling=yarn", "factor=16", "original_max_position=4096",
                   "--arch", "sm_90a", code=0).out
    assert "SCALING = 4;" in scaled and "ATTENTION_FACTOR = 0x1.46fa" in scaled, scaled[:2000]
    refused = r.run("compile", "rope", "D=64", "scaling=yarn", "--arch", "sm_90a", code=1)
    assert "FA_ERR_VALUE" in refused.err and "factor = 0; this scaling needs one" in refused.err
    refused = r.run("compile", "rope", "D=64", "factor=4", "--arch", "sm_90a", code=1)
    assert "factor = 4; it has no meaning with scaling none" in refused.err


SMALL_ROPE = ["rope", "B=1", "H=2", "N=3", "D=8"]


def looks_alike():
    """A driver with one device and an NVRTC: everything happens but the computation."""
    return {
        "FAJIT_CUDA_LIBRARY": fake("cuda"),
        "FAJIT_NVRTC_LIBRARY": fake("nvrtc"),
        "FAKE_DEVICES": "90",
    }


@case
def emulate_runs_a_kernel_without_a_device(r):
    needs_emulator()
    result = r.run("verify", *SMALL_ROPE, "--emulate", "--json")
    assert result.code == 0 and result.json["passed"] is True, result
    assert "emulated on the CPU" in result.err
    assert r.run("bench", *SMALL_ROPE, "--emulate").code == 2


@case
def kv_update_is_an_operation_like_any_other(r):
    keys = {p["key"]: p for p in r.run("ops", "kv_update", "--json", code=0).json}
    assert keys["cache"]["values"] == "dense|slots|block_table" and keys["tokens"]["alias"] == "T"
    source = r.run("source", "kv_update", "cache=slots", "in_place=true", "D=64", code=0).out
    assert "constexpr int CACHE = 1;" in source and "fajit_kv_update" in source
    refused = r.run("source", "kv_update", "cache=slots", "D=64", code=1)
    assert "FA_ERR_VALUE" in refused.err and "in_place" in refused.err
    needs_emulator()
    result = r.emulate("verify", "kv_update", "rotation=half", "B=2", "T=3", "G=2", "D=8", "L=5",
                       "spoilt=0", "--json", code=0).json
    assert result["passed"] is True and result["sizes"]["cache_len"] == 5, result


@case
def verify_names_the_sizes_that_count(r):
    def sizes(*request):
        found = r.run("verify", *request, "--json", env=looks_alike()).json
        return found["sizes"], found["default_sizes"]
    plain, _ = sizes(*SMALL_ROPE)
    assert "offset" in plain and not {"sequences", "launch_length", "max_position"} & set(plain)
    packed, _ = sizes(*SMALL_ROPE, "positions=cumulative")
    assert packed["sequences"] == 3 and "position_max" in packed, packed
    scaled, _ = sizes(*SMALL_ROPE, "scaling=dynamic_ntk", "factor=2", "original_max_position=64")
    assert scaled["launch_length"] == 4096, scaled
    dense, given = sizes("kv_update", "D=8")
    assert "cache_len" in dense and not {"page_size", "pages", "slot_count"} & set(dense), dense
    assert "cache_len=" in given and "page_size" not in given, given
    slots, given = sizes("kv_update", "D=8", "cache=slots", "in_place=true")
    assert "slot_count" in slots and not {"cache_len", "max_pages"} & set(slots), slots
    assert "page_size=" in given and "cache_len" not in given, given


@case
def lowrank_kv_is_an_operation_like_any_other(r):
    keys = {p["key"]: p for p in r.run("ops", "lowrank_kv", "--json", code=0).json}
    assert keys["form"]["values"] == "whole|down|up" and keys["rank"]["alias"] == "R"
    source = r.run("source", "lowrank_kv", "form=up", "R=48", "G=4", "D=32", code=0).out
    assert "constexpr int FORM = 2;" in source and "fajit_lowrank_kv" in source
    refused = r.run("source", "lowrank_kv", "G=4", "D=32", code=1)
    assert "FA_ERR_SIZE" in refused.err and "rank" in refused.err
    needs_emulator()
    result = r.emulate("verify", "lowrank_kv", "M=20", "R=6", "G=2", "D=4", "B=2", "S=9",
                       "plan=two_launches", "--json", code=0).json
    assert result["passed"] is True and result["sizes"]["model_dim"] == 20, result
    assert "two launches" in result["plan"], result


@case
def verify_leaves_a_head_baked_that_v_does_not_share(r):
    lowrank = ["lowrank_kv", "M=20", "R=6", "G=2", "D=4", "B=2", "S=9"]
    refused = r.run("verify", *lowrank, "Dv=8", "--dynamic=B,D", code=2)
    assert "'D' stays baked while head_dim_v differs" in refused.err, refused
    needs_emulator()
    for more, shown in (["Dv=8", "--dynamic"], "head_dim=4 batch=2 (dynamic)"), \
                       (["Dv=4", "--dynamic"], "head_dim=4 (dynamic) batch=2 (dynamic)"), \
                       (["Dv=4", "--dynamic=D"], "head_dim=4 (dynamic) batch=2 seqlen"):
        result = r.emulate("verify", *lowrank, *more, code=0)
        assert shown in result.out, result
    kv = ["kv_update", "B=2", "T=3", "G=2", "D=8", "L=5", "spoilt=0", "head_dim_v=16"]
    assert r.emulate("verify", *kv, "--dynamic", "--json", code=0).json["passed"] is True


@case
def linear_is_an_operation_like_any_other(r):
    keys = {p["key"]: p for p in r.run("ops", "linear", "--json", code=0).json}
    assert keys["activation"]["values"] == "none|silu|gelu|gelu_tanh" and keys["m"]["alias"] == "M"
    source = r.run("source", "linear", "dtype=bf16", "N=96", "activation=gelu", code=0).out
    assert "constexpr int ACTIVATION = 2;" in source and "fajit_linear" in source
    refused = r.run("source", "linear", "tile_m=48", code=1)
    assert "FA_ERR_VALUE" in refused.err and "128 x 128" in refused.err
    needs_emulator()
    for more in (["K=9", "bias=true"], ["K=70", "splits=2"]):  # the second one with a workspace
        result = r.emulate("verify", "linear", "M=5", "N=7", "tile_m=16", "tile_n=16", *more,
                           "--json", code=0).json
        assert result["passed"] is True and result["sizes"]["n"] == 7, result


@case
def attention_is_an_operation_like_any_other(r):
    keys = {p["key"]: p for p in r.run("ops", "attention", "--json", code=0).json}
    assert keys["mask"]["values"] == "full|causal|causal_top_left" and keys["seqlen_k"]["alias"] == "Tk"
    source = r.run("source", "attention", "D=64", "mask=causal", "dtype=bf16", code=0).out
    assert "constexpr int MASK = 1;" in source and "fajit_attention" in source
    refused = r.run("source", "attention", "mask=causal", code=1)
    assert "FA_ERR_SIZE" in refused.err and "head_dim" in refused.err
    needs_emulator()
    result = r.emulate("verify", "attention", "D=16", "B=1", "H=2", "G=1", "Tq=3", "Tk=5",
                       "--json", code=0).json
    assert result["passed"] is True and result["sizes"]["seqlen_k"] == 5, result


@case
def cross_attention_is_an_operation_like_any_other(r):
    keys = {p["key"]: p for p in r.run("ops", "cross_attention", "--json", code=0).json}
    assert keys["form"]["values"] == "whole|queries|keys" and keys["model_dim"]["alias"] == "C"
    heads = ["H=4", "G=2", "D=16"]
    source = r.run("source", "cross_attention", *heads, "form=queries", "mask=causal", code=0).out
    assert "constexpr int FORM = 1;" in source and "fajit_cross_attention" in source
    refused = r.run("source", "cross_attention", *heads, "dropout=0.1", code=1)
    assert "FA_ERR_UNSUPPORTED" in refused.err and "dropout" in refused.err
    refused = r.run("source", "cross_attention", "H=4", "G=2", code=1)
    assert "FA_ERR_SIZE" in refused.err and "head_dim" in refused.err
    sizes = r.run("verify", "cross_attention", *heads, "--json", env=looks_alike()).json["sizes"]
    assert (sizes["batch"], sizes["seqlen_q"], sizes["seqlen_k"]) == (4, 64, 128), sizes
    assert sizes["model_dim"] == 256 and "offset_q" not in sizes, sizes
    needs_emulator()
    for form in "keys", "queries":
        result = r.emulate("verify", "cross_attention", *heads, "B=1", "C=24", "Tq=3", "Tk=5",
                           f"form={form}", "--json", code=0).json
        assert result["passed"] is True and result["sizes"]["seqlen_k"] == 5, result


# --- the four systems, at the sizes that each is judged by ---

CANONICAL = {
    "rope": "dtype=f32 style=half B=4 H=8 G=8 N=256 D=64".split(),
    "kv_update": "dtype=f32 rotation=interleaved angles=tables B=2 T=16 G=4 D=32 L=128".split(),
    "lowrank_kv": "dtype=f32 B=4 S=96 M=256 R=48 G=4 D=32".split(),
    "cross_attention": "dtype=f32 rotation=interleaved B=4 Tq=64 Tk=128 C=256 H=8 G=8 D=32".split(),
}


@case
def the_canonical_sizes_pass_on_the_emulator(r):
    """Wherever the build has an emulator: one that does not work is a failure, no skip."""
    needs_emulator()
    if os.environ.get("FAJIT_TEST_EMULATOR") == "sanitized":
        raise Skip("what computes is left out of sanitized builds")
    for op, more, gate, elements, plan in [
        ("rope", [], 1e-5, {"q_out": 4 * 8 * 256 * 64, "k_out": 4 * 8 * 256 * 64}, ""),
        ("kv_update", [], 1e-5, {"out": 2 * 2 * 128 * 4 * 32}, ""),
        ("lowrank_kv", [], 1e-4, {"out": 4 * 96 * 2 * 4 * 32}, "one launch"),
        ("cross_attention", ["--seeds", "1"], 1e-5, {"out": 4 * 64 * 256}, "3 launches"),
        ("cross_attention", ["plan=one_launch", "--seeds", "1"], 1e-5, {"out": 4 * 64 * 256},
         "one launch"),
    ]:
        found = r.run("verify", op, *CANONICAL[op], *more, "--emulate", "--json", code=0).json
        assert found["passed"] is True and plan in found["plan"], found
        rows = found["results"]
        assert all(t["result"] and t["atol"] <= gate and t["rtol"] <= gate for t in rows), found
        assert elements.items() <= {t["tensor"]: t["elements"] for t in rows}.items(), found


@case
def operations_compile_offline_without_spills(r):
    r.needs_nvrtc()
    for op, request, constant, plan in [
        ("linear", "M=384 N=48 K=256".split(), "M = 384", "split tf32, tiles of 16 x 16"),
        ("lowrank_kv", CANONICAL["lowrank_kv"], "RANK = 48", "split tf32, one launch"),
        ("cross_attention", CANONICAL["cross_attention"], "HEAD_DIM = 32", "3 launches: projections"),
        ("attention", "D=32 B=4 H=8 G=8 Tq=64 Tk=128".split(), "HEAD_DIM = 32", "queries by"),
    ]:
        assert f"constexpr int {constant};" in r.run("source", op, *request, code=0).out, op
        found = r.run("compile", op, *request, "--arch", "sm_90a", "--json", code=0).json[0]
        assert found["origin"] == "compiled" and found["spill_bytes"] == 0, found
        assert found["name"].startswith(op + " f32") and plan in found["plan"], found


@case
def bench_tells_a_time_and_what_it_did_not_check(r):
    """On the look-alike driver, whose kernels do nothing: results are what was there before."""
    for op, sizes in [
        ("linear", "M=4096 N=4096 K=640"),
        ("lowrank_kv", "B=2 S=2048 M=512 R=4096 G=1 D=64"),
        ("cross_attention", "B=1 Tq=4608 Tk=4608 C=16 H=8 G=8 D=32"),
    ]:
        found = r.run("bench", op, *sizes.split(), "--json", code=0, env=looks_alike()).json
        assert found["op"] == op and found["time_us"] > 0 and found["ratio"] > 0, found
        assert found["checked"] is False and found["plan"], found
    text = r.run("bench", op, *sizes.split(), code=0, env=looks_alike()).out
    assert re.search(r"^plan +3 launches: ", text, re.MULTILINE), text
    assert "The result was not checked" in text and re.search(r" no$", text, re.MULTILINE), text
    # At position 0 nothing is rotated: what is there already is right.
    still = ["rope", "in_place=true", "B=1", "H=2", "N=1", "D=8"]
    text = r.run("bench", *still, code=0, env=looks_alike()).out
    assert "not checked" not in text and re.search(r" yes$", text, re.MULTILINE), text


@case
def bench_counts_products_at_the_rate_of_tensor_cores(r):
    """On the look-alike driver: 4 multiprocessors of sm_90 at 1 GHz."""
    lanes, halves = 4 * 256 * 1e9 / 1e12, 4 * 4096 * 1e9 / 1e12
    for op, sizes, peak in [
        ("linear", "M=4096 N=4096 K=640", halves / 3),
        ("linear", "M=4096 N=4096 K=640 dtype=bf16", halves),
        ("linear", "M=4096 N=4096 K=640 dtype=bf16 operands=e4m3", 2 * halves),
        ("lowrank_kv", "B=2 S=2048 M=512 R=4096 G=1 D=64", halves / 3),
        ("lowrank_kv", "B=4 S=8192 M=512 R=1024 G=1 D=64 sums=tf32", halves / 2),
        ("attention", "B=1 Tq=8192 Tk=8192 H=8 G=8 D=32", halves / 3),
        ("cross_attention", "B=1 Tq=4608 Tk=4608 C=16 H=8 G=8 D=32 dtype=f16", halves),
        ("rope", "in_place=true B=1 H=2 N=1 D=8", lanes),
    ]:
        found = r.run("bench", op, *sizes.split(), "--json", code=0, env=looks_alike()).json
        assert abs(found["peak_tflop_per_s"] - peak) < 1e-3, (found, peak)
        if (op, sizes) == ("linear", "M=4096 N=4096 K=640"):
            bytes_us = found["bytes_moved"] / found["copy_gb_per_s"] / 1e3
            flops_us = 2 * 4096 * 4096 * 640 / found["peak_tflop_per_s"] / 1e6
            assert abs(found["floor_us"] / max(bytes_us, flops_us) - 1) < 0.01, found
            assert found["bound"] == ("arithmetic" if flops_us > bytes_us else "memory"), found


@case
def bench_refuses_to_time_a_wrong_result(r):
    result = r.run("bench", *SMALL_ROPE, env=looks_alike())
    assert result.code == 1 and "its time means nothing" in result.err, result


@case
def verify_fails_when_nothing_is_computed(r):
    """On the look-alike driver a kernel does nothing: every output keeps its poison."""
    result = r.run("verify", *SMALL_ROPE, "--seeds", "2", "--json", env=looks_alike())
    assert result.code == 1, result
    found = result.json
    assert found["passed"] is False and found["sizes"]["heads_k"] == 2, found
    assert "heads_k=2" in found["default_sizes"]
    outputs = [t for t in found["results"] if t["tensor"].endswith("_out")]
    assert len(outputs) == 4 and not any(t["result"] for t in outputs), outputs
    assert "wrong" in result.err


# --- manifests and caches ---


def manifest(r, *kernels):
    return r.write("manifest.json", json.dumps({"fajit_manifest": 1, "kernels": list(kernels)}))


@case
def warm_fills_the_cache(r):
    r.needs_nvrtc()
    kernel = {"op": "template", "source": 'extern "C" __global__ void k(int *x) { *x = N; }',
              "entry": "k", "constants": {"N": {"int": 4}}}
    bad = {**kernel, "source": 'extern "C" __global__ void k() { undeclared = 1; }'}
    good = manifest(r, kernel, {**kernel, "constants": {"N": {"int": 5}}})
    first = r.run("warm", good, "--arch", "sm_80", "--arch", "sm_86", "--jobs", "2", "--json", code=0)
    assert [(w["arch"], w["total"], w["compiled"], w["failed"]) for w in first.json] == [
        ("sm_80", 2, 2, 0), ("sm_86", 2, 2, 0)], first
    assert [e["origin"] for e in first.json[0]["entries"]] == ["compiled", "compiled"]
    assert first.err.count("compiled in") == 4 and "\r" not in first.err
    second = r.run("warm", good, "--arch", "sm_80", code=0)
    assert re.search(r"^sm_80 +2 +0 +2 +0 +0 ", second.out, re.MULTILINE), second
    mixed = r.run("warm", manifest(r, kernel, bad), "--arch", "sm_80", "--json", code=1)
    assert mixed.json[0]["failed"] == 1 and mixed.json[0]["from_disk"] == 1, mixed
    assert mixed.json[0]["entries"][1]["status"] == "FA_ERR_COMPILE"
    assert [e["entry"] for e in mixed.json[0]["entries"]] == [0, 1], mixed
    assert "entry 1: FA_ERR_COMPILE" in mixed.err and "entry 2" not in mixed.err
    twice = r.run("warm", manifest(r, bad, kernel), "--arch", "sm_80", "--arch", "sm_12", "--json",
                  code=1).json
    assert [(w["arch"], w.get("failed"), w.get("status")) for w in twice] == [
        ("sm_80", 1, None), ("sm_12", None, "FA_ERR_ARCH")], twice
    assert "sm_12" in twice[1]["error"], twice
    assert r.run("warm", manifest(r), "--arch", "sm_80", "--json", code=0).json[0]["total"] == 0


@case
def a_bad_manifest_says_where(r):
    path = r.write("m.json", '{"fajit_manifest": 1,\n "kernels": [{"op": "frob"}]}')
    result = r.run("warm", path, "--arch", "sm_80", code=1)
    assert "FA_ERR_MANIFEST" in result.err and "line 2 column 21" in result.err, result
    found = r.run("warm", path, "--arch", "sm_80", "--arch", "sm_86", "--json", code=1)
    assert found.json["status"] == "FA_ERR_MANIFEST" and "line 2" in found.json["error"], found
    assert found.err.count("FA_ERR_MANIFEST") == 1, "one manifest, told twice: " + found.err
    result = r.run("warm", "nowhere.json", "--arch", "sm_80", "--json", code=1)
    assert "FA_ERR_IO" in result.err and result.json["status"] == "FA_ERR_IO", result


@case
def warm_draws_a_bar_on_a_terminal(r):
    r.needs_nvrtc()
    kernel = {"op": "template", "source": 'extern "C" __global__ void k() {}', "entry": "k"}
    path = manifest(r, kernel)
    ours, theirs = pty.openpty()
    shown = b""
    done = subprocess.run([TOOL, "warm", str(path), "--arch", "sm_80"], env=r.env, cwd=r.folder,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=theirs, timeout=110)
    os.close(theirs)
    with contextlib.suppress(OSError):  # nobody holds the other end any more
        while part := os.read(ours, 65536):
            shown += part
    os.close(ours)
    assert done.returncode == 0 and re.search(rb"\rsm_80 \[#{40}\] 1/1", shown), shown


@case
def cache_commands(r):
    r.needs_nvrtc()
    r.run("compile", *r.kernel(), "--arch", "sm_80", "--arch", "sm_86", code=0)
    entries = r.run("cache", "list", "--json", code=0).json
    assert sorted(e["arch"] for e in entries) == ["sm_80", "sm_86"], entries
    for e in entries:
        assert re.fullmatch("[0-9a-f]{32}", e["key"]) and "scale" in e["name"] and e["bytes"] > 500
        assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", e["used"]) and e["writable"]
    size = r.run("cache", "size", "--json", code=0).json
    assert size == {"entries": 2, "bytes": sum(e["bytes"] for e in entries)}, size
    assert "2 entries" in r.run("cache", "size", code=0).out
    assert [e["state"] for e in r.run("cache", "verify", "--json", code=0).json] == ["good"] * 2

    victim = sorted(r.cache.rglob("*.fajit"))[0]
    bytes_now = bytearray(victim.read_bytes())
    bytes_now[len(bytes_now) // 2] ^= 1
    victim.write_bytes(bytes_now)
    damaged = r.run("cache", "verify", "--json", code=1)
    assert sorted(e["state"] for e in damaged.json) == ["damaged", "good"] and "--remove" in damaged.err
    bad = next(e for e in damaged.json if e["state"] == "damaged")
    assert bad["problem"] and bad["path"] == str(victim), bad
    assert "removed" in r.run("cache", "verify", "--remove", code=0).out
    assert not victim.exists()

    refused = r.run("cache", "clear", code=2)
    assert r.run("cache", "clear", "--json", code=2).json["status"] == "usage"
    assert "--yes" in refused.err and r.run("cache", "size", "--json").json["entries"] == 1
    assert r.run("cache", "clear", "--yes", "--json", code=0).json == {"removed": 1}
    assert r.run("cache", "list", "--json", code=0).json == []


@case
def clearing_asks_on_a_terminal(r):
    r.needs_nvrtc()
    r.run("compile", *r.kernel(), "--arch", "sm_80", code=0)
    for answer, left in (("n\n", 1), ("\n", 1), ("y\n", 0)):
        ours, theirs = pty.openpty()
        os.write(ours, answer.encode())
        done = subprocess.run([TOOL, "cache", "clear"], env=r.env, stdin=theirs, capture_output=True,
                              encoding="utf-8", timeout=60)
        os.close(theirs)
        os.close(ours)
        assert "Remove 1 entries from" in done.stderr, done
        assert done.returncode == (1 if left else 0), done
        assert r.run("cache", "size", "--json", code=0).json["entries"] == left


@case
def output_that_cannot_be_written_is_an_error(r):
    if not os.path.exists("/dev/full"):
        raise Skip("no /dev/full here")
    with open("/dev/full", "w") as full:
        done = subprocess.run([TOOL, "ops"], env=r.env, stdout=full, stderr=subprocess.PIPE,
                              encoding="utf-8", timeout=60)
    assert done.returncode == 1 and "could not be written" in done.stderr, done


# --- what surrounds the tool ---


def options_of(r):
    found = set()
    for command in re.findall(r"^  (\w+) ", r.run("--help", code=0).out, re.MULTILINE):
        found |= set(re.findall(r"--[a-z-]+", r.run(command, "--help", code=0).out.split("Options:")[1]))
    return found


@case
def completions_and_man_page_know_every_option(r):
    files = ["tools/completion/fajit.bash", "tools/completion/_fajit", "docs/fajit.1"]
    commands = re.findall(r"^  (\w+) ", r.run("--help", code=0).out, re.MULTILINE)
    for name in files:
        text = (ROOT / name).read_text(encoding="utf-8").replace("\\-", "-")
        for word in [*options_of(r), *commands]:
            assert word in text, f"{name} lacks {word}"


@case
def bash_completes(r):
    script = ROOT / "tools/completion/fajit.bash"

    def complete(*words):
        code = (f'source "{script}"; COMP_WORDS=({" ".join(repr(w) for w in words)}); '
                f"COMP_CWORD={len(words) - 1}; _fajit; printf '%s\\n' \"${{COMPREPLY[@]}}\"")
        try:
            done = subprocess.run(["bash", "--norc", "-c", code], env=r.env, capture_output=True,
                                  encoding="utf-8", timeout=60)
        except FileNotFoundError:
            raise Skip("no bash here") from None
        assert done.stderr == "", done.stderr
        return set(done.stdout.split())

    assert complete(TOOL, "co") == {"compile"}
    assert {"rope", "template"} <= complete(TOOL, "compile", "")
    assert "dtype=" in complete(TOOL, "compile", "rope", "dt")
    assert complete(TOOL, "compile", "rope", "dtype=b") & {"bf16", "dtype=bf16"}
    assert complete(TOOL, "compile", "rope", "dtype", "=", "b") == {"bf16"}
    assert complete(TOOL, "cache", "cl") == {"clear"}
    assert "--arch" in complete(TOOL, "compile", "rope", "--a")
    assert {"sm_90a", "sm_90"} <= complete(TOOL, "compile", "rope", "--arch", "sm_9")
    assert complete(TOOL, "verify", "rope", "--dynamic", "=", "seq") == {"seqlen"}
    assert "B,seqlen" in complete(TOOL, "verify", "rope", "--dynamic", "=", "B,s")
    assert "dtype" not in complete(TOOL, "bench", "rope", "--dynamic", "=", "d")
    assert complete(TOOL, "help", "wa") == {"warm"}
    deep = r.write("some/deep.cu", "")
    assert complete(TOOL, "compile", "template", "file", "=", str(deep.parent) + "/") == set(
        str(deep).split())


def main():
    if not TOOL or not os.access(TOOL, os.X_OK):
        print("Bail out! the tool is not at " + (TOOL or "FAJIT_TEST_TOOL"))
        return 1
    part = sys.argv[2] if len(sys.argv) > 2 else ""
    chosen = [c for c in CASES if part in c.__name__]
    failed = 0 if chosen else 1
    print(f"1..{len(chosen)}")
    for number, function in enumerate(chosen, 1):
        label = f"{number} - {function.__name__}"
        with tempfile.TemporaryDirectory(prefix="fajit cli ") as folder:
            try:
                function(Room(folder))
                print(f"ok {label}", flush=True)
            except Skip as why:
                print(f"ok {label} # SKIP {' '.join(str(why).split())}", flush=True)
            except Exception:  # noqa: BLE001: every failure is this case's
                failed += 1
                print(f"not ok {label}")
                for line in traceback.format_exc().splitlines():
                    print(f"# {line}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
