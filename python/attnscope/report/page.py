# SPDX-License-Identifier: MIT
"""Puts a run's figures, numbers and provenance into one HTML file that needs nothing else."""

from __future__ import annotations

import base64
import importlib
import io
import json
import os
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from attnscope.report.numbers import number, number_rows, pair_rows, published_rows
from attnscope.report.questions import questions
from attnscope.report.sections import RUSCIO2025, RUSCIO2025_CAUSAL

if TYPE_CHECKING:
    from attnscope.figures.registry import Tables

#: The registry: name of a study -> module that holds its `SECTIONS` and, where it has any, `findings`: from
#: results to sentences. A new study adds a file and a line here; every other study has the first one's.
STUDIES: dict[str, str] = {
    "sink_study": "attnscope.report.sections",
    "wavelet_study": "attnscope.report.wavelets",
}

_LARGEST_SVG = 1_500_000
_SHOWN_SAMPLES = 12
_SHOWN_ROWS = 40
#: Tables that the page shows in a form of its own; every other one is listed at its end.
_OWN_TABLES = {
    "samples", "heads", "graphs", "layers", "bars", "baselines", "examples", "nulls", "fisher", "ablation",
    "frames", "frame_evidence", "specialization", "layer_tests", "emergence", "null_tests",
}  # fmt: skip
#: Columns that the tables of numbers show only where a row has something to say in them.
_OPTIONAL = ("uniform", "untrained", "random_weights", "row_permutation", "strongest")


def report(results: Tables, path: str | os.PathLike[str] | None = None, *, title: str | None = None) -> Path:
    """Writes `report.html`: each analysis explained, drawn, and given in numbers with interval and baseline.

    The file is self-contained: figures are data URIs, nothing is fetched, and every text that comes from the
    run (tokens, sentences, names) is escaped.

    Args:
        results: what `attnscope.load` returns.
        path: where to write; None is `report.html` in the run folder.
        title: the heading; None names the run.

    Returns:
        The file written.

    Raises:
        ValueError: without a path for results in memory.
    """
    home = getattr(results, "path", None)
    if path is None:
        if home is None:
            raise ValueError("report: these results have no run folder; say where to write")
        path = Path(home) / "report.html"
    target = Path(path)
    html = render(results, title or f"Attention study: {Path(home).name if home else 'results in memory'}")
    target.parent.mkdir(parents=True, exist_ok=True)
    half_written = target.with_name(f".{target.name}.part")
    half_written.write_text(html, encoding="utf-8")
    half_written.replace(target)
    return target


