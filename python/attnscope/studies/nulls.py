# SPDX-License-Identifier: MIT
"""Null distributions of attention: shuffled rows, uniform attention, controls by length of text."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from attnscope.metrics.quantity import Quantity
from attnscope.metrics.support import LayerSupport, measure_layer
from attnscope.metrics.thresholds import first_equal, resolve_thresholds
from attnscope.results.equal_texts import of_distinct_texts
from attnscope.results.schema import CHECKPOINT_KEYS
from attnscope.studies.supports import supports_of, uniform_over, visible_pairs
from attnscope.study_api.tables import Column, Table

if TYPE_CHECKING:
    from attnscope.study_api.stage_run import StageRun

#: Tokens up to which uniform attention is a map in any case: of two megabytes at most.
_SHORT = 512
#: Values of uniform attention by length of text, and means of controls by length and input set.
BASELINES = Table(
    "baselines",
    ("n_tokens", "metric", "kind", "support", "threshold", "protocol", "scope", *CHECKPOINT_KEYS, "group"),
    (Column("value"), Column("std", label="standard deviation"), Column("count", kind="count")),
    version=3,
)


def shuffled_rows(
    maps: Tensor,
    lengths: Sequence[int],
    samples: Sequence[int],
    layer: int,
    seed: int,
    support: Tensor | None = None,
    *,
    draw: int = 0,
) -> Tensor:
    """Return maps whose rows hold the same entries in another order, each row inside its visible keys.

    A sentence's draw depends on the seed, its number and the layer, and not on the batch it is in; other
    numbers `draw` than 0 give further draws. The support of maps [b, m, n, n] is bool [n, n] or [b, 1, n, n];
    without one each text's maps are causal or full.
    """
    result = torch.zeros(maps.shape, dtype=maps.dtype, device="cpu")
    for place, (length, sample) in enumerate(zip(lengths, samples, strict=True)):
        maps_of_text = maps[place, :, :length, :length].cpu()
        generator = np.random.default_rng([seed, sample, layer, 0x5EED, *([draw] if draw else [])])
        keys = torch.from_numpy(generator.random((maps_of_text.shape[0], length, length)))
        if support is None:
            causal = length > 1 and not bool(maps_of_text.triu(1).ne(0).any())
            seen = visible_pairs("causal" if causal else "full", length)
        else:
            seen = (support[place, 0] if support.ndim == 4 else support)[:length, :length]
        # hidden keys come last, and their entries are 0 in any order
        order = keys.masked_fill(~seen, 2.0).argsort(-1)
        places = (~seen).byte().argsort(dim=-1, stable=True).expand(order.shape)
        result[place, :, :length, :length].scatter_(
            -1, places, maps_of_text.gather(-1, order).to(result.dtype)
        )
    return result


def _uniform(support: str, n: int) -> tuple[dict[str, Any], LayerSupport]:
    """Return the map of uniform attention, and its support."""
    seen = visible_pairs(support, n)
    limits = LayerSupport(support if support in ("causal", "full") else seen, None)
    return {"attention": uniform_over(seen)[None, None]}, limits


def _lazily_uniform(attention: Any) -> tuple[dict[str, Any], LayerSupport]:
    return {"attention": attention}, LayerSupport("auto", None)


def write_baselines(
    run: StageRun,
    tables: Sequence[str],
    chosen: Callable[[str], Mapping[str, Sequence[Quantity]]],
    lazily: Callable[[str, int], Any] | None = None,
) -> None:
    """Write to `baselines` the numbers of uniform attention of every length and support, and of controls.

    Numbers of controls are mean and deviation over texts of one input set and length. The support is read
    from `tables`; `chosen` gives the quantities of each protocol under a support. `lazily` gives uniform
    attention of a support and a length where no map is to be made; of short texts there is a map in any case.
    """
    samples = run.read("samples")
    nobody: dict[str, Any] = {
        "scope": "any",
        "model": "",
        "revision": "",
        "step": -1,
        "group": "",
        "count": 1,
    }
    for n, support in supports_of(
        samples, [run.read(table) for table in tables if table in run.stored.tables()]
    ):
        if lazily is None or n <= _SHORT:
            sites, limits = _uniform(support, n)
        else:
            sites, limits = _lazily_uniform(lazily(support, n))
        baseline_keys: dict[str, Any] = {"n_tokens": n, "kind": "uniform", "support": support}
        for protocol, quantities in chosen(support).items():
            with warnings.catch_warnings():
                # a number without a value on uniform attention is null in the table
                warnings.simplefilter("ignore", RuntimeWarning)
                measured = measure_layer(sites, quantities, limits)
            for quantity, values in measured.values.items():
                numbers = np.where(
                    measured.defined[quantity].numpy(), values.double().numpy(), np.nan
                ).ravel()
                at: Any = math.nan
                if quantity.axes:
                    thresholds = quantity.options["thresholds"]
                    once = sorted(set(first_equal(thresholds, n)))
                    at, numbers = np.array(resolve_thresholds(thresholds, n))[once], numbers[once]
                keys = {**baseline_keys, "protocol": protocol, "metric": quantity.name, "threshold": at}
                run.write("baselines", **keys, **nobody, value=numbers)
    controls = of_distinct_texts(run.stored).variants()
    if len(controls):
        # a control is read under the visibility of its own maps, and a length has layers of several
        lengths = samples.drop_duplicates(["model", "sample"])[["model", "sample", "group", "n_tokens"]]
        frame = controls.rename(columns={"variant": "kind"}).assign(support="")
        frame = frame.merge(lengths, on=["model", "sample"], how="left", validate="many_to_one")
        control_values = frame.groupby([*BASELINES.keys], sort=True, dropna=False)["value"]
        rows = control_values.agg(["mean", "std", "count"]).reset_index().rename(columns={"mean": "value"})
        run.write("baselines", **{str(name): rows[name] for name in rows})
