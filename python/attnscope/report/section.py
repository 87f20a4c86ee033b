# SPDX-License-Identifier: MIT
"""Sections of a report: a title, the tables that they show, and a function that writes them.

    def write(page: Page) -> None:
        page.words("How far a head looks back.")
        page.figure("depth")
        page.numbers(["entropy", ("betti_0", 0.02)])

    SECTIONS = (Section("range", "How far heads look", ("heads",), write),)

`analysis` makes the usual section from its parts. Text is escaped wherever it is shown, so that a label of a
run may be in it. HTML that a study writes itself is a `markupsafe.Markup` of a literal, into which names
come by `Markup.format`, which escapes them. Texts may break and be indented as the code around them is: a
paragraph is set as one line. Numbers are tables, which the page sets as HTML and `latex_tables` as LaTeX.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
from markupsafe import Markup

from attnscope.errors import NotDrawable, ResultsError
from attnscope.plots.figure import Drawn, Results, describe_missing_column, optional
from attnscope.plots.selection import measured_heads, series_noun
from attnscope.report.numbers import Metric, ProtocolComparison, number_rows, pair_rows
from attnscope.results.equal_texts import of_distinct_texts
from attnscope.results.summaries import NULLS, with_groups
from attnscope.untrusted.safe_text import mark_controls

if TYPE_CHECKING:
    from pandas.io.formats.style import Styler


class Block(NamedTuple):
    """A piece of a section: "words", "definition", "heading", "notes", "published", "figure" or "table"."""

    kind: str
    content: Any


class NamedSentence(str):
    """A sentence about a name, which a page isolates from the direction of writing of the rest.

    As text it is the name, a separator and the sentence.

    >>> print(NamedSentence("gpt2", "no head reads."), NamedSentence("<b>", "none.").__html__())
    gpt2: no head reads. <bdi>&lt;b&gt;</bdi>: none.
    """

    _name: str
    _rest: str

    def __new__(cls, name: object, sentence: str, separator: str = ": ") -> NamedSentence:
        self = super().__new__(cls, f"{name}{separator}{sentence}")
        self._name, self._rest = str(name), f"{separator}{sentence}"
        return self

    def __html__(self) -> Markup:
        """Return the sentence as HTML, escaped."""
        return isolate_name(self._name) + mark_controls(self._rest)


def isolate_name(name: object) -> Markup:
    """Return a name as HTML whose direction of writing leaves its neighbours as they are.

    >>> isolate_name("a<b")
    Markup('<bdi>a&lt;b</bdi>')
    """
    return Markup("<bdi>{}</bdi>").format(mark_controls(str(name)))


def isolate_names(names: Iterable[object]) -> Markup:
    """Return names as HTML, a comma between them, each with a direction of writing of its own."""
    return Markup(", ").join(map(isolate_name, names))


def printable_line(text: str) -> str:
    """Return a text in one line, with a mark in the place of each control character."""
    return re.sub(r"[\t\n]", "·", mark_controls(text))


@dataclass(frozen=True)
class Table:
    """Cells of text under a caption; the first columns hold names, the others numbers."""

    label: str  # unique in the report
    caption: str  # one sentence
    frame: pd.DataFrame
    names: int = 1  # number of leading columns that hold names
    certain: tuple[int, ...] = ()  # rows that are set bold
    folded: bool = False  # shown behind its caption only

    def styled(self, escape: str) -> Styler:
        """Return a styler for `to_html` or `to_latex`: cells escaped, a first cell that repeats the one
        above empty.
        """
        # line ends and other control characters of a token would be read by the page or by LaTeX
        frame = self.frame.astype(str).map(printable_line).reset_index(drop=True)
        frame.columns = frame.columns.map(lambda name: printable_line(str(name)))
        if self.names < len(frame.columns):
            first = frame.iloc[:, 0]
            frame.iloc[:, 0] = first.where(first != first.shift(), "")
        bold = np.full(frame.shape, "", dtype=object)
        bold[list(self.certain)] = "font-weight: bold"
        styler = frame.style.hide(axis="index").format(escape=escape).format_index(escape=escape, axis=1)
        return styler.apply(lambda _: bold, axis=None)


@dataclass(frozen=True)
class Section:
    """A section that a study declares; one that writes neither a figure nor a table is left out."""

    id: str  # its address in the page
    title: str  # its heading
    tables: tuple[str, ...]  # its tables; a table of no written section is listed at the end of the page
    write: Callable[[Page], None]


def paragraphs(text: str) -> list[str]:
    r"""Return the paragraphs of a text, each as one line; those of markup are markup.

    >>> paragraphs('''What stands
    ...     in the code.
    ...
    ...     What follows.''')
    ['What stands in the code.', 'What follows.']
    >>> paragraphs(Markup("<i>x</i>\n  is it."))
    [Markup('<i>x</i> is it.')]
    """
    space = Markup(" ") if isinstance(text, Markup) else " "
    return [space.join(part.split()) for part in text.split("\n\n") if part.strip()]


@contextmanager
def naming_missing_columns(results: Results, tables: Sequence[str] = ()) -> Iterator[None]:
    """Turn an error about a column that a table of the study lacks into a ResultsError that names both."""
    try:
        yield
    except (KeyError, AttributeError) as error:
        if missing := describe_missing_column(results, tables, error):
            raise ResultsError(f"report: {missing}, without which its rows have no place") from error
        raise


class Page:
    """The results of a run, its figures by name, and the blocks that a section has written so far."""

    def __init__(self, results: Results, drawn: Mapping[str, Drawn]) -> None:
        self.results, self.drawn = of_distinct_texts(results), drawn
        self.blocks: list[Block] = []
        self.greyed = False
        self.section = Section("", "", (), lambda page: None)
        self.meanings: dict[str, str] = {}
        self._heads: dict[Any, pd.DataFrame] = {}

    def written(self, section: Section) -> list[Block]:
        """Return the blocks that a section writes; none if it has neither a figure nor a table."""
        self.blocks, self.section, self.greyed = [], section, False
        try:
            with naming_missing_columns(self.results, section.tables):
                section.write(self)
        except NotDrawable:
            return []
        return self.blocks if any(block.kind in ("figure", "table") for block in self.blocks) else []

    @cached_property
    def tables(self) -> dict[str, pd.DataFrame]:
        """Every stored table."""
        return {name: self.results.table(name) for name in self.results.tables()}

    @cached_property
    def with_series(self) -> dict[str, pd.DataFrame]:
        """Tables of maps, layers and graphs with their series."""
        samples = self.tables.get("samples")
        names = ("heads", "head_means", "layers", "graphs", "head_mean_graphs")
        return {
            name: with_groups(self.tables[name], samples)
            for name in names
            if "sample" in self.tables.get(name, ())
        }

    @cached_property
    def protocol(self) -> str:
        """The second protocol of the run next to the exact one, "" without one."""
        heads = self.with_series.get("heads")
        if heads is None or "protocol" not in heads:
            return ""
        return next((str(name) for name in heads["protocol"].unique() if name != "exact"), "")

    @cached_property
    def causal(self) -> bool:
        """True if any model of the run is causal, or if the run does not record it."""
        samples = self.tables.get("samples")
        return samples is None or "causal" not in samples or bool(samples["causal"].isin([True]).any())

    @cached_property
    def apart(self) -> str:
        """Keys that distinguish the series of the run."""
        heads = self.heads()
        return series_noun(heads) if heads is not None else "input"

    def heads(self, metrics: Sequence[Metric] = ()) -> pd.DataFrame | None:
        """Return single heads under the exact protocol, with the requested columns of the graphs."""
        graph_metrics = tuple(metric for metric in metrics if not isinstance(metric, str))
        if graph_metrics not in self._heads:
            try:
                self._heads[graph_metrics] = measured_heads(self.results, graph_metrics)
            except NotDrawable:
                return None
        return self._heads[graph_metrics]

    def words(self, text: str | Markup) -> None:
        """Write paragraphs, an empty line between them; text is escaped, markup is set as it is."""
        self.blocks += [Block("words", part) for part in paragraphs(text)]

    def definition(self, text: str | Markup) -> None:
        """Write paragraphs with formulas; text is escaped, markup is set as it is."""
        self.blocks += [Block("definition", part) for part in paragraphs(text)]

    def heading(self, text: str) -> None:
        """Write a heading inside the section."""
        self.blocks.append(Block("heading", text))

    def notes(self, lines: Sequence[str | Markup], *, published: bool = False) -> None:
        """Write a list of points to keep in mind, or of the published computation.

        Text is escaped, markup is set as it is.
        """
        if lines:
            self.blocks.append(Block("published" if published else "notes", list(lines)))

    def grey(self) -> None:
        """Draw the section's figures and tables paler, because it describes an effect that was not found."""
        self.greyed = True

    def figure(self, name: str) -> None:
        """Write a figure of the study, if it could be drawn."""
        if name in self.drawn:
            self.blocks.append(Block("figure", (name, self.drawn[name])))

    def table(self, table: Table) -> None:
        """Write a table."""
        if len(table.frame):
            self.blocks.append(Block("table", table))

    def frame(
        self, name: str, caption: str, frame: pd.DataFrame | None, *, names: int = 1, folded: bool = False
    ) -> None:
        """Write a table of text cells, if any; a folded table is behind its caption."""
        if frame is not None:
            self.table(Table(f"{self.section.id}-{name}", caption, frame, names, folded=folded))

    def numbers(self, metrics: Sequence[Metric]) -> None:
        """Write means over single heads at the last checkpoint, with interval and baselines."""
        heads = self.heads(metrics)
        rows = [] if heads is None else number_rows(heads, optional(self.results, "baselines"), metrics)
        coverages = {row["coverage"] for row in rows if row["median"]}
        median = f"median, {min(coverages, default='')} interval"
        if len(coverages) > 1:
            median = "median and its interval (coverage)"
            for row in rows:
                row["median"] = row["median"] and f"{row['median']} ({row['coverage']})"
        titles = {"label": "mean over heads", "mean": "exact", "interval": "95 % interval"}
        optional_titles = {"median": median, "uniform": "uniform", **NULLS, "untrained": "step 0"}
        optional_titles |= {"strongest": "highest head", "samples": "n"}
        titles |= {
            name: title
            for name, title in optional_titles.items()
            if any(row[name] not in ("", "–") for row in rows)
        }
        if any(row["missing"] != "0" for row in rows):
            titles["missing"] = "maps undefined"
        caption = f"{self.section.title}: mean over heads; n is the number of texts."
        self._rows(self.section.id, caption, rows, titles)

    def protocols(self, comparisons: Sequence[ProtocolComparison]) -> None:
        """Write the head mean under the exact protocol and the other protocol of the run."""
        rows = pair_rows(self.with_series, comparisons, self.protocol) if self.protocol else []
        titles = {
            "label": "head mean",
            "exact": "exact",
            "exact_interval": "95 % interval",
            "published": "as published",
            "published_interval": "95 % interval, published",
        }
        caption = f"{self.section.title}: the head mean under both protocols."
        self._rows(f"{self.section.id}-protocols", caption, rows, titles)

    def _rows(
        self, label: str, caption: str, rows: Sequence[Mapping[str, Any]], titles: Mapping[str, str]
    ) -> None:
        """Write a table of rows of cells under titles, with their series if there are several."""
        self.meanings |= {row["label"]: row["meaning"] for row in rows}
        frame = pd.DataFrame(rows, columns=list(titles)).rename(columns=titles)
        several = len({row["series"] for row in rows}) > 1
        if several:
            frame.insert(1, self.apart, [row["series"] for row in rows])
        self.table(Table(label, caption, frame, 2 if several else 1))


def analysis(
    id: str,
    title: str,
    *,
    words: str,
    definition: str,
    tables: tuple[str, ...] = ("heads",),
    figures: Sequence[str] = (),
    metrics: Sequence[Metric] = (),
    pairs: Sequence[ProtocolComparison] = (),
    table: Callable[[Page], None] | None = None,
    published: str = "",
    published_causal: str = "",
    caveats: str = "",
) -> Section:
    """Return the usual section: words, definition, figures, numbers, both protocols, caveats.

    `published` describes the other protocol's computation, and is shown when the run followed it; of it and
    of `caveats` each paragraph is a point of a list.
    """

    def write(page: Page) -> None:
        page.words(words)
        page.definition(definition)
        for name in figures:
            page.figure(name)
        page.numbers(metrics)
        page.protocols(pairs)
        if table is not None:
            table(page)
        if page.protocol:
            causal = paragraphs(published_causal) if page.causal else []
            page.notes(causal + paragraphs(published), published=True)
        page.notes(paragraphs(caveats))

    return Section(id, title, tables, write)
