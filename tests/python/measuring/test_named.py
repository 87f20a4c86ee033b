# SPDX-License-Identifier: MIT
"""How named results print: dtype and shape of every field, and what is no tensor as it is."""

from typing import Any, NamedTuple

import torch

from attnscope.metrics._named import shown_by_shape


def test_a_result_names_its_fields_with_dtype_and_shape():
    class Pair(NamedTuple):
        value: torch.Tensor
        count: torch.Tensor
        kept: Any

    shown = shown_by_shape(Pair)
    assert shown is Pair
    pair = shown(torch.zeros(2, 3), torch.zeros((), dtype=torch.int64), [1, 2])
    assert repr(pair) == "Pair(value=float32[2, 3], count=0, kept=[1, 2])"
    assert f"{[pair]}" == "[Pair(value=float32[2, 3], count=0, kept=[1, 2])]"
