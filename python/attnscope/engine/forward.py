# SPDX-License-Identifier: MIT
"""A batch of sentences through a model, its self-attention layers one at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from attnscope.capture.sites import PER_HEAD
from attnscope.engine.units import Input
from attnscope.models import Encoder, LoadError
from attnscope.models.architecture import depth

if TYPE_CHECKING:
    from attnscope.capture import Layer, Recording

#: Rows of a map that are averaged at a time: few enough to stay in the cache.
_BAND = 128


@dataclass(frozen=True)
class Batch:
    """The sentences of one forward pass, in the order of the batch axis."""

    samples: Sequence[int]
    lengths: Sequence[int]
    token_ids: Sequence[Sequence[int]]
    tokens: Sequence[Sequence[str]]
    groups: Sequence[str]

    def tokens_at(self, positions: Any) -> list[str | None]:
        """The token at every position of a masked array [batch, maps], flat, None where there is none."""
        return [
            None if at is None or at < 0 else own[at]
            for own, row in zip(self.tokens, positions.tolist(), strict=True)
            for at in row
        ]


def batch_of(group: Sequence[Input], encoder: Encoder) -> Batch:
    """What a study knows of the sentences of one forward pass."""
    ids = [one.encoded.ids.tolist() for one in group]
    return Batch(
        samples=[one.sentence.sample for one in group],
        lengths=[one.n_tokens for one in group],
        token_ids=ids,
        tokens=[encoder.names(one) for one in ids],
        groups=[one.sentence.group for one in group],
    )


def head_mean(heads: Tensor) -> Tensor:
    """The mean over heads of [batch, h, n, n], [batch, 1, n, n] in float64.

    By bands of rows: `torch.mean` with another dtype first copies all heads into it, which is two layers'
    worth of memory, and a sum of two dtypes copies the one of them.
    """
    mean = torch.zeros(heads.shape[0], *heads.shape[2:], dtype=torch.float64, device=heads.device)
    for first in range(0, heads.shape[2], _BAND):
        band = mean[:, first : first + _BAND]
        for head in heads[:, :, first : first + _BAND].unbind(1):
            band += head
    return mean.div_(heads.shape[1]).unsqueeze(1)


def padded(batch: Batch, pad_id: int, device: Any) -> dict[str, Tensor]:
    """The sentences of a batch as tensors, padded on the right."""
    each = [torch.tensor(one, dtype=torch.long) for one in batch.token_ids]
    ids = pad_sequence(each, batch_first=True, padding_value=pad_id)
    mask = pad_sequence([torch.ones_like(one) for one in each], batch_first=True)
    return {"input_ids": ids.to(device), "attention_mask": mask.to(device)}


def self_attention(
    model: Any,
    inputs: dict[str, Any],
    *,
    layers: Sequence[int] | None = None,
    sites: Sequence[str] = ("attention",),
    extra: Sequence[str] = (),
    outputs: list[Any] | None = None,
) -> Iterator[tuple[int, Layer]]:
    """Streams the self-attention layers of one forward pass with a number that is unique in the model.

    The vocabulary head is left out: its logits can outweigh all else. Of an encoder-decoder the encoder is
    run. `extra` sites are captured too where the model lets them; `outputs` gets what the model returns.
    """
    seq2seq = getattr(model.config, "is_encoder_decoder", False)
    body = model.get_encoder() if seq2seq else getattr(model, "base_model", model)
    count = depth(model)
    stacks: dict[tuple[str, int], int] = {}
    with ExitStack() as stack:
        own = tuple(site for site in extra if site not in PER_HEAD)
        # what a model's attention does not hand out must not cost the states around it
        choices = dict.fromkeys([(*sites, *extra), (*sites, *own), tuple(sites)])
        recording = _opened(stack, body, layers, list(choices))
        for layer in recording.run(**inputs):
            if layer.cross or layer.attention.shape[-1] != layer.attention.shape[-2]:
                continue
            # a second stack, or a module that runs twice, counts on where the first one ends
            place = stacks.setdefault((layer.stack, layer.call), len(stacks))
            yield place * count + layer.index, layer
        if outputs is not None:
            outputs.append(recording.output)


def _opened(
    stack: ExitStack, body: Any, layers: Sequence[int] | None, choices: Sequence[tuple[str, ...]]
) -> Recording:
    """The capture with the first of the choices of sites that the model allows."""
    from attnscope.capture import capture

    reasons = []
    for sites in choices:
        try:
            return stack.enter_context(capture(body, layers=layers, sites=sites))
        except (RuntimeError, TypeError, ValueError) as error:
            reasons.append(str(error))
    raise LoadError(reasons[-1])
