# SPDX-License-Identifier: MIT
"""Attention measured by a callback of the Trainer: logs, series, and training as without it."""

import copy
import random
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments

import attnscope as asc
from attnscope.training import AttentionCallback
from attnscope.training.attention_callback import (
    calling_trainer,
    means,
    measure_in_training,
    replace_series,
    series_folder,
)

pytest.importorskip("accelerate", reason="transformers' Trainer needs accelerate")
IDS = torch.randint(0, 32, (16, 12), generator=torch.Generator().manual_seed(0))
TEXTS = IDS[:2]


class Rows(Dataset):
    def __len__(self):
        return len(IDS)

    def __getitem__(self, row):
        return {"input_ids": IDS[row], "labels": IDS[row]}


def tiny_model():
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        attention_dropout=0.3,
    )
    return LlamaForCausalLM(config)


def trained(folder, *callbacks, steps=6, model=None, resume=None, **arguments):
    """Return a trainer that has trained a tiny model, with dropout, for some steps."""
    settings = TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=4,
        logging_steps=2,
        seed=3,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        save_strategy="no",
        **arguments,
    )
    trainer = transformers.Trainer(
        model or tiny_model(), settings, train_dataset=Rows(), callbacks=[*callbacks]
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def test_training_is_as_without_the_callback(tmp_path):
    plain = trained(tmp_path / "plain")
    random_states = random.getstate(), torch.get_rng_state().tolist()
    callback = AttentionCallback(TEXTS, ["sink_share", "fiedler_value"], every=2)
    measured = trained(tmp_path / "measured", callback)
    for name, weights in plain.model.state_dict().items():
        assert torch.equal(weights, measured.model.state_dict()[name]), name
    losses = [
        [entry["loss"] for entry in run.state.log_history if "loss" in entry] for run in (plain, measured)
    ]
    assert losses[0] == losses[1]
    assert random_states == (random.getstate(), torch.get_rng_state().tolist())
    assert [m.training for m in plain.model.modules()] == [m.training for m in measured.model.modules()]
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in measured.model.modules())


def test_the_series_is_what_analyze_gives_at_each_step(tmp_path):
    seen = {}

    class Watch(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, model, **_):
            seen[state.global_step] = copy.deepcopy(model).eval()

    callback = AttentionCallback(TEXTS, ["sink_share"], every=3)
    trainer = trained(tmp_path, Watch(), callback, steps=7)
    series = asc.load(callback.folder)
    assert callback.folder == tmp_path / "attention"
    heads = series["heads"]
    assert sorted(heads["step"].unique()) == [0, 3, 6, 7]
    for step, model in seen.items():
        rows = heads[heads["step"] == step]
        if step in (3, 6, 7):
            expected = asc.analyze(model, TEXTS, ["sink_share"])["heads"]
            assert rows["sink_share"].tolist() == expected["sink_share"].tolist()
            assert (rows["revision"] == f"step{step}").all()
    logged = {entry["step"]: entry for entry in trainer.state.log_history if "attention/sink_share" in entry}
    assert sorted(logged) == [0, 3, 6, 7]
    for step, entry in logged.items():
        assert entry["attention/sink_share"] == pytest.approx(
            heads[heads["step"] == step]["sink_share"].mean()
        )
    change = asc.emergence_step(heads, "sink_share")
    assert len(change) == 1
    assert series["samples"].groupby("step").size().tolist() == [2, 2, 2, 2]


def test_modes_of_single_modules_come_back():
    model = tiny_model().train()
    model.model.layers[0].eval()  # frozen by whoever trains
    model.model.layers[1].register_forward_hook(lambda layer, *_: modes.add(layer.training))
    before = [module.training for module in model.modules()]
    modes = set()
    measure_in_training(model, TEXTS, ["sink_share"], None)
    assert modes == {False}
    assert [module.training for module in model.modules()] == before
    with pytest.raises(ValueError, match="sink_share"):
        measure_in_training(model, TEXTS, ["sink_shar"], None)
    assert [module.training for module in model.modules()] == before


@pytest.mark.parametrize(("log", "name"), [("layer", "layer1"), ("head", "layer1/head0")])
def test_numbers_of_layers_and_heads_are_logged(tmp_path, log, name):
    callback = AttentionCallback(TEXTS, ["sink_share"], every=10, log=log)
    trainer = trained(tmp_path, callback, steps=1)
    heads = asc.load(callback.folder)["heads"]
    rows = heads[(heads["step"] == 1) & (heads["layer"] == 1)]
    rows = rows[rows["head"] == 0] if log == "head" else rows
    last = [entry for entry in trainer.state.log_history if f"attention/sink_share/{name}" in entry][-1]
    assert last[f"attention/sink_share/{name}"] == pytest.approx(rows["sink_share"].mean())


