# SPDX-License-Identifier: MIT
"""The report: a run's figures, numbers and provenance in one HTML file that needs nothing else.

Sections come from the study, figures are embedded, numbers are read from the stored tables: a report
can be made again on another machine, from the run's folder.
"""

from __future__ import annotations

import base64
import io
import json
import os
import re
import zlib
from collections.abc import Hashable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from attnscope._nearest import nearest
from attnscope.config.study_folders import study_of
from attnscope.errors import ResultsError
from attnscope.plots.figure import require_table
from attnscope.report import any_run
from attnscope.report.latex_tables import latex_table
from attnscope.report.section import (
    NamedSentence,
    Page,
    Section,
    Table,
    isolate_name,
    isolate_names,
    naming_missing_columns,
    printable_line,
)
from attnscope.results.files import write_bytes
from attnscope.results.results import Results
from attnscope.results.schema import CHECKPOINT_KEYS, HEAD_KEYS
from attnscope.study_api.number_text import counted, number
from attnscope.study_api.table_versions import refuse_newer_tables
from attnscope.study_api.unfinished import unfinished
from attnscope.untrusted.safe_text import list_names, mark_controls, write_csv

if TYPE_CHECKING:
    from attnscope.plots import Drawn, LeftOut

_LARGEST_SVG = 1_500_000
#: Types of a figure's picture, the first that is small enough; maps of many heads are smaller as pixels.
_PICTURES: dict[str, dict[str, Any]] = {
    "svg+xml": {"format": "svg", "metadata": {"Date": None}},
    "png": {"format": "png", "dpi": 220},
}
_SHOWN_SAMPLES = 12
_SHOWN_ROWS = 40
_SHORT = 24  # letters of a cell that stays on one line
_FIRST = 14  # letters that the first column has room for at least
_ROOM, _SMALL_ROOM = 103, 116  # letters that the page has room for, and small ones
#: Tables that are shown in another form than as they are.
_OWN_TABLES = frozenset(
    {"samples", "heads", "graphs", "layers", "bars", "baselines", "examples"}
    | {"head_means", "head_mean_graphs", "head_mean_bars"}
    | {"heads_variants", "graphs_variants", "layers_variants"}
)


def report(
    results: Results,
    path: str | os.PathLike[str] | None = None,
    *,
    title: str | None = None,
    drawn: Mapping[str, Drawn] | None = None,
    left_out: Sequence[LeftOut] = (),
) -> Path:
    """Write `report.html`: each analysis explained, drawn, and given in numbers with interval and baseline.

    The file is self-contained: figures are data URIs and nothing is fetched. Every text that comes from the
    run (tokens, sentences, names) is escaped, and the page's security policy lets no script run.

    Args:
        results: what `attnscope.load` returns.
        path: where to write; None is `report.html` in the run folder.
        title: the heading; None names the run.
        drawn: the study's figures by name, as `attnscope.plots.draw_all` gives them; None draws them.
        left_out: figures that were not drawn, in addition to `drawn`.

    Returns:
        The file written.

    Raises:
        ValueError: without a path for results in memory.

    Example:
        >>> import tempfile, pandas as pd, attnscope as asc
        >>> heads = pd.DataFrame({"model": "m", "revision": "", "step": -1, "sample": 0, "layer": [0, 1],
        ...                       "head": 0, "protocol": "exact", "fiedler_value": [0.25, 0.5]})
        >>> asc.report(asc.Results({"heads": heads}), tempfile.mkdtemp() + "/report.html").name
        'report.html'
    """
    check_places(results)
    home: Any = getattr(results, "path", None)
    if path is None and home is None:
        raise ValueError("report: these results have no run folder; say where to write")
    target = Path(home) / "report.html" if path is None else Path(path)
    heading = title or f"{_title(results)}: {Path(home).name if home else 'results in memory'}"
    text = render(results, heading, drawn, left_out)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(target, text.encode())
    return target


