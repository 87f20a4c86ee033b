# SPDX-License-Identifier: MIT
"""The tuned demo models: objectives against their closed forms, whitening, and the study over a few arms."""

import pytest
import torch
from safetensors.torch import load_file

from attnscope.demo.objectives import ARMS, Arm, answers, contrastive_loss, inverse_root
from attnscope.demo.training import Recipe, train
from attnscope.demo.tuning import _train_all, _trained_arms, summary, tune
from attnscope.metrics.weights.moments import Moments
from attnscope.results.files import remove


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    recipe = Recipe(steps=1, layers=2, heads=2, width=32, inner_width=48, batch=2)
    return train(tmp_path_factory.mktemp("demo"), recipe, progress=False) / "step1"


def test_all_negatives_are_cross_entropy():
    draw = torch.Generator().manual_seed(0)
    logits, targets = torch.randn(40, 257, generator=draw), torch.randint(0, 257, (40,), generator=draw)
    full_loss = contrastive_loss(logits, targets, 256, draw)
    expected = torch.nn.functional.cross_entropy(logits, targets)
    torch.testing.assert_close(full_loss, expected, rtol=1e-6, atol=1e-6)
    mean_of_single = torch.stack([contrastive_loss(logits, targets, 1, draw) for _ in range(400)]).mean()
    pairs = torch.nn.functional.softplus(logits - logits.gather(1, targets[:, None]))
    others = (pairs.sum(1) - pairs.gather(1, targets[:, None])[:, 0]) / 256
    assert float(mean_of_single) == pytest.approx(float(others.mean()), rel=0.02)


def test_answers_differ_in_small_letters_alone():
    preferred, rejected = answers(8, seed=1, step=2)
    assert bool((preferred[:, 0] == 0).all())
    changed = preferred != rejected
    assert not changed[:, :41].any()
    assert changed.any()
    assert bool((rejected[changed] - preferred[changed] == 32).all())


def test_the_preference_loss_starts_at_log_two(start):
    assert float(Arm("dpo", start, 0).loss(0)) == pytest.approx(0.6931472, abs=1e-5)


def test_whitened_gradients_are_isotropic_in_expectation():
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(4000, 6, generator=draw, dtype=torch.float64) * torch.linspace(3, 0.3, 6).double()
    moments = Moments()
    moments.add(x, layer=0, role="q")
    white = x @ inverse_root(moments, 0, "q", "in")
    second = white.mT @ white / len(white)
    torch.testing.assert_close(second, torch.eye(6).double() * second[0, 0], rtol=1e-6, atol=1e-6)


def test_plain_descent_is_gradient_descent(start):
    arm = Arm("plain", start, 0)
    arm.model.train()
    arm.loss(0).backward()
    name, parameter = next(
        (name, parameter)
        for name, parameter in arm.model.named_parameters()
        if name.endswith("q_proj.weight")
    )
    expected = parameter.detach() - 0.1 * parameter.grad
    tuned = Arm("plain", start, 0).train(1)
    torch.testing.assert_close(tuned.get_parameter(name).detach(), expected)
    white = Arm("white_both", start, 0).train(1)
    assert not torch.allclose(white.get_parameter(name), expected)


def test_an_arm_keeps_the_weights_of_the_steps_that_are_asked_for(start):
    arm = Arm("ce", start, 0)
    arm.train(3, keep=(1, 2))
    assert set(arm.kept) == {1, 2}
    two = Arm("ce", start, 0).train(2).state_dict()
    size, weights = arm.kept[2]
    assert all(torch.equal(two[name], weight) for name, weight in weights.items())
    first = Arm("ce", start, 0).model.state_dict()
    change = torch.cat([(two[name] - weights).flatten() for name, weights in first.items()])
    assert size == pytest.approx(float(change.double().norm()), rel=1e-12)
    assert arm.kept[1][0] < size < arm.size()


def test_arms_are_trained_once_and_kept_at_the_size_of_the_smallest(start, tmp_path):
    arms = ("ce", "dpo", "plain")
    arguments = (tmp_path, start, arms, 1, 4, False)
    labels = _train_all(*arguments, processes=1)
    matched = ["ce_matched", "dpo_matched"]
    assert labels == {f"{arm}-0": arm for arm in (*arms, *matched)}
    trained = _trained_arms(tmp_path)
    assert set(trained) == set(labels)
    smallest = min(trained["ce-0"]["size"], trained["dpo-0"]["size"])
    for arm in matched:
        assert trained[f"{arm}-0"]["size"] == pytest.approx(smallest, rel=0.35)
        assert trained[f"{arm}-0"]["steps"] <= 4
    files = {label: tmp_path / label / "model.safetensors" for label in labels}
    again = {label: weight_of(file) for label, file in files.items()}
    change = again["ce-0"] - weight_of(start / "model.safetensors")
    assert 0 < float(change.norm()) < trained["ce-0"]["size"]
    remove(tmp_path / "plain-0")
    written = {label: file.stat().st_mtime_ns for label, file in files.items() if label != "plain-0"}
    _train_all(*arguments, processes=1)
    assert torch.equal(weight_of(files["plain-0"]), again["plain-0"])
    assert written == {label: files[label].stat().st_mtime_ns for label in written}


def weight_of(file):
    """One matrix of a model's file."""
    return load_file(file)["model.layers.0.self_attn.q_proj.weight"]


def stored(folder):
    """The bytes of a run's tables."""
    files = [file for file in folder.rglob("*.parquet") if not {"units", "parts"} & set(file.parts)]
    return {file.name: file.read_bytes() for file in files}


@pytest.mark.slow
def test_the_study_runs_over_a_few_arms(start, tmp_path):
    arms = ("ce", "dpo", "contrastive_1", "plain", "white_in", "white_out")
    options = {"start": start, "arms": arms, "seeds": 2, "steps": 4, "samples": 3, "progress": False}
    results = tune(tmp_path, **options, processes=2)
    claims = results.table("claims")
    verdicts = claims[claims["model"] == "all arms"].set_index("claim")["verdict"]
    assert set(verdicts.index) == {"C1c", "C2b", "C3", "C4", "C5"}
    assert list(verdicts[verdicts == "not testable here"].index) == ["C5"]  # one number of negatives
    matched = claims[claims["model"] == "all arms at equal ‖ΔW‖"].set_index("claim")["verdict"]
    assert list(matched[matched == "not testable here"].index) == ["C3", "C5"]
    text = "\n".join(summary(results, tmp_path))
    assert "a smaller stand-in" in text
    assert "pretraining " in text
    assert all(f"\n{arm} " in text for arm in (*arms, "ce_matched"))
    assert {"asymmetry.pdf", "objectives.pdf"} <= {p.name for p in results.path.rglob("*.pdf")}
    written = (tmp_path / "ce-0" / "model.safetensors").stat().st_mtime_ns
    tables = stored(results.path)
    assert "claims.parquet" in tables
    remove(tmp_path / "study")
    single_process = stored(tune(tmp_path, **options, processes=1).path)
    assert (tmp_path / "ce-0" / "model.safetensors").stat().st_mtime_ns == written
    assert single_process == tables


def test_unknown_arms_are_refused(tmp_path):
    with pytest.raises(ValueError, match="got 'rlhf'"):
        tune(tmp_path, arms=("rlhf",))
    with pytest.raises(ValueError, match="processes must be at least 1, got 0"):
        tune(tmp_path, processes=0)
    assert len(set(ARMS)) == 13
