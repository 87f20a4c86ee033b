# SPDX-License-Identifier: MIT
"""Small runs of every study in every protocol, and digests of what they store, claim, report and draw.

    python tests/frozen/frozen_runs.py           makes tests/frozen/digests.json anew

A column of numbers is three sums and a count of what is missing; anything else is a hash. Claims are kept
word for word. So a difference names the table and the column, the claim, the block or the figure.
"""

import hashlib
import json
import re
import sys
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
import pandas as pd
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import attnscope as asc
import folders
import knowing_study
import likelihood_study
import position_study
import weight_models

FILE = Path(__file__).with_name("digests.json")
#: A text of a run may name the folder that it lies in, and the time of the run.
_CHANGING = re.compile(r"/[^\s\"'<>&]*frozen-run-[^\s\"'<>&]*|\d{4}-\d\d-\d\d \d\d:\d\d UTC")
#: Columns of tables that hold times or paths.
_VOLATILE = {"seconds", "path", "file"}
#: Where a block of the report begins.
_BLOCK = re.compile(r"(?=<(?:p|h2|h3|ul|ol|table|figure|details)\b)")


def run_sinks(home):
    """Return the results of the sink study with every extra analysis."""
    model = folders.model_folder(home / "tiny" / "hf")
    texts = folders.sentences(home / "texts.txt", 4, shortest=6)
    settings = folders.sink_study(home, model, texts, bars=True, options={"extra": "all", "controls": 1})
    return asc.run(settings, progress=False)


def run_wavelets(home):
    """Return the results of the wavelet study with every null."""
    model = folders.model_folder(home / "tiny" / "hf")
    words = folders.WORDS * 2
    texts = home / "texts.txt"
    texts.write_text("\n".join(" ".join(words[start : start + 45]) for start in range(2)), "utf-8")
    settings = {"study": "wavelet_heads", "models": str(model), "texts": str(texts), "block": 2}
    return asc.run(
        asc.Study(**settings, output=str(home), name="run", options={"nulls": "all"}), progress=False
    )


def run_likelihood(home):
    """Return the results of the study of likelihoods on a masked-language model."""
    model = likelihood_study.encoder_folder(home / "m")
    texts = likelihood_study.texts_of(home / "texts.txt", 8)
    settings = likelihood_study.settings(model, texts, home, protocols="both")
    return asc.run(settings, progress=False)


def run_positions(home):
    """Return the results of the study of absolute position."""
    model = folders.model_folder(home / "m", num_hidden_layers=3)
    texts = folders.sentences(home / "texts.txt", 40)
    return asc.run(position_study.settings(model, texts, home, **position_study.FULL_OPTIONS), progress=False)


def run_hallucinations(home):
    """Return the results of the study of hallucinations."""
    model = knowing_study.model_folder(home / "m")
    texts = knowing_study.questions(home / "q.csv")
    settings = knowing_study.settings(model, texts, home, protocols=("exact", "ruscio2026"))
    return asc.run(settings, progress=False)


def run_weights(home):
    """Return the results of the study of pretraining's writes on a pair with planted noise."""
    model = weight_models.tiny("llama", num_hidden_layers=3)
    model.save_pretrained(home / "base")
    draw = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.add_(1e-3 * torch.randn(parameter.shape, generator=draw))
    model.save_pretrained(home / "noise")
    ids = torch.randint(3, 97, (12, 20), generator=draw).tolist()
    lines = [json.dumps({"token_ids": row}) for row in ids]
    (home / "texts.jsonl").write_text("\n".join(lines), "utf-8")
    options = {"random_weights": 2, "rank_one": {"texts": 3, "directions": 2}}
    settings = asc.Study(
        study="pretraining_writes",
        models=[str(home / name) for name in ("base", "noise")],
        texts={"path": str(home / "texts.jsonl")},
        output=str(home),
        name="run",
        block=4,
        options=options,
    )
    return asc.run(settings, progress=False)


RUNS = {
    "attention_sinks": run_sinks,
    "wavelet_heads": run_wavelets,
    "attention_likelihood": run_likelihood,
    "absolute_position": run_positions,
    "hallucination_geometry": run_hallucinations,
    "pretraining_writes": run_weights,
}


