# SPDX-License-Identifier: MIT
"""The tuned demo models: objectives against their closed forms, whitening, and the study over a few arms."""

import json

import pytest
import torch

from attnscope.demo.objectives import ARMS, Arm, answers, contrastive_loss, inverse_root
from attnscope.demo.training import Recipe, train
from attnscope.demo.tuning import summary, tune
from attnscope.metrics.weights.moments import Moments


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    recipe = Recipe(steps=1, layers=2, heads=2, width=32, inner_width=48, batch=2)
    return train(tmp_path_factory.mktemp("demo"), recipe, progress=False) / "step1"


def test_all_negatives_are_cross_entropy():
    draw = torch.Generator().manual_seed(0)
    logits, targets = torch.randn(40, 257, generator=draw), torch.randint(0, 257, (40,), generator=draw)
    whole = contrastive_loss(logits, targets, 256, draw)
    expected = torch.nn.functional.cross_entropy(logits, targets)
    torch.testing.assert_close(whole, expected, rtol=1e-6, atol=1e-6)
    one = torch.stack([contrastive_loss(logits, targets, 1, draw) for _ in range(400)]).mean()
    pairs = torch.nn.functional.softplus(logits - logits.gather(1, targets[:, None]))
    others = (pairs.sum(1) - pairs.gather(1, targets[:, None])[:, 0]) / 256
    assert float(one) == pytest.approx(float(others.mean()), rel=0.02)


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
        (name, one) for name, one in arm.model.named_parameters() if name.endswith("q_proj.weight")
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
    assert all(torch.equal(two[name], one) for name, one in weights.items())
    first = Arm("ce", start, 0).model.state_dict()
    change = torch.cat([(two[name] - one).flatten() for name, one in first.items()])
    assert size == pytest.approx(float(change.double().norm()), rel=1e-12)
    assert arm.kept[1][0] < size < arm.size()


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_study_runs_over_a_few_arms(start, tmp_path):
    arms = ("ce", "dpo", "contrastive_1", "plain", "white_in", "white_out")
    results = tune(tmp_path, start=start, arms=arms, seeds=2, steps=4, samples=3, progress=False)
    claims = results.table("claims")
    whole = claims[claims["model"] == "all arms"].set_index("claim")["verdict"]
    assert set(whole.index) == {"C1b", "C2b", "C3", "C4", "C5"}
    assert list(whole[whole == "not testable here"].index) == ["C5"]  # one number of negatives
    matched = claims[claims["model"] == "all arms at equal ‖ΔW‖"].set_index("claim")["verdict"]
    assert list(matched[matched == "not testable here"].index) == ["C3", "C5"]
    known = json.loads((tmp_path / "arms.json").read_text("utf-8"))
    sizes = {name: own["size"] for name, own in known.items() if "_" in name and name.endswith("matched-0")}
    assert len(sizes) == 3
    smallest = min(known[f"{arm}-0"]["size"] for arm in arms[:3])
    assert all(size == pytest.approx(smallest, rel=0.35) for size in sizes.values())
    text = "\n".join(summary(results, tmp_path))
    assert "a smaller stand-in" in text
    assert "pretraining " in text
    assert all(f"\n{arm} " in text for arm in (*arms, "ce_matched"))
    assert {"asymmetry.pdf", "objectives.pdf"} <= {p.name for p in results.path.rglob("*.pdf")}
    written = (tmp_path / "ce-0" / "model.safetensors").stat().st_mtime_ns
    tune(tmp_path, start=start, arms=arms, seeds=2, steps=4, samples=3, progress=False)
    assert (tmp_path / "ce-0" / "model.safetensors").stat().st_mtime_ns == written


def test_unknown_arms_are_refused(tmp_path):
    with pytest.raises(ValueError, match="got 'rlhf'"):
        tune(tmp_path, arms=("rlhf",))
    assert len(set(ARMS)) == 13
