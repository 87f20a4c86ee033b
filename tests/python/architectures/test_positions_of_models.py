# SPDX-License-Identifier: MIT
"""From a model to sums over texts: the same as from its scores by hand, of edited models too."""

import numpy as np
import pytest
import torch

import attnscope as asc
import models
from attnscope.errors import UndefinedWarning

N, GROUPS, TEXTS = 12, 4, 20


def ids(texts=TEXTS, n=N):
    token_ids = torch.randint(3, models.VOCABULARY, (texts, n), generator=torch.Generator().manual_seed(0))
    token_ids[:, 0] = 1
    return token_ids


@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt_oss"])
def test_it_is_the_profile_of_the_models_scores(name):
    model, tokens = models.tiny(name), ids()
    profile = asc.position_profile(model, {"input_ids": tokens}, n=N, groups=GROUPS)
    by_hand = asc.PositionProfile(N, groups=GROUPS)
    with asc.capture(model, sites=("scores",)) as recording:
        for text in range(TEXTS):
            for layer in recording.run(input_ids=tokens[text : text + 1]):
                group = text * GROUPS // TEXTS
                by_hand.add(layer.scores, group, layer=layer.index, sink_logit=layer.sink_logits)
    for sum_name in ("profile", "mask_cut", "residual", "moved"):
        torch.testing.assert_close(
            profile.mean(sum_name), by_hand.mean(sum_name), rtol=1e-3, atol=1e-3, equal_nan=True
        )
    assert profile.texts == TEXTS


def test_an_edited_model_gives_its_own():
    model, tokens = models.tiny("llama"), ids()
    inputs = {"input_ids": tokens}
    base = asc.position_profile(model, inputs, n=N, groups=GROUPS)
    with asc.edit(model, asc.edits.SetEmbedding(0, torch.zeros(96))):
        arm = asc.position_profile(model, inputs, n=N, groups=GROUPS)
    again = asc.position_profile(model, inputs, n=N, groups=GROUPS)
    assert torch.equal(again.mean("moved"), base.mean("moved"))
    assert not torch.equal(arm.mean("moved")[1:], base.mean("moved")[1:])
    shares = asc.removed(base, arm)
    assert len(shares.energy.layers) == 3


def test_layers_and_short_texts():
    model, tokens = models.tiny("llama"), ids()
    mask = torch.ones_like(tokens)
    mask[3, -1] = 0
    with pytest.warns(UndefinedWarning, match="1 of 20 texts have fewer than 12 tokens and are left out"):
        profile = asc.position_profile(
            model, {"input_ids": tokens, "attention_mask": mask}, n=N, groups=GROUPS, layers=[-1]
        )
    assert profile.layers == [2]
    assert profile.texts == 19


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("name", "inputs", "error", "message"),
    [
        ("llama", {}, ValueError, r"inputs must hold input_ids \[N, n\], got \[\]"),
        ("llama", {"input_ids": ids(4, 5)}, ValueError, "none of 4 texts has 12 tokens, the longest 5"),
        ("bert", {"input_ids": ids()}, NotImplementedError, "a causal map is needed"),
        ("bloom", {"input_ids": ids()}, NotImplementedError, r"BloomForCausalLM does not let \['scores'\]"),
    ],
)
def test_bad_input(name, inputs, error, message):
    with pytest.raises(error, match=message):
        asc.position_profile(models.tiny(name), inputs, n=N, groups=GROUPS)


def test_a_repeated_token_has_no_residual_and_one_behind_another_has():
    model = models.tiny("llama")
    repeated = torch.arange(10, 10 + TEXTS)[:, None].expand(-1, N).contiguous()
    of_repeated = asc.position_profile(model, {"input_ids": repeated}, n=N, groups=GROUPS)
    assert np.abs(asc.residual_size(of_repeated, draws=99).plain).max() < 1e-6
    behind = repeated.clone()
    behind[:, 0] = 1
    of_later = asc.position_profile(model, {"input_ids": behind}, n=N, groups=GROUPS)
    assert asc.residual_size(of_later, draws=99).plain[1:].min() > 1e-4
