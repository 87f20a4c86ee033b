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
import statistics
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
#: The folders of what was measured with another instruction set, and with two threads of every contender.
AVX2, TWO_THREADS = "x86_64_v3", "two_threads"
#: What is timed of a study from start to end, whose rows are sentences.
OF_STUDIES = {"attention_likelihood", "study"}
#: The benchmark of a thousand rows, of which the page has the lowest and the middle ratio by size.
OF_TYPES = "types_and_strides"


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
        "rows_two_threads": _rows(_reports(results / TWO_THREADS)),
        "highway": highway(results) or json.loads(MEASURED.read_text("utf-8"))["highway"],
    }


def _reports(results: Path) -> list[dict[str, Any]]:
    reports = [json.loads(file.read_text("utf-8")) for file in sorted(results.glob("*.json"))]
    return [report for report in reports if report["concept"] not in OF_STUDIES]


def _rows(reports: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return what is kept of every row, by benchmark."""
    return {
        report["concept"]: [
            _rounded(
                {key: row[key] for key in ROW}
                | {key: row[key] for key in OF_MACHINE if row.get(key) is not None}
            )
            for row in report["rows"]
            if row["best_ms"]  # of time, not of memory
        ]
        for report in reports
    }


def _rounded(value: Any) -> Any:
    """Return the same with four digits of each number."""
    if isinstance(value, dict):
        return {key: _rounded(part) for key, part in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


def in_lines(measured: dict[str, Any]) -> str:
    """Return JSON with a line for each row."""
    parts = []
    for key, value in measured.items():
        if not key.startswith("rows"):
            parts.append(f"{json.dumps(key)}: {json.dumps(value)}")
            continue
        concepts = [
            f"{json.dumps(concept)}: [\n" + ",\n".join(map(json.dumps, rows)) + "\n]"
            for concept, rows in value.items()
        ]
        parts.append(f"{json.dumps(key)}: {{\n" + ",\n".join(concepts) + "\n}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


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
        *_table_of_rows(measured["rows"], measured.get("rows_avx2", {})),
    ]
    ways = {"rows": "", "rows_avx2": " with AVX2", "rows_two_threads": " with two threads of every contender"}
    for key, words in ways.items():
        if rows := measured.get(key, {}).get(OF_TYPES):
            lines += ["", *_table_of_types(rows, words)]
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


def _ratio(row: dict[str, Any]) -> float:
    """Return how many times faster a row is than its best peer."""
    return float(min(row["ratio"].values(), default=float("nan")))


def _table_of_rows(
    rows_by_concept: dict[str, list[dict[str, Any]]], rows_avx2: dict[str, list[dict[str, Any]]]
) -> list[str]:
    """Return a line for each comparison; the columns of the machine's rates where any row has them."""
    rows = [
        (concept, row) for concept, rows in rows_by_concept.items() if concept != OF_TYPES for row in rows
    ]
    with_avx2 = {(concept, row["name"]): row for concept, rows in rows_avx2.items() for row in rows}
    has_shares = any(key in row for _, row in rows for key in OF_MACHINE)
    heads = ["benchmark", "maps", "ms a map", "times faster than its peers"]
    heads += ["than the best with AVX2"] * bool(with_avx2) + ["target"]
    heads += ["read rate", "multiply-add rate", "limited by"] if has_shares else []
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for concept, row in rows:
        ratios = ", ".join(f"{peer} {ratio:.1f}" for peer, ratio in row["ratio"].items())
        target = "" if row["target"] is None else f"{row['target']:g}"
        target += f" ({row['against']})" if target and row["against"] else ""
        cells = [concept, row["name"], f"{row['best_ms']['attnscope']:.3g}", ratios]
        if with_avx2:
            other = with_avx2.get((concept, row["name"]))
            cells.append("" if other is None or not other["ratio"] else f"{_ratio(other):.1f}")
        cells.append(target)
        if has_shares:
            shares = [row.get("of_reading"), row.get("of_multiply_adds")]
            cells += ["" if share is None else f"{share:.0%}" for share in shares]
            cells.append(row.get("limited_by", "").split(" (")[0])
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _below_1(ratio: float) -> str:
    """Return a ratio below 1 with two digits, or three where two would show 1."""
    return f"{ratio:.2f}" if ratio < 0.995 else f"{ratio:.3f}"


def _table_of_types(rows: list[dict[str, Any]], words: str) -> list[str]:
    """Return the lowest and the middle ratio of every metric and size, and the rows below 1."""
    ratios: dict[str, dict[int, list[float]]] = {}
    slower: dict[str, list[str]] = {}
    for row in rows:
        metric, _, maps = row["name"].partition(": ")
        size = re.search(r"n=(\d+)", maps)
        assert size is not None
        ratios.setdefault(metric, {}).setdefault(int(size[1]), []).append(_ratio(row))
        if _ratio(row) < 1.0:
            slower.setdefault(metric, []).append(f"{maps} {_below_1(_ratio(row))}")
    sizes = sorted({n for by_size in ratios.values() for n in by_size})
    lines = [
        f"Maps of four types, contiguous and with heads as the fastest axis{words}: how many times faster "
        "than the best peer, the lowest of all and the middle one.",
        "",
        f"| metric | {' | '.join(f'n = {n}' for n in sizes)} |",
        "|" + "---|" * (len(sizes) + 1),
    ]
    for metric, by_size in ratios.items():
        cells = [
            f"{min(by_size[n]):.2f}, {statistics.median(by_size[n]):.1f}" if n in by_size else ""
            for n in sizes
        ]
        lines.append(f"| {metric} | {' | '.join(cells)} |")
    if count := sum(map(len, slower.values())):
        lines += ["", f"Of {len(rows)} rows {count} are slower than their best peer:", ""]
        lines += [f"* {metric}: {', '.join(names)}" for metric, names in slower.items()]
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
        MEASURED.write_text(in_lines(collect(FOLDER / "results")), "utf-8")
    README.write_text(
        written(README.read_text("utf-8"), table(json.loads(MEASURED.read_text("utf-8")))), "utf-8"
    )


if __name__ == "__main__":
    main()
