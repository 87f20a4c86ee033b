# SPDX-License-Identifier: MIT
"""The support matrix: a row for every type of model that the sweep built, in `integration/support.json`."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

#: The matrix of this project.
FILE = Path(__file__).resolve().parents[1] / "integration" / "support.json"
#: Outcomes of a type that sweeps of their own add to its row.
EXTRAS = ("generation", "picture")
#: Outcomes that a capture must never have.
WRONG = ("different", "visibility", "changed", "numbers", "crashed")


def read(file: Path = FILE) -> dict[str, Any]:
    """Return the matrix: versions, and rows by kind and type; an empty one where there is no file."""
    if not file.exists():
        return {"rows": {}}
    matrix: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return matrix


def store(file: Path, kind: str, name: str, row: dict[str, Any]) -> None:
    """Write the row of one type in the place of an earlier one."""
    matrix = read(file)
    rounded = {
        padding: gap if gap is None else float(f"{gap:.1g}") for padding, gap in row["difference"].items()
    }
    earlier = matrix["rows"].get(kind, {}).get(name, {})
    extras = {key: value for key, value in earlier.items() if key in EXTRAS}
    packages = {package: version(package) for package in ("transformers", "torch")}
    matrix["rows"].setdefault(kind, {})[name] = {**row, "difference": rounded, **packages, **extras}
    write(file, matrix)


def extend(file: Path, kind: str, name: str, key: str, value: dict[str, Any]) -> None:
    """Write a further outcome of a type into its row: while it generates, or with a picture."""
    if key not in EXTRAS:
        raise ValueError(f"a row has no {key!r}, only {', '.join(EXTRAS)}")
    matrix = read(file)
    matrix["rows"][kind][name][key] = value
    write(file, matrix)


def write(file: Path, matrix: dict[str, Any]) -> None:
    """Write a matrix, a line for every type, so that a change of one type is a change of one line."""
    kinds = []
    for kind, rows in sorted(matrix["rows"].items()):
        lines = [
            f"  {json.dumps(name)}: {json.dumps(rows[name], sort_keys=True, ensure_ascii=False)}"
            for name in sorted(rows)
        ]
        kinds.append(f" {json.dumps(kind)}: {{\n" + ",\n".join(lines) + "\n }")
    file.write_text('{"rows": {\n' + ",\n".join(kinds) + "\n}}\n", "utf-8")


def sentence(matrix: dict[str, Any]) -> str:
    """Return the totals of a matrix in words, as README has them."""
    rows = [row for rows in matrix["rows"].values() for row in rows.values()]
    counts = {
        result: sum(row["result"] == result for row in rows) for result in ("equal", "incomplete", "refused")
    }
    tried = len(rows) - sum(row["result"] == "not built" for row in rows)
    return (
        f"Of {len(rows)} entries of transformers' auto classes {tried} were built small and captured: "
        f"{counts['equal']} equal eager attention, {counts['incomplete']} do and name modules whose maps are "
        f"missing, {counts['refused']} are refused by name, and none is different."
    )