def render(results: Tables, title: str) -> str:
    """The page as text.

    Args:
        results: the stored tables.
        title: the heading.

    Returns:
        HTML.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
    from markupsafe import Markup

    from attnscope.figures import draw
    from attnscope.figures.registry import NotDrawable, measured_heads, optional
    from attnscope.figures.selection import series_are, with_groups
    from attnscope.figures.style import caption_of
    from attnscope.published import publishes
    from attnscope.report.small_tables import SMALL_TABLES

    left_out: list[Any] = []
    drawn = {
        name: (_data_uri(figure), float(figure.get_figwidth()), caption_of(figure))
        for name, figure in draw(results, left_out=left_out).items()
    }
    try:
        heads = measured_heads(results)
    except NotDrawable:
        heads = None
    baselines = optional(results, "baselines")
    tables = {name: results.table(name) for name in results.tables()}
    named: dict[str, pd.DataFrame] = {
        name: with_groups(tables[name], tables.get("samples"))
        for name in ("heads", "layers", "graphs")
        if name in tables and "sample" in tables[name]
    }
    published = None
    if "heads" in named and "protocol" in named["heads"]:
        published = named["heads"]
        published = published[(published["protocol"] == "ruscio2025") & (published["head"] == -1)]
    followed = published is not None and not published.empty
    causal = _causal(tables.get("samples"))
    words = importlib.import_module(STUDIES.get(study_name(results), STUDIES["sink_study"]))
    apart = next((series_are(frame) for frame in (heads, *named.values()) if frame is not None), "input")
    sections = []
    for section in words.SECTIONS:
        rows = [] if heads is None else number_rows(heads, baselines, section.metrics)
        figures = [(name, *drawn[name]) for name in section.figures if name in drawn]
        pairs = pair_rows(named, section.pairs) if followed else []
        table = SMALL_TABLES[section.table](tables) if section.table else None
        told = (*(section.published_causal if causal else ()), *section.published) if followed else ()
        if rows or figures or pairs or table:
            sections.append(
                {
                    "id": section.id,
                    "title": section.title,
                    "words": Markup(section.words),
                    "definition": Markup(section.definition),
                    "caveats": [Markup(line) for line in section.caveats],
                    "figures": figures,
                    "rows": rows,
                    "columns": {
                        name for name in _OPTIONAL if any(has_text(getattr(row, name)) for row in rows)
                    },
                    "apart": apart
                    if len({row.series for row in rows} | {row.series for row in pairs}) > 1
                    else "",
                    "pairs": pairs,
                    "table": table,
                    "told": [Markup(line) for line in told],
                }
            )
    # a table of its own that its section could not read is listed as it is
    unread = {
        name
        for name, make in SMALL_TABLES.items()
        if name in tables and len(tables[name]) and make(tables) is None
    }
    environment = Environment(
        loader=PackageLoader("attnscope.report", "."),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page: str = environment.get_template("page.html").render(
        title=title,
        made=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        facts=_facts(tables, heads),
        findings=words.findings(results) if hasattr(words, "findings") else _findings(heads),
        skipped=[str(item) for item in _provenance(results).get("skipped") or []],
        sections=sections,
        protocols=[(name, *drawn[name]) for name in ("protocols",) if name in drawn],
        left_out=[(one.name, one.reason) for one in left_out],
        comparison=_comparison(results) if followed and publishes(results, "ruscio2025") else None,
        questions=questions(tables, heads),
        published=published_rows(tables),
        published_words=[Markup(line) for line in RUSCIO2025],
        artefacts=[Markup(line) for line in RUSCIO2025_CAUSAL] if causal else [],
        other_tables=[
            _small_table(name, tables[name]) for name in tables if name not in _OWN_TABLES or name in unread
        ],
        samples=_samples(tables.get("samples")),
        provenance=_flat(_provenance(results)),
        study=json.dumps(getattr(results, "study", {}), indent=2, ensure_ascii=False, default=str),
    )
    return page


def has_text(cell: str) -> bool:
    """Whether a cell says something.

    Args:
        cell: of a table.

    Returns:
        False for an empty cell and for a dash.
    """
    return cell not in ("", "–")


def _causal(samples: pd.DataFrame | None) -> bool:
    """Whether any model of the run is causal; a run that does not say is taken for one."""
    return samples is None or "causal" not in samples or bool(samples["causal"].astype(bool).any())


def _comparison(results: Tables) -> dict[str, Any] | None:
    """The run beside the paper's numbers: what must be said first, then means and their differences."""
    from attnscope.published import compare_published

    found = compare_published(results, draws=300)
    table = found.table
    table = table[table["measured"].notna() & table["statistic"].isin(["mean", "share", "trend"])]
    if table.empty:
        return None
    rows = []
    for row in table.to_dict("records"):
        layer = "all" if row["published_layer"] < 0 else str(row["published_layer"])
        if row["published_layer"] >= 0 and row["layer"] != row["published_layer"]:
            layer += f" (here {row['layer']})"
        told = number(row["published"])
        if row["published"] != row["published"]:
            told = f"{number(row['published_low'])} to {number(row['published_high'])}"
        rows.append(
            {
                "models": f"{row['model']} / {row['published_model']}",
                "quantity": str(row["quantity"]).replace("_", " ")
                + (f" “{row['token']}”" if row["token"] else ""),
                "layer": layer,
                "statistic": "trend with depth" if row["statistic"] == "trend" else str(row["statistic"]),
                "published": told,
                "measured": number(row["measured"]),
                "interval": ""
                if row["low"] != row["low"]
                else f"[{number(row['low'])}, {number(row['high'])}]",
                "difference": number(row["difference"]),
                "exact": number(row["exact"]),
                "origin": str(row["origin"]),
            }
        )
    return {"statements": found.statements, "rows": rows}


def study_name(results: Tables) -> str:
    """Name of the study that made some results, "" when they do not say.

    Args:
        results: the stored tables.

    Returns:
        A key of `STUDIES`, or another name.
    """
    return str(dict(getattr(results, "study", {})).get("study", ""))


def _provenance(results: Tables) -> dict[str, Any]:
    return dict(getattr(results, "provenance", {}))


def _data_uri(figure: Any) -> str:
    """SVG while that is small; maps of many heads are smaller as pixels."""
    from attnscope.figures.style import style

    with style():
        buffer = io.BytesIO()
        figure.savefig(buffer, format="svg", bbox_inches="tight", pad_inches=0.04, metadata={"Date": None})
        kind = "svg+xml"
        if buffer.tell() > _LARGEST_SVG:
            buffer = io.BytesIO()
            figure.savefig(buffer, format="png", bbox_inches="tight", pad_inches=0.04, dpi=220)
            kind = "png"
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"


