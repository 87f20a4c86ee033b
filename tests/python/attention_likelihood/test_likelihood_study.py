# SPDX-License-Identifier: MIT
"""The likelihood study on models made here: what is stored is what slow loops find."""

import math

import numpy as np
import pandas as pd
import pytest
import torch

import attnscope as asc
from attnscope.engine.run_study import resume, run
from attnscope.report.section import Page
from attnscope.results.results import Results
from attnscope.studies.attention_likelihood.sections import SECTIONS
from folders import killed, model_folder, series, table_bytes
from likelihood_study import encoder_folder, loops, settings, texts_of, trained_series
from placeholders import placeholders

CK = ["model", "revision", "step"]


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    return texts_of(tmp_path_factory.mktemp("t") / "texts.txt")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return model_folder(tmp_path_factory.mktemp("m") / "m", num_hidden_layers=3)


@pytest.fixture(scope="module")
def results(folder, texts, tmp_path_factory):
    study = settings(
        folder,
        texts,
        tmp_path_factory.mktemp("whole"),
        block=8,
        nulls=["random_weights"],
        random_weights=2,
        survey=True,
        two_sided=True,
    )
    return run(study, progress=False)


@pytest.fixture(scope="module")
def by_hand(folder, texts):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    slow = loops()
    slow.MODES = ("lowest", "mid", "highest", "nats:3")
    return slow.study(model, tokenizer, texts.read_text("utf-8").splitlines(), max_tokens=32)


def exact(results, name):
    table = results.table(name)
    return table[table["protocol"] == "exact"]


def test_what_has_no_value_is_null(results):
    assert placeholders(results) == []


def test_words_and_attention_are_those_of_slow_loops(results, by_hand):
    texts_by_hand, pairs = by_hand
    words = exact(results, "words").set_index(["sample", "mode"])
    share = exact(results, "head_mean_spans").set_index(["sample", "mode", "layer"])["span_share"]
    assert len(words) == sum(len(text.versions) for text in texts_by_hand) > 40
    assert len(pairs) >= 3
    for text in texts_by_hand:
        for mode, ids in text.versions.items():
            row = words.loc[(text.sample, mode)]
            assert (row["start"], row["stop"], row["word"]) == (text.start, text.stop, text.word)
            assert list(row["replacement_ids"]) == ids[text.start : text.stop], (text.sample, mode)
            assert row["log_likelihood"] == pytest.approx(text.likelihood[mode], abs=1e-4)
            assert row["partner"] == text.partner
            for layer, value in enumerate(text.share[mode]):
                assert share.loc[(text.sample, mode, layer)] == pytest.approx(value, abs=1e-6)
    assert words["same"].xs("real", level="mode").all()


def test_the_head_mean_is_the_mean_of_the_heads_and_a_row_adds_up(results):
    heads, mean = exact(results, "spans"), exact(results, "head_mean_spans")
    keys = ["sample", "mode", "layer"]
    merged = heads.groupby(keys)["span_share"].mean().reset_index().merge(mean, on=keys, suffixes=("_h", ""))
    np.testing.assert_allclose(merged["span_share_h"], merged["span_share"], rtol=1e-6)
    total = heads["span_share"] + heads["span_special"] + heads["span_context"]
    np.testing.assert_allclose(total, 1.0, atol=1e-6)
    np.testing.assert_allclose(heads["span_share"] / heads["span_uniform"], heads["span_boost"], rtol=1e-9)


def test_both_sides_of_a_word_are_the_likelihood_of_word_and_rest(results, folder):
    from transformers import AutoModelForCausalLM

    words = exact(results, "words")
    row = words[words["mode"] == "lowest"].iloc[2]
    samples = results.table("samples").set_index("sample")
    ids = [int(token) for token in samples.loc[row["sample"], "token_ids"]]
    ids[row["start"] : row["stop"]] = [int(piece) for piece in row["replacement_ids"]]
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    with torch.no_grad():
        q = model(input_ids=torch.tensor([ids])).logits[0].double().log_softmax(-1)
    expected = sum(q[at - 1, ids[at]].item() for at in range(row["start"], len(ids)))
    assert row["two_sided"] == pytest.approx(expected, abs=1e-4)