def test_resumed_training_goes_on_with_the_series(tmp_path):
    callback = AttentionCallback(TEXTS, ["sink_share"], every=2)
    settings = {"save_steps": 4}
    first = TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=6,
        per_device_train_batch_size=4,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        save_strategy="steps",
        seed=3,
        **settings,
    )
    transformers.Trainer(tiny_model(), first, train_dataset=Rows(), callbacks=[callback]).train()
    uninterrupted = asc.load(callback.folder)["heads"]
    again = AttentionCallback(TEXTS, ["sink_share"], every=2)
    transformers.Trainer(tiny_model(), first, train_dataset=Rows(), callbacks=[again]).train(
        resume_from_checkpoint=str(tmp_path / "checkpoint-4")
    )
    assert again.folder == callback.folder
    resumed = asc.load(again.folder)["heads"]
    assert sorted(resumed["step"].unique()) == [0, 2, 4, 6]
    assert resumed["sink_share"].tolist() == uninterrupted["sink_share"].tolist()
    trained(tmp_path, third := AttentionCallback(TEXTS, ["sink_share"]), steps=1)
    assert third.folder == tmp_path / "attention-2"  # nothing is overwritten


def test_what_is_wrong_is_said_before_the_first_step(tmp_path):
    for steps in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match="every must be a whole number of steps, got"):
            AttentionCallback(TEXTS, ["sink_share"], every=steps)
    with pytest.raises(ValueError, match="log must be one of model, layer, head, got 'token'"):
        AttentionCallback(TEXTS, ["sink_share"], log="token")
    with pytest.raises(ValueError, match="sink_share"):
        trained(tmp_path / "a", AttentionCallback(TEXTS, ["sink_shar"]), steps=1)
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.tex").write_text("mine")
    with pytest.raises(FileExistsError, match="thesis exists and is not empty"):
        trained(tmp_path / "b", AttentionCallback(TEXTS, ["sink_share"], folder=tmp_path / "thesis"), steps=1)
    assert (tmp_path / "thesis" / "thesis.tex").read_text() == "mine"
    with pytest.raises(RuntimeError, match=r"add it by trainer\.add_callback"):
        calling_trainer()


class AtTheBeginning(transformers.TrainerCallback):
    """Changes a trainer, its state or its model right before the callbacks that stand behind."""

    def __init__(self, change):
        self.change = change

    def on_train_begin(self, args, state, control, model, **_):
        self.change(calling_trainer(), state, model)


def shards_by_launcher(trainer, state, model):
    trainer.is_fsdp_enabled = True


def shards_by_loading(trainer, state, model):
    model._fsdp_size = 2


def launches_deepspeed(trainer, state, model):
    trainer.is_deepspeed_enabled = True


def splits_tensors(trainer, state, model):
    model._tp_size = 2


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (shards_by_launcher, "FSDP"),
        (shards_by_loading, "FSDP"),
        (launches_deepspeed, "DeepSpeed"),
        (splits_tensors, "tensor parallelism"),
    ],
)
def test_weights_that_are_spread_are_refused_whoever_spreads_them(tmp_path, change, name):
    callback = AttentionCallback(TEXTS, ["sink_share"])
    with pytest.raises(NotImplementedError, match=f"under {name} the weights are spread"):
        trained(tmp_path, AtTheBeginning(change), callback, steps=1)
    assert not (tmp_path / "attention").exists()


@pytest.mark.parametrize("requested", [False, True])
def test_only_the_first_of_several_processes_looks_at_the_folder(tmp_path, requested):
    def is_the_second_process(trainer, state, model):
        state.is_world_process_zero = False

    (tmp_path / "attention").mkdir()
    (tmp_path / "attention" / "provenance.json").write_text("of the first process")
    folder = tmp_path / "attention" if requested else None
    callback = AttentionCallback(TEXTS, ["sink_share"], folder=folder, every=1)
    trained(tmp_path, AtTheBeginning(is_the_second_process), callback, steps=2)
    assert callback.folder == folder
    assert [path.name for path in tmp_path.rglob("*")] == ["attention", "provenance.json"]
    assert (tmp_path / "attention" / "provenance.json").read_text() == "of the first process"


def test_a_write_that_fails_leaves_the_series_of_before(tmp_path, monkeypatch):
    callback = AttentionCallback(TEXTS, ["sink_share"], every=1)
    trained(tmp_path, callback, steps=2)
    before = asc.load(callback.folder)["heads"]
    monkeypatch.setattr(
        "attnscope.results.results.write_bytes", lambda *_: (_ for _ in ()).throw(OSError(28, "full"))
    )
    with pytest.raises(OSError, match="full"):
        callback._store(asc.analyze(tiny_model().eval(), TEXTS, ["sink_share"]))
    assert asc.load(callback.folder)["heads"].equals(before)


@pytest.mark.parametrize("requested", [True, False])
def test_an_exchange_that_was_cut_off_loses_nothing(tmp_path, monkeypatch, requested):
    folder = tmp_path / "attention"
    callback = AttentionCallback(TEXTS, ["sink_share"], every=1)
    trained(tmp_path, callback, steps=2)
    before = asc.load(folder)["heads"]
    series, rename = asc.load(folder), Path.rename

    def killed(path, target):
        if path.name.endswith(".new"):
            raise KeyboardInterrupt
        return rename(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            replace_series(folder, series)
    assert not folder.exists()
    assert series_folder(folder if requested else None, tmp_path, resumes=True) == folder
    assert asc.load(folder)["heads"].equals(before)


def test_means_leave_out_what_has_no_value():
    results = asc.analyze(tiny_model().eval(), TEXTS, ["sink_share"])
    logged = means(results, [])
    assert set(logged) >= {"attention/sink_share", "attention/sink_boost"}
    assert all(np.isfinite(list(logged.values())))
