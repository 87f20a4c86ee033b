# SPDX-License-Identifier: MIT
"""Options of the study of knowing and saying, each with what it changes; courses over checkpoints."""

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import attnscope as asc
from attnscope.engine.run_study import run
from attnscope.errors import ConfigError
from attnscope.report.section import Page
from attnscope.results.results import Results
from attnscope.studies.hallucination_geometry import training
from attnscope.studies.hallucination_geometry.answers import Choice, continued
from attnscope.studies.hallucination_geometry.clouds import near, null_draws
from attnscope.studies.hallucination_geometry.direction_sensitivity import exact_model
from attnscope.studies.hallucination_geometry.figures import FIGURES
from attnscope.studies.hallucination_geometry.interventions import steered
from attnscope.studies.hallucination_geometry.sections import SECTIONS
from knowing_study import FAST, QUICK, questions, settings
from models import tiny


@pytest.fixture(scope="module")
def fewer(tmp_path_factory):
    """Half of the questions, for what is asked of single prompts."""
    return questions(tmp_path_factory.mktemp("t") / "q.csv", pairs=2)


def test_band_keeps_the_points_nearest_to_the_boundary(folder, texts, tmp_path):
    draw = torch.Generator().manual_seed(0)
    reference, other = torch.randn(50, 3, generator=draw), 2 + torch.randn(50, 3, generator=draw)
    nearest = near(other, reference, other, 0.4)
    b = other.double().mean(0) - reference.double().mean(0)
    along = other.double() @ (b / b.norm())
    apart = (along - along.mean()).abs()
    assert len(nearest) == 20
    assert torch.equal(nearest, other[apart <= apart.sort().values[19] + 1e-9])
    assert near(other, other, other, 0.4) is other  # no boundary
    nulls = ["covariance", "template", "gaussian", "labels"]
    results = run(settings(folder, texts, tmp_path, band=0.4, **{**FAST, "nulls": nulls}), progress=False)
    betti = results.table("betti")
    # of 40; before the first block all last tokens are one, and no boundary is
    assert betti[betti["layer"] >= 0]["n"].max() == 16
    assert betti[betti["layer"] < 0]["n"].max() == 40
    assert set(betti["null"]) == {"", "covariance", "gaussian", "labels"}
    drawn = betti[betti["null"] != ""].groupby(["layer", "bucket", "null", "scale_number"])["draw"]
    assert set(drawn.nunique()) == {QUICK["null_draws"]}
    assert set(betti[betti["null"] == ""]["draw"]) == {-1}
    clouds = results.table("clouds")
    assert set(clouds["null"]) == {"", *nulls}
    rows = clouds[clouds["null"] == "gaussian"]
    assert rows["value"].notna().any()
    rows = rows[rows["layer"] >= 0]
    assert set(rows["quantity"]) == {"local_dimension", "two_nn", "fragmentation"}
    assert ((rows["low"] <= rows["value"]) & (rows["value"] <= rows["high"])).all()


def test_null_clouds_are_those_of_their_kind():
    draw = torch.Generator().manual_seed(0)
    points, beside = torch.randn(30, 4, generator=draw), 50 + torch.randn(30, 4, generator=draw)
    groups = np.arange(30) // 10
    labels = list(null_draws(points, "labels", groups, beside, 3, 0))
    points_of_both = {tuple(row) for row in torch.cat([points, beside]).tolist()}
    for cloud in labels:
        assert cloud.shape == (30, 4)
        assert {tuple(row) for row in cloud.tolist()} < points_of_both
        assert 0 < int((cloud[:, 0] > 25).sum()) < 30
    template = next(null_draws(points, "template", groups, beside, 1, 0))
    assert torch.equal(
        template, asc.null_clouds(points, "template", groups=torch.from_numpy(groups), draws=1, seed=0)[0]
    )


def test_temperature_draws_and_shows_what_changes_by_itself(folder, fewer, tmp_path):
    changed = {**QUICK["interventions"], "temperature": 1.0, "tokens": 4}
    results = run(
        settings(
            folder,
            fewer,
            tmp_path,
            interventions=changed,
            **{k: v for k, v in FAST.items() if k != "interventions"},
        ),
        progress=False,
    )
    rows = results.table("interventions")
    floor = rows[rows["arm"] == "baseline"]
    assert len(floor) == 12  # three prompts of either bucket of two contrasts
    assert floor["changed"].mean() > 0.5
    assert (floor["strength"] == 1.0).all()
    assert any("drawn at temperature 1.0" in note for note in results.provenance["notes"])


