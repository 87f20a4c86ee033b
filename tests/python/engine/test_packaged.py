# SPDX-License-Identifier: MIT
"""The packaged studies of the paper's models: each loads, names the right model, and can be planned."""

import json

import huggingface_hub.constants
import pytest
from typer.testing import CliRunner

from attnscope.cli.application import app
from attnscope.cli.dry_run import dry_run
from attnscope.config.config_files import read_config, split_analysis
from attnscope.config.packaged_configs import analyses, catalogue, packaged
from attnscope.config.run_config import RunConfig, TextSource
from attnscope.demo.texts import VOCABULARY_SIZE, byte_tokenizer
from attnscope.errors import ConfigError
from attnscope.models import LoadError
from attnscope.results.results import nearest
from attnscope.studies.attention_sinks.layer_rows import metric_names
from attnscope.texts.sources import read_sentences
from weight_models import tiny

#: The paper's models, as their authors named them on the hub.
HUB = {
    "llama-3.2-1b": "meta-llama/Llama-3.2-1B",
    "llama-3.2-3b": "meta-llama/Llama-3.2-3B",
    "llama-3.1-8b": "meta-llama/Llama-3.1-8B",
    "llama-3.1-8b-instruct": "meta-llama/Llama-3.1-8B-Instruct",
    "qwen2.5-3b": "Qwen/Qwen2.5-3B",
    "qwen2.5-7b": "Qwen/Qwen2.5-7B",
    "qwen2.5-7b-instruct": "Qwen/Qwen2.5-7B-Instruct",
    "mistral-7b-v0.1": "mistralai/Mistral-7B-v0.1",
    "gemma-7b": "google/gemma-7b",
    "phi-2": "microsoft/phi-2",
    "pythia-1.4b": "EleutherAI/pythia-1.4b",
    "pythia-2.8b": "EleutherAI/pythia-2.8b",
    "pythia-6.9b": "EleutherAI/pythia-6.9b",
    "pythia-12b": "EleutherAI/pythia-12b",
    "bert-base": "google-bert/bert-base-uncased",
    "xlm-r-large": "FacebookAI/xlm-roberta-large",
}
#: Packaged studies of other papers.
OTHERS = (
    "wavelet",
    "absolute_position",
    "attention_likelihood",
    "features",
    "hallucination_geometry",
    "pretraining_writes",
)
SETTING = {
    "topology": (500, 48),
    "spectral": (500, 128),
    "value": (500, 128),
    "fisher": (500, 128),
    "divergence": (50, 128),
    "random_matrix": (100, 128),
}


@pytest.fixture
def sentences(tmp_path):
    file = tmp_path / "wiki_dataset_sink.csv"
    rows = [
        f"a sentence of six words: {word},{word}" for word in ("gravity", "light", "cells") for _ in range(2)
    ]
    file.write_text("text,focus_word\n" + "\n".join(rows) + "\n", "utf-8")
    return file


@pytest.fixture
def offline(monkeypatch, tmp_path):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))


def test_every_model_of_the_paper_is_there_and_listed():
    paper_configs = [config for config in catalogue() if not config.name.startswith(OTHERS)]
    assert {config.name for config in paper_configs} == {*HUB, "ruscio2025", "attention_sinks"}
    assert {config.name: config.models for config in paper_configs if config.models} == {
        k: (v,) for k, v in HUB.items()
    }
    answer = CliRunner().invoke(app, ["configs"])
    assert answer.exit_code == 0
    assert all(f"{name} " in answer.stdout and hub in answer.stdout for name, hub in HUB.items())
    answer = json.loads(CliRunner().invoke(app, ["configs", "--json"]).stdout)
    assert {entry["name"] for entry in answer["studies"]} == set(packaged())
    assert answer["analyses"]["topology"]["max_tokens"] == 48


@pytest.mark.parametrize("name", HUB)
def test_a_model_has_the_papers_setting(name):
    study = RunConfig.from_yaml(name)
    assert [model.path for model in study.models] == [HUB[name]]
    text = study.texts[0]
    assert (text.path, text.column, text.samples, text.sampling) == (
        "wiki_dataset_sink.csv",
        "text",
        500,
        "paper",
    )
    assert (text.min_words, text.max_words, text.max_characters) == (6, 50, None)
    assert study.max_tokens == 128
    assert study.protocols == ["exact", "ruscio2025"]
    steps = ["step0", "step1", "step2", "step4", "step8", "step2000", "step143000"]
    assert study.models[0].revisions == (steps if name.startswith("pythia") else [])


@pytest.mark.parametrize("analysis", analyses())
def test_an_analysis_brings_its_sentences_and_its_cap(analysis):
    study = RunConfig.from_yaml(f"llama-3.2-3b:{analysis}")
    assert (study.texts[0].samples, study.max_tokens) == SETTING[analysis]
    assert set(study.options["metrics"]) <= set(metric_names())
    assert set(SETTING) == set(analyses())
    assert study.texts[0].max_characters == (500 if analysis == "fisher" else None)
    assert study.models[0].dtype == ("float32" if analysis == "fisher" else "auto")
    # what a person asks for on top goes before what the analysis says
    few = RunConfig.from_yaml(f"llama-3.2-3b:{analysis}", overrides=["texts.samples=3", "max_tokens=9"])
    assert (few.texts[0].samples, few.max_tokens) == (3, 9)
    user_study = RunConfig.from_yaml(f"ruscio2025:{analysis}", models="gpt2", texts="mine.txt")
    assert user_study.texts[0].samples == analyses()[analysis]["texts.samples"]


