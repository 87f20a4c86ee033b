# SPDX-License-Identifier: MIT
"""Layers of different kinds in one model: who sees whom, and metrics against loops over those keys."""

import numpy as np
import pytest
import torch

import attnscope as asc
import models
from attnscope.capture import capture

KINDS = models.LAYER_KINDS


def inputs_of(padding, lengths=(30, 19), n=30):
    generator = torch.Generator().manual_seed(4)
    ids = torch.randint(3, models.VOCABULARY, (len(lengths), n), generator=generator)
    mask = torch.zeros_like(ids)
    for row, size in enumerate(lengths):
        mask[row, (slice(n - size, n) if padding == "left" else slice(0, size))] = 1
    return {"input_ids": torch.where(mask.bool(), ids, 0), "attention_mask": mask}


def layers_of(name, padding, sites=("attention",)):
    with capture(models.tiny(name), sites=sites) as recording:
        return list(recording.run(**inputs_of(padding)))


def seen_by(kind, n):
    """The visible pairs of one text, from the kind's words."""
    back = np.subtract.outer(np.arange(n), np.arange(n))
    return {
        "causal": back >= 0,
        "full": back < n,
        "window 7": (back >= 0) & (back < 7),
        "window 7+7": np.abs(back) <= 7,
    }[kind]


@pytest.mark.parametrize("padding", ["left", "right"])
@pytest.mark.parametrize("name", KINDS)
def test_every_layer_knows_who_sees_whom(name, padding):
    found = layers_of(name, padding)
    assert [layer.visibility.name for layer in found] == KINDS[name]
    for layer, kind in zip(found, KINDS[name], strict=True):
        maps = layer.matrices()
        for text, size in enumerate(layer.lengths.tolist()):
            seen = seen_by(kind, size)
            own = maps[text, :, :size, :size].double().numpy()
            # A key outside the support gets exactly nothing, one inside something.
            assert (own[:, ~seen] == 0).all()
            assert (own[:, seen] > 0).all()


@pytest.mark.parametrize("name", KINDS)
def test_metrics_of_each_layer_are_those_of_its_own_keys(name):
    """Entropies, uniform shares, incoming attention and the sink test, by loops over the visible keys."""
    for layer, kind in zip(layers_of(name, "right"), KINDS[name], strict=True):
        maps, lengths, support = layer.matrices(), layer.lengths[:, None], layer.visibility.support
        learned = layer.states("sink_mass")
        mass = learned if bool(learned.any()) else None
        options = {"support": support, "lengths": lengths}
        share = asc.sink_share(maps, sink_mass=mass, **options)
        entropy = asc.attention_entropy(maps, normalized=True, sink_mass=mass, **options)
        incoming = asc.incoming_attention(maps, **options)
        test = asc.sink_test(maps, **options)
        measured = asc.measure(maps, ["sink_share", "incoming_attention"], **options)
        torch.testing.assert_close(measured["incoming_attention"], incoming, equal_nan=True)
        for text, size in enumerate(layer.lengths.tolist()):
            seen = seen_by(kind, size)
            own = maps[text, :, :size, :size].double().numpy()
            more = np.zeros(own.shape[:2]) if mass is None else mass[text, :, :size].double().numpy()
            uniform = np.mean(seen[:, 0] / seen.sum(1))
            np.testing.assert_allclose(share.uniform[text], uniform, rtol=1e-12)
            np.testing.assert_allclose(share.share[text], own[:, :, 0].mean(1), rtol=1e-12)
            np.testing.assert_allclose(share.learned[text], more.mean(1), rtol=1e-12)
            np.testing.assert_allclose(incoming[text, :, :size], own.sum(1) / seen.sum(0), rtol=1e-12)
            outcomes = seen.sum(1) + (mass is not None)
            with np.errstate(divide="ignore", invalid="ignore"):
                each = np.where(own > 0, own * np.log(own), 0).sum(-1) + np.where(
                    more > 0, more * np.log(more), 0
                )
                expected = np.where(outcomes > 1, -each / np.log(outcomes), np.nan)
            np.testing.assert_allclose(entropy[text, :, :size], expected, rtol=1e-9)
            alone = asc.sink_test(maps[text, :, :size, :size], support=torch.as_tensor(seen))
            assert torch.equal(test.sinks[text, :, :size], alone.sinks)
            torch.testing.assert_close(test.excess[text, :, :size], alone.excess, equal_nan=True)


def test_what_a_window_is_when_it_is_read_as_causal():
    """The same map of a window, judged by itself and by its support."""
    n = 64
    back = torch.arange(n)[:, None] - torch.arange(n)
    band = (back >= 0) & (back < 7)
    uniform = band.double() / band.sum(-1, keepdim=True)
    by_itself, known = asc.sink_share(uniform), asc.sink_share(uniform, support=band)
    assert known.boost.item() == pytest.approx(1, rel=1e-12)
    assert by_itself.boost.item() < 0.6  # uniform attention is read as avoiding the first key
    entropies = [asc.attention_entropy(uniform, normalized=True, **options).nanmean() for options in (
        {}, {"support": band})]  # fmt: skip
    assert entropies[1].item() == pytest.approx(1, rel=1e-9)
    assert entropies[0].item() < 0.7


@pytest.mark.parametrize("sites", [("attention",), ("attention", "lse")])
def test_the_learned_sink_takes_what_rows_leave(sites):
    for layer in layers_of("gpt_oss", "left", sites):
        mass, maps = layer.states("sink_mass").double(), layer.matrices().double()
        for text, size in enumerate(layer.lengths.tolist()):
            rows = maps[text, :, :size, :size].sum(-1) + mass[text, :, :size]
            torch.testing.assert_close(rows, torch.ones_like(rows), rtol=0, atol=1e-5)
    for layer in layers_of("llama", "left"):
        assert not layer.sink_mass.any()


def test_maps_without_a_mask_are_judged_by_themselves():
    from test_capture_layer import make

    layer = make(torch.ones(2, 5))
    assert (layer.visibility.kind, layer.visibility.support) == ("auto", "auto")


def test_a_mask_without_a_rule_is_itself():
    from attnscope.capture.visibility import visibility_of

    seen = torch.rand(2, 1, 6, 6, generator=torch.Generator().manual_seed(0)) < 0.5
    real = [torch.arange(6), torch.tensor([1, 2, 4])]
    found = visibility_of(seen, real)
    assert found.kind == "mask"
    assert torch.equal(found.support[0, 0], seen[0, 0])
    assert torch.equal(found.support[1, 0, :3, :3], seen[1, 0][real[1]][:, real[1]])
    assert not found.support[1, 0, 3:].any()