def latex_tables(results: Results, *, width: str = "single", columns: Sequence[str] | None = None) -> str:
    """Return every table of the report's sections, ready to be read into a paper.

    The document needs `booktabs` and `array`.

    Args:
        results: what `attnscope.load` returns.
        width: "single" for one column of a two-column paper, "double" for both. A table that does not fit one
            column is set across both.
        columns: headings of numbers that are set where a table has them; None takes as many as fit, of a
            narrow table at most three.

    Raises:
        ValueError: another width, a heading that no table has, or columns that do not fit a page.
    """
    require_table(results, "heads")
    check_places(results)
    page = Page(results, {})
    parts = ["% \\usepackage{array,booktabs} in the preamble; numbers in brackets are 95 % intervals.\n"]
    blocks = [block for section in _sections(results) for block in page.written(section)]
    tables = [block.content for block in blocks if block.kind == "table" and not block.content.folded]
    headings = dict.fromkeys(str(name) for table in tables for name in table.frame.columns[table.names :])
    for name in columns or ():
        if name not in headings:
            raise ValueError(f"latex: no table has a column {name!r}{nearest(name, list(headings))}")
    for table in tables:
        chosen = [name for name in columns or () if name in table.frame.columns[table.names :]]
        parts.append(latex(table, width, chosen or None))
    return "\n".join(parts)


def latex(table: Table, width: str = "single", columns: Sequence[str] | None = None) -> str:
    """Return a floating table."""
    return latex_table(table, address_of(table), width=width, columns=columns)


def _title(results: Results) -> str:
    """Return the title of the study that made some results."""
    study = study_of(results)
    name = study.name.replace("_", " ").capitalize() if study else any_run.TITLE
    return str(getattr(_words(results), "TITLE", name))


def _words(results: Results) -> Any:
    """Return the sections of the study that made some results; of no study, those that any run has."""
    study = study_of(results)
    return (study.part("sections") if study else None) or any_run


def _sections(results: Results) -> Sequence[Section]:
    """Return the sections of a report; of a study that declares findings alone, those that any run has."""
    sections: Sequence[Section] = getattr(_words(results), "SECTIONS", any_run.SECTIONS)
    return sections


#: Columns without which a row of a table has no place in a report.
_PLACES = {
    "samples": (*CHECKPOINT_KEYS, "sample", "group", "n_tokens", "text"),
    "heads": tuple(key for key in HEAD_KEYS if key != "protocol"),
    "graphs": (*(key for key in HEAD_KEYS if key != "protocol"), "threshold"),
    **dict.fromkeys(("head_means", "layers", "head_mean_graphs"), (*CHECKPOINT_KEYS, "sample")),
}


def check_places(results: Results) -> None:
    """Raise ResultsError where a table, such as one that somebody else has written, lacks a column that says
    where its rows belong, or is of a later version than its study.
    """
    refuse_newer_tables(results)
    for name in results.tables() if isinstance(results, Results) else ():
        columns = results.column_names(name)
        places = _PLACES.get(name, ()) if name in ("samples", "heads") or "sample" in columns else ()
        if missing := [key for key in places if key not in columns]:
            raise ResultsError(
                f"report: table {name!r} has no column {missing[0]!r}, without which its rows have no place; "
                f"it holds {list_names(columns)}"
            )