@pytest.mark.parametrize("name", HUB)
def test_planning_without_the_model_says_so(name, sentences, offline):
    study = RunConfig.from_yaml(name, overrides=[f"texts.path={sentences}", f"output={sentences.parent}"])
    with pytest.raises(LoadError) as answer:
        dry_run(study)
    message = str(answer.value)
    assert message.startswith(study.models[0].label)
    assert "the model is not on this machine and the hub cannot be reached" in message
    assert f"hf download {HUB[name]}" in message


def test_a_missing_data_set_is_named_with_what_to_do(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = r"no file wiki_dataset_sink.csv, the paper's 811 sentences .*texts.path=FILE .*texts sample"
    with pytest.raises(ConfigError, match=words):
        dry_run(RunConfig.from_yaml("phi-2"))
    with pytest.raises(ConfigError, match=r"no file mine.txt; --set texts.path=FILE"):
        dry_run(RunConfig(models="gpt2", texts="mine.txt"))


def test_sentences_of_the_package_stand_in_for_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = read_sentences([TextSource(path="sample"), TextSource(path="builtin:sample", samples=2)])
    assert len(rows) == 50
    assert len({row.text for row in rows}) == 48
    assert all(row.extra["focus_word"].lower() in row.text.lower() for row in rows[:36])
    assert {row.extra["field"] for row in rows} == {"physics", "mathematics", "medicine", "geography"}
    (tmp_path / "sample").write_text("a file of one's own is none of the package's")
    with pytest.raises(ConfigError, match="the ending says what a file is"):
        read_sentences([TextSource(path="sample")])


def test_wrong_names_are_answered_with_the_right_ones(tmp_path):
    with pytest.raises(ConfigError, match="no analysis 'topolgy'; did you mean 'topology'"):
        RunConfig.from_yaml("phi-2:topolgy")
    with pytest.raises(ConfigError, match="'phi2' is neither a file nor a study; did you mean"):
        RunConfig.from_yaml("phi2")
    assert split_analysis("C:/study.yaml") == ("C:/study.yaml", "")
    file = tmp_path / "mine.yaml"
    file.write_text("extends: ruscio\nmodels: gpt2\n", "utf-8")
    with pytest.raises(ConfigError, match="extends 'ruscio', which is no packaged study"):
        RunConfig.from_yaml(file)
    assert "did you mean" in nearest("ruscio", packaged())


def test_a_file_of_ones_own_extends_a_packaged_study(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("extends: ruscio2025\nmodels: gpt2\nmax_tokens: 32\n", "utf-8")
    study = RunConfig.from_yaml(file)
    assert (study.max_tokens, study.texts[0].samples) == (32, 500)
    assert "extends" not in read_config(file)
    assert RunConfig(**study.to_dict()) == study


PAIRS = [name for name in packaged() if name.startswith("pretraining_writes/")]


@pytest.mark.parametrize("name", PAIRS)
def test_packaged_pairs_are_valid_and_name_what_is_not_on_this_machine(name, monkeypatch, tmp_path):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    settings = RunConfig.from_yaml(name)
    assert settings.study == "pretraining_writes"
    assert len(settings.models) > 1 or len(settings.models[0].revisions) > 10
    with pytest.raises(LoadError, match=r"not on this machine|two checkpoints are needed"):
        dry_run(settings)


@pytest.mark.parametrize(
    "name",
    [pair if pair.endswith("pythia-160m") else pytest.param(pair, marks=pytest.mark.slow) for pair in PAIRS],
)
def test_packaged_pairs_are_planned_without_a_network(name, offline, tmp_path):
    """With small models in the cache in the place of the packaged ones."""
    model = tmp_path / "model"
    tiny("llama", vocab_size=VOCABULARY_SIZE).save_pretrained(model)
    byte_tokenizer().save_pretrained(model)
    settings = RunConfig.from_yaml(name)
    for model_source in settings.models:
        cached = tmp_path / "hub" / f"models--{model_source.path.replace('/', '--')}"
        for revision in model_source.revisions or ["main"]:
            for folder in ("refs", "snapshots"):
                (cached / folder).mkdir(parents=True, exist_ok=True)
            (cached / "refs" / revision).write_text(f"of-{revision}", "utf-8")
            (cached / "snapshots" / f"of-{revision}").symlink_to(model)
    estimate = dry_run(settings)
    assert estimate.checkpoints == sum(
        len(model_source.revisions or ["main"]) for model_source in settings.models
    )
    assert estimate.sentences == 64
    assert not estimate.skipped


def test_keys_of_an_analysis_are_the_callers_own():
    first = analyses()["topology"]
    first["max_tokens"] = 1
    for value in first.values():
        if isinstance(value, list):
            value.append("of the caller")
    assert analyses()["topology"]["max_tokens"] == 48
    assert "of the caller" not in str(analyses()["topology"])