def test_the_survey_is_the_correlation_of_every_token_of_a_text(results, folder):
    from scipy import stats
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    ids = torch.tensor([[int(token) for token in results.table("samples")["token_ids"].iloc[1]]])
    with torch.no_grad():
        out = model(input_ids=ids, output_attentions=True)
    q = out.logits[0].double().log_softmax(-1)
    tokens = [q[at - 1, ids[0, at]].item() for at in range(1, ids.shape[1])]
    diagonal = out.attentions[1][0].double().mean(0).diagonal()
    boost = [diagonal[at].item() * (at + 1) for at in range(1, ids.shape[1])]
    table = results.table("surveys")
    row = table[(table["sample"] == 1) & (table["layer"] == 1)].iloc[0]
    assert row["correlation"] == pytest.approx(stats.spearmanr(tokens, boost)[0], abs=1e-9)
    associations = exact(results, "head_mean_associations")
    assert {"survey", "survey_partial"} <= set(associations["design"])


def test_claims_have_numbers_and_verdicts(results):
    claims = results.table("claims").set_index("claim")
    assert list(claims.index) == ["C1", "C2", "C3", "C4", "C5"]
    assert set(claims["verdict"]) <= {"supported", "contradicted", "undecided", "not testable here"}
    assert claims.loc["C4", "verdict"] == "not testable here"
    assert "nats, below 2" in claims.loc["C4", "reason"]
    for code in ("C1", "C2", "C3", "C5"):
        assert np.isfinite(claims.loc[code, ["value", "low", "high", "null"]].astype(float)).all(), code
    assert "share per nat" in claims.loc["C1", "reason"]
    checks = results.table("checks").set_index("check")
    assert checks["holds"].all()
    assert list(checks.index) == [
        "chain_of_likelihoods",
        "replaced_tokens",
        "row_sums",
        "rows_before_the_word",
    ]
    assert checks.loc["rows_before_the_word", "value"] == 0


def test_every_correlation_has_its_slope(results):
    for name in ("associations", "head_mean_associations", "controls"):
        table = results.table(name)
        rows = table[table["design"].isin(["within", "between", "between_partial"])]
        assert len(rows)
        assert rows[rows["estimate"].notna()]["slope"].notna().all(), name


def test_random_weights_are_measured_on_the_trained_models_versions(results):
    table = results.table("controls")
    assert set(table["draw"]) == {0, 1}
    assert set(table["layer"]) == {0, 1, 2}
    assert {"within", "swap", "between", "between_partial"} <= set(table["design"])
    assert set(table["control"]) == {"random_weights"}
    # nearly uniform attention cannot tell a home from another text
    assert table[table["design"] == "swap"]["estimate"].abs().max() < 1e-2
    assert "head_mean_spans_variants" in results.tables()


def test_a_run_in_blocks_of_64_has_the_words_of_one_in_blocks_of_8(results, folder, texts, tmp_path):
    other = run(settings(folder, texts, tmp_path, block=64), progress=False)
    words_of_small_blocks, words_of_large_blocks = (
        exact(of_blocks, "words") for of_blocks in (results, other)
    )
    assert [list(ids) for ids in words_of_small_blocks["replacement_ids"]] == [
        list(ids) for ids in words_of_large_blocks["replacement_ids"]
    ]
    np.testing.assert_allclose(
        words_of_small_blocks["log_likelihood"], words_of_large_blocks["log_likelihood"], atol=1e-5
    )
    for name, columns in (
        ("head_mean_associations", ["estimate", "slope"]),
        ("shifts", ["difference", "real"]),
        ("overall", ["estimate"]),
    ):
        first = exact(results, name)
        first = first[~first["design"].str.startswith("survey")] if "design" in first else first
        np.testing.assert_allclose(first[columns], exact(other, name)[columns], atol=1e-5)


@pytest.mark.slow
def test_a_killed_run_ends_as_one_that_was_left_in_peace(folder, texts, tmp_path):
    calm = run(settings(folder, texts, tmp_path / "calm"), progress=False)
    stopped = killed(settings(folder, texts, tmp_path))
    assert not (stopped / "tables" / "claims.parquet").exists()
    resume(stopped, progress=False)
    assert table_bytes(calm.path) == table_bytes(stopped)


@pytest.mark.parametrize("by", [1, -1])
def test_a_model_that_shifts_the_replaced_token_ends_by_the_checks_name(
    folder, texts, tmp_path, monkeypatch, by
):
    """A hook turns the ids that enter the model, so that a replaced token stands one place further."""
    from attnscope.models import loading

    load = loading.load_model

    def shifted(checkpoint, **options):
        loaded = load(checkpoint, **options)
        embed = loaded.model.get_input_embeddings()

        def turned(_module, args):
            # the short texts by which a model's kind is told stay as they are
            return (args[0].roll(by, -1) if args[0].shape[-1] > 8 else args[0], *args[1:])

        embed.register_forward_pre_hook(turned)
        return loaded

    monkeypatch.setattr("attnscope.engine.model_cache.load_model", shifted)
    results = run(settings(folder, texts, tmp_path, swap=False), progress=False, say=lambda text: None)
    ((skipped),) = results.provenance["skipped"]
    assert "the check replaced_tokens does not hold: 16, where at most 0" in skipped["reason"]
    assert not {"words", "spans", "claims"} & set(results.tables())


