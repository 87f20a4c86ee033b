# SPDX-License-Identifier: MIT
"""The tensors of a forward pass that can be kept: one row for each, read by everything that keeps them.

A site belongs to a layer (one tensor for each) or to the model (one tensor for a pass). Its moment says when
it is there: inside the attention function, on the way into a module, behind one, or at the end of the pass.
Its tiers are the ways to run a model that reach it.

Example:
    >>> from attnscope.capture.sites import TABLE
    >>> TABLE["scores"].shape, TABLE["scores"].tiers
    ('[B, h, q, k]', (1,))
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

#: The ways to run a model: its own backend with hooks alone, our attention function, hooks on eager
#: attention, ``output_attentions=True``.
HOOKS_ONLY, INTERFACE, HOOKS, OUTPUTS = 0, 1, 2, 3

#: Moments, in the order in which they come in one layer.
ENTRY, INPUT, ATTENTION, HEADS, PROJECTION, FEED_FORWARD, EXIT, MODEL = (
    "entry of the block",
    "entry of the attention module",
    "attention function",
    "entry of the output projection",
    "exit of the output projection",
    "feed-forward part",
    "exit of the block",
    "model",
)


@dataclass(frozen=True)
class Site:
    """A tensor that can be kept.

    Attributes:
        name: of the tensor.
        shape: B samples, h query heads, kv key/value heads, q queries, k keys, d width of a head, D width.
        moment: when it is there.
        tiers: the ways to run a model that reach it.
        meaning: one line.
    """

    name: str
    shape: str
    moment: str
    tiers: tuple[int, ...]
    meaning: str

    @property
    def owner(self) -> str:
        """``layer`` or ``model``."""
        return "model" if self.moment == MODEL else "layer"

    @property
    def of_attention(self) -> bool:
        """True if the tensor exists only when the attention itself is captured."""
        return HOOKS_ONLY not in self.tiers


_MAPS, _INTERFACE_ONLY, _HOOKED, _ALL = (
    (INTERFACE, HOOKS, OUTPUTS),
    (INTERFACE,),
    (HOOKS_ONLY, INTERFACE, HOOKS),
    (0, 1, 2, 3),
)

_SITES = (
    Site("attention", "[B, h, q, k]", ATTENTION, _MAPS, "probabilities, rows = queries"),
    Site(
        "query",
        "[B, h, q, d]",
        ATTENTION,
        _INTERFACE_ONLY,
        "after the rotary embedding, as multiplied with the keys",
    ),
    Site(
        "key",
        "[B, kv, k, d]",
        ATTENTION,
        _INTERFACE_ONLY,
        "not repeated for grouped queries, cached positions in it",
    ),
    Site("value", "[B, kv, k, d]", ATTENTION, _INTERFACE_ONLY, "likewise"),
    Site(
        "scores", "[B, h, q, k]", ATTENTION, _INTERFACE_ONLY, "argument of the softmax, -inf where invisible"
    ),
    Site(
        "lse",
        "[B, h, q]",
        ATTENTION,
        _INTERFACE_ONLY,
        "log of the softmax's sum, a learned sink's term in it",
    ),
    Site("hidden", "[B, q, D]", ENTRY, _HOOKED, "residual stream entering the block"),
    Site("attention_input", "[B, q, D]", INPUT, _HOOKED, "what the attention module reads"),
    Site("head_output", "[B, h, q, d]", HEADS, _HOOKED, "what each head hands to the projection W_O"),
    Site("attention_output", "[B, q, D]", PROJECTION, _HOOKED, "output of W_O, before norm and residual"),
    Site("mlp_input", "[B, q, D]", FEED_FORWARD, _HOOKED, "what the feed-forward part's first matrix reads"),
    Site("mlp_output", "[B, q, D]", FEED_FORWARD, _HOOKED, "output of the feed-forward part, likewise"),
    Site("block_output", "[B, q, D]", EXIT, _HOOKED, "residual stream leaving the block"),
    Site("embeddings", "[B, q, D]", MODEL, _ALL, "output of the embedding module"),
    Site("final_norm", "[B, q, D]", MODEL, _ALL, "residual stream behind the model's last norm"),
    Site("logits", "[B, q, V]", MODEL, _ALL, "output of the vocabulary head"),
)

#: Every site by name.
TABLE: dict[str, Site] = {site.name: site for site in _SITES}

#: Names of the sites that a layer owns.
SITES = tuple(site.name for site in _SITES if site.owner == "layer")
#: Names of the sites that the model owns.
MODEL_SITES = tuple(site.name for site in _SITES if site.owner == "model")
#: Sites whose second axis runs over heads.
PER_HEAD = frozenset({"query", "key", "value", "head_output"})


def checked(function: str, sites: str | Iterable[str], allowed: Iterable[str] = SITES) -> tuple[str, ...]:
    """Return the names of sites, each once, in the order they came."""
    named = (sites,) if isinstance(sites, str) else tuple(dict.fromkeys(sites))
    allowed = tuple(allowed)
    if unknown := [site for site in named if site not in allowed]:
        raise ValueError(f"{function}: sites must be among {', '.join(allowed)}, got {unknown}")
    return named