def digest_run(name):
    """Return the digests of a run by name: tables, claims, report, figures."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="frozen-run-") as folder:
        return digest_results(RUNS[name](Path(folder)), Path(folder))


def digest_results(results, folder):
    """Return the digests of results by name: tables, claims, report (written to the folder), figures."""
    tables = {table: digest_table(results.table(table)) for table in results.tables()}
    claims = list_claims(results)
    report = digest_report(asc.report(results, folder / "report.html").read_text("utf-8"))
    # panels are not arranged: that takes half of the time, and moves with the fonts of a machine
    with mock.patch("attnscope.plots.figure.freeze_layout", lambda figure: figure.set_layout_engine("none")):
        figures = {figure: digest_figure(drawn) for figure, drawn in asc.plots.draw(results).items()}
    return {"tables": tables, "claims": claims, "report": report, "figures": figures}


def digest_table(table):
    """Return the number of rows and a digest of each column of a table."""
    columns = {str(name): digest_column(table[name]) for name in table.columns if name not in _VOLATILE}
    return {"rows": len(table), "columns": columns}


def digest_column(values):
    """Return the sums of a numeric column, or the hash of any other."""
    if values.dtype.kind in "fiu":
        return sums_of(pd.to_numeric(values).to_numpy(dtype=float, na_value=np.nan))
    return hash_of([_plain(cell) for cell in values])


def sums_of(numbers):
    """Return the missing and the infinite entries, the sum, the sum of sizes, and the sum by place."""
    numbers = np.asarray(numbers, dtype=float).ravel()
    finite = np.where(np.isfinite(numbers), numbers, 0.0)
    places = np.sin(1.0 + np.arange(len(finite)))
    sums = [finite.sum(), np.abs(finite).sum(), (finite * places).sum()]
    return [
        int(np.isnan(numbers).sum()),
        int(np.isinf(numbers).sum()),
        *(float(f"{total:.10g}") for total in sums),
    ]


def hash_of(value):
    """Return the first letters of the hash of plain data."""
    text = _CHANGING.sub("", json.dumps(value, ensure_ascii=False))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _plain(cell):
    """Return a cell as plain data, numbers with nine digits."""
    if isinstance(cell, dict):
        return {str(key): _plain(part) for key, part in cell.items()}
    if isinstance(cell, (list, tuple, np.ndarray)):
        return [_plain(part) for part in cell]
    if isinstance(cell, (float, np.floating)):
        return f"{cell:.9g}"
    return "None" if cell is pd.NA else str(cell)  # a flag that is missing


def list_claims(results):
    """Return the rows of every table of claims, word for word."""
    rows = {}
    for name in (name for name in results.tables() if "claims" in name):
        table = results.table(name)
        shown = [column for column in table.columns if column not in _VOLATILE]
        rows[name] = [
            " | ".join(f"{column}={_short(row[column])}" for column in shown) for _, row in table.iterrows()
        ]
    return rows


def _short(cell):
    """Return a cell as text, numbers with six digits."""
    text = f"{cell:.6g}" if isinstance(cell, (float, np.floating)) else str(cell)
    return _CHANGING.sub("", text)


def digest_report(page):
    """Return the beginning and the hash of every block of a report, in order, by section."""
    page = re.sub(r"<(style|script|svg)\b.*?</\1>", "", page, flags=re.S)
    page = re.sub(r'"data:[^"]*"', '""', page)
    sections = {}
    for number, part in enumerate(re.split(r"(?=<section\b)", page)):
        heading = re.match(r'<section[^>]*\bid="([^"]+)"', part)
        name = heading.group(1) if heading else f"part {number}"
        texts = [" ".join(re.sub(r"<[^>]+>", " ", block).split()) for block in _BLOCK.split(part)]
        texts = [
            _CHANGING.sub("", text) for text in texts if text and not text.startswith("Versions, models")
        ]
        sections[name] = [f"{text[:32]} #{hash_of(text)}" for text in texts]
    return sections


def digest_figure(figure):
    """Return what every panel of a figure holds: title, labels, and the sums of its places."""
    return [digest_panel(panel) for panel in figure.axes]


def digest_panel(panel):
    """Return the words of a panel and the sums of the places of its lines, cells, points and bars."""
    words = [panel.get_title(), panel.get_title(loc="left"), panel.get_xlabel(), panel.get_ylabel()]
    words += [text.get_text() for text in panel.texts]
    legend = panel.get_legend()
    words += [text.get_text() for text in legend.get_texts()] if legend else []
    places = [line.get_xydata() for line in panel.get_lines()]
    for collection in panel.collections:
        places += [np.ma.filled(collection.get_offsets(), np.nan)]
        places += [path.vertices for path in collection.get_paths()]
        if collection.get_array() is not None:
            places += [np.ma.filled(np.ma.asarray(collection.get_array(), dtype=float), np.nan)]
    places += [np.ma.filled(np.ma.asarray(image.get_array(), dtype=float), np.nan) for image in panel.images]
    places += [patch.get_path().vertices for patch in panel.patches]
    places += [patch.get_extents().get_points() for patch in panel.patches]
    flat = [np.asarray(part, dtype=float).ravel() for part in places]
    return [hash_of(words), *sums_of(np.concatenate(flat) if flat else [])]


def differences(stored, measured):
    """Return where two digests of a run differ: part, table or figure, and columns or blocks."""
    lines = []
    for part in {**stored, **measured}:
        before, after = stored.get(part, {}), measured.get(part, {})
        for name in sorted({*before, *after}):
            if name not in before or name not in after:
                lines.append(f"{part}: {name} is {'new' if name in after else 'gone'}")
            elif part == "tables":
                lines += _differing_columns(name, before[name], after[name])
            elif not is_near(before[name], after[name]):
                lines.append(f"{part}: {name}: {_first_difference(before[name], after[name])}")
    return lines


def _differing_columns(name, before, after):
    """Return where the digests of a table differ."""
    if before["rows"] != after["rows"]:
        return [f"tables: {name}: {after['rows']} rows, stored {before['rows']}"]
    columns = {**before["columns"], **after["columns"]}
    moved = [
        column
        for column in columns
        if not is_near(before["columns"].get(column), after["columns"].get(column))
    ]
    return [f"tables: {name}: {', '.join(moved)}"] if moved else []


def _first_difference(before, after):
    """Return the first entry that differs, as stored and as made."""
    for old, new in zip(before, after, strict=False):
        if not is_near(old, new):
            return f"{new!s:.160}, stored {old!s:.160}"
    return f"{len(after)} entries, stored {len(before)}"


def is_near(before, after):
    """Return True if two digests agree, sums of numbers to a millionth."""
    if isinstance(before, list) and isinstance(after, list):
        return len(before) == len(after) and all(map(is_near, before, after))
    if isinstance(before, float) and isinstance(after, (float, int)):
        return abs(before - after) <= 1e-6 * max(abs(before), abs(after)) + 1e-9
    return before == after


def main():
    """Write the digests of every run, or of those named on the command line."""
    names = sys.argv[1:] or list(RUNS)
    digests = json.loads(FILE.read_text("utf-8")) if FILE.exists() else {}
    for name in names:
        digests[name] = digest_run(name)
        print(name, flush=True)
        store(digests)


def store(digests):
    """Write digests, a line for each table, claim, section and figure."""
    lines = [f"{json.dumps(name)}: {_layout(digests[name])}" for name in RUNS if name in digests]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")


def _layout(digest):
    """Return a digest as JSON with a table, a claim, a section or a figure a line."""
    parts = []
    for part, entries in digest.items():
        lines = [f"  {json.dumps(key)}: {_entry(part, entry)}" for key, entry in entries.items()]
        parts.append(f" {json.dumps(part)}: {{\n" + ",\n".join(lines) + "\n }")
    return "{\n" + ",\n".join(parts) + "\n}"


def _entry(part, entry):
    """Return one table, list of claims, section or figure as JSON."""
    if part == "claims":
        return "[\n" + ",\n".join(f"   {json.dumps(row, ensure_ascii=False)}" for row in entry) + "]"
    return json.dumps(entry, ensure_ascii=False, separators=(",", ":"))


if __name__ == "__main__":
    main()