def render(
    results: Results, title: str, drawn: Mapping[str, Drawn] | None = None, without: Sequence[LeftOut] = ()
) -> str:
    """Return the page as text."""
    from jinja2 import StrictUndefined, Template

    from attnscope.plots import draw_all

    left_out: list[LeftOut] = list(without)
    if drawn is None:
        drawn = draw_all(results, left_out=left_out)
    page, words = Page(results, drawn), _words(results)
    sections, shown = [], _OWN_TABLES
    for section in _sections(results):
        if blocks := page.written(section):
            shown = shown.union(section.tables)
            sections.append((section, page.greyed, blocks))
    source = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    template = Template(
        source,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=printable,
    )
    others = _further_tables(page, shown | getattr(words, "WORKING", frozenset()))
    with naming_missing_columns(results, ("claims",)):
        findings = words.findings(page.results) if hasattr(words, "findings") else []
    home = getattr(results, "path", None)

    def existing_files(*files: str) -> list[str]:
        """Return the files that the run folder holds, as the report in it names them."""
        return [file for file in files if home is not None and (home / file).is_file()]

    pages = (("every head as a picture", "view.html"), ("captions for LaTeX", "figures/captions.tex"))
    provenance: Mapping[str, Any] = getattr(results, "provenance", {})
    rendered = template.render(
        html=html,
        intervals=getattr(
            words, "INTERVALS", any_run.INTERVALS if page.heads() is not None else any_run.NAMED
        ),
        picture=_data_uri,
        title=title,
        made=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        facts=_facts(page.tables, page.heads()),
        findings=findings,
        links=[(words, file) for words, file in pages if existing_files(file)],
        files={name: existing_files(f"figures/{name}.pdf", f"figures/{name}.png") for name in drawn},
        unfinished=unfinished(results) if isinstance(results, Results) else "",
        strongest=any_run.strongest_heads(page, getattr(words, "RANKED", "")),
        skipped=_skipped(provenance),
        sections=sections,
        meanings=page.meanings,
        other_tables=[further(name, table) for name, table in others.items()],
        left_out=[(omission.name, omission.reason) for omission in left_out],
        samples=_samples(page.tables.get("samples")),
        provenance=_flat(provenance),
        study=json.dumps(getattr(results, "study", {}), indent=2, ensure_ascii=False, default=str),
    )
    return _with_heads_linked(rendered) if existing_files("view.html") else rendered


def _further_tables(page: Page, named: frozenset[str]) -> dict[str, pd.DataFrame]:
    """Return the tables with rows that no section shows and the study does not keep for itself."""
    return {
        name: table
        for name, table in sorted(page.tables.items())
        if name not in named and not name.endswith("_variants") and len(table)
    }


def _with_heads_linked(page: str) -> str:
    """Return the names of heads in sentences and cells as links into the page of heads.

    >>> _with_heads_linked('<p alt="L0H1">L0H1, L2H3 <a>L1H1</a></p>').count("href")
    2
    """
    parts, inside = re.split(r"(<[^>]*>)", page), ""
    for at, part in enumerate(parts):
        if tag := re.match(r"<(/?)(a|style|script|title|pre)\b", part):
            inside = "" if tag[1] else tag[2]
        elif not inside and not part.startswith("<"):
            link = r'<a href="view.html#layer=\1&amp;head=\2">L\1H\2</a>'
            parts[at] = re.sub(r"\bL(\d+)H(\d+)\b", link, part)
    return "".join(parts)


def _lines(table: Table) -> tuple[list[int], bool]:
    """Return the columns of numbers whose cells stay on one line, and True if the table needs small letters.

    A number stays next to its interval as long as the page has room; words break.
    """
    texts = [[str(name), *map(str, cells)] for name, cells in table.frame.items()]
    longest = [max(map(len, cells)) for _, *cells in texts]
    words = [max((len(word) for text in cells for word in text.split()), default=0) for cells in texts]
    words[0] = max(words[0], _FIRST)
    lines = [k for k in range(table.names, len(texts)) if longest[k] <= _SHORT]
    lines.sort(key=longest.__getitem__)

    def width() -> int:
        return sum(max(word, longest[k] * (k in lines)) + 1 for k, word in enumerate(words))

    small = width() > _ROOM
    while lines and width() > _SMALL_ROOM:
        lines.pop()
    return sorted(lines), small


def printable(value: Any) -> Any:
    """Return what the template prints: text without control characters; markup and numbers as they are."""
    return mark_controls(value) if type(value) is str else value


