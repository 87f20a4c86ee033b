# SPDX-License-Identifier: MIT
"""Every verdict of the study in every state, and the sentences that are made of them."""

import math

import numpy as np
import pandas as pd
import pytest
import torch

from attnscope.report.section import Page
from attnscope.results.results import Results
from attnscope.studies.attention_likelihood import checks, sections, shifts
from attnscope.studies.attention_likelihood.claims import CLAIMS, Evidence, swap_words
from attnscope.studies.attention_likelihood.figures import FIGURES
from attnscope.studies.attention_likelihood.options import LikelihoodOptions
from attnscope.studies.overall import Statistic
from attnscope.study_api.claims import ClaimRow

OPTIONS = LikelihoodOptions(permutations=999, bootstrap=200)
#: Statistic of each claim, and the sign of its direction.
STATISTICS = {
    "C1": ("within", 1.0),
    "C2": ("shift_of_share", -1.0),
    "C3": ("depth", 1.0),
    "C4": ("swap", 1.0),
    "C5": ("shift_of_rest", 1.0),
}
LITTLE = [0.010, 0.011, 0.009, 0.010, 0.010, 0.011, 0.010, 0.009]


def associations(z=2.0, p=0.01):
    rows = []
    for design, predictor in (("within", "log_likelihood"), ("swap", "at home")):
        rows += [
            {
                "design": design,
                "predictor": predictor,
                "measure": "share",
                "layer": layer,
                "estimate": 0.3,
                "slope": 0.01,
                "z": z,
                "p_adjusted": p,
            }
            for layer in range(3)
        ]
    return pd.DataFrame(rows)


def moved(nats=-5.0):
    return pd.DataFrame(
        [
            {
                "mode": "lowest",
                "measure": measure,
                "layer": layer,
                "difference": -0.1,
                "p_adjusted": 0.01,
                "log_likelihood_difference": nats,
            }
            for measure in ("share", "special", "context")
            for layer in range(3)
        ]
    )


def statistics(nats=8.0, pairs=40, **numbers):
    rows = [
        {"statistic": "swap_nats", "estimate": nats, "low": nats, "high": nats, "p_value": 0.01, "n": pairs}
    ]
    for name, values in numbers.items():
        keys = ("estimate", "low", "high", "p_value")
        rows.append({"statistic": name, **dict(zip(keys, values, strict=True)), "n": pairs})
    return pd.DataFrame(rows)


def judged(code, table, *, controls=None, options=OPTIONS, rows=None, shifted=None):
    evidence = Evidence(
        associations() if rows is None else rows,
        moved() if shifted is None else shifted,
        table,
        controls or {},
    )
    return {row.claim: row for row in CLAIMS.decide({"": evidence}, options)}[code]


@pytest.mark.parametrize("code", sorted(STATISTICS))
def test_each_claim_goes_through_all_states(code):
    statistic, sign = STATISTICS[code]
    few = {statistic: [sign * value for value in LITTLE]}

    def row(value, half, p, controls=few):
        ends = sorted((sign * (value - half), sign * (value + half)))
        table = statistics(**{statistic: (sign * value, *ends, p)})
        return judged(code, table, controls=controls)

    supported = row(0.4, 0.1, 1e-3)
    assert supported.verdict == "supported"
    assert supported.p_adjusted <= OPTIONS.alpha
    # an absent effect is no contradiction, however many texts there are
    absent = row(0.0, 0.01, 0.9)
    assert absent.verdict == "undecided"
    assert "is not wholly" in absent.reason
    wide = row(-0.02, 0.5, 0.9)
    assert wide.verdict == "undecided"
    against = row(-0.4, 0.1, 1e-3)
    assert against.verdict == "contradicted"
    as_well = row(0.4, 0.1, 1e-3, {statistic: [sign * (0.4 + value) for value in LITTLE]})
    assert as_well.verdict == "undecided"
    assert "models with random weights: mean" in as_well.reason
    unmeasured = row(0.4, 0.1, 1e-3, {})
    assert unmeasured.verdict == "not testable here"
    assert "the control was not measured" in unmeasured.reason
    assert "options.nulls=[random_weights]" in unmeasured.reason
    # the numbers of the row are those that decide
    assert (supported.value, supported.low, supported.high) == pytest.approx(
        (sign * 0.4, *sorted((sign * 0.3, sign * 0.5)))
    )


def test_what_the_design_cannot_decide_says_why():
    empty = statistics()
    assert judged("C1", empty, rows=associations(z=math.nan)).reason.startswith("no text has three versions")
    assert judged("C2", empty, shifted=moved(nats=1.0)).reason == "no mode is less likely than the real words"
    assert judged("C3", empty).reason == "depth has thirds from three layers on"
    assert judged("C5", empty, shifted=moved(nats=1.0)).reason == "no mode is less likely than the real words"
    assert judged("C5", empty).reason.startswith("fewer than three texts have a less likely word")
    assert judged("C4", empty).reason == "no two texts can exchange their words"
    few = judged("C4", statistics(pairs=3, swap=(0.01, math.nan, math.nan, math.nan)))
    assert (few.verdict, few.reason) == ("not testable here", "3 pairs of texts: no interval")
    none = judged("C3", statistics(depth=(0.1, math.nan, math.nan, math.nan)))
    assert none.reason == "fewer than five texts: no interval"


