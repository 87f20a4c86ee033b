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
#: What is kept of rows that have it: the load of others, shares of the machine's rates, what limits it.
OF_MACHINE = ("load", "of_reading", "of_multiply_adds", "limited_by")
#: The instruction set whose results have a folder of their own.
AVX2 = "x86_64_v3"


def collect(results: Path) -> dict[str, Any]:
    """The rows of every stored benchmark with the machine that they were measured on."""
    reports = _reports(results)
    machine = {key: reports[0]["machine"][key] for key in FACTS}
    # of other people's work, at the start of a row
    loads = [row["load"] for report in reports for row in report["rows"] if "load" in row]
    machine["load"] = max(loads, default=max(report["machine"]["load"][0] for report in reports))
    return {
        "machine": machine,
        "quick": any(report["quick"] for report in reports),
        "rows": _rows(reports),
        "rows_avx2": _rows(_reports(results / AVX2)),
        "highway": highway(results) or json.loads(MEASURED.read_text("utf-8"))["highway"],
    }


def _reports(results: Path) -> list[dict[str, Any]]:
    reports = [json.loads(file.read_text("utf-8")) for file in sorted(results.glob("*.json"))]
    return [report for report in reports if report["concept"] != "study"]


def _rows(reports: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return what is kept of every row, by benchmark."""
    return {
        report["concept"]: [
            {key: row[key] for key in ROW} | {key: row[key] for key in OF_MACHINE if row.get(key) is not None}
            for row in report["rows"]
        ]
        for report in reports
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
        *_table_of_rows(measured["rows"]),
    ]
    if measured.get("rows_avx2"):
        lines += ["", "The same with AVX2:", "", *_table_of_rows(measured["rows_avx2"])]
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


def _table_of_rows(rows_by_concept: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Return a row for each comparison; the columns of the machine's rates where any row has them."""
    rows = [(concept, row) for concept, rows in rows_by_concept.items() for row in rows]
    has_shares = any(key in row for _, row in rows for key in OF_MACHINE)
    heads = ["benchmark", "maps", "ms a map", "times faster than its peers", "target"]
    heads += ["read rate", "multiply-add rate", "limited by"] if has_shares else []
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for concept, row in rows:
        ratios = ", ".join(f"{peer} {ratio:.1f}" for peer, ratio in row["ratio"].items())
        target = "" if row["target"] is None else f"{row['target']:g}"
        target += f" ({row['against']})" if target and row["against"] else ""
        cells = [concept, row["name"], f"{row['best_ms']['attnscope']:.3g}", ratios, target]
        if has_shares:
            shares = [row.get("of_reading"), row.get("of_multiply_adds")]
            cells += ["" if share is None else f"{share:.0%}" for share in shares]
            cells.append(row.get("limited_by", "").split(" (")[0])
        lines.append(f"| {' | '.join(cells)} |")
    return lines


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
