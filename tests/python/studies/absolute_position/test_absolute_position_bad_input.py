# SPDX-License-Identifier: MIT
"""What the study of absolute position refuses, and what it says."""

import pytest

import attnscope as asc
from attnscope.cli.dry_run import dry_run
from attnscope.engine.planning import make_plan
from attnscope.engine.run_study import run
from attnscope.errors import ConfigError
from attnscope.models import LoadError
from attnscope.studies.absolute_position.study import AbsolutePosition
from folders import model_folder, tokenizer
from position_study import GROUPS, TEXTS, settings

#: What no test of a refusal needs.
QUICK = {"arms": [], "nulls": [], "leakage": False, "bands": 0}


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"arms": ["zeros"]}, ConfigError, r"options.arms: there is no 'zeros'; did you mean 'zero'"),
        ({"inputs": ["shuffled"]}, ConfigError, "expected windows among the inputs"),
        ({"queries": [1, 8]}, ConfigError, r"expected 2 <= first <= last, got \[1, 8\]"),
        ({"groups": 3}, ConfigError, "greater than or equal to 4, got 3"),
        ({"sinks": [1.5]}, ConfigError, r"options.sinks\[0\]"),
    ],
)
def test_bad_options(folder, texts, tmp_path, changes, error, message):
    with pytest.raises(error, match=message):
        run(settings(folder, texts, tmp_path, **changes), progress=False)


def test_too_few_windows_are_refused_before_the_run_has_a_folder(folder, texts, tmp_path):
    too_few = settings(folder, texts, tmp_path, name="few", groups=16)
    for attempt in (dry_run, run):
        with pytest.raises(ConfigError, match=r"16 groups need 64 windows, the texts give 16"):
            attempt(too_few)
    assert not (tmp_path / "few").exists()


def test_sentences_are_refused(folder, texts, tmp_path):
    with pytest.raises(ConfigError, match="absolute_position reads windows"):
        run(
            asc.Study(
                study="absolute_position",
                models=str(folder),
                texts={"path": str(texts), "per": "line"},
                output=str(tmp_path),
            )
        )


def test_texts_are_windows_where_nothing_else_is_said(folder, texts):
    for source in (str(texts), {"path": str(texts)}, [{"path": str(texts)}, str(texts)]):
        study = asc.Study(study="absolute_position", models=str(folder), texts=source)
        assert {(text.per, text.samples) for text in study.texts} == {("window", 256)}


def test_all_windows_are_read_where_samples_is_null(folder, texts):
    study = asc.Study(
        study="absolute_position",
        models=str(folder),
        texts=str(texts),
        max_tokens=16,
        options={"groups": GROUPS},
    )
    windows = {}
    for samples in (None, TEXTS, 256):
        values = study.to_dict()
        values["texts"][0]["samples"] = samples
        plan = make_plan(asc.Study(**values))
        (line,) = AbsolutePosition(plan.settings).describe_plan(plan)
        windows[samples] = len({text.sentence.sample for unit in plan.units for text in unit.inputs})
        assert f"passes over {windows[samples]} windows" in line
        ending = "windows of 16 tokens, and up to 256 are wanted"
        assert any(note.endswith(ending) for note in plan.notes) == (samples == 256)
    assert 16 < windows[None] == windows[256] < 256
    assert windows[TEXTS] == TEXTS


def test_encoders_are_refused_by_name(folder, texts, tmp_path):
    path = model_folder(tmp_path / "bert", "bert")
    quick = settings(path, texts, tmp_path, **QUICK)
    values = {**quick.to_dict(), "models": [str(path), str(folder)]}
    planned, single = dry_run(asc.Study(**values)), dry_run(settings(folder, texts, tmp_path, **QUICK))
    ((title, reason),) = planned.skipped
    assert title == "bert"
    assert (planned.units, planned.tokens) == (single.units, single.tokens)
    assert "attends to later tokens; a causal map is needed" in reason
    with pytest.raises(LoadError, match=r"BertM\w+ attends to later tokens; a causal map is needed"):
        run(quick, progress=False)
    with pytest.raises(LoadError, match=r"BertM\w+ attends to later tokens; a causal map is needed"):
        dry_run(quick)