def test_tokens_are_drawn_from_the_tempered_distribution():
    logits = torch.tensor([[0.0, 1.0, 2.0]]).expand(2, -1)
    generator = Choice(0.5).generator()
    drawn = torch.stack([Choice(0.5).tokens(logits, generator) for _ in range(4000)])
    assert torch.equal(drawn[:, 0], drawn[:, 1])
    share = drawn[:, 0].bincount(minlength=3) / 4000
    torch.testing.assert_close(share.double(), (logits[0].double() / 0.5).softmax(-1), rtol=0, atol=0.03)
    assert Choice().tokens(logits, generator).tolist() == [2, 2]


def generated(model, ids, tokens):
    """The likeliest next tokens [B, tokens] by the model's own generation."""
    return model.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False
    )[:, ids.shape[1] :]


def test_answers_are_the_likeliest_tokens_whatever_the_models_generation_settings(folder):
    """Interventions start from them: with a penalty on repetition none of the two agreed."""
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    ids = torch.stack([torch.arange(4, 20), torch.arange(30, 46)])
    likeliest = generated(model, ids, 6)
    torch.testing.assert_close(continued(model, ids, 6)[:, : likeliest.shape[1]], likeliest)
    model.generation_config.repetition_penalty = 3.0
    assert not torch.equal(generated(model, ids, 6), likeliest), "the penalty shows"
    assert torch.equal(continued(model, ids, 6)[:, : likeliest.shape[1]], likeliest)
    model.generation_config.eos_token_id = [int(likeliest[0, 2]), 1]
    ends = continued(model, ids, 6)[0].tolist()
    assert ends == [*likeliest[0, :2].tolist(), *[int(likeliest[0, 2])] * 4]


def test_nothing_is_done_to_prompts_without_other_folds_of_both_buckets(folder, tmp_path):
    """One fold for all: nothing can be fitted, and a probe without a value forced every refusal."""

    def in_a_single_fold(row):
        return {**row, "template": "one", "fold": "0"}

    texts = questions(tmp_path / "q.csv", pairs=4, slots=5, change=in_a_single_fold)
    intervened = {**QUICK["interventions"], "target": "u"}
    other = {k: v for k, v in FAST.items() if k != "interventions"}
    results = run(settings(folder, texts, tmp_path, interventions=intervened, **other), progress=False)
    assert "interventions" not in results.tables()
    notes = [note for note in results.provenance["notes"] if "no interventions" in note]
    assert len(notes) == 2
    assert "in 6 of 6 prompts of the contrast 'impossible'" in notes[0]
    assert results.report().exists()


def test_figures_of_outcomes_draw_the_buckets_that_answers_make(folder, tmp_path):
    """The file calls all of these prompts factual; the figures of states that were moved were empty."""
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def judged(row):
        """Every other answer of the model is the right one."""
        if row["bucket"] != "factual":
            return None
        ids = tokenizer(f"Question: {row['question']}\nAnswer:", return_tensors="pt")["input_ids"]
        answered = tokenizer.decode(generated(model, ids, 3)[0], skip_special_tokens=True)
        first = answered.strip().split("\n")[0]
        is_right = int(row["pair"][-1]) % 2 and any(letter.isalnum() for letter in first)
        return {**row, "answer": first if is_right else "no such answer"}

    texts = questions(tmp_path / "judged.csv", slots=8, change=judged)
    options = {
        **FAST,
        "answers": {"tokens": 3},
        "bucket_by": "outcome",
        "least": 12,
        "lens": True,
        "sensitivity": {"prompts": 4, "directions": 2, "refusal": ["u"]},
        "interventions": {**QUICK["interventions"], "target": "u", "prompts": 4},
    }
    results = run(settings(folder, texts, tmp_path, name="outcomes", **options), progress=False)
    right = results.table("answers").set_index("sample")["correct"]
    rows = results.table("interventions")
    rows = rows[(rows["arm"] == "bypass") & (rows["control"] == "constant")]
    rates = rows.assign(right=right.reindex(rows["sample"]).to_numpy()).groupby(["right", "strength"])[
        "forced"
    ]
    rates = rates.mean()
    (ax, *_) = FIGURES["bypass_curve"](results).figure.axes
    line = next(line for line in ax.lines if line.get_label() == "constant")
    np.testing.assert_allclose(line.get_xdata(), rates[True])
    np.testing.assert_allclose(line.get_ydata(), rates[False])
    for name in ("compression_curve", "lens", "sensitivity_by_depth"):
        drawn = FIGURES[name](results).figure
        shown = {text.get_text() for legend in drawn.legends for text in legend.get_texts()}
        assert name == "compression_curve" or {"right", "wrong"} <= shown, name


