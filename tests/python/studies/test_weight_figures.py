# SPDX-License-Identifier: MIT
"""The weight study's figures and report from tables alone: nulls beside numbers, words that stay apart."""

import itertools

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex
from matplotlib.text import Text

from attnscope.plots.figure import Options
from attnscope.plots.style import INK, MUTED
from attnscope.report.section import Page
from attnscope.results.results import Results
from attnscope.studies.pretraining_writes.figures import FIGURES
from attnscope.studies.pretraining_writes.figures.declared import chosen_pairs
from attnscope.studies.pretraining_writes.options import ROLES
from attnscope.studies.pretraining_writes.sections import SECTIONS

ARMS = (
    "ce",
    "sft",
    "dpo",
    "noise",
    "contrastive_1",
    "contrastive_16",
    "contrastive_256",
    "plain",
    "white_both",
)
STEPS = (1, 4, 64, 1000, 143000)


def stored_tables(models, steps=(-1,), subspaces=("inputs", "prediction"), arms=None):
    """Tables of a run over some models, numbers drawn."""
    draw = np.random.default_rng(0)
    keys = [
        {
            "model": model,
            "revision": "",
            "step": step,
            "reference": "base",
            "layer": layer,
            "role": role,
            "expert": -1,
        }
        for model, step, layer, role in itertools.product(models, steps, range(4), ROLES)
    ]
    fractions, variants, mechanism, deltas = [], [], [], []
    for pair in keys:
        for subspace, k in itertools.product(subspaces, (1, 3, 16)):
            side = "in" if subspace.startswith("inputs") else "out"
            relative = 2 ** draw.normal(1, 0.5) if k < 16 else 48 / 16 * 0.9
            row = {**pair, "side": side, "subspace": subspace, "k": k, "fraction": relative * k / 48}
            row |= {"relative": relative, "ceiling": 0.95, "deviation": 0.02, "low": relative / 1.2}
            row |= {"high": relative * 1.2, "share_of_energy": 0.4 + k / 40, "tested": k == 3}
            fractions.append(row)
            for variant in ("other_layer", "random_weights", "weights"):
                variants.append({**row, "variant": variant, "relative": 2 ** draw.normal(0.2, 0.2)})
        for side in ("in", "out"):
            values = dict(zip(("predicted", "observed"), 2 ** draw.normal(1.5, 0.5, 2), strict=True))
            mechanism.append({**pair, "side": side, **values})
        sizes = {"relative_norm": 0.01, "unchanged_share": 0.91, "step_ratio": 10 ** draw.normal()}
        deltas.append({**pair, **sizes, "noise_share": 0.1, "decay_share": 0.0, "below_floor": False})
    rank_one = [
        {
            "model": "base",
            "revision": "",
            "step": -1,
            "sample": sample,
            "layer": layer,
            "role": role,
            "direction": direction,
            "kl": 10 ** draw.normal(-3 if role in "odown" else -5, 0.4),
            "predicted_kl": 1e-3 if (layer, role) == (3, "down") else np.nan,
        }
        for sample, (layer, role, direction) in itertools.product(
            range(4),
            [
                *itertools.product((3,), ("q", "k"), ("inputs", "complement", "haar")),
                *itertools.product(
                    (3,), ("o", "down"), ("prediction", "complement", "haar", "gradients", "tokens")
                ),
            ],
        )
    ]
    rows = {"fractions": fractions, "fractions_variants": variants, "mechanism": mechanism}
    rows |= {"deltas": deltas, "rank_one": rank_one}
    tables = {name: pd.DataFrame(table_rows) for name, table_rows in rows.items()}
    return Results(tables, study={"study": "pretraining_writes", "options": {"arms": arms or {}}})


