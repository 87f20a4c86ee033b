# SPDX-License-Identifier: MIT
"""The report is one file, escapes what it did not write, and says the numbers of the tables."""

import base64
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from markupsafe import Markup

import attnscope
import attnscope.protocols
import figure_tables as made
import study_tables as tables
from attnscope.errors import ResultsError
from attnscope.plots.selection import measured_heads, series_noun
from attnscope.report import report
from attnscope.report.any_run import strongest_heads
from attnscope.report.numbers import ProtocolComparison, all_means, number_rows, pair_rows
from attnscope.report.page import _facts, _flat, further, render
from attnscope.report.page import html as table_html
from attnscope.report.section import Page as StudyPage
from attnscope.report.section import Table
from attnscope.results.results import Results
from attnscope.results.summaries import rows_of_protocol
from attnscope.studies.attention_sinks.questions import questions
from attnscope.studies.attention_sinks.report_tables import emergence, fisher, frames
from attnscope.studies.attention_sinks.sections import SECTIONS
from attnscope.study_api.number_text import number

pytestmark = pytest.mark.usefixtures("unarranged", "unpictured")

#: Averages of controls of a run without any.
EVIL = "<script>alert(1)</script>"


class Page(HTMLParser):
    """Tags with their attributes, text, and whether tags were closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.open: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def opened(results: Results, folder: Path) -> Page:
    return Page(report(results, folder / "r.html").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def html(tmp_path_factory: pytest.TempPathFactory) -> str:
    results = made.make_results(token=EVIL, group=EVIL)
    return report(results, tmp_path_factory.mktemp("report") / "report.html").read_text(encoding="utf-8")


def test_nothing_from_the_run_becomes_markup(html: str) -> None:
    assert EVIL not in html
    page = Page(html)
    assert not page.open
    assert "script" not in {tag for tag, _ in page.tags}
    assert EVIL in "".join(page.text)


def test_nothing_is_fetched(html: str) -> None:
    page = Page(html)
    for tag, attributes in page.tags:
        for name in ("src", "href", "srcset", "data", "action"):
            target = attributes.get(name)
            assert target is None or target.startswith(("data:", "#")), (tag, target)
    assert "link" not in {tag for tag, _ in page.tags}
    outside_images = re.sub(r'src="data:[^"]*"', "", html)
    assert not re.search(r"url\(|@import|https?:", outside_images)


def test_every_section_is_there_and_in_the_contents(html: str) -> None:
    page = Page(html)
    ids = {attributes.get("id") for tag, attributes in page.tags if tag in ("h1", "h2")}
    links = {
        attributes["href"] for tag, attributes in page.tags if tag == "a" and "download" not in attributes
    }
    assert links == {f"#{name}" for name in ids}
    missing = {"positions", "reference", "fisher", "frames", "published"}  # this run has no such tables
    always = {"summary", "quantities", "inputs", "provenance"}
    assert ids == {section.id for section in SECTIONS} - missing | always
    assert sum(tag == "img" for tag, _ in page.tags) == 10
    assert all(attributes.get("alt") for tag, attributes in page.tags if tag == "img")


def test_honest_statements_stand_beside_the_numbers(html: str) -> None:
    text = "".join(Page(html).text)
    assert "λ₂ of causal maps is capped" in text
    assert "A square Marchenko-Pastur law is wrong under a causal mask" in text
    assert "0.1.0" in text
    assert "torch · version" in text


#: Samples of the first input set.
TEXT = range(made.SAMPLES // 2)


def test_numbers_are_those_of_the_tables() -> None:
    results = made.make_results()
    expected = [("fiedler_value", None), ("betti_0", 0.02)]
    rows = number_rows(measured_heads(results, expected), results.table("baselines"), expected)
    first = rows[0]
    values = [made.value(64, s, lay, h) / 2 for s in TEXT for lay in (0, 1) for h in (0, 1)]
    before = [made.value(0, s, lay, h) / 2 for s in TEXT for lay in (0, 1) for h in (0, 1)]
    assert (first["series"], first["mean"], first["uniform"]) == ("text", number(np.mean(values)), "0.500")
    assert first["untrained"] == number(np.mean(before))
    assert first["strongest"].endswith("(L1H1)")
    assert first["samples"] == str(len(TEXT))
    assert (rows[2]["label"], rows[2]["uniform"]) == ("components at 0.02", "7.00")


def test_missing_values_are_counted() -> None:
    results = made.make_results()
    heads = measured_heads(results)
    heads.loc[(heads["step"] == 64) & (heads["sample"] == 0) & (heads["layer"] == 0), "mp_ks"] = np.nan
    assert number_rows(heads, None, ["mp_ks"])[0]["missing"] == "2"


def test_published_protocol_is_shown_with_its_artefacts(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("attnscope.plots.draw_all", lambda results, left_out: {})
    results = made.make_results(steps=(-1,))
    heads = results.table("heads")
    mean = heads[heads["head"] == 0].assign(protocol="ruscio2025", betti_0=12.0)
    results_of_both = Results(
        {"samples": results.table("samples"), "heads": pd.concat([heads, mean], ignore_index=True)},
        study=results.study,
    )
    means = all_means({"heads": results_of_both.table("heads")}, "ruscio2025").to_numpy().tolist()
    assert ["heads", "betti_0", "12.0", "[12.0, 12.0]", str(made.SAMPLES)] in means
    text = "".join(opened(results_of_both, tmp_path).text)
    assert "Published protocol" in text
    assert "for every causal model" in text


def test_a_run_with_little_in_it_still_has_a_report(tmp_path: Path) -> None:
    page = opened(Results({}), tmp_path)
    assert "These results carry no provenance." in "".join(page.text)
    odd = Results({"frames": pd.DataFrame({"model": ["m"], "frame": [EVIL], "margin": [0.25]})})
    page = opened(odd, tmp_path)
    assert EVIL in page.text
    assert "0.250" in page.text
    with pytest.raises(ValueError, match="no run folder"):
        report(Results({}))


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Page:
    """The report of a run with every table of the study in both protocols."""
    path = report(tables.make_study(token=EVIL), tmp_path_factory.mktemp("study") / "report.html")
    assert EVIL not in path.read_text(encoding="utf-8")
    return Page(path.read_text(encoding="utf-8"))


@pytest.mark.slow
def test_every_analysis_has_its_section_figure_and_both_protocols(study: Page) -> None:
    ids = {attributes.get("id") for tag, attributes in study.tags if tag == "h2"}
    assert {section.id for section in SECTIONS} - ids == {"training", "examples", "positions"}
    figures = {attributes.get("id") for tag, attributes in study.tags if tag == "figure"}
    drawn = ("ablation", "sink_removal", "alignment", "spectra", "reference", "fisher", "frames", "protocols")
    assert {f"figure-{name}" for name in drawn} <= figures
    text = " ".join(" ".join(study.text).split())
    # exact and as published, side by side: every head mean has 30 bars there and 40 here
    assert "β₀, bars of the whole diagram 40.0 [40.0, 40.0] 30.0 [30.0, 30.0]" in text
    for sentence in (
        "β₁ is 0 for every causal model",
        "Those of a causal map are its diagonal",
        "times a factor below 1/√2",
        "The published reading is by token string",
        "is not LLaMA-3.2-3B or Qwen-2.5-7B",
    ):
        assert sentence in text, sentence


def test_a_report_of_an_encoder_says_nothing_of_causal_models(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("attnscope.plots.draw_all", lambda results, left_out: {})
    results = tables.make_study(causal=False)
    stored = {name: results.table(name) for name in ("samples", "heads", "layers", "frames")}
    text = "".join(opened(Results(stored, study=results.study), tmp_path).text)
    assert "The published reading is by token string" in text
    assert "for every causal model whose kept tokens" not in text
    assert "times a factor below" not in text


def test_the_published_alignment_of_a_causal_map_is_the_exact_one_made_smaller() -> None:
    """What the report says: same sign, and a factor below 1/sqrt(2) that the map alone decides."""
    draw = np.random.default_rng(5)
    for sharpness in (0.1, 1.0, 4.0):
        logits = np.where(np.tri(20) > 0, draw.normal(size=(20, 20)) * sharpness, -np.inf)
        weights = np.exp(logits)
        attention = torch.tensor(weights / weights.sum(1, keepdims=True))
        states = torch.tensor(draw.normal(size=(20, 5)))
        exact = float(attnscope.geometric_semantic_alignment(attention, states))
        published = float(attnscope.protocols.ruscio2025.geometric_semantic_alignment(attention, states))
        below = attention.numpy()[np.tril_indices(20, -1)]
        factor = np.sqrt(below.var() / 2) / np.sqrt(below.var() + below.mean() ** 2 / 2)
        assert published == pytest.approx(exact * factor, rel=1e-5)
        assert factor < np.sqrt(0.5)


def test_tests_are_those_of_the_statistics_module() -> None:
    results = tables.make_study()

    def need_of_sinks(ablation: pd.DataFrame) -> Any:
        of_ablation = questions({"ablation": ablation}, None)
        return next(
            question for question in of_ablation if question.title == "Does the model need its sinks?"
        )

    alike = results.table("ablation")
    noise = 1 + 1e-3 * np.random.default_rng(0).normal(size=len(alike))
    need = need_of_sinks(alike.assign(output_kl=alike["output_kl"] * noise))
    place = need.frame["compared"].tolist().index("tiny: sinks − other keys")
    sinks = need.frame.loc[place, ["quantity", "difference", "n"]].tolist()
    assert sinks == ["KL of the output (nats)", "0.350", 6]
    assert place in need.certain
    # six equal differences have the p of their signs, 2/2^6; Holm multiplies the smallest of four by four
    assert need_of_sinks(alike).frame.loc[place, ["p", "Holm"]].tolist() == ["0.031", "0.12"]
    assert place not in need_of_sinks(alike).certain
    layers = questions({"layer_tests": results.table("layer_tests")}, None)[0].frame
    assert layers.iloc[0, 2] == "3 of 10 (paired, Holm); 10 of 10 (Welch, uncorrected)"
    heads = measured_heads(tables.make_study(("a", "b")))
    result = questions({}, heads)[0].frame.loc[0]
    assert result[["compared", "difference", "p"]].tolist() == ["a − b", "−0.020", "0.031"]


def test_series_are_paired_over_the_texts_of_both_and_the_words_say_which_are_not() -> None:
    draw = np.random.default_rng(0)
    texts, gain = draw.normal(size=12), 0.1 + 0.01 * draw.normal(size=12)
    parts = {"a": (range(12), texts), "b": (range(11), (texts + gain)[:11]), "c": (range(20, 28), texts[:8])}
    heads = pd.concat(
        pd.DataFrame(
            {
                "series": name,
                "model": name,
                "revision": "",
                "step": -1,
                "sample": samples,
                "sink_share": values,
            }
        )
        for name, (samples, values) in parts.items()
    )
    (question,) = questions({}, heads)
    rows = question.frame.set_index("compared")
    # the text that b lacks takes no pair away from the others
    assert rows.loc["a − b", ["p", "n"]].tolist() == ["< 0.001", 11]
    assert rows.loc["a − c", "n"] == 20
    assert "the same texts, paired t-tests; different texts, Welch's t-tests" in str(question.words)
    assert "Welch" not in str(questions({}, heads[heads["series"] != "c"])[0].words)


def test_tests_against_nulls_are_the_stored_ones() -> None:
    row = {
        "model": "tiny",
        "revision": "",
        "step": -1,
        "kind": "row_permutation",
        "metric": "sink_share",
        "scope": "heads",
        "protocol": "exact",
        "difference": 0.049,
        "low": 0.04,
        "high": 0.06,
        "p_value": 2e-4,
        "p_holm": 0.011,
        "p_bh": 0.004,
        "samples": 6,
        "controls": 1,
        "unit": "text",
    }
    few = {"low": np.nan, "high": np.nan, "p_value": np.nan, "p_holm": np.nan, "p_bh": np.nan, "controls": 2}
    others = [
        {"kind": "random_weights", "unit": "initialisation", **few},
        {"metric": "entropy_normalized", "difference": 0.0},  # which shuffled rows leave as it is
        {"scope": "head_mean"},
        {"protocol": "ruscio2025"},
    ]
    (question,) = questions(
        {"null_tests": pd.DataFrame([row, *({**row, **other} for other in others)])}, None
    )
    assert question.frame["compared"].tolist() == ["tiny − random weights", "tiny − rows shuffled"]
    assert set(question.frame["quantity"]) == {"attention to first key"}
    assert question.frame[["p", "Holm", "B-H", "n"]].to_numpy().tolist() == [
        ["–", "–", "–", 2],
        ["< 0.001", "0.011", "0.004", 6],
    ]
    assert question.certain == (1,)


def test_pairs_take_the_head_mean_and_leave_out_the_undefined() -> None:
    results = tables.make_study()
    means = results.table("head_means").assign(series="text").astype({"bar_count_0": "Int64"})
    means.loc[(means["sample"] == 0) & (means["protocol"] == "ruscio2025"), "bar_count_0"] = pd.NA
    expected = [
        ProtocolComparison("head_means", "bar_count_0", "bars"),
        ProtocolComparison("head_means", "nonsense", "none"),
    ]
    row = pair_rows({"head_means": means}, expected, "ruscio2025")
    assert [(cells["label"], cells["exact"], cells["published"]) for cells in row] == [
        ("bars", "40.0", "30.0")
    ]
    expected = [ProtocolComparison("head_means", "mp_ks", "law", "marchenko_pastur_deviation")]
    (row,) = pair_rows({"head_means": means}, expected, "ruscio2025")
    rows_of_protocol = means[means["protocol"] == "ruscio2025"]
    assert row["published"] == number(rows_of_protocol["marchenko_pastur_deviation"].mean())


def test_fisher_traces_are_summed_over_blocks_and_averaged_over_sentences() -> None:
    rows = [
        {
            "model": "m",
            "revision": "",
            "step": -1,
            "sample": sample,
            "layer": layer,
            "group": "mlp",
            "protocol": protocol,
            "parameters": 100,
            "trace": trace * (sample + 1),
            "trace_sampled": np.nan if protocol == "ruscio2025" else trace,
        }
        for sample in range(5)
        for layer in (0, 1)
        for protocol, trace in (("exact", 2.0), ("ruscio2025", 3.0))
    ]
    table = fisher({"fisher": pd.DataFrame(rows)})
    # Two blocks of 100 parameters; 4, 8, ..., 20, so 12 in the mean and 12/200 a parameter.
    (row,) = table.drop(columns="95 % interval").to_numpy().tolist()
    assert row == ["m", "mlp", "200", "12.0", "0.060", "4.00", "18.0"]
    interval = attnscope.statistics.bootstrap([4.0, 8.0, 12.0, 16.0, 20.0], draws=20_000)
    low, high = (float(end) for end in table["95 % interval"].iloc[0].strip("[]").split(", "))
    assert (low, high) == pytest.approx((interval.low, interval.high), rel=0.25)
    assert fisher({}) is None


def test_emergence_and_frames_have_report_tables() -> None:
    verdicts = frames({name: tables.make_study().table(name) for name in ("frames", "specialization")})
    assert verdicts.iloc[0][["protocol", "frame by position"]].tolist() == ["exact", "centralized"]
    assert verdicts["consistent heads"].iloc[0] == "10 of 15"
    assert verdicts.iloc[0][["probability", "by chance"]].tolist() == ["90%", "0.1%"]
    before = tables.make_study().table("frames").drop(columns="chance")
    assert frames({"frames": before})["by chance"].tolist() == ["–"] * len(before)
    keys = {"model": "m", "metric": "sink_share"}
    table = pd.DataFrame(
        [
            {**keys, "scope": "heads", "protocol": "exact", "verdict": "step", "step": 8, "half_way": 4}
            | {"p_holm": 0.002, "difference": 0.4, "low": 0.3, "high": 0.5, "start": 0.1, "end": 0.5},
            {**keys, "scope": "head", "layer": 0, "head": 1, "protocol": "exact", "verdict": None}
            | {"start": 0.1, "end": 0.9},
            {**keys, "scope": "heads", "protocol": "ruscio2025", "verdict": None}
            | {"start": 0.1, "end": 0.5, "change": 0.2, "change_first_step": 0, "change_last_step": 8},
        ]
    ).astype({"step": "Int64", "half_way": "Int64"})
    (row,) = emergence({"emergence": table}).to_numpy().tolist()
    assert "; ".join(row) == (
        "m; attention to first key; 0.100; 0.500; step at 8; 0.002; 0.400; [0.300, 0.500]; 4; "
        "L0H1 0.100 → 0.900; 0.200 (step 8 − 0)"
    )
    assert "published change" not in emergence({"emergence": table[table["protocol"] == "exact"]})
    groups = pd.concat([table.assign(group=name) for name in ("all", "text", "copying")])
    assert emergence({"emergence": groups})["input"].tolist() == ["text", "copying"]
    assert frames({}) is emergence({}) is None


def test_what_is_not_there_is_named_and_columns_that_say_nothing_are_left_out():
    provenance = {"git": None, "models": {"m": {"commit": ""}}, "non_finite": {}, "skipped": [], "seed": 0}
    empty = dict.fromkeys(("git", "models · m · commit", "non_finite", "skipped"), "none")
    assert dict(_flat(provenance)) == {**empty, "seed": "0"}
    table = pd.DataFrame({"model": ["m", "m"], "revision": ["", ""], "step": [-1, -1], "x": [1.0, 2.0]})
    assert list(further("t", table).frame) == ["model", "x"]
    assert list(further("t", table.assign(step=[0, 1])).frame) == ["model", "step", "x"]


def test_arrays_are_no_cells():
    table = pd.DataFrame({"head": [0, 1], "signal": [np.zeros(3), np.ones(3)]})
    assert list(further("signals", table).frame) == ["head"]


@pytest.mark.parametrize(
    ("models", "groups", "words"),
    [("ab", "tt", "model"), ("aa", "tc", "input"), ("ab", "tc", "model, input"), ("aa", "tt", "input")],
)
def test_what_tells_series_apart_is_named(models, groups, words):
    assert series_noun(pd.DataFrame({"model": list(models), "group": list(groups)})) == words


def test_two_models_on_the_same_sentences_are_reported_as_that(monkeypatch):
    # what takes long and is not looked at
    monkeypatch.setattr("attnscope.plots.draw_all", lambda results, left_out: {})
    last = made.make_results().table("heads").query("step == 64")
    heads = pd.concat([last.assign(model=name) for name in "ab"])
    samples = heads[["model", "revision", "step", "sample"]].drop_duplicates()
    samples = samples.assign(group="text", text="a", n_tokens=8, truncated=True)
    facts = dict(_facts({"samples": samples}, rows_of_protocol(heads)))
    count = samples["sample"].nunique()
    assert facts["input “text”"] == f"{count} texts of 8 tokens"
    words = Markup(facts["cut"]).striptags()
    assert words == f"{count} texts were longer than a's 8 and b's 8 tokens and were cut"
    mixed = samples.assign(step=samples["model"].map({"a": -1, "b": 64}))
    assert _facts({"samples": mixed}, None)["checkpoints"] == "2: steps 64 and one of no step"
    page = render(Results({"heads": heads, "samples": samples}), "two")
    assert re.search(r">mean over heads</th>\s*<th [^>]*>model</th>", page)


def test_models_of_different_sizes_are_reported_one_by_one():
    heads = made.make_results().table("heads")
    other = heads[(heads["layer"] == 0) & (heads["head"] == 0)].assign(model="small")
    facts = Markup(_facts({}, rows_of_protocol(pd.concat([heads, other])))["heads"]).striptags()
    assert re.search(r": 2 layers of 2 heads; small: 1 layer of 1 head; [\d,]+ maps measured$", facts)


def test_the_first_page_ranks_heads_by_the_studys_quantity():
    result = strongest_heads(StudyPage(made.make_results(group="text"), {}), "sink_share")
    assert result.frame["head"].tolist() == ["L1H1", "L0H1", "L1H0", "L0H0"]
    means = [
        np.mean([made.value(64, sample, *place) for sample in range(made.SAMPLES)])
        for place in ((1, 1), (0, 1), (1, 0), (0, 0))
    ]
    assert result.frame["attention to first key"].tolist() == [number(mean) for mean in means]
    assert set(result.frame["n"]) == {"12"}
    assert "Intervals hold for all heads at once" in result.caption
    few = strongest_heads(StudyPage(made.make_results(), {}), "sink_share")
    assert "95 % interval" not in few.frame
    assert "Fewer than 10 texts" in few.caption
    heads = made.make_results(group="text").table("heads")
    once = heads.assign(sink_share=(heads["sample"] == 0) * (0.2 + 0.1 * heads["head"]))
    alike = strongest_heads(StudyPage(Results({"heads": once}), {}), "sink_share")
    assert set(alike.frame["n"]) == {"12"}
    assert "Too few of the texts differ" in alike.caption


def test_a_table_has_its_caption_and_can_be_taken_along(tmp_path: Path) -> None:
    html = report(made.make_results(), tmp_path / "report.html", drawn={}).read_text(encoding="utf-8")
    page = html.partition('<table id="T_strongest"')[2]
    assert page.partition("<caption>")[2].startswith("The heads with the highest attention to first key")
    link = re.search(r'download="strongest.csv" href="data:text/plain;base64,([^"]+)"', html)[1]
    lines = base64.b64decode(link).decode().splitlines()
    assert lines[0].startswith("input,head,attention to first key")
    assert len(lines) == 9
    assert (
        r"\toprule" in base64.b64decode(re.search(r'strongest.tex" href="[^,]+,([^"]+)"', html)[1]).decode()
    )


def test_a_wide_table_is_set_small_and_breaks_where_it_must():
    """The page has room for about a hundred letters; a number stays beside its interval while they fit."""
    cells = {"model": ["demo"], "interval": ["[-0.300, -0.500]"]}
    narrow = table_html(Table("a", "A.", pd.DataFrame(cells)))
    assert ("nowrap" in narrow, 'class="small"' in narrow) == (True, False)
    cells |= {f"{at} interval": ["[-0.300, -0.500]"] for at in range(9)}
    wide = table_html(Table("b", "B.", pd.DataFrame(cells)))
    assert 'class="small"' in wide
    assert 0 < wide.count("nowrap") < 9


def test_title_and_note_on_intervals_are_those_of_the_study():
    """A study of weights has no bootstraps over texts, and none is an attention study by default."""
    from types import SimpleNamespace

    from attnscope.report import any_run, page
    from attnscope.studies.absolute_position import sections

    positions, writes, states = (
        SimpleNamespace(study={"study": name})
        for name in ("absolute_position", "pretraining_writes", "hallucination_geometry")
    )
    assert page._title(positions) == sections.TITLE == "Absolute position in causal attention"
    assert page._title(writes) == "What training changes in the weights that read and write"
    assert page._title(states) == "Signals of not knowing in a model's states"
    assert "random subspaces" in page._words(writes).INTERVALS
    assert "over texts, the unit" not in page._words(writes).INTERVALS
    assert "templates of questions as the unit" in page._words(states).INTERVALS
    assert "jackknife" in sections.INTERVALS
    assert "bootstrap" not in any_run.NAMED


@pytest.mark.parametrize(
    ("table", "column"),
    [
        *(("heads", key) for key in ("model", "step", "sample", "head")),
        *(("samples", key) for key in ("model", "group", "text")),
        *(("graphs", "threshold"), ("head_means", "step")),
    ],
)
def test_a_table_without_a_column_that_places_its_rows_is_named(tmp_path, table, column):
    """Tables that somebody else has written ended in a KeyError."""
    results = made.make_results()
    tables = {name: results.table(name) for name in results.tables()}
    tables.setdefault("head_means", tables["heads"].drop(columns="head"))
    tables.setdefault("graphs", tables["heads"].assign(threshold=0.5))
    foreign = Results({**tables, table: tables[table].drop(columns=column)})
    with pytest.raises(ResultsError, match=rf"report: table '{table}' has no column '{column}'"):
        foreign.report(tmp_path / "r.html")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("column", ["claim", "model", "revision", "step"])
@pytest.mark.parametrize("study", ["absolute_position", "hallucination_geometry", "pretraining_writes"])
def test_a_table_of_a_study_without_one_of_its_keys_is_named(tmp_path, study, column):
    row = {"model": "m", "revision": "", "step": -1, "reference": "b", "protocol": "exact", "claim": "C1 a"}
    row |= {"statistic": "s", "verdict": "undecided", "reason": "r", "value": 1.0}
    row |= dict.fromkeys(["low", "high", "null", "p_value", "p_adjusted", "range_low", "control_low"], 0.0)
    claims = pd.DataFrame([{**row, "claim": code} for code in ("C1", "C1 a")]).drop(columns=column)
    with pytest.raises(ResultsError, match=rf"report: the claims table has no .*{column}"):
        Results({"claims": claims}, study={"study": study}).report(tmp_path / "r.html")
    assert list(tmp_path.iterdir()) == []


def test_models_are_in_the_order_of_the_run_in_every_table(monkeypatch):
    last = made.make_results().table("heads").query("step == 64")
    heads = pd.concat([last.assign(model=name) for name in "ba"])
    page = StudyPage(Results({"heads": heads}), {})
    result = strongest_heads(page, "sink_share")
    assert list(dict.fromkeys(result.frame[page.apart])) == ["b", "a"]
    assert list(dict.fromkeys(row["series"] for row in number_rows(page.heads(), None, ["sink_share"]))) == [
        "b",
        "a",
    ]
