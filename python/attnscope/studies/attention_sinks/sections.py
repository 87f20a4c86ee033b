# SPDX-License-Identifier: MIT
"""The report's sections of the study in order, and its main numbers in sentences."""

from __future__ import annotations

import math

import pandas as pd
from markupsafe import Markup

from attnscope.errors import NotDrawable
from attnscope.plots.figure import Results, optional
from attnscope.plots.selection import estimate, last_step
from attnscope.report.numbers import all_means
from attnscope.report.section import NamedSentence, Page, Section, Table, paragraphs
from attnscope.results.schema import CHECKPOINT_KEYS
from attnscope.statistics.sink_heads import LEAST_SHARE
from attnscope.studies.attention_sinks.figures.sinks import sinks
from attnscope.studies.attention_sinks.questions import questions
from attnscope.studies.attention_sinks.report_sections import ANALYSES
from attnscope.studies.attention_sinks.tables import Frame
from attnscope.study_api.number_text import estimate_text, interval_text, number
from attnscope.study_api.rows import first_as
from attnscope.study_api.selection import matching, where

TITLE = "Attention sinks"
PROTOCOL = "ruscio2025"

_PUBLISHED = """What the authors' published notebooks compute, quirks included, on the head mean, beside the
    exact quantity on the same maps. Where the two disagree, the sections above say what the published one
    measures.

    Nothing of the exact protocol goes into the published numbers, and the other way round."""

_CAUSAL = Markup(
    """β₀ = min(<i>n</i>, 30) and β₁ = 0 for every causal model whose kept tokens give themselves some
    attention, whatever else it attends to.

    The eigenvalues of a causal map are its diagonal: their gap says nothing about sinks.

    The alignment of a causal map is the exact one made smaller by the zeros above the diagonal.

    Frames by token string and by position disagree where a tokenizer prepends no BOS."""
)


def findings(results: Results) -> list[str]:
    """Return the main numbers of the run in sentences that are true of any run."""
    try:
        final = last_step(sinks(results))
    except NotDrawable:
        return []
    lines: list[str] = []
    verdicts = optional(results, "frames")
    for series in dict.fromkeys(final["series"]):
        rows_of_series = where(final, series=series)
        table = estimate(rows_of_series, "sink_share", ["layer", "head"], together=True)
        table = table.dropna(subset="mean")
        if table.empty:
            continue
        top = table.sort_values("mean", ascending=False).iloc[0]
        # layers of one model may see different keys
        layer = where(rows_of_series, layer=top["layer"])
        uniform = (
            float(layer["sink_share_uniform"].mean())
            if "sink_share_uniform" in rows_of_series
            else float("nan")
        )
        windows = "support" in rows_of_series and not rows_of_series["support"].isin(["causal", "full"]).all()
        seen = " over all queries, those that do not see it among them" if windows else ""
        strong = int((table["mean"] > 0.3).sum())
        # the largest of many is larger than it would be alone: its interval is one of all heads at once
        certain = estimate_text(top["mean"], top["low"], top["high"])
        sentence = (
            f"{_of_frame(rows_of_series, verdicts)}{_count(strong, len(table))} give the first key more "
            f"than 0.3 on average{seen}; the strongest of all, L{int(top['layer'])}H{int(top['head'])}, "
            f"gives it {certain}, uniform attention among the visible keys of its layer {number(uniform)}."
        )
        lines.append(NamedSentence(series, sentence))
        if "learned_sink_mass" in rows_of_series and rows_of_series["learned_sink_mass"].max() > 0:
            mass = estimate(rows_of_series, "learned_sink_mass", ["series"]).iloc[0]
            sentence = f"a learned sink takes {number(mass['mean'])} of each row, mean over heads."
            lines.append(NamedSentence(series, sentence))
    return lines


def _count(count: int, total: int) -> str:
    """Return the count of heads as a subject."""
    return f"{count} of {total} heads" if count else f"none of {total} heads" if total > 1 else "no head"


