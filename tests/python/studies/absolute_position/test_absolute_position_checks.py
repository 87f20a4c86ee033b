# SPDX-License-Identifier: MIT
"""The study's identities on models made here: they hold, and each fails where its subject is broken."""

import pytest
import torch

import attnscope as asc
from attnscope.demo.encodings import PositionsRecipe
from attnscope.engine.run import run
from attnscope.studies.absolute_position import checks, first_position
from folders import model_folder, sentences
from models import tiny
from position_study import settings

IDS = torch.randint(3, 40, (3, 10), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("encoding", ["rope", "learned", "alibi", "none"])
def test_a_replaced_embedding_and_a_zero_one(encoding):
    model = PositionsRecipe(layers=2, heads=2, width=32, inner_width=16, encoding=encoding).build().eval()
    found = {one.name: one for one in (*checks._replaced(model, IDS), checks._silent(model, IDS))}
    assert set(found) == {"replaced_embedding", "earlier_states", "zero_embedding"}
    assert all(one.value == 0 for one in found.values()), found


def test_what_does_not_apply_says_why():
    model = tiny("gpt2")
    reasons = {one.name: one.reason for one in (*checks._replaced(model, IDS), checks._silent(model, IDS))}
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
    found = {
        name: run(settings(folder, texts, tmp_path, name=name, **options, **changes), progress=False)
        for name, changes in {"own": {}, "window": {"window": 4}, "rope": {"rope": "none"}}.items()
    }
    cut = {name: one.table("clocks")["a0_mask"].to_numpy() for name, one in found.items()}
    assert not (cut["own"] == cut["rope"]).all()
    clocks = found["window"].table("clocks")
    assert clocks[clocks["query"] >= 4]["a0"].isna().all(), "a window of 4 does not reach key 0"
    assert (clocks[clocks["query"] < 4]["a0"] > 0).all()
    prints = found["own"].table("fingerprints")
    assert (prints[prints["arm"] == "base"]["same_token_gap"] < 1e-6).all()
    assert isinstance(asc.load(found["own"].path).table("reads")["same_token_gap"].max(), float)