def test_a_model_of_pictures_is_refused_by_name(texts, tmp_path):
    """It ended in Python's own error about the weights of its embedding."""
    from transformers import ViTConfig, ViTModel

    shape = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    ViTModel(ViTConfig(**shape, image_size=16, patch_size=4)).save_pretrained(tmp_path / "vit")
    tokenizer().save_pretrained(tmp_path / "vit")
    with pytest.raises(LoadError, match="vit: ViTModel takes no token ids"):
        run(settings(tmp_path / "vit", texts, tmp_path, **QUICK), progress=False)


def test_a_model_whose_tokens_are_several_states_is_refused_by_name(texts, tmp_path):
    """Gemma 3n carries several residual streams; its state of the first token is no row of them."""
    import transformers

    from models import needs_configuration

    needs_configuration("Gemma3nTextConfig")
    shape = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2}
    config = transformers.Gemma3nTextConfig(
        **shape,
        vocab_size_per_layer_input=97,
        hidden_size_per_layer_input=8,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        layer_types=["full_attention"] * 2,
        num_kv_shared_layers=0,
        laurel_rank=4,
        altup_num_inputs=2,
        activation_sparsity_pattern=[0.0] * 2,
    )
    transformers.Gemma3nForCausalLM(config).save_pretrained(tmp_path / "m")
    tokenizer().save_pretrained(tmp_path / "m")
    with pytest.raises(LoadError, match="Gemma3nForCausalLM: a token enters the first block as several sta"):
        run(settings(tmp_path / "m", texts, tmp_path, **QUICK), progress=False)


def test_an_encoder_decoder_is_refused_before_anything_is_said_of_it(folder, texts, tmp_path):
    path = model_folder(tmp_path / "t5", "t5")
    with pytest.raises(LoadError, match=r"^t5: t5 has an encoder; absolute_position needs a causal map$"):
        make_plan(settings(path, texts, tmp_path))
    values = {**settings(path, texts, tmp_path).to_dict(), "models": [str(path), str(folder)]}
    plan = make_plan(asc.Study(**values))
    assert plan.skipped == [("t5", "t5 has an encoder; absolute_position needs a causal map")]
    assert not any("encoder" in note for note in plan.notes)


def test_a_check_that_fails_ends_the_checkpoint_by_name(folder, texts, tmp_path, monkeypatch):
    from attnscope.studies.absolute_position import checks

    monkeypatch.setattr(checks, "_written", lambda model, ids: checks.Check("head_writes", 0.5, 1e-5))
    results = run(settings(folder, texts, tmp_path), progress=False)
    message = "the check head_writes does not hold: 0.5, where at most 1e-05 is rounding"
    assert message in str(results.provenance["skipped"])
    stored = results.table("checks").set_index("check")["holds"]
    assert not stored["head_writes"]
    assert stored.drop("head_writes").all()
    assert set(results.tables()) <= {"checks", "encodings", "samples"}


def test_a_residual_of_layer_0_on_shuffled_tokens_ends_the_checkpoint(folder, texts, tmp_path, monkeypatch):
    from attnscope.studies.absolute_position import checks

    monkeypatch.setattr(checks, "LEAST_P", 1.0)
    results = run(settings(folder, texts, tmp_path, **{**QUICK, "arms": ["unread"]}), progress=False)
    assert "the check layer_0_shuffled does not hold: p " in str(results.provenance["skipped"])
    assert "claims" not in results.tables()


