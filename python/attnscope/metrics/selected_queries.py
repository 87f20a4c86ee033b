# SPDX-License-Identifier: MIT
"""Row metrics over some of a text's queries: those of its answer, of its prompt, or any others.

The rows of the chosen queries are taken out of the maps and measured as rectangles, whose queries stand where
they stood in the text. Numbers of columns and spectra of a map stay those of all its queries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from attnscope import _checks
from attnscope.metrics.quantity import MAPS, Quantity, Shared
from attnscope.metrics.support import LayerSupport

#: Metrics that are means or sums over queries, each row by itself.
ROW_BY_ROW = frozenset(
    {
        "attention_entropy",
        "head_divergence",
        "local_global_ratio",
        "power_spectrum",
        "sink_rate",
        "sink_removal",
        "sink_share",
        "span_attention",
        "spectral_uncertainty",
        "top_mass",
        "wavelet_transform",
    }
)
#: Queries in words.
WORDS = ("answer", "prompt")


def is_mean_of_rows(quantity: Quantity) -> bool:
    """Return True if a quantity can be restricted to some queries.

    Sinks that others are measured against are those of all queries.
    """
    shared = any(isinstance(value, Shared) for value in quantity.options.values())
    return quantity.metric in ROW_BY_ROW and "query" not in quantity.axes and not shared


def chosen_queries(
    function: str,
    queries: Any,
    sizes: Sequence[int],
    answers: Sequence[tuple[int, int] | None],
    texts: Sequence[int] | None = None,
) -> Tensor:
    """Return the numbers of the chosen queries of each text, int64 [texts, most], −1 behind a text's last.

    Args:
        function: whose name errors begin with.
        queries: "answer", "prompt", a slice of each text's tokens, or booleans, [n] for all texts or a row
            for each.
        sizes: tokens of each text.
        answers: the first token of each text's answer and one past its last, None where that is not known.
        texts: the row of each text in a mask with a row for each; None: in order.

    Raises:
        ValueError: other words, an answer that is not known, a mask that is shorter than a text.

    Example:
        >>> from attnscope.metrics.selected_queries import chosen_queries
        >>> chosen_queries("f", "answer", [4, 3], [(2, 4), (2, 3)]).tolist()
        [[2, 3], [2, -1]]
        >>> chosen_queries("f", slice(-1, None), [4], [None]).tolist()
        [[3]]
    """
    rows = []
    numbers = range(len(sizes)) if texts is None else texts
    for text, size, answer in zip(numbers, sizes, answers, strict=True):
        places = torch.arange(size, device="cpu")
        if isinstance(queries, str):
            if queries not in WORDS:
                raise ValueError(
                    f"{function}: queries must be 'answer', 'prompt', a slice or a mask, got {queries!r}"
                )
            if answer is None:
                raise ValueError(
                    f"{function}: queries={queries!r} needs generate= or answer=, which say where answers are"
                )
            start, stop = answer if answer[0] >= 0 else (size, size)
            rows.append(places[start:stop] if queries == "answer" else places[:start])
        elif isinstance(queries, slice):
            rows.append(torch.tensor(list(range(size))[queries], dtype=torch.int64, device="cpu"))
        else:
            rows.append(places[_mask_of(function, queries, text, size)])
    chosen = pad_sequence(rows, batch_first=True, padding_value=-1)
    # texts without a chosen query have no number, whatever texts stand beside them
    return chosen if chosen.shape[1] else chosen.new_full((len(rows), 1), -1)


def _mask_of(function: str, queries: Any, text: int, size: int) -> Tensor:
    """Return the booleans of a text's tokens."""
    if not (hasattr(queries, "__len__") and len(queries)):
        raise ValueError(
            f"{function}: queries must be 'answer', 'prompt', a slice or a mask, got {queries!r}"
        )
    one_for_all = queries.ndim == 1 if isinstance(queries, Tensor) else not hasattr(queries[0], "__len__")
    if not one_for_all and len(queries) <= text:
        raise ValueError(f"{function}: queries must hold a row for each text, got {len(queries)} rows")
    mask = _checks.as_tensor(function, "queries", queries if one_for_all else queries[text])
    if mask.dtype != torch.bool or mask.ndim != 1 or len(mask) < size:
        raise ValueError(
            f"{function}: queries must be booleans, one for each of the {size} tokens of text {text}, got "
            f"{mask.dtype} of shape {tuple(mask.shape)}"
        )
    return mask[:size].cpu()


def rows_of(
    sites: Mapping[str, Tensor], seen: LayerSupport, chosen: Tensor, *, cross: bool = False
) -> tuple[dict[str, Tensor], LayerSupport, _checks.Places]:
    """Return the sites, the support and the places of some rows of the maps.

    Args:
        sites: of a layer, maps [B, maps, q, k] among them.
        seen: of the layer.
        chosen: as `chosen_queries` gives them.
        cross: queries stand at no key.
    """
    index = chosen.clamp(min=0)

    def rows(tensor: Tensor, axis: int) -> Tensor:
        """Return the chosen entries along an axis of queries."""
        shape = [1] * tensor.ndim
        shape[0], shape[axis] = len(index), index.shape[1]
        at = index.to(tensor.device).reshape(shape)
        return torch.take_along_dim(tensor, at, axis)

    chosen_sites = {name: rows(site, -2) if name in MAPS else site for name, site in sites.items()}
    support = seen.support
    if isinstance(support, Tensor):
        by_text = support if support.ndim == 4 else support.expand(len(index), 1, *support.shape[-2:])
        support = rows(by_text.expand(len(index), *by_text.shape[1:]), -2)
    learned = None if seen.learned is None else rows(seen.learned, -1)
    positions = None if cross else index[:, None]
    places = _checks.Places(positions, (chosen >= 0).sum(-1)[:, None], cross)
    return chosen_sites, LayerSupport(support, learned), places
