# SPDX-License-Identifier: MIT
"""One attention layer of one forward pass: its tensors, and the same tensors with the padding cut away.

A batch holds texts of several lengths, padded on either side. `matrices`, `states` and `samples`
give the tokens that are there, as views wherever they lie together, so that no metric has to know of padding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from attnscope._warn import aggregate_warnings, called_from_outside, warn
from attnscope.capture.rectangles.layer_maps import measure_rectangles
from attnscope.capture.sites import ATTENTION, HEADS, SITES, TABLE
from attnscope.capture.visibility import UNKNOWN, Visibility, contradiction, is_doubtful, visibility_of
from attnscope.errors import LoadError, SitesRefused
from attnscope.metrics.measure import measure
from attnscope.metrics.request import options_taken
from attnscope.metrics.support import LayerSupport

# Sites with two axes of tokens.
SQUARE = ("attention", "scores")


def require_tokens(valid: Tensor, queries: Tensor | None) -> None:
    """Raise for a text of a batch without a real key, or without a real query where these are other tokens.

    Args:
        valid: as `Layer.valid`.
        queries: as `Layer.query_valid`.
    """
    empty = ~valid.any(-1)
    if queries is not None:
        empty = empty | ~queries.any(-1).to(empty.device)
    if texts := empty.nonzero().flatten().tolist():
        raise ValueError(f"measure: text {texts[0]} of the batch has no token; leave it out")


class End:
    """Goes when its layer goes."""


@dataclass(eq=False, repr=False)
class Layer:
    """The tensors of one attention module in one forward pass.

    | tensor | shape | meaning |
    |---|---|---|
    | ``attention`` | ``[B, h, q, k]`` | probabilities, rows = queries; float32 (float64 of a float64 model) |
    | ``scores`` | ``[B, h, q, k]`` | argument of the softmax, -inf where invisible; dtype as ``attention`` |
    | ``lse`` | ``[B, h, q]`` | log of the softmax's sum, a learned sink's term in it |
    | ``query`` | ``[B, h, q, d]`` | after the rotary embedding, as multiplied with the keys |
    | ``key``, ``value`` | ``[B, kv, k, d]`` | not repeated for grouped queries; cached positions included |
    | ``hidden`` | ``[B, q, D]`` | residual stream entering the block |
    | ``attention_input`` | ``[B, q, D]`` | what the attention module reads (after a pre-norm) |
    | ``head_output`` | ``[B, h, q, d]`` | what each head hands to the projection W_O |
    | ``attention_output`` | ``[B, q, D]`` | output of the projection W_O, before any norm and the residual |
    | ``mlp_input`` | ``[B, q, D]`` | what the first matrix of the feed-forward part reads |
    | ``mlp_output`` | ``[B, q, D]`` | output of the feed-forward part, likewise |
    | ``block_output`` | ``[B, q, D]`` | residual stream leaving the block |

    Of a model without an attention interface ``attention`` has the dtype of its own code: BERT and T5 before
    transformers 5, in half precision, give half precision.
    ``exp(scores - lse)`` is ``attention`` for every query that sees a key; a padding query that sees none has
    scores of -inf only, where eager attention is uniform over what it must not see.
    A tensor whose site was not asked for raises ``AttributeError``; it is never a silent ``None``.

    Attributes:
        index: number of the layer's block inside its stack, from 0. A block that several layers share counts
            how often it ran.
        stack: qualified name of the attention module with numbers starred, e.g. ``model.layers.*.self_attn``.
        call: 0, or how often this layer of the stack ran before in the same forward pass.
        step: forward pass inside the run: 0 for ``run``, 0, 1, 2, ... for ``generate``.
        cross: whether keys come from another sequence (encoder-decoder attention).
        heads: numbers of the captured query heads, in the order of the tensors' head axis.
        kv_heads: for each captured head the index of its key/value head.
        valid: ``[B, k]`` bool, True at real keys, False at padding and unused cache slots.
        query_valid: of cross attention ``[B, q]`` bool, True at real queries, where the decoder was given a
            mask of its tokens; None: all.
        key_offset: position of key 0 in the sequence; greater than 0 for a sliding cache that has moved on.
        sink_logits: ``[h]``, the learned logit that takes part in each head's softmax without a key; None
            where the model has none, or where the attention does not come from our own function.
        partial_sums: the smallest and the largest sum of a row, where the model returns a part of what its
            queries attend to, so that rows do not sum to 1; None elsewhere.
        has_sink: True where a learned logit, known or not, takes a share of each row.
        mask: that the model computed with, of the captured heads where heads differ: boolean with True at
            visible entries, or added to scores; None where maps came without one.
        exact_mask: False for a mask that may not be all that hides keys; the maps then have to agree with it.
        answer_start: of an assembled generation the number of queries of each sample's prompt, padding left
            out, int64 ``[B]``; None elsewhere.
        gradients: tensors by site, filled by a forward pass with a gradient.
    """

    index: int
    stack: str
    call: int
    _: KW_ONLY
    step: int
    cross: bool
    heads: Sequence[int]
    kv_heads: Sequence[int]
    valid: Tensor
    key_offset: int
    tensors: dict[str, Tensor]
    sink_logits: Tensor | None = None
    mask: Tensor | None = None
    exact_mask: bool = True
    has_sink: bool = False
    partial_sums: tuple[float, float] | None = None
    answer_start: Tensor | None = None
    query_valid: Tensor | None = None
    gradients: dict[str, Tensor] = field(default_factory=dict, init=False)
    _visibility: Visibility | None = field(default=None, init=False)
    # What was said of the run already; all its layers share it.
    notices: set[str] = field(default_factory=set, init=False)
    # Last, because attributes go in the order they came: when this one is gone, so are the tensors. (A weak
    # reference to the layer itself calls back before its tensors are freed.)
    end: End = field(default_factory=End, init=False)

    def __post_init__(self) -> None:
        self.heads, self.kv_heads = tuple(self.heads), tuple(self.kv_heads)
        self.tensors = dict(self.tensors)
        self.has_sink |= self.sink_logits is not None

    def captured(self, name: str) -> Tensor:
        """Return the tensor of a captured site, padding and all, without a word about it.

        Raises:
            AttributeError: a site that was not asked for.
        """
        try:
            return self.tensors[name]
        except KeyError:
            raise AttributeError(
                f"layer {self.index} ({self.stack}) holds {sorted(self.tensors)}, not {name!r}: "
                f"ask for it with capture(model, sites=({name!r}, ...))"
            ) from None

    def __getattr__(self, name: str) -> Tensor:
        if name not in TABLE or "tensors" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        is_said = "padding" in self.notices
        if name in SQUARE and not is_said and called_from_outside() and not bool(self.valid.all()):
            self.notices.add("padding")
            warn(
                f"capture: {name} holds padding; layer.measure([...]) leaves it out, as do "
                "layer.matrices() with lengths=layer.lengths[:, None]",
                UserWarning,
            )
        return self.captured(name)

    def measure(
        self, metrics: str | Iterable[str] | Mapping[str, Mapping[str, Any]], **options: Any
    ) -> dict[str, Any]:
        """Measure every head's map of every sample, with padding on either side left out.

        As `attnscope.measure` of `matrices()` with their lengths; metrics that ask who sees whom, or what a
        learned sink takes, get it from the layer. Decoding steps, whose queries stand at the last keys, and
        cross attention, whose queries stand at none, are measured as rectangles.

        Args:
            metrics: a name, names, or a mapping from the key wanted in the result to a metric's own options.
            options: given to every metric that takes an option of that name.

        Returns:
            A dict in the order asked for, of what the metrics return: leading axes ``[B, h]``.

        Raises:
            ValueError: a text of the batch without a token, a metric of square maps on a layer that is not
                square, and as the metrics.
            TypeError: an option that none of the metrics takes, or a missing one.

        Example:
            Uniform attention of two texts, the shorter one with padding in front:

            >>> import torch
            >>> from attnscope.capture import Layer
            >>> maps = torch.zeros(2, 1, 4, 4)
            >>> maps[0, 0], maps[1, 0, 2:, 2:] = 0.25, 0.5
            >>> layer = Layer(
            ...     0, "attention", 0, step=0, cross=False, heads=(0,), kv_heads=(0,), key_offset=0,
            ...     valid=torch.tensor([[1, 1, 1, 1], [0, 0, 1, 1]]).bool(), tensors={"attention": maps})
            >>> layer.measure("sink_share")["sink_share"].share.tolist()
            [[0.25], [0.5]]
        """
        if isinstance(metrics, Iterator):
            metrics = list(metrics)  # they are looked at twice
        require_tokens(self.valid, self.query_valid)
        if not self._is_square():
            with aggregate_warnings():
                return measure_rectangles(self, metrics, options, options_taken(metrics))
        maps, lengths = self.matrices(), self.lengths[:, None]
        seen = LayerSupport.of(self).options(options_taken(metrics) - options.keys())
        with aggregate_warnings():
            return measure(maps, metrics, lengths=lengths, **seen, **options)

    @property
    def sink_mass(self) -> Tensor:
        """The mass of each row on the learned sink, ``[B, h, q]``; 0 without one.

        From the site ``lse`` where it was asked for, else what the row of ``attention`` leaves of 1.
        """
        if not self.has_sink:
            rows = self.tensors.get("lse", self.tensors.get("attention"))
            rows = self.lse if rows is None else rows
            return torch.zeros_like(rows if rows.ndim == 3 else rows[..., 0])
        if "lse" in self.tensors and self.sink_logits is not None:
            return (self.sink_logits.to(self.lse)[:, None] - self.lse).exp()
        return (1 - self.attention.double().sum(-1)).clamp(min=0).to(self.attention.dtype)

    @property
    def visibility(self) -> Visibility:
        """The keys that the real queries could see: ``kind``, and ``support`` for metrics of ``matrices()``.

        Read off the mask that the model computed with, or off the argument of its softmax, so windows are
        known as such; layers of one model, and heads of one layer, differ. ``auto`` (each map is judged by
        itself) where neither is known, for cross attention and for maps that are not square.
        """
        if self._visibility is None:
            self._visibility = self._find_visibility() if self._is_square() else UNKNOWN
        return self._visibility

    def _find_visibility(self) -> Visibility:
        """Return the visibility of a square layer, `UNKNOWN` with a warning where its maps contradict it."""
        visibility = visibility_of(self.mask, self._real)
        certain = self.mask is None or (self.exact_mask and not is_doubtful(self.mask))
        if certain or "attention" not in self.tensors:
            return visibility
        reason = contradiction(visibility.support, self._maps_of_text(), self.lengths.tolist())
        if not reason:
            return visibility
        warn(
            f"capture: which keys the queries of {self.stack} see is not known: by its mask it is "
            f"{visibility.name}, but {reason}; each map is judged by itself",
            UserWarning,
        )
        return UNKNOWN

    @property
    def lengths(self) -> Tensor:
        """Number of real keys of each sample, int64 ``[B]``."""
        return self.valid.sum(-1, dtype=torch.int64).cpu()

    @cached_property
    def _real(self) -> list[Tensor]:
        """The positions of each sample's real keys, ascending."""
        return [row.nonzero().flatten() for row in self.valid.cpu()]

    def _is_square(self) -> bool:
        """Return True for self-attention over the whole sequence.

        The first step with a static cache has more keys than queries: the places that later steps fill.
        """
        queries, keys = self._size()
        if self.cross or queries > keys:
            return False
        return queries == keys or (
            queries > 0
            and self.key_offset == 0
            and self.step == 0
            and not bool(self.valid[:, queries:].any())
        )

    def _require_square(self, label: str) -> None:
        queries, keys = self._size()
        if not self._is_square():
            kind = "a decoding step with cached keys" if queries < keys else "a map of part of the keys"
            kind = "cross attention" if self.cross else kind
            raise ValueError(
                f"{label}: layer {self.index} ({self.stack}) is {kind}, {queries} queries x {keys} keys; "
                "only self-attention over the whole sequence is one n x n matrix per head"
            )

    def _size(self) -> tuple[int, int]:
        keys = self.valid.shape[-1]
        for name, tensor in self.tensors.items():
            if name not in ("key", "value"):
                return tensor.shape[-1 if name == "lse" else -2], keys
        return keys, keys

    def matrices(self, site: str = "attention") -> Tensor:
        """Return the maps with every sample's padding removed: real tokens in the leading block, zeros
        behind.

        Left padding is cut away (its rows are meaningless: a query that sees no key is uniform over all of
        them), right padding stays behind ``lengths``. Without left padding this is a view of the tensor.

        Args:
            site: ``attention`` or ``scores``.

        Returns:
            ``[B, h, m, m]``, m = the largest of ``lengths``; pass ``lengths=layer.lengths[:, None]`` to a
            metric.

        Raises:
            ValueError: for cross attention, for decoding steps, which are not square, and for other sites.
            LoadError: for maps that are a part of what the queries attend to.
        """
        if site not in SQUARE:
            raise ValueError(f"matrices: site must be among {', '.join(SQUARE)}, got {site!r}; use states()")
        self._require_square("matrices")
        if site == "attention":
            self.require_whole_rows()
        return self._leading(self.captured(site), (-2, -1))

    def require_whole_rows(self) -> None:
        """Raise for maps that are a part of what the queries attend to.

        Raises:
            LoadError: the model returned a part, whose entropies, shares and graphs are not those of its
                attention.
        """
        if self.partial_sums is not None:
            smallest, largest = self.partial_sums
            raise LoadError(
                f"capture: rows of {self.stack}, layer {self.index}, sum to {smallest:.2g} to {largest:.2g}, "
                "not to 1: the model returns a part of what its queries attend to (without learned prompt "
                "tokens, self- and cross attention of one softmax apart, or with blocks that overlap), so "
                "metrics would be of no attention; `layer.attention` has the maps as they are"
            )

    def _maps_of_text(self) -> Tensor:
        """Return the maps without padding, whatever their rows sum to."""
        self._require_square("visibility")
        return self._leading(self.captured("attention"), (-2, -1))

    def states(self, site: str, *, per_head: bool = False) -> Tensor:
        """Return the tensor of another site with every sample's padding removed, as ``matrices`` does it.

        Args:
            site: any of ``SITES`` but ``attention`` and ``scores``, or ``sink_mass``.
            per_head: repeat key/value heads so that axis 1 runs over ``heads``, as in ``matrices``.

        Returns:
            ``[B, m, D]``, or ``[B, h, m, d]`` for ``query``, ``head_output``, ``key``, ``value``
            (``[B, kv, m, d]`` of the latter two when ``per_head`` is False), or ``[B, h, m]`` for ``lse`` and
            ``sink_mass``.

        Raises:
            ValueError: for cross attention, for decoding steps, and for ``attention`` and ``scores``.
            SitesRefused: for a model that carries several states of each token.
        """
        if site in SQUARE:
            raise ValueError(f"states: {site!r} has two token axes, use matrices()")
        self._require_square("states")
        if reason := self.reason_against_states(site):
            raise SitesRefused(f"capture: {reason}")
        tensor = self.sink_mass if site == "sink_mass" else self.captured(site)
        if per_head and site in ("key", "value"):
            tensor = tensor[:, list(self.kv_heads)]
        return self._leading(tensor, (-1,) if site in ("lse", "sink_mass") else (-2,))

    def reason_against_states(self, site: str) -> str:
        """Return why a captured site is not one state [D] of each token; "" where it is, or is of heads.

        Some models carry several residual streams, which each block mixes (Gemma 3n, DeepSeek V4).
        """
        if site not in self.tensors or TABLE[site].moment in (ATTENTION, HEADS):
            return ""
        shape = tuple(self.tensors[site].shape)
        if len(shape) == 3 and shape[0] == len(self.valid):
            return ""
        return (
            f"{site} of {self.stack}, layer {self.index}, is a tensor {list(shape)} of {len(self.valid)} "
            "texts: the model carries several states of each token, where metrics take one"
        )

    def samples(self) -> list[Tensor]:
        """Return one view ``[h, m_b, m_b]`` per sample, padding removed (a copy where the padding has
        holes).
        """
        self._require_square("samples")
        return [self._select(self.attention[b], real, (-2, -1)) for b, real in enumerate(self._real)]

    @staticmethod
    def _select(tensor: Tensor, real: Tensor, axes: Sequence[int]) -> Tensor:
        """Return the real tokens along the axes: a view where they are contiguous."""
        m = len(real)
        start, end = (int(real[0]), int(real[-1]) + 1) if m else (0, 0)
        for axis in axes:
            if end - start == m:
                tensor = tensor.narrow(axis, start, m)
            else:
                tensor = tensor.index_select(axis, real.to(tensor.device))
        return tensor

    def _leading(self, tensor: Tensor, axes: Sequence[int]) -> Tensor:
        spans = self._real
        longest = max((len(real) for real in spans), default=0)
        if all(len(real) == 0 or int(real[-1]) == len(real) - 1 for real in spans):
            return self._select(tensor, torch.arange(longest, device="cpu"), axes)
        if all(torch.equal(real, spans[0]) for real in spans):
            return self._select(tensor, spans[0], axes)
        shape = list(tensor.shape)
        for axis in axes:
            shape[axis] = longest
        out = tensor.new_zeros(shape)
        for b, real in enumerate(spans):
            target = self._select(out[b], torch.arange(len(real), device="cpu"), axes)
            target.copy_(self._select(tensor[b], real, axes))
        return out

    def __repr__(self) -> str:
        parts = [f"index={self.index}", f"stack={self.stack!r}", f"call={self.call}"]
        if self.step:
            parts.append(f"step={self.step}")
        held = [(name, self.tensors[name]) for name in SITES if name in self.tensors]
        parts += [f"{name}={list(t.shape)} {str(t.dtype).removeprefix('torch.')}" for name, t in held]
        parts += [f"valid={list(self.valid.shape)}", f"key_offset={self.key_offset}"]
        return f"Layer({', '.join(parts)})"
