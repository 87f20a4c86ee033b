# SPDX-License-Identifier: MIT
"""The tables of the README, made from stored results alone: python benchmarks/tables.py [--collect]

--collect takes what the benchmarks have written to results/ into measured.json first, which is committed.
What simd/highway.cpp has printed, `results/highway.txt`, is measured apart, and stays where there is none.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
MEASURED, README = FOLDER / "measured.json", FOLDER / "README.md"
BEGIN, END = "<!-- made by tables.py from measured.json -->\n", "<!-- end -->"
#: What of the machine is kept.
FACTS = ("cpu", "cpus", "python", "attnscope", "isa", "versions")
#: What of a row is kept.
ROW = ("name", "best_ms", "ratio", "target", "against")


def collect(results: Path) -> dict[str, Any]:
    """The rows of every stored benchmark with the machine that they were measured on."""
    reports = [json.loads(file.read_text("utf-8")) for file in sorted(results.glob("*.json"))]
    reports = [report for report in reports if report["concept"] != "study"]
    machine = {key: reports[0]["machine"][key] for key in FACTS}
    machine["load"] = max(report["machine"]["load"][0] for report in reports)
    rows = {
        report["concept"]: [{key: row[key] for key in ROW} for row in report["rows"]] for report in reports
    }
    return {
        "machine": machine,
        "quick": any(report["quick"] for report in reports),
        "rows": rows,
        "highway": highway(results) or json.loads(MEASURED.read_text("utf-8"))["highway"],
    }


def highway(results: Path) -> dict[str, Any]:
    """Times of our lanes and of Google Highway's, in microseconds, from the lines of highway.cpp."""
    file = results / "highway.txt"
    if not file.is_file():
        return {}
    pattern = r"(\d+) lanes, (.*?) +([\d.]+) us, Highway +([\d.]+) us"
    rows = re.findall(pattern, file.read_text("utf-8"))
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text("utf-8"))
    return {
        "cpu": cpu[1] if cpu else "",
        "load": round(os.getloadavg()[0], 2),
        "rows": [
            {"lanes": int(lanes), "loop": loop, "ours_us": float(ours), "highway_us": float(theirs)}
            for lanes, loop, ours, theirs in rows
        ],
    }


def table(measured: dict[str, Any]) -> str:
    """The machine in a sentence, then for each comparison our time a map and its multiple a peer takes."""
    machine = measured["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items() if version)
    quick = ", `--quick`" if measured["quick"] else ""
    lines = [
        f"{machine['cpu']}, {machine['cpus']} cores, {machine['isa']}, Python {machine['python']}, "
        f"{versions}; load {machine['load']:g} at most; one thread{quick}.",
        "",
        "| benchmark | maps | ms a map | times faster than its peers | target |",
        "|---|---|---|---|---|",
    ]
    for concept, rows in measured["rows"].items():
        for row in rows:
            ratios = ", ".join(f"{peer} {ratio:.1f}" for peer, ratio in row["ratio"].items())
            target = "" if row["target"] is None else f"{row['target']:g}"
            target += f" ({row['against']})" if target and row["against"] else ""
            ours = f"{row['best_ms']['attnscope']:.3g}"
            lines.append(f"| {concept} | {row['name']} | {ours} | {ratios} | {target} |")
    beside = measured["highway"]
    lines += [
        "",
        f"The lanes of `cpp/simd` beside Google Highway's: {beside['cpu']}, load {beside['load']:g}.",
        "",
        "| loop | lanes | µs a call | times faster than Highway |",
        "|---|---|---|---|",
    ]
    for row in beside["rows"]:
        ratio = row["highway_us"] / row["ours_us"]
        lines.append(f"| {row['loop']} | {row['lanes']} | {row['ours_us']:.2f} | {ratio:.2f} |")
    return "\n".join(lines) + "\n"


def written(readme: str, table: str) -> str:
    """The page with the table between its marks."""
    before, _, rest = readme.partition(BEGIN)
    return before + BEGIN + table + END + rest.partition(END)[2]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--collect", action="store_true", help="take results/*.json into measured.json first")
    if parser.parse_args().collect:
        MEASURED.write_text(json.dumps(collect(FOLDER / "results"), indent=1) + "\n", "utf-8")
    README.write_text(
        written(README.read_text("utf-8"), table(json.loads(MEASURED.read_text("utf-8")))), "utf-8"
    )


if __name__ == "__main__":
    main()