def test_the_command_goes_on_with_the_others_and_ends_with_3_when_a_check_fails(
    folder, texts, tmp_path, monkeypatch, capsys
):
    from attnscope.cli import application
    from attnscope.studies.absolute_position import checks

    other = model_folder(tmp_path / "other", num_hidden_layers=2)
    monkeypatch.setattr(
        checks,
        "_written",
        lambda model, ids: checks.Check("head_writes", float(model.config.num_hidden_layers == 2), 1e-5),
    )
    arguments = ["run", "absolute_position", "--model", str(folder), "--model", str(other), "--quiet"]
    arguments += ["--texts", str(texts), "--no-draw", "--set", "options.arms=[]", "--set", "options.nulls=[]"]
    arguments += ["--set", "options.leakage=false", "--set", "options.bands=0"]
    arguments += ["--set", "texts.per=window", "--set", "texts.samples=16", "--set", "max_tokens=16"]
    arguments += ["--set", "options.groups=4", "--output", str(tmp_path), "--name", "a"]
    with pytest.raises(SystemExit) as end:
        application.main(arguments)
    assert end.value.code == 3
    assert "1 checkpoint skipped: other" in capsys.readouterr().err
    results = asc.load(tmp_path / "a")
    assert "the check head_writes does not hold" in str(results.provenance["skipped"])
    assert set(results.table("claims")["model"]) == {folder.name}


@pytest.mark.parametrize("n", [5, 4, 1])
def test_windows_without_two_keys_beside_the_first_are_refused(folder, texts, tmp_path, n):
    values = settings(folder, texts, tmp_path).to_dict()
    with pytest.raises(ConfigError, match=rf"early queries from 2 on .* needs 6 tokens, got {n}"):
        run(asc.Study(**{**values, "max_tokens": n}), progress=False)


@pytest.mark.usefixtures("unarranged", "unpictured")
@pytest.mark.parametrize("n", [6, pytest.param(9, marks=pytest.mark.slow)])
def test_the_shortest_windows_and_odd_ones_are_read(folder, texts, tmp_path, n):
    """Six tokens have one early query with two keys beside the first; of nine the last is not used."""
    options = {**QUICK, "arms": ["no_bos"], "inputs": ["windows"]}
    values = settings(folder, texts, tmp_path, samples=64, **options).to_dict()
    results = run(asc.Study(**{**values, "max_tokens": n}), progress=False)
    rows = results.table("position")
    assert set(rows["queries"]) == ({"early", "2"} if n == 6 else {"early", "2", "3"})
    assert rows["residual"].notna().all()
    assert results.report().exists()


def test_an_encoding_that_a_model_cannot_take_leaves_it_out_by_name(folder, texts, tmp_path):
    moving = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    path = model_folder(tmp_path / "moving", rope_parameters=moving)
    values = settings(path, texts, tmp_path, rope=["ntk", 2.0], inputs=["windows"], **QUICK).to_dict()
    results = run(asc.Study(**{**values, "models": [str(path), str(folder)]}), progress=False)
    assert "makes its 'dynamic' frequencies from the positions" in str(results.provenance["skipped"])
    assert set(results.table("position")["model"]) == {folder.name}
    bloom = model_folder(tmp_path / "bloom", "bloom")
    with pytest.raises(LoadError, match="bloom: LimitWindow: the attention of BloomForCausalLM"):
        run(settings(bloom, texts, tmp_path, name="b", window=4, **QUICK), progress=False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"rope": ["yarn", 2.0]}, "options.rope"), ({"window": 0}, "options.window")],
)
def test_bad_encodings(folder, texts, tmp_path, changes, message):
    with pytest.raises(ConfigError, match=message):
        settings(folder, texts, tmp_path, **changes)


def test_a_tokenizer_without_a_second_special_token_is_noted(folder, texts, tmp_path, monkeypatch):
    from attnscope.engine.engine import Engine
    from attnscope.engine.prepared_run import prepare, with_absolute_paths
    from attnscope.studies.absolute_position import arms
    from attnscope.study_api.stage_run import StageRun

    monkeypatch.setattr(arms, "_special", lambda encoder: {encoder.bos_id})
    engine = Engine(
        prepare(with_absolute_paths(settings(folder, texts, tmp_path))), progress=False, say=lambda text: None
    )
    plan = engine.plan
    unit, stage = next((unit, plan.stages["passes"]) for unit in plan.units if unit.stage == "passes")
    hand = StageRun(engine, unit, stage.reads, stage.writes)
    names = {arm.name for arm in arms.first_arms(hand, engine.study.options, 8)}
    assert {"zero", "mean", "token", "gaussian"} <= names
    assert "special" not in names
    assert "no second special token; the arm special is left out" in " ".join(engine.notes)