def test_every_step_moves_what_follows_too(folder):
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    ids = torch.arange(4, 20)
    move = 30 * torch.eye(32)[:2]
    _, new = steered(model, ids, 0, move, 5, always=torch.tensor([True, False]))
    for row, steps in ((0, "all"), (1, "first")):
        with asc.edit(model, asc.edits.AddDirection(0, move[row], steps=steps)):
            assert torch.equal(new[row], generated(model, ids[None], 5)[0])
    raised = torch.zeros(2, 100)
    raised[1, 7] = 1e4
    _, new = steered(model, ids, 0, torch.zeros(2), 5, raised=raised)
    assert torch.equal(new[0], generated(model, ids[None], 5)[0])
    assert new[1].tolist() == [7] * 5


def test_a_detector_wired_to_every_step_and_another_word(folder, fewer, tmp_path):
    changed = {**QUICK["interventions"], "every_step": True, "target": "q"}
    other = {k: v for k, v in FAST.items() if k != "interventions"}
    results = run(settings(folder, fewer, tmp_path, interventions=changed, **other), progress=False)
    rows = results.table("interventions")
    bypass = rows[(rows["arm"] == "bypass") & (rows["control"] == "constant")]
    assert bypass[bypass["strength"] == 50]["forced"].all()
    # nothing but the word's letter was said, and it is cut off before the answer is judged
    assert set(bypass[bypass["strength"] == 50]["text"]) == {""}
    assert not bypass[bypass["strength"] == 0]["forced"].any()


def test_derivatives_of_a_model_in_half_precision_are_of_a_wider_copy(folder, fewer, tmp_path):
    quick = {**FAST, "sensitivity": QUICK["sensitivity"]}
    study = settings(folder, fewer, tmp_path, **quick).to_dict()
    study["models"] = [{"path": str(folder), "dtype": "bfloat16"}]
    results = run(asc.Study(**study), progress=False)
    assert set(results.table("sensitivity")["compute_dtype"]) == {"float32"}
    assert any("are taken in float32, its states in bfloat16" in note for note in results.provenance["notes"])
    state = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    loaded = type(
        "L", (), {"model": state, "dtype": torch.bfloat16, "checkpoint": type("C", (), {"title": "m"})}
    )
    stage_run = type(
        "R",
        (),
        {
            "model": lambda self: loaded,
            "note": lambda self, text: None,
            "settings": type("S", (), {"max_memory": 10_000}),
        },
    )()
    with pytest.raises(
        ConfigError, match=r"derivatives of m need a copy in float32 of 0 MB, more than max_mem"
    ):
        exact_model(stage_run, "float32")
    stage_run.settings.max_memory = None
    copied, name = exact_model(stage_run, "float32")
    assert name == "float32"
    assert copied is not state
    assert {p.dtype for p in state.parameters()} == {torch.bfloat16}  # the states' own stay as they are


def rows_of(values, column, **keys):
    return pd.DataFrame(
        [
            {"model": "m", "contrast": "unknown", "step": step, column: value, **keys}
            for step, value in enumerate(values)
        ]
    )


def test_steps_of_excess_gain_and_sensitivity():
    rng = np.random.default_rng(0)
    level = np.repeat([0.0, 0.3], 5) + rng.normal(0, 0.01, 10)
    detection = pd.concat(
        [rows_of(level - down, "auc", score="auc_excess", layer=layer) for layer, down in ((0, 0), (1, 1))]
    )
    gain = pd.concat(
        [
            rows_of(np.exp(level), "readout_gain", direction="boundary", layer=layer, k=k)
            for layer in (0, 1)
            for k in (4, 16)
        ]
    )
    along_boundary = {"direction": "boundary"}
    fisher = pd.concat(
        [
            rows_of(
                np.exp(3 * level + sample), "relative_fisher", layer=layer, sample=sample, **along_boundary
            )
            for layer in (0, 1)
            for sample in (1, 2)
        ]
    )
    written = []

    class Run:
        settings = type("S", (), {"seed": 0})

        def write(self, name, **columns):
            written.append((name, columns))

    training.write(Run(), {"detection": detection, "readout": gain, "sensitivity": fisher})
    steps = {columns["quantity"]: columns for name, columns in written if name == "emergence"}
    assert set(steps) == {"auc_excess", "log_readout_gain", "log_relative_fisher"}
    for row in steps.values():
        assert row["verdict"] == "step"
        assert row["step"] == 5
        assert row["p_adjusted"] <= 0.05
    assert steps["log_relative_fisher"]["difference"] == pytest.approx(3 * (level[-1] - level[0]))
    assert not training.curves({"detection": detection[detection["step"] == 0]})