def _facts(tables: Mapping[str, pd.DataFrame], heads: pd.DataFrame | None) -> list[tuple[str, str]]:
    """What was measured, in a few lines."""
    facts = []
    samples = tables.get("samples")
    if samples is not None and not samples.empty:
        facts.append(("models", ", ".join(map(str, dict.fromkeys(samples["model"])))))
        steps = sorted({int(step) for step in samples["step"]})
        if len(steps) > 1:
            facts.append(("checkpoints", f"{len(steps)}: steps {', '.join(map(str, steps))}"))
        one = samples.drop_duplicates(["model", "sample"])
        # models cut and split the same sentences each in its own way
        for group, own in one.groupby("group", sort=False):
            shortest, longest = own["n_tokens"].min(), own["n_tokens"].max()
            lengths = f"{shortest}" if shortest == longest else f"{shortest} to {longest}"
            facts.append((f"input “{group}”", f"{own['sample'].nunique()} sequences of {lengths} tokens"))
        cut = one[one["truncated"].astype(bool)]["sample"].nunique() if "truncated" in one else 0
        if cut:
            facts.append(("cut", f"{cut} sequences were longer than the study takes and were cut"))
    if heads is not None and not heads.empty:
        sizes = {
            str(model): f"{own['layer'].nunique()} layers of {own['head'].nunique()} heads"
            for model, own in heads.groupby("model", sort=False)
        }
        if len(set(sizes.values())) == 1:
            size = next(iter(sizes.values()))
        else:
            size = "; ".join(f"{model}: {one}" for model, one in sizes.items())
        facts.append(("heads", f"{size}; {len(heads):,} maps measured"))
    return facts


def _findings(heads: pd.DataFrame | None) -> list[str]:
    """The main numbers of the run in sentences that are true of any run."""
    from attnscope.figures.selection import estimate, last_step

    if heads is None or "sink_share" not in heads or heads["sink_share"].isna().all():
        return []
    lines = []
    final = last_step(heads)
    for series in dict.fromkeys(final["series"]):
        own = final[final["series"] == series]
        table = estimate(own, "sink_share", ["layer", "head"])
        top = table.sort_values("mean", ascending=False).iloc[0]
        uniform = float(own["sink_share_uniform"].mean()) if "sink_share_uniform" in own else float("nan")
        strong = int((table["mean"] > 0.3).sum())
        interval = f" [{number(top['low'])}, {number(top['high'])}]" if top["samples"] > 1 else ""
        lines.append(
            f"{series}: {strong} of {len(table)} heads give the first key more than 0.3; the strongest is "
            f"L{int(top['layer'])}H{int(top['head'])} with {number(top['mean'])}{interval}, "
            f"uniform attention gives {number(uniform)}."
        )
    return lines


def _samples(samples: pd.DataFrame | None) -> list[dict[str, Any]]:
    if samples is None or samples.empty:
        return []
    one = samples.drop_duplicates("sample")
    few = one.groupby("group", sort=False).head(-(-_SHOWN_SAMPLES // max(1, one["group"].nunique())))
    return [
        {
            "sample": int(row["sample"]),
            "group": str(row["group"]),
            "n_tokens": int(row["n_tokens"]),
            "text": str(row["text"])[:400],
            "tokens": [str(token) for token in list(row["tokens"])[:24]] if "tokens" in row else [],
        }
        for _, row in few.iterrows()
    ]


def _small_table(name: str, table: pd.DataFrame) -> dict[str, Any]:
    """A table that has no section of its own, its first rows; no revision and no step are left out."""
    empty = {"revision": "", "step": -1}
    table = table.drop(columns=[key for key in empty if key in table and (table[key] == empty[key]).all()])
    arrays = [name for name in table if len(table) and isinstance(table[name].iloc[0], (list, np.ndarray))]
    table = table.drop(columns=arrays)  # a figure's business
    rows = [
        [number(cell) if isinstance(cell, float) else str(cell)[:80] for cell in row]
        for row in table.head(_SHOWN_ROWS).itertuples(index=False, name=None)
    ]
    return {"name": name, "columns": [str(c) for c in table.columns], "rows": rows, "total": len(table)}


def _flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    lines: list[tuple[str, str]] = []
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            lines += _flat(value, f"{name} · ")
        elif isinstance(value, (list, tuple)):
            lines.append((name, ", ".join(map(str, value)) or "none"))
        else:
            lines.append((name, "none" if value in (None, "", {}) else str(value)))
    return lines
