#!/usr/bin/env python3
"""Turns results.jsonl into RESULTS.md (tables) and results.svg (one plot).

    report.py --results results.jsonl --versions versions.txt --out DIR [--remarks remarks.md]

The rows, their peers and their targets are the table SECTIONS below; everything else in the output
is measured. The remarks file (default: remarks.md beside this script, if there is one) is appended
as it stands: why a target was missed, what else was run.
"""

import argparse
import json
import os
import sys
from dataclasses import dataclass, field

sys.dont_write_bytecode = True
from report_plot import PEERS, write_svg


@dataclass
class Row:
    title: str
    bench: str  # of fajit's value and of its floor
    target: str = ""  # as text
    limit: float = None  # largest value that meets the target
    share: float = None  # instead: smallest floor / value that meets it
    metric: str = "time"
    peers: list = field(default_factory=list)  # [(bench, metric)]
    floor: tuple = None  # (bench, impl, metric); None: (bench, "floor", "time")
    less_driver: bool = False  # peers' values less the driver's own of the same bench


def rope_rows():
    rows = []
    for dtype in ("bf16", "f32"):
        for layout in ("bhnd", "bnhd"):
            for angles in ("computed", "tables"):
                for place in ("out", "in"):
                    where = "in" if place == "in" else "out of"
                    title = f"{dtype} {layout.upper()}, {angles}, {where} place"
                    peers = []
                    if place == "out":
                        peers = [(f"rope_large_{dtype}_{layout}_tables_out", "time")]
                    rows.append(
                        Row(
                            title,
                            f"rope_large_{dtype}_{layout}_{angles}_{place}",
                            ">= 92 % of copy rate",
                            share=0.92,
                            peers=peers,
                        )
                    )
    return rows


def canonical_rows():
    rows = []
    for kind, title, target, limit in (
        ("graph_hot", "in a graph, buffers in L2", "<= 2.5 us", 2.5),
        ("graph_cold", "in a graph, buffers from memory", "<= 2.5 us", 2.5),
        ("stream_cold", "plain launches", "", None),
    ):
        for angles in ("computed", "tables"):
            rows.append(
                Row(
                    f"{angles}, {title}",
                    f"rope_canonical_f32_{angles}_{kind}",
                    target,
                    limit,
                    peers=[(f"rope_canonical_f32_tables_{kind}", "time")],
                )
            )
    return rows


def kv_rows():
    rows = []
    for form, title, limit in (("stacked", "stacked output", 2.5), ("in", "in place", 2.0)):
        for kind, where in (("graph_hot", "buffers in L2"), ("graph_cold", "buffers from memory")):
            bench = f"kv_canonical_f32_{form}_{kind}"
            rows.append(
                Row(
                    f"float32 [2, 16, 128, 4, 32], {title}, in a graph, {where}",
                    bench,
                    f"<= {limit} us",
                    limit,
                    peers=[(bench, "time")],
                )
            )
    for name, title in (
        ("tables_in", "tables"),
        ("computed_in", "computed"),
        ("tables_in_unique", "tables, positions promised to differ"),
    ):
        rows.append(
            Row(
                f"float32 [8, 1024, 8192, 8, 128], in place, {title}",
                f"kv_large_f32_{name}",
                ">= 90 % of copy rate",
                share=0.9,
                peers=[("kv_large_f32_tables_in", "time")],
            )
        )
    for kind, where in (
        ("graph_hot", "in a graph, buffers in L2"),
        ("graph_cold", "in a graph, buffers from memory"),
        ("stream_cold", "plain launches"),
    ):
        for angles in ("computed", "tables"):
            rows.append(
                Row(
                    f"bfloat16 [64, 1, 4096, 8, 128], in place, {angles}, {where}",
                    f"kv_decode_bf16_{angles}_in_{kind}",
                    peers=[(f"kv_decode_bf16_tables_in_{kind}", "time")],
                )
            )
    return rows


FIRST = [("first_template", "time"), ("first_rope", "time")]
COLD = [("cold_template", "time"), ("cold_rope", "time")]