REFERENCES = [
    f"{kind}{reference}" for kind in ("inputs", "prediction") for reference in ("", "_after", "_last")
]
RUNS = {
    "pair": stored_tables(["tuned"]),
    "pairs": stored_tables([f"Llama-3.1-Tulu-3-8B-{stage}" for stage in ("SFT", "DPO", "RLVR")]),
    "series": stored_tables(["pythia"], STEPS, REFERENCES),
    "arms": stored_tables(
        [f"{arm}-{seed}" for arm in ARMS for seed in (0, 1)],
        arms={f"{arm}-{seed}": arm for arm in ARMS for seed in (0, 1)},
    ),
}
CASES = [
    *(("pair", name) for name in FIGURES if name not in ("trajectory", "objectives", "graded")),
    ("pairs", "asymmetry"),
    *(("arms", name) for name in ("objectives", "graded")),
    *(
        pytest.param(run, name, marks=pytest.mark.slow)
        for run, name in (("pairs", "fraction_curves"), ("arms", "asymmetry"))
    ),
    ("series", "trajectory"),
]


def level_words(figure):
    """Places of the words that are shown; slanted ones may share a box and not touch."""
    figure.canvas.draw()
    axes = [axis for ax in figure.axes for axis in (ax.xaxis, ax.yaxis)]
    ticks = [(axis, tick) for axis in axes for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks())]
    outside = set()
    for axis, tick in ticks:
        low, high = sorted(axis.get_view_interval())
        outside |= {tick.label2} if low <= tick.get_loc() <= high else {tick.label1, tick.label2}
    shown = [text for text in figure.findobj(Text) if text.get_text().strip() and text.get_visible()]
    level = [text for text in shown if text not in outside and text.get_rotation() % 90 == 0]
    return [(text.get_text(), text.get_window_extent()) for text in level]


