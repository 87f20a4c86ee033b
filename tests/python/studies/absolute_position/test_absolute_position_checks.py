# SPDX-License-Identifier: MIT
"""The study's identities on models made here: they hold, and each fails where its subject is broken."""

import functools
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaModel

import attnscope as asc
from attnscope.demo.encodings import PositionsRecipe
from attnscope.engine.run_study import run
from attnscope.studies.absolute_position import checks, first_position
from folders import model_folder, sentences
from models import tiny
from position_study import settings

IDS = torch.randint(3, 40, (3, 10), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("encoding", ["rope", "learned", "alibi", "none"])
def test_a_replaced_embedding_and_a_zero_one(encoding):
    model = PositionsRecipe(layers=2, heads=2, width=32, inner_width=16, encoding=encoding).build().eval()
    outcomes = {check.name: check for check in (*checks._replaced(model, IDS), checks._silent(model, IDS))}
    assert set(outcomes) == {"replaced_embedding", "earlier_states", "zero_embedding"}
    assert all(check.value == 0 for check in outcomes.values()), outcomes


def test_what_does_not_apply_says_why():
    model = tiny("gpt2")
    reasons = {
        check.name: check.reason for check in (*checks._replaced(model, IDS), checks._silent(model, IDS))
    }
    assert "changes embeddings before layer 0" in reasons["replaced_embedding"]
    assert reasons["zero_embedding"] == "the model has biases"


def test_a_state_that_does_not_stay_zero_is_seen():
    model = PositionsRecipe(layers=2, heads=2, width=32, inner_width=16).build().eval()
    handle = model.model.layers[0].register_forward_hook(
        lambda module, args, out: out + 1e-3 if torch.is_tensor(out) else (out[0] + 1e-3, *out[1:])
    )
    assert checks._silent(model, IDS).value > 1e-4
    handle.remove()
    assert checks._silent(model, IDS).value == 0


class Trial:
    """A checkpoint whose checks are kept."""

    encoder = SimpleNamespace(tokenizer=None, bos_id=1)

    def __init__(self, model):
        self.loaded, self.failed, self.names = SimpleNamespace(model=model, dtype="torch.float32"), set(), []

    def model(self):
        return self.loaded

    def rng(self, *key):
        return np.random.default_rng(0)

    def write(self, table, *, check, holds, **columns):
        self.names.append(check)
        self.failed |= set() if holds else {check}


def failed(model):
    trial = Trial(model)
    checks.check_model(trial)
    assert len(set(trial.names)) == 14
    return trial.failed


def of(module, change):
    """A change of what a module hands on, or of the first thing that it does."""
    return module.register_forward_hook(
        lambda _, args, out: change(out) if torch.is_tensor(out) else (change(out[0]), *out[1:])
    )


@pytest.mark.parametrize(
    ("broken", "expected"),
    [
        (lambda m: of(m.model.rotary_emb, lambda cos: cos.round(decimals=1)), {"shift", "repeated_token"}),
        (
            lambda m: of(m.model.layers[0], lambda x: x + 1e-3 * x.mean(1, keepdim=True)),
            {"first_token", "first_token_across_texts", "earlier_states", "zero_embedding"},
        ),
        (lambda m: of(m.model.layers[1].self_attn.o_proj, lambda x: 1.001 * x), {"head_writes"}),
        (
            lambda m: of(m.model.embed_tokens, lambda x: x + 1e-3 * x.shape[1]),
            {"own_embedding", "first_token"},
        ),
    ],
    ids=["rotation", "later tokens", "writes", "embedding"],
)
def test_a_broken_model_fails_the_checks_of_what_is_broken_alone(broken, expected):
    model = tiny("llama")
    assert failed(model) == set()
    handle = broken(model)
    failures = failed(model)
    handle.remove()
    assert failures == expected


def test_scores_that_are_not_the_softmaxs_argument_are_seen(monkeypatch):
    maps_of_model = checks._maps

    def other(*arguments, **options):
        scores, lse, attention = maps_of_model(*arguments, **options)
        return scores, lse, 1.001 * attention

    monkeypatch.setattr(checks, "_maps", other)
    assert failed(tiny("llama")) == {"scores"}


@pytest.mark.parametrize(
    ("edit", "wrong", "check"),
    [
        ("LimitWindow", lambda width: asc.edits.LimitWindow(width - 1), "whole_window"),
        ("SubtractRead", lambda keys, **_: asc.edits.SubtractRead(keys), "unread_by_none"),
        ("SetRotary", lambda _: asc.edits.SetRotary(("interpolate", 1.01)), "rotary_factor_1"),
        ("SetPositionIds", lambda shift: asc.edits.SetPositionIds(shift=shift + 1), "no_shift"),
    ],
)
def test_an_edit_that_does_more_than_nothing_is_seen(edit, wrong, check, monkeypatch):
    monkeypatch.setattr(checks, edit, wrong)
    assert failed(tiny("llama")) == {check}


def looks_up_again(self, embeddings, ids, rest):
    """Layer 0 reads the table of embeddings, and what its module gives at position 0 alone."""
    table = torch.nn.functional.embedding(ids, self.embed_tokens.weight)
    return {"inputs_embeds": torch.cat([embeddings[:, :1], table[:, 1:]], 1)}


def hands_on(self, embeddings, ids, rest):
    """What an embedding has beyond the table is added to all later positions."""
    added = embeddings - torch.nn.functional.embedding(ids, self.embed_tokens.weight)
    return {"inputs_embeds": embeddings + added.cumsum(1) - added}


def counts_from_one(self, embeddings, ids, rest):
    """Texts without padding are numbered from 1 where no positions are given, and others from 0."""
    places, mask = rest.get("position_ids"), rest.get("attention_mask")
    if places is None and (mask is None or bool(mask.all())):
        places = torch.arange(1, ids.shape[1] + 1)[None]
    return {"inputs_embeds": embeddings, "position_ids": places}


@pytest.mark.parametrize(
    ("flaw", "check"),
    [
        (looks_up_again, "replaced_embedding"),
        (hands_on, "replaced_embedding"),
        (counts_from_one, "no_shift"),
    ],
)
def test_a_model_that_breaks_an_identity_is_left_with_its_name_before_anything_is_measured(
    flaw, check, folder, texts, tmp_path, monkeypatch
):
    original_forward = LlamaModel.forward

    @functools.wraps(original_forward)
    def forward(self, input_ids=None, **rest):
        return original_forward(self, **{**rest, **flaw(self, self.embed_tokens(input_ids), input_ids, rest)})

    monkeypatch.setattr(LlamaModel, "forward", forward)
    results = run(settings(folder, texts, tmp_path), progress=False)
    assert f"the check {check} does not hold" in str(results.provenance["skipped"])
    stored = results.table("checks").set_index("check")
    assert stored.index[~stored["holds"]].tolist() == [check]
    assert stored.loc[check, "value"] > stored.loc[check, "tolerance"] == 0
    assert set(results.tables()) <= {"checks", "encodings", "samples"}


@pytest.mark.parametrize(("smallest", "holds"), [(2e-4, False), (3e-4, True)])
@pytest.mark.parametrize("reason", [None, "positions are learned: they change"])
def test_a_head_of_layer_0_that_feels_a_shuffled_token_is_seen(smallest, holds, reason):
    """Holm's least p of four heads is four times the smallest, held against .001."""
    stored, reasons = pd.DataFrame({"check": ["shift"], "reason": [reason]}), {}
    run = SimpleNamespace(read=lambda table: stored, write=lambda table, **row: reasons.update(row))
    checks.check_shuffled(run, np.array([0.5, smallest, 0.9, 0.4]))
    assert reasons["value"] == pytest.approx(4 * smallest)
    assert reasons["holds"] == (holds or bool(reason))


def test_fingerprints_of_one_first_token():
    write = torch.tensor([[[3.0, 4.0]], [[1.0, 0.0]], [[3.0, 4.5]]], dtype=torch.float64)
    gaps = first_position._same_token_gaps(write, [5, 6, 5])
    assert gaps[:2].isnan().all()
    assert gaps[2, 0].item() == pytest.approx(0.1)


@pytest.mark.slow
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_another_encoding_changes_what_is_measured(tmp_path):
    folder = model_folder(tmp_path / "m")
    texts = sentences(tmp_path / "texts.txt", 40)
    options = {"arms": ["no_bos"], "inputs": ["windows"], "nulls": [], "leakage": False}
    results = {
        name: run(settings(folder, texts, tmp_path, name=name, **options, **changes), progress=False)
        for name, changes in {"own": {}, "window": {"window": 4}, "rope": {"rope": "none"}}.items()
    }
    cut = {name: run_of_kind.table("clocks")["a0_mask"].to_numpy() for name, run_of_kind in results.items()}
    assert not (cut["own"] == cut["rope"]).all()
    clocks = results["window"].table("clocks")
    assert clocks[clocks["query"] >= 4]["a0"].isna().all(), "a window of 4 does not reach key 0"
    assert (clocks[clocks["query"] < 4]["a0"] > 0).all()
    prints = results["own"].table("fingerprints")
    assert (prints[prints["arm"] == "base"]["same_token_gap"] < 1e-6).all()
    assert isinstance(asc.load(results["own"].path).table("reads")["same_token_gap"].max(), float)
