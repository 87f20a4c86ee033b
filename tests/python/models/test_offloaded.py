# SPDX-License-Identifier: MIT
"""Models whose weights accelerate keeps elsewhere: passes run as usual, readers of weights say so."""

import pytest
import torch

import attnscope as asc
import models

accelerate = pytest.importorskip("accelerate")
IDS = torch.tensor([[5, 6, 7, 8, 9, 10]])


@pytest.fixture
def offloaded():
    model = models.tiny("llama")
    accelerate.cpu_offload(model)
    return model


def test_moments_are_those_of_the_same_model_in_memory(offloaded):
    expected = asc.second_moments(models.tiny("llama"), [IDS[0].tolist()])
    moments = asc.second_moments(offloaded, [IDS[0].tolist()])
    for role in ("q", "o", "down"):
        assert moments.trace(0, role) == expected.trace(0, role)


def test_a_map_of_weights_is_verified(offloaded):
    asc.verify_weight_map(offloaded)


@pytest.mark.parametrize(
    "read",
    [
        lambda model: asc.fisher_trace(model, [{"input_ids": IDS}]),
        lambda model: asc.head_circuits(model, 0),
        lambda model: asc.output_projection(model, 0),
        lambda model: asc.effective_unembedding(model),
    ],
    ids=["fisher_trace", "head_circuits", "output_projection", "effective_unembedding"],
)
def test_what_needs_weights_in_memory_says_so(offloaded, read):
    with pytest.raises(NotImplementedError, match=r"^[a-z_.0-9]*weight holds no weights here \(meta\)"):
        read(offloaded)
