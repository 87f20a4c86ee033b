# SPDX-License-Identifier: MIT
"""Checkpoints of a run: their order, and what happens to those that cannot be used."""

import json
import shutil

import huggingface_hub
import pyarrow.parquet as pq
import pytest
import torch

import attnscope as asc
from attnscope.engine.executors.executor import LocalExecutor
from attnscope.engine.planning import make_plan
from attnscope.engine.run_study import resume, run
from attnscope.errors import ConfigError, OtherModel, ResultsError
from attnscope.models import LoadError, loading
from folders import model_folder, study
from models import tiny


def test_a_series_of_checkpoints_is_ordered_by_integer_step(tmp_path, checkpoints, texts):
    results = run(study(tmp_path, str(checkpoints), str(texts)))
    samples = results.table("samples")
    assert list(dict.fromkeys(zip(samples["revision"], samples["step"], strict=True))) == [
        ("step0", 0),
        ("step2", 2),
        ("step10", 10),
    ]
    assert set(samples["model"]) == {"growing"}
    cube = results.to_xarray()["fiedler_value"]
    assert list(cube["step"].values) == [0, 2, 10]
    assert float(abs(cube.sel(step=0) - cube.sel(step=10)).max()) > 0


def test_patterns_and_chosen_revisions(tmp_path, checkpoints, texts):
    by_pattern = study(tmp_path, {"path": f"{checkpoints}/step*0", "label": "mine"}, str(texts))
    assert [checkpoint.title for checkpoint in make_plan(by_pattern).checkpoints] == [
        "mine step0",
        "mine step10",
    ]
    chosen = study(tmp_path, {"path": str(checkpoints), "revisions": ["step10", "step2"]}, str(texts))
    assert [checkpoint.step for checkpoint in make_plan(chosen).checkpoints] == [2, 10]
    with pytest.raises(ConfigError, match=r"no checkpoint folder .*step7"):
        make_plan(study(tmp_path, {"path": str(checkpoints), "revisions": ["step7"]}, str(texts)))


def test_a_broken_checkpoint_in_mid_sweep_is_skipped_and_named(tmp_path, checkpoints, texts, messages):
    copy = tmp_path / "copy"
    shutil.copytree(checkpoints, copy)
    weights = copy / "step2" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    results = run(study(tmp_path, str(copy), str(texts)), say=messages.append)
    assert sorted(set(results.table("heads")["step"])) == [0, 10]
    assert [entry["checkpoint"] for entry in results.provenance["skipped"]] == ["copy step2"]
    assert any("skipped copy step2" in line for line in messages)
    shutil.copy(checkpoints / "step2" / "model.safetensors", weights)
    with pytest.raises(ConfigError, match="the texts or the weights have changed"):
        resume(results.path)


def test_a_checkpoint_that_is_skipped_in_its_middle_has_no_rows_until_it_loads(tmp_path, texts, messages):
    for step in (0, 2, 10):
        folder = model_folder(tmp_path / "m" / f"step{step}", seed=step)
        tiny("llama", seed=step, hidden_size=32, intermediate_size=32, num_hidden_layers=2).save_pretrained(
            folder, max_shard_size="20KB"
        )
        (folder / "model.safetensors").unlink()
    settings = study(tmp_path, str(tmp_path / "m"), str(texts), block=2)
    undisturbed = run(settings.model_copy(update={"name": "undisturbed"}))

    def stop_behind_its_first_unit(unit):
        if unit.checkpoint and unit.checkpoint.step == 2 and unit.inputs[0].sentence.sample > 1:
            raise KeyboardInterrupt
        return True

    with pytest.raises(KeyboardInterrupt):
        run(settings, executor=LocalExecutor(stop_behind_its_first_unit))
    folder = tmp_path / "runs" / settings.name
    stored = len(list((folder / "units").glob("*/samples.parquet")))
    index = tmp_path / "m" / "step2" / "model.safetensors.index.json"
    index.rename(tmp_path / "index.json")
    results = resume(folder, say=messages.append)
    assert [entry["checkpoint"] for entry in results.provenance["skipped"]] == ["m step2"]
    for table in ("samples", "heads", "head_means"):
        assert sorted(set(results[table]["step"])) == [0, 10], table
    # what was measured is not lost
    (tmp_path / "index.json").rename(index)
    resume(folder)
    assert stored == 5
    assert results.provenance["units"]["stored"] > stored
    for file in sorted((undisturbed.path / "tables").glob("*.parquet")):
        assert (folder / "tables" / file.name).read_bytes() == file.read_bytes(), file.name


