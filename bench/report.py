#!/usr/bin/env python3
"""Turns results.jsonl into RESULTS.md (tables) and results.svg (one plot).

    report.py --results results.jsonl --versions versions.txt --out DIR [--remarks remarks.md]

The rows, their peers and their targets are report_rows.py; everything else in the output is
measured. The remarks file (default: remarks.md beside this script, if there is one) is appended
as it stands: why a target was missed, what else was run.
"""

import argparse
import json
import os
import sys

sys.dont_write_bytecode = True
from report_plot import PEERS, write_svg
from report_rows import SECTIONS


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
                    sys.exit(f"report: {path}:{number} is not a result line: {error!r}")
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
    return results.value(*(row.floor or (row.bench, "floor", row.metric)))


def verdict(row, value, results):
    if value is None:
        return "not measured"
    if row.share is not None:
        least = results.value(*row.rival) if row.rival else floor_of(row, results)
        if least is None:
            return "nothing to compare with"
        share = least / value
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
        noise = results.value(row.bench, "fajit", "noise") if row.metric == "time" else None
        cells = [row.title, "not measured" if value is None else f"**{number(value)}** {unit}".strip()]
        if value is not None and noise is not None:
            cells[1] += f" ± {noise:.1f} %"
        if has_floor:
            cells.append("" if floor is None else number(floor))
            cells.append("" if floor is None or not value else f"{floor / value * 100:.1f} %")
        cells += [number(peers[impl]) if impl in peers else "" for impl in impls]
        if impls:
            best = min(peers.values()) if peers else None
            cells.append("" if best is None or not value or value <= 0 else f"{best / value:.2f}x")
        lines.append("| " + " | ".join(cells + [row.target, verdict(row, value, results)]) + " |")
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
    try:
        results, versions = Results(options.results), read_versions(options.versions)
    except OSError as error:
        sys.exit(f"report: {error}")
    remarks = ""
    if os.path.exists(options.remarks):
        with open(options.remarks, encoding="utf-8") as file:
            remarks = file.read()
    write_markdown(results, versions, remarks, options.out)
    write_svg(results, versions, options.out)


if __name__ == "__main__":
    main()