SECTIONS = [
    (
        "Rope of q and k [4, 32, 4096, 128]",
        "Device time. The floor is the bytes moved at the copy rate "
        "of this run. Peers read tables and work out of place.",
        rope_rows(),
    ),
    (
        "Rope of q and k, float32 [4, 8, 256, 64]",
        "Device time of one launch among many. From memory: "
        "26 sets of buffers, 218 MB, taken in turn.",
        canonical_rows(),
    ),
    (
        "New keys and values into a cache [batch, tokens, cache_len, heads, head_dim]",
        "Device time of one update among many; the keys are rotated. The floor is the bytes of the "
        "new values, in and out, and those of a copied cache. Peers read tables.",
        kv_rows(),
    ),
    (
        "Launch",
        "Host time of a launch above the driver's own cuLaunchKernel with the same function "
        "and parameters, back to back.",
        [
            Row(
                "template, 4 parameters",
                "launch_template",
                "<= 150 ns",
                150,
                metric="over_driver",
                peers=[("launch_template", "launch")],
                less_driver=True,
            ),
            Row("rope, all sizes dynamic", "launch_rope", "<= 150 ns", 150, metric="over_driver"),
        ],
    ),
    (
        "Compile answered from memory",
        "Host time of fa_compile among so many kernels. The kernels come "
        "from a stand-in for NVRTC, so that 10,000 of them take seconds.",
        [
            Row("among 1", "hit_1", "<= 200 ns", 200, metric="hit"),
            Row("among 100", "hit_100", "<= 200 ns", 200, metric="hit"),
            Row("among 10,000", "hit_10000", "<= 200 ns", 200, metric="hit"),
            Row("among 10,000, a random one each time", "hit_10000", metric="hit_any"),
            Row("template", "hit_template", metric="hit"),
        ],
    ),
    (
        "Start of a process",
        "From when the CUDA context and the inputs exist until a result is on the "
        "host, in a fresh process. The floor is the driver alone with the cubin in memory. Peers "
        "run the template, Triton and torch.compile also rope.",
        [
            Row(
                "first result, cache warm: template",
                "first_template",
                "<= 1 ms",
                1,
                peers=[("first_template", "time")],
                floor=("first_template", "driver", "time"),
            ),
            Row(
                "first result, cache warm: rope",
                "first_rope",
                "<= 1 ms",
                1,
                peers=FIRST,
                floor=("first_template", "driver", "time"),
            ),
            Row(
                "first result, no cache: template",
                "cold_template",
                peers=[("cold_template", "time")],
            ),
            Row("first result, no cache: rope", "cold_rope", "<= 1000 ms", 1000, peers=COLD),
            Row("first trivial compile", "nvrtc_start", peers=[("nvrtc_start", "time")]),
            Row(
                "cold compile, slowest rope instance",
                "compile_largest",
                "<= 1000 ms",
                1000,
                floor=("nvrtc_trivial", "nvrtc", "time"),
            ),
            Row(
                "256 kernels from a warm disk cache, above the driver",
                "load_256",
                "<= 15 ms",
                15,
                metric="over_driver",
            ),
            Row("library size", "library_size", "< 1 MB", 1, metric="size"),
        ],
    ),
]


class Results:
    def __init__(self, path):
        self.values, self.missing = {}, []
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                try:
                    item = json.loads(line)
                    key = (item["bench"], item["impl"], item["metric"])
                except (ValueError, KeyError, TypeError) as error:
                    sys.exit(f"report: {path}:{number} is not a result line: {error}")
                if item["value"] is None:
                    self.missing.append(item)
                else:
                    self.values[key] = item

    def value(self, bench, impl, metric):
        item = self.values.get((bench, impl, metric))
        return item["value"] if item else None

    def unit(self, bench, impl, metric):
        item = self.values.get((bench, impl, metric))
        return item["unit"] if item else ""


def number(value):
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 100 else f"{value:.3g}"


def peer_values(row, results):
    """{impl: best value over the row's peer benches}"""
    found = {}
    for bench, metric in row.peers:
        driver = results.value(bench, "driver", metric) if row.less_driver else 0
        if driver is None:
            continue
        for impl in PEERS:
            value = results.value(bench, impl, metric)
            if value is not None:
                found[impl] = min(found.get(impl, float("inf")), value - driver)
    return found


def floor_of(row, results):
    return results.value(*(row.floor or (row.bench, "floor", "time")))


def verdict(row, value, floor):
    if value is None:
        return "not measured"
    if row.share is not None:
        if floor is None:
            return "no floor"
        share = floor / value
        return "met" if share >= row.share else f"**missed**, {share * 100:.1f} %"
    if row.limit is None:
        return ""
    return "met" if value <= row.limit else f"**missed** by {(value / row.limit - 1) * 100:.0f} %"