class Stored:
    """Tables in memory, with the options of a run."""

    def __init__(self, options=None, **tables):
        self.kept, self.study = tables, {"options": options or {}}

    def tables(self):
        return list(self.kept)

    def table(self, name):
        return self.kept[name]


def stored(table):
    return table.assign(model="a", revision="", step=-1, protocol="exact")


def exchanged(numbers, *, nats=8.0, controls=LITTLE, options=OPTIONS):
    """The row of C4, and the sentence of the exchange in the report of the same run."""
    table = statistics(nats=nats, swap=numbers)
    row = judged("C4", table, options=options, controls={"swap": controls})
    keys = {"model": "a", "revision": "", "step": -1, "protocol": "exact"}
    claims = pd.DataFrame([{**keys, **vars(row)}])
    run = Stored({"least_nats": options.least_nats}, overall=stored(table), claims=claims)
    (line,) = sections._swap(run, "a", None)
    return row, line


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        (
            (0.003, -0.027, 0.026, 0.8),
            "no effect found; one above 0.027 of the attention is excluded (40 pairs)",
        ),
        ((0.2, 0.1, 0.3, 0.001), "an expected word attends more to itself"),
        ((-0.2, -0.3, -0.1, 0.001), "an expected word attends less to itself"),
        ((-0.02, math.nan, math.nan, math.nan), "not testable here, 40 pairs of texts: no interval"),
    ],
)
def test_the_sentence_of_the_exchange_is_made_of_the_case_that_holds(numbers, words):
    row, line = exchanged(numbers)
    assert words in line
    assert line.endswith(f"(C4: {row.verdict}).")
    assert "share points" not in line
    assert "no effect of expectation" not in line
    assert line.startswith(f"swap: {str(numbers[0]).replace('-', '−')}")


def test_an_effect_that_untrained_models_have_is_not_stated():
    row, line = exchanged((0.2, 0.1, 0.3, 0.001), controls=[0.2 + value for value in LITTLE])
    assert row.verdict == "undecided"
    assert "attends more" not in line
    assert "do as well" in line


def test_numbers_that_there_are_none_of_are_no_part_of_a_sentence():
    """A swap that no two texts could make gave "– of the attention"."""
    rows = [{"model": "a", "draw": draw, "layer": 0, "estimate": 0.1, "slope": 0.2} for draw in (0, 1)]
    between = pd.DataFrame(rows).assign(design="between", predictor="log_likelihood")
    (line,) = sections._control(Stored(controls=between), "a", None)
    assert line.endswith(
        "by layer (0.200 to 0.200 per nat). Untrained models show this much; only more is evidence."
    )
    designs = pd.concat([between, between.assign(design="within"), between.assign(design="swap")])
    (line,) = sections._control(Stored(controls=designs), "a", None)
    assert (
        "; that within texts 0.100 to 0.100 (0.200 to 0.200 share per nat); swap gives 0.100 to 0.100 of"
        in line
    )


def test_without_a_claim_the_numbers_are_given_alone():
    run = Stored(overall=stored(statistics(swap=(0.2, 0.1, 0.3, 0.001))))
    assert sections._swap(run, "a", None)[0].endswith("at 8.00 nats (40 pairs).")


@pytest.mark.parametrize("seed", range(40))
def test_main_numbers_never_contradict_the_claims(seed):
    """Whatever the tables hold, a side is stated where the claim has it, and nowhere else."""
    rng = np.random.default_rng(seed)
    options = LikelihoodOptions(least_nats=float(rng.choice([0.0, 2.0, 9.0])))
    value, half = 0.2 * rng.standard_normal(), abs(0.2 * rng.standard_normal())
    numbers = (value, value - half, value + half, rng.choice([1e-4, 0.03, 0.4]))
    controls = (rng.choice([0.0, 0.3]) * rng.standard_normal(8)).tolist()
    row, line = exchanged(numbers, nats=rng.choice([1.0, 4.0]), controls=controls, options=options)
    assert ("attends more" in line) == (row.verdict == "supported")
    assert ("attends less" in line) == (row.verdict == "contradicted")
    assert ("not testable here, " in line) == (row.verdict == "not testable here")
    assert line.endswith(f"(C4: {row.verdict}).")
    rows = associations(z=rng.choice([0.5, 4.0]), p=rng.choice([0.01, 0.5]))
    table = statistics(within=numbers)
    first = judged("C1", table, options=options, rows=rows, controls={"within": controls})
    keys = {"model": "a", "revision": "", "step": -1, "protocol": "exact"}
    run = Stored(head_mean_associations=rows.assign(**keys), claims=pd.DataFrame([{**keys, **vars(first)}]))
    (line,) = sections.findings(run)
    assert line.endswith(f"(C1: {first.verdict}).")
    clause = line.partition("; by layer")[0]
    assert ("within texts, attention of a word to itself rises" in clause) == (first.verdict == "supported")
    assert ("falls with its likelihood" in clause) == (first.verdict == "contradicted")
    assert ("undecided whether" in clause) == (first.verdict == "undecided")
    assert ("not testable here" in clause) == (first.verdict == "not testable here")