def test_weights_that_the_architecture_lacks_are_never_random(tmp_path, llama, texts):
    from safetensors.torch import load_file, save_file

    copy = tmp_path / "copy"
    shutil.copytree(llama, copy)
    weights = load_file(copy / "model.safetensors")
    missing = next(name for name in weights if "q_proj" in name)
    del weights[missing]
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(LoadError, match=r"lack 1 tensors of LlamaForCausalLM, for example .*q_proj"):
        run(study(tmp_path, str(copy), str(texts)))
    assert not (tmp_path / "runs" / "a").exists()


def broken_folder(tmp_path, llama, damage):
    copy = tmp_path / "broken"
    shutil.copytree(llama, copy)
    if damage == "no weights":
        (copy / "model.safetensors").unlink()
    elif damage == "config is not JSON":
        (copy / "config.json").write_text("{", "utf-8")
    elif damage == "unknown architecture":
        (copy / "config.json").write_text('{"model_type": "no_such_model"}', "utf-8")
    elif damage == "no tokenizer":
        for file in copy.glob("tokenizer*"):
            file.unlink()
    elif damage == "pickled weights":
        (copy / "model.safetensors").unlink()
        torch.save({}, copy / "pytorch_model.bin")
    return copy


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("no weights", r"broken: .*holds no \*\.safetensors file"),
        ("pickled weights", r"broken: .*holds no \*\.safetensors file, and no other format is loaded"),
        ("config is not JSON", "broken: .*not a valid JSON"),
        ("unknown architecture", "broken: .*no_such_model"),
        ("no tokenizer", "broken: tokenizer: "),
    ],
)
def test_a_broken_model_folder_is_explained_and_leaves_nothing(tmp_path, llama, texts, damage, message):
    with pytest.raises(LoadError, match=message):
        run(study(tmp_path, str(broken_folder(tmp_path, llama, damage)), str(texts)))
    assert not (tmp_path / "runs" / "a").exists()


def test_a_folder_without_a_model_and_a_missing_one(tmp_path, texts):
    (tmp_path / "empty").mkdir()
    for path, message in (
        (tmp_path / "empty", "holds no model"),
        (tmp_path / "none", "there is no model folder"),
    ):
        with pytest.raises(ConfigError, match=rf"models\[0\]: .*{message}"):
            run(study(tmp_path, str(path), str(texts)))
    assert not (tmp_path / "runs").exists()


