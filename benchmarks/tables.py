# SPDX-License-Identifier: MIT
"""The pages of measurements, made from stored results alone: python benchmarks/tables.py [--collect]

The README has a line for each benchmark, the pages of measured/ a line for each row. --collect takes what
the benchmarks have written to results/ into measured/rows.json first, which is committed. What
simd/highway.cpp has printed, `results/highway.txt`, is measured apart, and stays where there is none.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
README, PAGES = FOLDER / "README.md", FOLDER / "measured"
MEASURED = PAGES / "rows.json"
BEGIN, END = "<!-- made by tables.py from measured/rows.json -->\n", "<!-- end -->"
#: What of the machine is kept.
FACTS = ("cpu", "cpus", "python", "attnscope", "isa", "versions")
#: What of a row is kept.
ROW = ("name", "best_ms", "ratio", "target", "against", "judged")
#: What is kept of rows that have it: the load of others, shares of the machine's rates, what limits it.
OF_MACHINE = ("load", "of_reading", "of_multiply_adds", "limited_by")
#: The folders of what was measured with another instruction set, and with two threads of every contender.
AVX2, TWO_THREADS = "x86_64_v3", "two_threads"
#: What is timed of a study from start to end, whose rows are sentences.
OF_STUDIES = {"attention_likelihood", "study"}
#: The benchmark of a thousand rows, of which a page has the lowest and the middle ratio by size.
OF_TYPES = "types_and_strides"
#: The page of the scripts that lie beside this one, which measure several kernels or a whole analysis.
WHOLES = "wholes"
#: How rows were measured, by their name in rows.json.
WAYS = {"rows": "", "rows_avx2": " with AVX2", "rows_two_threads": " with two threads of every contender"}

Rows = dict[str, list[dict[str, Any]]]


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


def _rows(reports: list[dict[str, Any]]) -> Rows:
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


def summary(measured: dict[str, Any]) -> str:
    """Return the README's part: the machine in a sentence, a line for each benchmark, and the slower rows."""
    machine = measured["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items() if version)
    quick = ", `--quick`" if measured["quick"] else ""
    lines = [
        f"{machine['cpu']}, {machine['cpus']} cores, {machine['isa']}, Python {machine['python']}, "
        f"{versions}; load {machine['load']:g} at most; one thread{quick}.",
        "",
        "| benchmark | rows | lowest | middle | highest | lowest with AVX2 | targets reached |",
        "|---|---|---|---|---|---|---|",
    ]
    for concept, rows in measured["rows"].items():
        ratios = [_ratio(row) for row in rows if row["ratio"]]
        if not ratios:
            continue
        narrow = [_ratio(row) for row in measured["rows_avx2"].get(concept, []) if row["ratio"]]
        cells = [
            f"[{concept}](measured/{_page_of(concept)}.md#{concept})",
            str(len(rows)),
            *(_short(value) for value in (min(ratios), statistics.median(ratios), max(ratios))),
            _short(min(narrow)) if narrow else "",
            _targets(rows),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    for key, words in WAYS.items():
        rows_of_way = measured[key]
        slower = [
            f"{concept}, {row['name']} {_short(_ratio(row))}"
            for concept, rows in rows_of_way.items()
            for row in rows
            if row["judged"] and _ratio(row) < 1.0
        ]
        judged = sum(bool(row["judged"]) for rows in rows_of_way.values() for row in rows)
        lines += ["", f"Slower than their best peer{words}: {len(slower)} of {judged} rows.", ""]
        lines += [f"* {row}" for row in slower]
    return "\n".join(lines) + "\n"


def _targets(rows: Sequence[dict[str, Any]]) -> str:
    """Return how many of the rows with a target reach it."""
    with_target = [row for row in rows if row["target"] is not None and row["ratio"]]
    reached = sum(
        (row["ratio"][row["against"]] if row["against"] else _ratio(row)) >= row["target"]
        for row in with_target
    )
    return f"{reached} of {len(with_target)}" if with_target else ""


def pages(measured: dict[str, Any]) -> dict[str, str]:
    """Return the pages of measured/ by name: a section for each benchmark, a line for each row."""
    sections: dict[str, list[str]] = {}
    for concept, rows in measured["rows"].items():
        lines = [f"## {concept}", ""]
        if concept == OF_TYPES:
            for key, words in WAYS.items():
                lines += _table_of_types(measured[key][concept], words)
        else:
            lines += _table_of_rows(rows, measured["rows_avx2"].get(concept, []))
        sections.setdefault(_page_of(concept), []).append("\n".join(lines).rstrip())
    sections[WHOLES].append(_table_of_lanes(measured["highway"]))
    head = (
        "Made by `python benchmarks/tables.py` from `rows.json`. Ratios of best times in one run; a target "
        "is a wanted ratio to the best peer, or to the one in brackets. The machine and what columns mean: "
        "[benchmarks](../README.md)."
    )
    return {
        page: "\n\n".join([f"# Measured: {page}", head, *parts]) + "\n" for page, parts in sections.items()
    }


def _page_of(concept: str) -> str:
    """Return the page of a benchmark: the folder that its script lies in."""
    script = next(FOLDER.rglob(f"{concept}.py"))
    return WHOLES if script.parent == FOLDER else script.parent.name


def _ratio(row: dict[str, Any]) -> float:
    """Return how many times faster a row is than the best of its peers, or of what stands beside it."""
    ratios = [row["ratio"][peer] for peer in row["judged"]] or row["ratio"].values()
    return float(min(ratios, default=float("nan")))


def _short(ratio: float) -> str:
    """Return a ratio with two digits, or with three where two would show 1 for less."""
    return f"{ratio:.3f}" if 0.995 <= ratio < 1.0 else f"{ratio:.2f}" if ratio < 10.0 else f"{ratio:.0f}"


def _table_of_rows(rows: Sequence[dict[str, Any]], rows_avx2: Sequence[dict[str, Any]]) -> list[str]:
    """Return a line for each comparison, with the columns that any row fills."""
    with_avx2 = {row["name"]: row for row in rows_avx2}
    has_shares = any(key in row for row in rows for key in OF_MACHINE)
    heads = ["maps", "ms a map", "times faster than its peers"]
    heads += ["than the best with AVX2"] * bool(with_avx2) + ["target"]
    heads += ["read rate", "multiply-add rate", "limited by"] if has_shares else []
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for row in rows:
        ratios = ", ".join(f"{peer} {_short(ratio)}" for peer, ratio in row["ratio"].items())
        target = "" if row["target"] is None else f"{row['target']:g}"
        target += f" ({row['against']})" if target and row["against"] else ""
        cells = [row["name"], f"{row['best_ms']['attnscope']:.3g}", ratios]
        if with_avx2:
            other = with_avx2.get(row["name"])
            cells.append("" if other is None or not other["ratio"] else _short(_ratio(other)))
        cells.append(target)
        if has_shares:
            shares = [row.get("of_reading"), row.get("of_multiply_adds")]
            cells += ["" if share is None else f"{share:.0%}" for share in shares]
            cells.append(row.get("limited_by", "").split(" (")[0])
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _table_of_types(rows: Sequence[dict[str, Any]], words: str) -> list[str]:
    """Return the lowest and the middle ratio of every metric and size."""
    ratios: dict[str, dict[int, list[float]]] = {}
    for row in rows:
        metric, _, maps = row["name"].partition(": ")
        size = re.search(r"n=(\d+)", maps)
        assert size is not None
        ratios.setdefault(metric, {}).setdefault(int(size[1]), []).append(_ratio(row))
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
            f"{_short(min(by_size[n]))}, {statistics.median(by_size[n]):.1f}" if n in by_size else ""
            for n in sizes
        ]
        lines.append(f"| {metric} | {' | '.join(cells)} |")
    return [*lines, ""]


def _table_of_lanes(beside: dict[str, Any]) -> str:
    """Return the lanes of cpp/simd beside Google Highway's, a line for each loop."""
    lines = [
        "## highway",
        "",
        f"The lanes of `cpp/simd` beside Google Highway's: {beside['cpu']}, load {beside['load']:g}.",
        "",
        "| loop | lanes | µs a call | times faster than Highway |",
        "|---|---|---|---|",
    ]
    for row in beside["rows"]:
        ratio = row["highway_us"] / row["ours_us"]
        lines.append(f"| {row['loop']} | {row['lanes']} | {row['ours_us']:.2f} | {ratio:.2f} |")
    return "\n".join(lines)


def written(readme: str, table: str) -> str:
    """The page with the table between its marks."""
    before, _, rest = readme.partition(BEGIN)
    return before + BEGIN + table + END + rest.partition(END)[2]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--collect", action="store_true", help="take results/ into measured/rows.json first")
    if parser.parse_args().collect:
        MEASURED.write_text(in_lines(collect(FOLDER / "results")), "utf-8")
    measured = json.loads(MEASURED.read_text("utf-8"))
    README.write_text(written(README.read_text("utf-8"), summary(measured)), "utf-8")
    for name, page in pages(measured).items():
        (PAGES / f"{name}.md").write_text(page, "utf-8")


if __name__ == "__main__":
    main()