def table(rows, results):
    impls = [impl for impl in PEERS if any(impl in peer_values(row, results) for row in rows)]
    has_floor = any(floor_of(row, results) is not None for row in rows)
    head = ["work", "fajit"] + (["floor", "floor / fajit"] if has_floor else [])
    head += [PEERS[impl] for impl in impls] + (["best peer / fajit"] if impls else [])
    head += ["target", "outcome"]
    lines = ["| " + " | ".join(head) + " |", "|---" + "|--:" * (len(head) - 3) + "|---|---|"]
    for row in rows:
        value, floor, peers = (
            results.value(row.bench, "fajit", row.metric),
            floor_of(row, results),
            peer_values(row, results),
        )
        unit = results.unit(row.bench, "fajit", row.metric)
        noise = results.value(row.bench, "fajit", "noise")
        cells = [row.title, "not measured" if value is None else f"**{number(value)}** {unit}"]
        if value is not None and noise is not None:
            cells[1] += f" ± {noise:.1f} %"
        if has_floor:
            cells.append("" if floor is None else number(floor))
            cells.append("" if floor is None or not value else f"{floor / value * 100:.1f} %")
        cells += [number(peers[impl]) if impl in peers else "" for impl in impls]
        if impls:
            best = min(peers.values()) if peers else None
            cells.append("" if best is None or not value or value <= 0 else f"{best / value:.2f}x")
        lines.append("| " + " | ".join(cells + [row.target, verdict(row, value, floor)]) + " |")
    return lines


def read_versions(path):
    with open(path, encoding="utf-8") as file:
        return [line.strip() for line in file if line.strip()]


def write_markdown(results, versions, remarks, out):
    lines = [
        "# Benchmark results",
        "",
        "Written by `bench/report.py` from one run of `bench/run`; method in "
        "[README.md](README.md), predictions in [NOTES.md](NOTES.md).",
        "",
    ]
    lines += [f"- {version}" for version in versions]
    rate = results.value("copy_rate", "driver", "rate")
    if rate is not None:
        lines.append(f"- copy rate: {rate:.0f} GB/s, read plus written")
    lines += ["", "![share of the floor](results.svg)", ""]
    for title, text, rows in SECTIONS:
        lines += [f"## {title}", "", text, ""] + table(rows, results) + [""]
    rest = [r for _, _, rows in SECTIONS for r in rows]
    shown = {(r.bench, "fajit", r.metric) for r in rest}
    others = [
        item
        for key, item in results.values.items()
        if key not in shown and key[2] != "noise" and key[1] not in ("floor", *PEERS)
    ]
    if others:
        lines += [
            "## Other measurements",
            "",
            "| bench | by | what | value | |",
            "|---|---|---|--:|---|",
        ]
        lines += [
            f"| {i['bench']} | {i['impl']} | {i['metric']} | {number(i['value'])} {i['unit']} "
            f"| {i['note']} |"
            for i in others
        ]
        lines.append("")
    if results.missing:
        lines += ["## Not measured", ""]
        reasons = {}
        for item in results.missing:
            reasons.setdefault((item["impl"], item["note"]), []).append(item["bench"])
        for (impl, note), benches in reasons.items():
            lines.append(f"- {impl}: {', '.join(dict.fromkeys(benches))}: {note}")
        lines.append("")
    if remarks:
        lines += [remarks.strip(), ""]
    with open(os.path.join(out, "RESULTS.md"), "w", encoding="utf-8") as file:
        file.write("\n".join(lines))


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    parser = argparse.ArgumentParser(description="results.jsonl to RESULTS.md and results.svg")
    parser.add_argument("--results", required=True)
    parser.add_argument("--versions", required=True)
    parser.add_argument("--out", default=here)
    parser.add_argument("--remarks", default=os.path.join(here, "remarks.md"))
    options = parser.parse_args()
    results, versions = Results(options.results), read_versions(options.versions)
    remarks = ""
    if os.path.exists(options.remarks):
        with open(options.remarks, encoding="utf-8") as file:
            remarks = file.read()
    write_markdown(results, versions, remarks, options.out)
    write_svg(results, versions, options.out)


if __name__ == "__main__":
    main()