def test_foreign_code_is_refused_unless_asked_for(tmp_path, llama, texts):
    copy = tmp_path / "copy"
    shutil.copytree(llama, copy)
    config = json.loads((copy / "config.json").read_text("utf-8"))
    config |= {
        "auto_map": {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"},
        "model_type": "evil",
    }
    (copy / "config.json").write_text(json.dumps(config), "utf-8")
    (copy / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n", "utf-8")
    with pytest.raises(LoadError, match="its own code, which is not run unless trust_remote_code"):
        run(study(tmp_path, str(copy), str(texts)))
    assert not (tmp_path / "ran").exists()


def test_two_models_of_one_label_are_refused(tmp_path, llama, checkpoints, texts):
    with pytest.raises(ConfigError, match=r"models\[1\]: two models would be called 'tiny'"):
        make_plan(
            study(tmp_path, [str(llama), {"path": str(checkpoints / "step0"), "label": "tiny"}], str(texts))
        )


def test_layers_can_be_chosen(tmp_path, llama, texts):
    heads = run(study(tmp_path, str(llama), str(texts), layers=[1], metrics=["fiedler_value"])).table("heads")
    assert set(heads["layer"]) == {1}


@pytest.mark.parametrize("name", ["attention_sinks", "wavelet_heads", "attention_likelihood"])
def test_layers_that_a_model_lacks_are_a_fault_of_the_settings(tmp_path, llama, texts, name):
    """The run was planned and its only checkpoint left out, so that it ended as if the model were damaged."""
    settings = asc.Study(study=name, models=str(llama), texts=str(texts), layers=[0, 7], output=str(tmp_path))
    with pytest.raises(ConfigError, match=r"^layers: tiny has layers 0 to 1, got \[7\]$"):
        make_plan(settings)


def test_a_model_whose_attention_cannot_be_captured_is_skipped(tmp_path, llama, texts, messages):
    folder = model_folder(tmp_path / "mamba", "mamba")
    results = run(study(tmp_path, [str(folder), str(llama)], str(texts)), say=messages.append)
    assert [entry["checkpoint"] for entry in results.provenance["skipped"]] == ["mamba"]
    assert set(results.table("heads")["model"]) == {"tiny"}
    with pytest.raises(LoadError, match="mamba"):
        run(study(tmp_path, str(folder), str(texts)), name="b")
    assert not (tmp_path / "runs" / "b").exists()


def test_a_model_with_nan_weights_is_captured_layer_by_layer(tmp_path, llama, texts, recwarn):
    from safetensors.torch import load_file, save_file

    copy = tmp_path / "broken"
    shutil.copytree(llama, copy)
    weights = {
        name: torch.full_like(weight, float("nan")) if "layers.1.self_attn.q_proj" in name else weight
        for name, weight in load_file(copy / "model.safetensors").items()
    }
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    from transformers import AutoModelForCausalLM

    with asc.capture(AutoModelForCausalLM.from_pretrained(copy).eval()) as recording:
        assert recording.tier == 1
    assert not [warning for warning in recwarn if "capture" in str(warning.message)]


def edit_provenance(folder, change):
    file = folder / "provenance.json"
    facts = json.loads(file.read_text("utf-8"))
    change(facts)
    file.write_text(json.dumps(facts), "utf-8")


@pytest.mark.parametrize("missing", [["step10"], ["step0", "step2", "step10"]])
def test_a_run_does_not_go_on_on_a_device_of_another_kind(tmp_path, checkpoints, texts, missing):
    """A run of a GPU went on on a machine without one, and its tables held numbers of both."""
    first = run(study(tmp_path, checkpoints, texts))
    for unit in first.path.glob("units/*"):
        file = unit / "heads.parquet"
        if file.is_file() and pq.read_table(file)["revision"][0].as_py() in missing:
            shutil.rmtree(unit)
    edit_provenance(
        first.path, lambda facts: [model.update(device="cuda:1") for model in facts["models"].values()]
    )
    if len(missing) == 3:  # no number of the other device is left
        assert resume(first.path)["heads"].equals(first["heads"])
        return
    with pytest.raises(
        ConfigError, match=r"growing step10: this run has measured growing step0 on cuda, and .* is cpu"
    ):
        resume(first.path)
    assert json.loads((first.path / "provenance.json").read_text("utf-8"))["state"] == "interrupted"
    edit_provenance(
        first.path, lambda facts: [model.update(device="cpu") for model in facts["models"].values()]
    )
    assert resume(first.path)["heads"].equals(first["heads"])


def test_a_model_of_the_hub_that_has_moved_is_not_mixed_with_the_old(tmp_path, monkeypatch, texts):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(loading, "hub_answers", lambda: False)
    folder = tmp_path / "cache" / "models--me--tiny"
    branch = folder / "refs" / "main"
    branch.parent.mkdir(parents=True)
    for seed, commit in enumerate(("a" * 40, "b" * 40)):
        model_folder(folder / "snapshots" / commit, seed=seed)
    branch.write_text("a" * 40, "utf-8")
    first = run(study(tmp_path, "me/tiny", texts))
    assert first.provenance["models"]["me/tiny"]["commit"] == "a" * 40
    moved = rf"me/tiny: the hub has commit {'b' * 40} now, .* measured commit {'a' * 40}"
    branch.write_text("b" * 40, "utf-8")
    with pytest.raises(OtherModel, match=moved):
        run(study(tmp_path, "me/tiny", texts), exist_ok=True)
    branch.unlink()  # where the hub cannot be asked, what was measured stands
    assert run(study(tmp_path, "me/tiny", texts), exist_ok=True)["heads"].equals(first["heads"])
    branch.write_text("b" * 40, "utf-8")
    shutil.rmtree(min(first.path.glob("units/*")))
    with pytest.raises(OtherModel, match=moved):
        resume(first.path)
    branch.write_text("a" * 40, "utf-8")
    assert resume(first.path)["heads"].equals(first["heads"])


def test_the_samples_of_a_run_are_texts_of_another(tmp_path, llama, texts):
    """A column `text_unit` of the texts was stored beside that of the run, and no table could be read."""
    first = run(study(tmp_path, llama, texts))
    (tmp_path / "csv").mkdir()
    samples = first["samples"].assign(__filename="a", __fragment_index=0, __batch_index=1)
    samples["__last_in_fragment"] = True
    samples.to_parquet(tmp_path / "csv" / "samples.parquet")
    texts_again = {"path": str(tmp_path / "csv" / "samples.parquet"), "column": "text"}
    again = run(study(tmp_path, llama, texts_again).model_copy(update={"name": "b"}))
    added = [name for name in again["samples"] if name not in first["samples"]]
    assert again["heads"].equals(first["heads"])
    assert added == [f"source_{name}" for name in samples if name != "text"]
    assert again["samples"]["source_text_unit"].tolist() == first["samples"]["text_unit"].tolist()


def test_a_damaged_provenance_says_how_to_go_on(tmp_path, llama, texts):
    first = run(study(tmp_path, llama, texts))
    file = first.path / "provenance.json"
    for content in ("", "{", "[]", '{"models": 3}'):
        file.write_text(content, "utf-8")
        with pytest.raises(
            ResultsError, match=r"provenance\.json is damaged: .*; once it is removed a run goes on"
        ):
            resume(first.path)
    file.unlink()
    again = resume(first.path)
    assert again["heads"].equals(first["heads"])
    assert again.provenance["units"]["done_by_this_process"] == 0