def test_the_best_layer_of_every_page_is_one_behind_a_block():
    """As in the claims: the states that enter the first block are all alike, and their area is chance."""
    rows = pd.DataFrame(
        [
            {
                "model": "a",
                "revision": "",
                "step": step,
                "contrast": "unknown",
                "layer": layer,
                "score": score,
                "auc": area - (0.7 if score == "auc_excess" else 0.0),
                "low": area - 0.1,
                "high": area + 0.1,
                "n": 40,
            }
            for step in range(3)
            for layer, area in ((-1, 0.5), (0, 0.4), (1, 0.45))
            for score in ("auc", "auc_excess")
        ]
    )
    ((_, values),) = training.curves({"detection": rows}).values()
    assert values[:, 0] == pytest.approx([0.45 - 0.7] * 3)
    drawn = FIGURES["confounds"](Results({"detection": rows})).figure
    assert "layer 1" in [label.get_text() for label in drawn.axes[0].get_xticklabels()]


def test_tables_of_a_series_are_of_its_last_checkpoint():
    """Areas and tests were the best of any checkpoint, and prompts were counted once for each."""
    keys = [{"model": "a", "revision": f"step{step}", "step": step} for step in (0, 7)]
    area = {"contrast": "unknown", "layer": 1, "score": "auc", "low": 0.4, "high": 0.9, "n": 40}
    detection = pd.DataFrame([{**key, **area, "auc": 0.9 - 0.05 * key["step"]} for key in keys])
    test = {"contrast": "unknown", "layer": 0, "quantity": "fragmentation_gap", "k": 0, "correction": "max-T"}
    test |= {"value": 0.2, "null_low": -0.1, "null_high": 0.1, "n_pairs": 20, "p_adjusted": 0.5}
    contrasts = pd.DataFrame([{**key, **test, "p_value": 0.01 + 0.04 * key["step"]} for key in keys])
    prompt = {"bucket": "unknown", "template": "t", "tokens": 9, "surprisal": 2.0}
    prompts = pd.DataFrame([{**key, **prompt, "sample": sample} for key in keys for sample in range(3)])
    page = Page(Results({"detection": detection, "contrasts": contrasts, "prompts": prompts}), {})
    shown = {}
    for section in SECTIONS:
        for block in page.written(section):
            if block.kind == "table":
                shown[block.content.label] = block.content.frame.iloc[0]
    assert shown["prompts-prompts"]["prompts"] == "3"
    assert shown["detection-scores"]["AUC"].startswith("0.55")
    assert shown["geometry-tests"]["p"].startswith("0.29")


def test_a_detector_without_a_value_is_no_control(folder, texts, tmp_path, monkeypatch):
    """A raised logit that is NaN would be the largest: it forced every refusal."""
    from attnscope.studies.hallucination_geometry import interventions

    monkeypatch.setattr(interventions, "_random_chances", lambda run, contrast, _: np.full(80, np.nan))
    intervened = {**QUICK["interventions"], "target": "u"}
    other = {k: v for k, v in FAST.items() if k != "interventions"}
    results = run(settings(folder, texts, tmp_path, interventions=intervened, **other), progress=False)
    rows = results.table("interventions")
    assert set(rows[rows["arm"] == "bypass"]["control"]) == {"probe", "constant", "shuffled", "length"}


def test_the_last_layer_but_one_is_that_of_each_model():
    """A model of three blocks gives layer 1, and one of five layer 3."""
    rows = pd.DataFrame(
        [
            {"model": model, "contrast": "a", "direction": "boundary", "step": step, "layer": layer, "k": 4}
            for model, depth in (("small", 3), ("large", 5))
            for step in range(4)
            for layer in range(depth)
        ]
    )
    rows["readout_gain"] = np.exp(rows["layer"] + 10 * rows["step"])
    drawn = training.curves({"readout": rows})
    for model, layer in (("small", 1), ("large", 3)):
        _, values = drawn[model, "a", "log_readout_gain"]
        assert values[:, 0] == pytest.approx([layer + 10 * step for step in range(4)])


def test_moves_of_a_model_with_recurrent_layers_are_those_of_whole_passes():
    """The states of such layers cannot be repeated in a cache: it ended in an AttributeError."""
    model = tiny("jamba")
    ids = torch.tensor([5, 9, 3, 7, 11, 2])
    moves = torch.stack([torch.zeros(96), torch.eye(96)[0]])
    logits, _ = steered(model, ids, 0, moves, 2)
    with torch.no_grad():
        plain = model(input_ids=ids[None], use_cache=False).logits[0, -1].double()
    torch.testing.assert_close(logits[0], plain, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(logits[1], plain, atol=1e-3)