def test_likelihood_from_one_model_serves_a_series(texts, tmp_path):
    folder = series(tmp_path / "growing", steps=(0, 2), num_hidden_layers=3)
    results = run(settings(folder, texts, tmp_path, likelihood_from=str(folder / "step2")), progress=False)
    words = exact(results, "words")
    first, last = (words[words["step"] == step].reset_index(drop=True) for step in (0, 2))
    assert [list(ids) for ids in first["replacement_ids"]] == [list(ids) for ids in last["replacement_ids"]]
    np.testing.assert_array_equal(first["log_likelihood"], last["log_likelihood"])
    shares = exact(results, "head_mean_spans").groupby("step")["span_share"].mean()
    assert shares[0] != shares[2]
    first_step = run(settings(folder / "step0", texts, tmp_path, name="own"), progress=False)
    assert [list(ids) for ids in exact(first_step, "words")["replacement_ids"]] != [
        list(ids) for ids in first["replacement_ids"]
    ]


def test_controls_of_a_series_are_on_the_versions_of_its_last_checkpoint(texts, tmp_path):
    """They were measured on those of the first one, which an untrained model finds likely or unlikely."""
    folder = series(tmp_path / "growing", steps=(0, 2), num_hidden_layers=3)
    options = {"nulls": ["random_weights"], "random_weights": 2}
    series_results, last_results = (
        run(settings(path, texts, tmp_path, name=name, **options), progress=False)
        for name, path in (("series", folder), ("last", folder / "step2"))
    )
    for name in ("controls", "control_overall"):
        of_series, of_last = (
            results.table(name).drop(columns="model") for results in (series_results, last_results)
        )
        pd.testing.assert_frame_equal(of_series, of_last, rtol=1e-6, atol=1e-9)


@pytest.mark.slow
def test_a_trained_series_is_measured_on_the_versions_of_its_last_checkpoint(tmp_path):
    """Attention of the untrained model is nearly uniform; training brings what the words then change."""
    folder = trained_series(tmp_path / "trained")
    texts = {"path": "builtin:pydoc", "samples": 16, "sampling": "random", "min_words": 12}
    study = settings(folder, texts, tmp_path, max_tokens=48, likelihood_from=str(folder / "step96"))
    results = run(study, progress=False)
    words = exact(results, "words")
    of_step = [
        rows.drop(columns="step").reset_index(drop=True) for _, rows in words.groupby("step", sort=True)
    ]
    assert len(of_step) == 3
    for other in of_step[1:]:
        equal = [
            list(replacements) == list(replacements_of_other)
            for replacements, replacements_of_other in zip(
                of_step[0]["replacement_ids"], other["replacement_ids"], strict=True
            )
        ]
        assert all(equal)
        np.testing.assert_array_equal(of_step[0]["log_likelihood"], other["log_likelihood"])
    shifts = exact(results, "shifts")
    lowest = shifts[(shifts["mode"] == "lowest") & (shifts["measure"] == "share")]
    size = lowest["difference"].abs().groupby(lowest["step"]).max()
    assert size[0] < 0.005 < 0.02 < size[96], size
    assert set(results.table("claims")["step"]) == {0, 16, 96}


def test_an_encoder_is_measured_expected_and_kept(texts, tmp_path):
    from attnscope.studies.attention_likelihood.figures import FIGURES

    folder = encoder_folder(tmp_path / "bert")
    results = run(settings(folder, texts, tmp_path), progress=False)
    words = exact(results, "words")
    assert words["own_probability"].between(0, 1).all()
    checks = results.table("checks").set_index("check")
    assert checks.loc["masked_first_piece", "value"] == 0
    assert "attends to later tokens" in checks.loc["rows_before_the_word", "reason"]
    associations = exact(results, "head_mean_associations")
    conditional = associations[associations["design"] == "within_given"]
    assert set(conditional["predictor"]) == {"masked given own", "own given masked"}
    assert FIGURES["copy_or_context"](results).caption
    from transformers import AutoModelForMaskedLM

    model = AutoModelForMaskedLM.from_pretrained(folder).eval()
    row = words[words["mode"] == "highest"].iloc[1]
    ids = [
        int(token) for token in results.table("samples").set_index("sample").loc[row["sample"], "token_ids"]
    ]
    ids[row["start"] : row["stop"]] = [int(piece) for piece in row["replacement_ids"]]
    with torch.no_grad():
        q = model(input_ids=torch.tensor([ids])).logits[0].softmax(-1)
    assert row["own_probability"] == pytest.approx(q[row["start"], ids[row["start"]]].item(), rel=1e-4)