def _of_frame(rows_of_series: pd.DataFrame, verdicts: pd.DataFrame | None) -> str:
    """Return the share of heads with a sink by the test, and the frame of those heads, as the start of a
    sentence.
    """
    if verdicts is None or "heads_tested" not in verdicts:
        return ""
    rows = matching(where(verdicts, protocol="exact"), rows_of_series[[*CHECKPOINT_KEYS]].iloc[0].to_dict())
    groups: list[str] = list(rows_of_series["group"].unique()) if "group" in rows_of_series else []
    named = where(rows, group=groups[0]) if len(groups) == 1 else rows[:0]
    rows = named if len(named) else where(rows, group="all")
    if rows.empty:
        return ""
    row = first_as(Frame, rows)
    if not row.heads_tested:
        return "no key could be tested for being a sink; "
    verdict = f"the test finds a sink in {_count(int(row.heads_with_sink), int(row.heads_tested))}"
    if not row.heads_with_sink:
        return f"{verdict}, so there is no reference frame; "
    if row.frame == "none" and row.share_with_sink >= LEAST_SHARE:
        return f"{verdict}, all texts together and none of them alone, so there is no reference frame; "
    if row.frame == "none":
        return f"{verdict}, too few for a reference frame; "
    details = [] if math.isnan(row.probability) else [f"in {row.probability:.0%} of resampled texts"]
    if not math.isnan(row.chance):
        details.append(f"in {row.chance:.1%} of draws in which heads are unrelated")
    again = f" ({'; '.join(details)})" if details else ""
    return f"{verdict}, whose frame is {row.frame}{again}; "


def _tests(page: Page) -> None:
    """Write every question that the stored tables answer, a family of tests each."""
    page.words(
        Markup(
            """Texts are the unit: layers and heads of one text are no replicates. <i>p</i> is two-sided; Holm
            and Benjamini-Hochberg are over the tests of the same question, unless it says otherwise. Bold:
            p &lt; 0.05 after Holm."""
        )
    )
    for place, (title, words, frame, certain) in enumerate(questions(page.tables, page.heads())):
        page.heading(title)
        page.definition(words)
        page.table(Table(f"tests-{place}", title, frame, 2, certain))


def _published(page: Page) -> None:
    """Write the published protocol's numbers, with the exact quantities and the paper's numbers."""
    if page.protocol != PROTOCOL:
        return
    page.words(_PUBLISHED)
    page.notes(paragraphs(_CAUSAL) if page.causal else ())
    page.figure("protocols")
    _comparison(page)
    # what the authors compute, they compute on the head mean
    tables = {name: table for name, table in page.tables.items() if "head" not in table}
    caption = "Every stored number of the published protocol, mean over models and layers"
    page.table(Table("published", caption, all_means(tables, PROTOCOL), 2, folded=True))


def _comparison(page: Page) -> None:
    """Write the run next to the paper's numbers: notes first, then means and their differences."""
    from attnscope.published import compare_published

    comparison = compare_published(page.results, PROTOCOL, draws=300)
    is_measured = comparison.table["measured"].notna()
    table = where(comparison.table[is_measured], statistic=["mean", "share", "trend"])
    if table.empty:
        return
    page.heading("Beside the paper's numbers")
    page.notes(comparison.statements)
    rows = []
    for row in table.to_dict("records"):
        run_layer, theirs = row["layer"], row["published_layer"]
        layer = "all" if theirs < 0 else str(theirs)
        layer += f" (here {run_layer})" if run_layer != theirs else ""
        published = number(row["published"])
        if row["published"] != row["published"]:
            published = f"{number(row['published_low'])} to {number(row['published_high'])}"
        token = f" “{row['token']}”" if row["token"] else ""
        rows.append(
            {
                "run / paper": f"{row['model']} / {row['published_model']}",
                "quantity": row["quantity"].replace("_", " ") + token,
                "statistic": "trend with depth" if row["statistic"] == "trend" else row["statistic"],
                "layer": layer,
                "published": published,
                "this run, same way": number(row["measured"]),
                "95 % interval": interval_text(row["low"], row["high"]),
                "difference": number(row["difference"]),
                "exact": number(row["exact"]),
                "printed in": row["origin"],
            }
        )
    caption = f"{len(rows)} published numbers with this run's own"
    page.table(Table("comparison", caption, pd.DataFrame(rows), 3, folded=True))


#: What ranks the heads on the report's first page.
RANKED = "sink_share"

SECTIONS: tuple[Section, ...] = (
    *ANALYSES,
    Section("tests", "Statistical tests", ("null_tests", "layer_tests", "removal_tests", "ablation"), _tests),
    Section("published", "Published protocol (ruscio2025)", ("head_means",), _published),
)
