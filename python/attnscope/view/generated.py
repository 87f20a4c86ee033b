# SPDX-License-Identifier: MIT
"""The attention of a recorded generation: the rows of all steps, and where prompt and answer meet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attnscope._warn import warn
from attnscope.metrics.support import LayerSupport
from attnscope.models.tokens import Encoder
from attnscope.view.measured import Stack

if TYPE_CHECKING:
    from attnscope.capture import Layer, Recording


def stacks_of_recording(
    recording: Recording, tokens: Sequence[str] | None, tokenizer: Any, sample: int | None
) -> list[Stack]:
    """Return the assembled attention of one sequence of a generation, layers of one kind together.

    Args:
        recording: after its `generate`.
        tokens: names of the queries; None takes the recorded tokens.
        tokenizer: of the model, for names of the recorded tokens.
        sample: which sequence, where there are several.

    Raises:
        ValueError: several sequences and no sample, a sample that is not there, names of another number.
        RuntimeError: nothing was generated, as `Recording.assembled` says.
    """
    stacks: dict[str, list[Layer]] = {}
    count = 0
    for layer in recording.assembled():
        stacks.setdefault(layer.stack, []).append(layer)
        count = len(layer.valid)  # in the end of a layer that writes
    if others := {name: layers[0] for name, layers in stacks.items() if len(layers[0].valid) != count}:
        words = ", ".join(f"{name} ({len(layer.valid)} maps)" for name, layer in others.items())
        warn(
            f"view: maps of single pictures, not one for each sequence: {words}; recording.assembled() gives "
            "them; these layers are left out"
        )
        stacks = {name: layers for name, layers in stacks.items() if name not in others}
    if sample is None and count > 1:
        raise ValueError(f"view: the recording holds {count} sequences; sample=0 shows the first")
    number = sample or 0
    if not 0 <= number < count:
        raise ValueError(f"view: the recording has no sample {number}, only 0 to {count - 1}")
    written = _names(recording.output, number, Encoder(tokenizer))
    shown = []
    for name, layers in stacks.items():
        maps = [_maps_of(layer, number) for layer in layers]
        if len(sizes := {tuple(part.shape[-2:]) for part in maps}) > 1:
            words = ", ".join(f"{count} x {keys}" for count, keys in sorted(sizes))
            raise ValueError(
                f"view: layers of {name} have maps of several sizes: {words}; a page shows those of one size"
            )
        queries, keys = maps[0].shape[-2:]
        is_read = layers[0].answer_start is None and len(stacks) > 1  # of an encoder, whose tokens are others
        real = layers[0].query_valid if layers[0].cross else layers[0].valid
        is_padded = real is not None and not bool(real[number].all())
        # keys of a cache that was filled before, or of a learned prefix, are no queries
        has_more_keys = not layers[0].cross and keys > queries
        if has_more_keys:
            of_keys = _fitting(None, written, keys, padded=is_padded)
            of_queries = of_keys[-queries:] if tokens is None else _fitting(tokens, (), queries, padded=False)
        else:
            of_queries = _fitting(tokens, written, queries, padded=is_padded)
            is_other = is_read or layers[0].cross
            of_keys = [str(place) for place in range(keys)] if is_other else of_queries
        title = "" if len(stacks) == 1 else name
        shown.append(
            Stack(
                title,
                maps,
                of_keys,
                of_queries if layers[0].cross or has_more_keys else None,
                [] if layers[0].cross or has_more_keys else [_support_of(layer, number) for layer in layers],
                cross=layers[0].cross,
                answer=_span(layers[0], number, queries),
                numbers=[layer.index for layer in layers],
                heads=layers[0].heads if len({tuple(layer.heads) for layer in layers}) == 1 else (),
            )
        )
    return shown


def _maps_of(layer: Layer, sample: int) -> Tensor:
    """Return the maps of a sequence without its padding, [heads, q, k] on the CPU."""
    count, keys = layer.attention.shape[-2:]
    if not layer.cross and count == keys:
        return layer.samples()[sample].float().cpu()
    queries = layer.query_valid if layer.cross else layer.valid[:, keys - count :]
    maps = layer.attention[sample][..., layer.valid[sample]]
    return (maps if queries is None else maps[:, queries[sample]]).float().cpu()


def _support_of(layer: Layer, sample: int) -> LayerSupport:
    """Return what the queries of a sequence see."""
    seen, size = LayerSupport.of(layer), int(layer.lengths[sample])
    support, learned = seen.support, seen.learned
    if isinstance(support, Tensor):
        support = support[sample : sample + 1] if support.ndim == 4 else support
        support = support[..., :size, :size]
    return LayerSupport(support, None if learned is None else learned[sample : sample + 1, :, :size])


def _span(layer: Layer, sample: int, queries: int) -> tuple[int, int] | None:
    """Return the first query of the answer and one past its last; None where no step followed the prompt."""
    if layer.answer_start is None:
        return None
    start = int(layer.answer_start[sample])
    return (start, queries) if start < queries else None


def _names(output: Any, sample: int, encoder: Encoder) -> list[str]:
    """Return the names of the tokens of a returned sequence; none where a model returns no tokens."""
    sequences = getattr(output, "sequences", output)
    if not isinstance(sequences, Tensor) or sequences.dtype not in (torch.int64, torch.int32):
        return []
    return encoder.names(sequences[sample].tolist())


def _fitting(
    tokens: Sequence[str] | None, written: Sequence[str], queries: int, *, padded: bool
) -> list[str]:
    """Return a name for each query: as given, as written, or numbers.

    The last written token was never a query; padding is in front.
    """
    if tokens is not None:
        if len(tokens) != queries:
            raise ValueError(f"view: {queries} queries need as many names, got {len(tokens)} tokens")
        return [str(token) for token in tokens]
    ahead = len(written) - 1 - queries
    if ahead < 0 or (ahead and not padded):
        return [str(place) for place in range(queries)]
    return list(written[ahead : ahead + queries])
