# SPDX-License-Identifier: MIT
"""The model that comes with the package: small, whole, of the demo's recipe, and loaded without training."""

import hashlib
import json
import shutil

import pytest
import torch
from safetensors.torch import load_file

import attnscope as asc
from attnscope.demo import copying_sequences, demo_model, shipped, training
from attnscope.demo.texts import documentation
from attnscope.demo.training import SHORT, demo_checkpoints


def test_the_model_is_small_and_of_the_demos_recipe():
    folder = demo_model()
    assert sum(file.stat().st_size for file in folder.iterdir()) < 2_000_000
    facts = json.loads((folder / "recipe.json").read_text("utf-8"))
    assert {name: facts[name] for name in ("steps", "layers", "heads", "width")} == {
        "steps": SHORT.steps,
        "layers": SHORT.layers,
        "heads": SHORT.heads,
        "width": SHORT.width,
    }
    assert "MIT licence" in (folder / "README.md").read_text("utf-8")
    weights = load_file(folder / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.float16}


def test_loading_trains_nothing_and_the_model_copies(monkeypatch, tmp_path):
    def refuse(*arguments, **options):
        raise AssertionError("trained")

    monkeypatch.setattr(training, "train", refuse)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    heads = asc.analyze(demo_model(), copying_sequences(4, seed=1), ["sink_share"])["heads"]
    means = heads.groupby(["layer", "head"])["sink_share"].mean()
    assert means.idxmax() == (1, 0)
    assert means.max() > 0.3
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_model_is_refused(monkeypatch, tmp_path):
    folder = shutil.copytree(demo_model(), tmp_path / "model")
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (folder / "model.safetensors").write_bytes(data)
    monkeypatch.setattr(shipped, "_FOLDER", folder)
    with pytest.raises(OSError, match=r"demo_model: .* is damaged: its weights have the SHA-256 "):
        demo_model()


@pytest.mark.slow
def test_the_recipe_makes_these_weights():
    """Training gives the shipped weights again, where Python has the same documentation; processors round."""
    facts = json.loads((demo_model() / "recipe.json").read_text("utf-8"))
    if hashlib.sha256("".join(documentation()).encode()).hexdigest()[:16] != facts["documentation"]:
        pytest.skip("this Python carries another documentation than the model was trained on")
    trained = load_file(demo_checkpoints() / f"step{SHORT.steps}" / "model.safetensors")
    stored = load_file(demo_model() / "model.safetensors")
    assert set(stored) == set(trained)
    for name, tensor in stored.items():
        torch.testing.assert_close(tensor.float(), trained[name], rtol=2e-2, atol=2e-3)