def address_of(table: Table) -> str:
    """Return the label of a table as an id in the page and in LaTeX: letters, digits, hyphens, underscores.

    A label that holds anything else, such as the name of a stored file, gets a checksum: two labels have two
    addresses.

    >>> address_of(Table("within", "", pd.DataFrame())), address_of(Table("a b", "", pd.DataFrame()))
    ('within', 'a-b-806c5cd3')
    """
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", table.label)
    return (
        plain if plain == table.label else f"{plain}-{zlib.crc32(table.label.encode('utf-8', 'replace')):08x}"
    )


def html(table: Table) -> Markup:
    """Return a table as HTML, behind its caption where it is folded."""
    columns = range(table.names, len(table.frame.columns))
    lines, small = _lines(table)
    caption = Markup("{}").format(printable_line(table.caption))
    styler = table.styled("html").set_uuid(address_of(table))
    if not table.folded:
        styler.set_caption(caption)
    if small:
        styler.set_table_attributes('class="small"')
    right: list[Any] = [{"selector": f".col{k}", "props": "text-align: right"} for k in columns]
    styler.set_table_styles(
        right + [{"selector": f"td.col{k}", "props": "white-space: nowrap"} for k in lines]
    )
    # the styler has escaped cells and titles, the caption is markup, and every id is an address
    styled = Markup(styler.to_html())  # noqa: S704
    text = Markup('<div class="scroll">{}</div>{}').format(styled, _downloads(table))
    if not table.folded:
        return text
    return Markup("<details><summary>{}</summary>{}</details>").format(caption, text)


def _downloads(table: Table) -> Markup:
    """Return links to the table as CSV, with the quoting of spreadsheets, and as LaTeX, inside the page."""
    csv = io.BytesIO()
    write_csv(table.frame, csv)
    files = {"csv": csv.getvalue().decode(), "tex": "" if table.folded else latex(table)}
    link = Markup('<a download="{}.{}" href="data:text/plain;base64,{}">{}</a>')
    links = [
        link.format(address_of(table), ending, _base64(text), ending.upper())
        for ending, text in files.items()
        if text
    ]
    return Markup('<p class="downloads">{}</p>').format(Markup(" · ").join(links))


def _base64(text: str) -> str:
    """Return a text as base64 of its UTF-8; halves of surrogate pairs become question marks."""
    return base64.b64encode(text.encode("utf-8", "replace")).decode("ascii")


def _skipped(provenance: Mapping[str, Any]) -> list[Markup]:
    """Return the checkpoints that a run could not use, each with its reason; of a damaged list, its text."""
    entries = provenance.get("skipped") or []
    lines = []
    for entry in entries if isinstance(entries, list) else [entries]:
        if isinstance(entry, Mapping) and "checkpoint" in entry:
            reason = mark_controls(str(entry.get("reason", "")))
            lines.append(Markup("{}: {}").format(isolate_name(entry["checkpoint"]), reason))
        else:
            lines.append(isolate_name(entry))
    return lines


def _data_uri(figure: Any) -> str:
    """Return the picture of a figure inside the page."""
    from attnscope.plots.style import style, valid_xml

    with style():
        for kind, options in _PICTURES.items():
            buffer = io.BytesIO()
            figure.savefig(buffer, bbox_inches="tight", pad_inches=0.04, **options)
            if kind == "png" or buffer.tell() <= _LARGEST_SVG:
                break
    picture = valid_xml(buffer.getvalue()) if kind == "svg+xml" else buffer.getvalue()
    return f"data:image/{kind};base64,{base64.b64encode(picture).decode('ascii')}"