def test_a_headless_encoder_takes_likelihoods_from_another_model(texts, tmp_path):
    bare = encoder_folder(tmp_path / "bare", head=False)
    other = encoder_folder(tmp_path / "other", seed=1)
    results = run(settings(bare, texts, tmp_path, likelihood_from=str(other)), progress=False)
    assert exact(results, "head_mean_spans")["span_share"].between(0, 1).all()
    assert exact(results, "words")["own_probability"].isna().all()


def test_every_figure_is_drawn_or_says_why(results):
    from attnscope.errors import NotDrawable
    from attnscope.studies.attention_likelihood.figures import FIGURES

    undrawn = {}
    assert len(FIGURES) == 7
    for name, figure in FIGURES.items():
        try:
            drawn = figure(results)
        except NotDrawable as error:
            undrawn[name] = str(error)
            continue
        assert drawn.caption.endswith(".")
        for ax in drawn.figure.axes:
            assert ax.lines or ax.images or ax.collections or ax.patches, (name, ax.get_title())
    assert undrawn == {"copy_or_context": "no encoder with a vocabulary head was measured"}


@pytest.mark.parametrize("depths", [(1,), (2,), (2, 7), (3,)])
def test_a_dose_has_a_line_of_each_third_or_one_of_all_layers(depths):
    import pandas as pd

    from attnscope.results.results import Results
    from attnscope.studies.attention_likelihood.figures import FIGURES

    rows = [
        (f"m{depth}", "", -1, "exact", "share", mode, layer, nats, nats * (1.0 + layer))
        for depth in depths
        for layer in range(depth)
        for mode, nats in (("lowest", -9.0), ("mid", -3.0), ("highest", 1.0))
    ]
    names = [*CK, "protocol", "measure", "mode", "layer", "log_likelihood_difference", "difference"]
    drawn = FIGURES["dose"](Results({"shifts": pd.DataFrame(rows, columns=names)}))
    thirds = ["first third", "middle third", "last third"]
    for depth, ax in zip(depths, drawn.figure.axes, strict=True):
        lines = {line.get_label(): line for line in ax.lines if len(line.get_xdata()) == 3}
        assert list(lines) == (thirds if depth >= 3 else ["all layers"])
        if depth < 3:
            mean = 1.0 + (depth - 1) / 2
            assert lines["all layers"].get_ydata() == pytest.approx([-9.0 * mean, -3.0 * mean, mean])
    legend = [text.get_text() for text in drawn.figure.legends[0].get_texts()]
    assert legend == [*(thirds if max(depths) >= 3 else []), *(["all layers"] if min(depths) < 3 else [])]
    assert ("a third of the depth" in drawn.caption) == (max(depths) >= 3)
    assert ("fewer than three" in drawn.caption) == (min(depths) < 3)


@pytest.mark.parametrize("nats_of_second", [{"a": -9.0, "b": -3.0}, {"a": -3.0, "b": -9.0}])
def test_the_caption_of_a_dose_orders_modes_as_every_panel_does(nats_of_second):
    """A word that is less likely to one model may be likelier to another."""
    import pandas as pd

    from attnscope.results.results import Results
    from attnscope.studies.attention_likelihood.figures import FIGURES

    models = {"m": {"a": -9.0, "b": -3.0, "unmeasured": -5.0}, "n": nats_of_second}
    rows = [
        (model, "", -1, "exact", "share", mode, 0, nats, math.nan if mode == "unmeasured" else -0.1)
        for model, modes in models.items()
        for mode, nats in modes.items()
    ]
    names = [*CK, "protocol", "measure", "mode", "layer", "log_likelihood_difference", "difference"]
    drawn = FIGURES["dose"](Results({"shifts": pd.DataFrame(rows, columns=names)}))
    order = "a, b." if nats_of_second["a"] < nats_of_second["b"] else "m: a, b; n: b, a."
    assert drawn.caption.endswith(f"from the left: {order}")


@pytest.mark.parametrize("of_all_modes", [True, False])
def test_least_likely_words_are_chosen_among_those_with_a_likelihood(results, of_all_modes):
    """A model whose predictions are not finite has none, and its report ended with an error."""
    shifts = results.table("shifts")
    modes = sorted(shifts["mode"].dropna().unique())
    undefined = shifts["mode"].isin(modes if of_all_modes else modes[:1])
    shifts["log_likelihood_difference"] = shifts["log_likelihood_difference"].mask(undefined)
    page = Page(Results({"shifts": shifts}), {})
    (section,) = (section for section in SECTIONS if section.id == "budget")
    section.write(page)
    assert [block.kind for block in page.blocks].count("table") == (0 if of_all_modes else 1)