def test_the_size_of_a_change_is_that_of_slow_products():
    rng = np.random.default_rng(0)
    changes = 0.3 + rng.standard_normal((7, 4))
    size = shifts.size_of_change(changes, OPTIONS, 0)
    pairs = [changes[a] @ changes[b] / 4 for a in range(7) for b in range(a)]
    assert size["estimate"] == pytest.approx(np.sign(np.mean(pairs)) * np.sqrt(abs(np.mean(pairs))))
    assert size["low"] <= size["estimate"] <= size["high"]
    assert math.isnan(shifts.size_of_change(np.zeros((7, 4)), OPTIONS, 0)["p_value"])
    assert math.isnan(shifts.size_of_change(changes[:2], OPTIONS, 0)["estimate"])


def test_a_reason_that_counts_pairs_counts_them_once():
    claim = ClaimRow("C4", "", "not testable here", reason="an exchanged word costs 1 nats (6 pairs).")
    words = swap_words(Statistic(0.002, -0.008, 0.007, n=6), 1.0, claim)
    assert words.count("6 pairs") == 1


def test_a_single_pair_is_no_pairs():
    table = statistics(pairs=1, swap=(0.1, math.nan, math.nan, math.nan))
    assert judged("C4", table).reason.startswith("1 pair of texts: no interval")
    assert swap_words(Statistic(0.1, n=1), 8.0, None).endswith("(1 pair).")


def shifts_of(model, least):
    """Shifts of two modes and of an exchange of words, which costs most."""
    nats = {"lowest": -3.0, "mid": -2.0, "swap": -9.0} | {least: -5.0}
    keys = {"model": model, "revision": "", "step": -1, "protocol": "exact", "layer": 0}
    return pd.DataFrame(
        [
            keys
            | {"mode": mode, "measure": measure, "log_likelihood_difference": cost, "commonest": 0.5}
            | {"difference": cost / 100, "low": math.nan, "high": math.nan, "real": 0.5}
            for mode, cost in nats.items()
            for measure in ("share", "special", "context")
        ]
    )


@pytest.mark.usefixtures("unarranged")
@pytest.mark.parametrize("of_second", ["lowest", "mid"])
def test_the_least_likely_words_are_those_of_each_model_and_no_exchange(of_second):
    """An exchange could stand for them, and the legend named the last model's mode for all."""
    shifts = pd.concat([shifts_of("a", "lowest"), shifts_of("b", of_second)], ignore_index=True)
    drawn = FIGURES["attention_budget"](Results({"shifts": shifts}))
    legend = [text.get_text() for text in drawn.figure.legends[0].get_texts()]
    titles = [ax.get_title(loc="left") or ax.get_title() for ax in drawn.figure.axes]
    if of_second == "lowest":
        assert (legend[-1], titles) == ("replaced (lowest)", ["a", "b"])
    else:
        assert (legend[-1], titles) == ("replaced", ["a: lowest", "b: mid"])
    for ax in drawn.figure.axes:
        (replaced,) = (bars for bars in ax.containers[3:4])
        assert replaced[0].get_height() == pytest.approx(0.5 - 0.05)
    page = Page(Results({"shifts": shifts}), {})
    (section,) = (section for section in sections.SECTIONS if section.id == "budget")
    section.write(page)
    notes = [str(line) for block in page.blocks if block.kind == "notes" for line in block.content]
    assert [note.split(" puts ")[0] for note in notes] == ["a: mode lowest", f"b: mode {of_second}"]


@pytest.mark.usefixtures("unarranged")
def test_heads_without_a_panel_are_not_counted():
    """The caption counted the dots of all models under the panels of the first three."""
    keys = {"revision": "", "step": -1, "protocol": "exact", "design": "within", "slope": 0.1}
    rows = [
        keys
        | {"model": model, "layer": 0, "head": head, "estimate": 0.5, "p_adjusted": 0.01 if head else 0.5}
        for model in "abcd"
        for head in range(2)
    ]
    drawn = FIGURES["likelihood_heads"](Results({"associations": pd.DataFrame(rows)}))
    assert "Dots: 3 of 6 heads" in drawn.caption


def test_a_token_of_several_states_has_no_check_of_its_place():
    """Blocks of Gemma 3n hand four streams of states on: the study ended in an IndexError."""
    check = checks._placed([torch.zeros(4, 2, 5, 8)] * 2, [None, None], torch.zeros(2, 2))
    assert check.value is None
    assert "several states" in check.reason