def _facts(tables: Mapping[str, pd.DataFrame], heads: pd.DataFrame | None) -> dict[str, str]:
    """Return the facts of the measured texts and models, in a few lines."""
    facts: dict[str, str] = {}
    samples = tables.get("samples")
    if samples is not None and not samples.empty:
        facts["models"] = isolate_names(samples["model"].unique())
        if checkpoints := _checkpoints(samples):
            facts["checkpoints"] = checkpoints
        texts = samples.drop_duplicates(["model", "sample"])
        # models cut and split the same sentences each in its own way
        for group, texts_of_group in texts.groupby("group", sort=False):
            lengths = " to ".join(map(str, dict.fromkeys(texts_of_group["n_tokens"].agg(["min", "max"]))))
            facts[f"input “{group}”"] = (
                f"{counted(texts_of_group['sample'].nunique(), 'text')} of {lengths} tokens"
            )
        if "truncated" in texts and len(cut := texts[texts["truncated"].astype(bool)]):
            limits = cut.groupby("model", sort=False)["n_tokens"].max()
            words = [Markup("{}'s {}").format(isolate_name(model), limit) for model, limit in limits.items()]
            number = cut["sample"].nunique()
            facts["cut"] = Markup("{} text{} longer than {} tokens and {} cut").format(
                number,
                " was" if number == 1 else "s were",
                Markup(" and ").join(words),
                "was" if number == 1 else "were",
            )
    if heads is not None and not heads.empty:
        sizes = {str(model): _size(rows) for model, rows in heads.groupby("model", sort=False)}
        alike = len(set(sizes.values())) == 1
        named = [NamedSentence(model, size) for model, size in sizes.items()]
        shown: list[str] = [*set(sizes.values())] if alike else [*named]
        facts["heads"] = Markup("{}; {:,} maps measured").format(Markup("; ").join(shown), len(heads))
    return facts


def _size(heads: pd.DataFrame) -> str:
    """Return the layers and heads of a model in words; a layer may have fewer heads than another.

    >>> _size(pd.DataFrame({"layer": [0, 0, 1], "head": [0, 1, 0]}))
    '2 layers of 1 to 2 heads'
    """
    counts = heads.groupby("layer")["head"].nunique()
    fewest = f"{counts.min()} to " if counts.nunique() > 1 else ""
    return f"{counted(len(counts), 'layer')} of {fewest}{counted(counts.max(), 'head')}"


def _checkpoints(samples: pd.DataFrame) -> str:
    """Return the steps that were measured, and how many checkpoints have none; "" for one of each model."""
    checkpoints = samples[[*CHECKPOINT_KEYS]].drop_duplicates()
    steps = sorted({int(step) for step in checkpoints["step"] if step >= 0})
    of_no_step = checkpoints[checkpoints["step"] < 0]
    if checkpoints["step"].nunique() <= 1 and not checkpoints["model"].duplicated().any():
        return ""
    words = [f"steps {', '.join(map(str, steps))}"] if steps else []
    words += [f"{'one' if len(of_no_step) == 1 else len(of_no_step)} of no step"] if len(of_no_step) else []
    several = of_no_step["model"].duplicated().any()
    last = "; of several the last by name is described" if several else ""
    return f"{len(checkpoints)}: {' and '.join(words)}{last}"


def _samples(samples: pd.DataFrame | None) -> list[dict[Hashable, Any]]:
    if samples is None or samples.empty:
        return []
    texts = samples.drop_duplicates("sample")
    few = texts.groupby("group", sort=False).head(-(-_SHOWN_SAMPLES // max(1, texts["group"].nunique())))
    return few.to_dict("records")


def further(name: str, table: pd.DataFrame) -> Table:
    """Return a table that has no section of its own, its first rows; empty columns are left out."""
    empty = {"revision": "", "step": -1}
    total = len(table)
    table = table.drop(columns=[key for key in empty if key in table and (table[key] == empty[key]).all()])
    arrays = [name for name in table if len(table) and isinstance(table[name].iloc[0], (list, np.ndarray))]
    arrays += [name for name in table if table[name].isna().all()]
    table = table.drop(columns=arrays).head(_SHOWN_ROWS)  # arrays are a figure's business
    cells = table.map(lambda cell: number(cell) if isinstance(cell, float) else str(cell)[:80])
    caption = f"{name}: {total:,} row{'' if total == 1 else 's'}"
    caption += f", the first {len(cells)}" if total > len(cells) else ""
    return Table(f"table-{name}", caption, cells, names=len(cells.columns), folded=True)


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