@pytest.mark.usefixtures("unarranged", "unpictured")
def test_the_report_says_what_is_there_and_what_is_not(results):
    from attnscope.studies.attention_likelihood.sections import findings

    lines = findings(results)
    assert any("share per nat" in line or "beyond chance" in line for line in lines)
    assert any("not testable here" in line for line in lines)
    assert any("with random weights (2 initialisations) the paper's correlation" in line for line in lines)
    text = results.report().read_text("utf-8")
    for title in (
        "What was replaced",
        "Claims",
        "Attention and likelihood",
        "Expectation apart",
        "As published",
    ):
        assert f">{title}" in text
    assert "C4: it is the expectation that counts" in text


def test_published_numbers_stand_beside_a_run(results):
    from attnscope.published import compare_published

    compared = compare_published(results, "ruscio2023")
    assert len(compared.table) == 128
    assert not compared.table["same_model"].any()
    best = compared.table[compared.table["quantity"] == "rho"].set_index("published_model")["published"]
    assert best["roberta-large"] == 0.822567
    assert "its own, unmasked position" in str(compared)


def test_packaged_configurations_and_a_dry_run(folder, texts, tmp_path):
    from attnscope.cli.dry_run import dry_run

    study = asc.Study.from_yaml("attention_likelihood", models="x")
    assert study.options["nulls"] == ["random_weights"]
    assert (study.max_tokens, study.block, study.texts[0].samples) == (128, 64, 200)
    encoders = (
        "bert-base-uncased",
        "distilbert-base-uncased",
        "roberta-base",
        "xlm-roberta-base",
        "roberta-large",
    )
    for name in encoders:
        study = asc.Study.from_yaml(f"attention_likelihood/{name}")
        assert study.options["word"] == "column:lemma"
        assert study.options["nulls"] == ["random_weights"]
        assert [source.path for source in study.texts] == ["builtin:wordnet"]
        assert study.protocols == ["exact", "ruscio2023"]
    notes = " ".join(dry_run(settings(folder, texts, tmp_path, nulls=["random_weights"])).notes)
    assert "6 measured passes over 12 texts, and 6 of each of 8 models with random weights" in notes


def test_a_text_that_is_given_twice_exchanges_words_once_and_is_surveyed_once(folder, texts, tmp_path):
    twice = tmp_path / "twice.txt"
    twice.write_text(texts.read_text("utf-8") * 2, "utf-8")
    once, doubled = (
        run(settings(folder, path, tmp_path, name=name, survey=True, modes=["lowest"]), progress=False)
        for name, path in (("once", texts), ("twice", twice))
    )
    pairs = [
        results.table("targets").dropna(subset="partner").set_index("sample")["partner"].astype(int).to_dict()
        for results in (once, doubled)
    ]
    assert pairs[1] == pairs[0]
    assert len(pairs[0]) == 12
    surveys = [
        rows[rows["design"] == "survey"]
        for rows in (exact(results, "head_mean_associations") for results in (once, doubled))
    ]
    assert surveys[1]["n"].tolist() == surveys[0]["n"].tolist() == [12] * 3
    np.testing.assert_allclose(surveys[1]["low"], surveys[0]["low"], atol=1e-4)


def test_texts_that_are_given_again_change_no_number_over_texts(folder, texts, tmp_path):
    """A text of seven copies had seven times the weight in correlations and slopes over texts, n being 12."""
    lines = texts.read_text("utf-8").splitlines()
    again = tmp_path / "again.txt"
    again.write_text("\n".join([*lines, *[lines[3]] * 6, lines[7]]) + "\n", "utf-8")
    options = {"survey": True, "nulls": ["random_weights"], "random_weights": 1}
    once, repeated = (
        run(settings(folder, path, tmp_path, name=name, **options), progress=False)
        for name, path in (("once", texts), ("again", again))
    )
    assert len(exact(repeated, "words")) > len(exact(once, "words"))
    over_texts = [name for name in once.tables() if "sample" not in once.table(name)]
    assert {"head_mean_associations", "associations", "shifts", "controls", "claims"} <= {*over_texts}
    for name in over_texts:
        pd.testing.assert_frame_equal(
            *(
                exact(results, name).reset_index(drop=True) if name != "checks" else results.table(name)
                for results in (once, repeated)
            ),
            rtol=1e-4,
            atol=1e-6,
        )