@pytest.mark.parametrize("width", [3.2, pytest.param(6.75, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("run", "name"), CASES)
def test_nulls_are_drawn_and_words_stay_apart(run, name, width):
    figure = FIGURES[name](RUNS[run], Options(width=width)).figure
    places = level_words(figure)
    assert len(places) > 5
    page = figure.bbox.padded(2)
    for words, box in places:
        assert page.contains(box.x0, box.y0), words
        assert page.contains(box.x1, box.y1), words
    for (words, a), (others, b) in itertools.combinations(places, 2):
        apart = min(a.x1, b.x1) - max(a.x0, b.x0) <= 1 or min(a.y1, b.y1) - max(a.y0, b.y0) <= 1
        assert apart, (words, others)
    for ax in figure.axes:
        ids = {str(artist.get_gid()).partition(":")[0] for artist in ax.get_children()}
        colors = {to_hex(line.get_color()) for line in ax.get_lines()}
        assert MUTED in colors if name == "rank_one" else ids & {"isotropic", "identity"}
        assert name not in ("asymmetry", "depth") or "null" in ids


@pytest.mark.parametrize("power", [0.01, 0.05, 0.5, 1])
@pytest.mark.parametrize("name", ["asymmetry", "depth", "rounding"])
def test_every_axis_of_fractions_has_two_numbers_apart(name, power):
    """However near to isotropic the fractions are; the size of a change spans one decade at least."""
    tables = {table: RUNS["pair"].table(table) for table in RUNS["pair"].tables()}
    for table in tables.values():
        for column in ("relative", "low", "high"):
            if column in table:
                table[column] = table[column] ** power
    figure = FIGURES[name](Results(tables)).figure
    figure.draw_without_rendering()
    for ax in figure.axes:
        for axis, (low, high) in ((ax.yaxis, ax.get_ylim()), (ax.xaxis, ax.get_xlim())):
            ticks = axis.get_major_ticks() + axis.get_minor_ticks()
            shown = {tick.label1.get_text() for tick in ticks if low <= tick.get_loc() <= high} - {""}
            assert len(shown) > 1, (name, axis.axis_name, shown)
    places = level_words(figure)
    for (words, a), (others, b) in itertools.combinations(places, 2):
        apart = min(a.x1, b.x1) - max(a.x0, b.x0) <= 1 or min(a.y1, b.y1) - max(a.y0, b.y0) <= 1
        assert apart, (words, others)


def test_changes_of_rank_one_are_those_of_one_base():
    """A run whose pairs have other bases each (options.base=previous) holds those of all."""
    table = RUNS["pair"].table("rank_one")
    other = table.assign(model="another", kl=1e3)
    drawn = FIGURES["rank_one"](Results({"rank_one": pd.concat([table, other])}))
    assert "base; the run holds 1 more" in drawn.caption
    heights = [y for ax in drawn.figure.axes for line in ax.lines for y in line.get_ydata()]
    assert max(heights) < 1


def test_what_reads_and_what_writes_share_an_axis_each():
    axes = {ax.get_title(loc="left"): ax for ax in FIGURES["rank_one"](RUNS["pair"]).figure.axes}
    assert list(axes) == [f"layer 3, {role}" for role in ("q", "k", "o", "down")]
    limits = {role.rpartition(" ")[2]: ax.get_ylim() for role, ax in axes.items()}
    assert limits["q"] == limits["k"]
    assert limits["o"] == limits["down"] != limits["q"]


def test_the_report_says_what_each_fraction_must_be_read_with():
    page = Page(RUNS["pair"], {})
    blocks = [block for section in SECTIONS for block in page.written(section)]
    sizes, numbers = (block.content.frame for block in blocks if block.kind == "table")
    assert list(sizes.columns[2:]) == ["‖ΔW‖/‖W‖", "unchanged", "change / step", "rounding", "along W"]
    assert set(sizes["unchanged"]) == {"0.91"}
    assert len(sizes) == len(ROLES)
    beside = ["± Haar", "best possible", "other layer", "random weights", "weights"]
    assert list(numbers.columns[-len(beside) :]) == beside
    assert len(numbers) == 2 * len(ROLES)
    assert (numbers != "–").all().all()
    row = numbers[(numbers["subspace"] == "inputs (in)") & (numbers["role"] == "q")].iloc[0]
    table = RUNS["pair"].table("fractions")
    rows = table[table["tested"] & (table["role"] == "q") & (table["subspace"] == "inputs")]
    assert float(row["fraction / isotropic"]) == pytest.approx(
        2 ** np.log2(rows["relative"]).mean(), rel=5e-3
    )
    assert float(row["± Haar"]) == pytest.approx(0.02 * 48 / 3, rel=5e-3)
    assert float(row["best possible"]) == pytest.approx(0.95 * 48 / 3, rel=5e-3)


def test_pairs_without_a_tested_fraction_are_chosen_last():
    table = pd.DataFrame(
        {"pair": ["none", "near", "none", "far"], "tested": [True] * 4, "relative": [np.nan, 2.0, 0.0, 0.25]}
    )
    assert chosen_pairs(table, 2)[0] == ["near", "far"]
    names, left_out = chosen_pairs(table.assign(relative=0.0), 2)
    assert names == ["none", "near"]
    assert left_out.endswith("left out: far.")


def test_the_slope_over_negatives_is_that_of_the_claim():
    """The mean over training runs, which its interval is about, and not the slope of all dots."""
    run = RUNS["arms"]
    tables = {name: run.table(name) for name in run.tables()}
    claim = {"model": "all arms", "claim": "C5", "value": 0.7, "low": 0.5, "high": 0.9}
    tables["claims"] = pd.DataFrame([claim])
    drawn = FIGURES["graded"](Results(tables, study=run.study))
    assert "Slope 0.70 [0.50, 0.90]" in drawn.caption
    lines = drawn.figure.axes[0].get_lines()
    (line,) = [line for line in lines if line.get_color() == INK and max(line.get_xdata()) == 256]
    x, y = (np.log2(np.asarray(values, float)) for values in line.get_data())
    assert (y[1] - y[0]) / (x[1] - x[0]) == pytest.approx(0.7)
