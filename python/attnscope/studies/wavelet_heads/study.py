# SPDX-License-Identifier: MIT
"""Wavelet-like heads and RoPE harmonics (Ruscio et al., arXiv 2410.18067).

Attention along the keys as a signal: its spectrum, its wavelet energies, its uncertainty, how little a longer
text changes them; and what RoPE's frequencies become behind the model's own nonlinearities.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from attnscope.engine.forward import Batch
from attnscope.engine.recipe import Recipe, UnitRows, head_mean
from attnscope.engine.results import Results
from attnscope.studies.nulls import (
    closed_form,
    per_sentence,
    shuffled_rows,
    uniform_attention,
)
from attnscope.studies.wavelet_heads import summaries
from attnscope.studies.wavelet_heads.harmonics import harmonics
from attnscope.studies.wavelet_heads.options import WaveletOptions
from attnscope.studies.wavelet_heads.readings import BANDS, METRICS, head_columns, one_minus_cosine

if TYPE_CHECKING:
    import pyarrow as pa

    from attnscope.capture import Layer


@dataclass(frozen=True)
class Beginning(Batch):
    """The first tokens of the sentences of a batch.

    Attributes:
        fraction: of each sentence's tokens.
    """

    fraction: float = 1.0


class WaveletStudy(Recipe):
    """Captures attention; fills `heads`, `spectra`, `signals`, `scale_sensitivity`, `harmonics`, `baselines`.

    `options` are those of `attnscope.studies.wavelet_heads.options.WaveletOptions`.
    """

    name = "wavelet_heads"
    takes_options = True
    measured = ("heads", "spectra", "signals", "scale_sensitivity", "harmonics", "nulls")
    made = ("uncertainty", "phases", "published")

    def __init__(self, study: Any) -> None:
        super().__init__(study)
        self.options = WaveletOptions.read(study.options)
        self._taken = tuple(study.metrics) or METRICS
        #: What the prefixes of a batch are compared with, by layer and kind of heads.
        self._whole: dict[tuple[int, bool], dict[str, Tensor]] = {}

    @classmethod
    def metrics(cls) -> list[str]:
        """Names of the metric functions that the study takes."""
        return sorted(METRICS)

    def sites(self) -> tuple[str, ...]:
        """Attention, which everything but the harmonics is made of."""
        return ("attention",)

    def twins(self) -> bool:
        """Whether a model with random weights reads the sentences too."""
        return "random_weights" in self.options.nulls

    def passes(self, model: Any, batch: Batch) -> Iterator[tuple[Any, Batch]]:
        """The sentences, then the first tokens of each for the scale sensitivity."""
        self._whole = {}
        yield model, batch
        if "scale_sensitivity" not in self._taken:
            return
        for fraction in self.options.prefixes:
            lengths = [max(1, math.ceil(fraction * n)) for n in batch.lengths]
            if max(lengths) >= self.options.min_keys:
                yield model, _beginning(batch, lengths, fraction)

    def of_weights(self, model: Any) -> Mapping[str, Mapping[str, Any]]:
        """RoPE's harmonics."""
        columns = harmonics(model) if self.options.harmonics else {}
        if self.options.harmonics and not columns:
            self.note(f"{type(model).__name__}: no RoPE with an activation behind it, so no harmonics")
        return {"harmonics": columns} if columns else {}

    def measure(self, layer: Layer, number: int, batch: Batch, rows: UnitRows) -> None:
        """Every metric on every head of the layer and on their mean."""
        heads, lengths = layer.matrices(), layer.lengths[:, None]
        for maps, names in ((head_mean(heads), [-1]), (heads, list(layer.heads))):
            if isinstance(batch, Beginning):
                self._compare(maps, lengths, number, names, batch, rows)
            else:
                self._add(maps, lengths, number, names, batch, rows)
        if "row_permutation" in self.options.nulls and not rows.null and not isinstance(batch, Beginning):
            shuffled = shuffled_rows(heads, batch.lengths, batch.samples, number, self.study.seed)
            self._add(shuffled, lengths, number, list(layer.heads), batch, rows.nulls("row_permutation"))

    def _add(
        self, maps: Tensor, lengths: Tensor, number: int, names: list[int], batch: Batch, rows: UnitRows
    ) -> None:
        columns, more = head_columns(maps, lengths, self.options, self._taken)
        keys = _keys(batch, number, names)
        if columns:
            rows.add("heads", {**keys, "n_tokens": np.repeat(batch.lengths, len(names)), **columns})
        if rows.null:
            return
        if "energy" in more and "scale_sensitivity" in self._taken:
            self._whole[number, names == [-1]] = {name: more[name] for name in ("energy", "profile")}
        if names == [-1]:
            return
        if "bands" in more:
            shares = more["bands"].nanmean(1)
            there = np.repeat(batch.samples, BANDS)
            centers = np.tile((np.arange(BANDS) + 0.5) / BANDS, len(batch.samples))
            spectra = {"sample": there, "layer": number, "protocol": "exact", "frequency": centers}
            rows.add("spectra", {**spectra, "power_share": shares.flatten().numpy()})
        for place, sample in enumerate(batch.samples):
            if sample in self.options.signals:
                n = batch.lengths[place]
                signals = [row[:n].double().tolist() for row in maps[place, :, n - 1].cpu()]
                own = {"sample": sample, "layer": number, "head": names, "protocol": "exact", "n_tokens": n}
                column = np.empty(len(signals), dtype=object)
                column[:] = signals
                rows.add("signals", {**own, "signal": column})

    def _compare(
        self, maps: Tensor, lengths: Tensor, number: int, names: list[int], batch: Beginning, rows: UnitRows
    ) -> None:
        """UnitRows of `scale_sensitivity`: the beginnings of the sentences beside the whole."""
        whole = self._whole.get((number, names == [-1]))
        if whole is None or rows.null:
            return
        _, more = head_columns(maps, lengths, self.options, ("scale_sensitivity",))
        rows.add(
            "scale_sensitivity",
            {
                **_keys(batch, number, names),
                "fraction": batch.fraction,
                "n_tokens": np.repeat(batch.lengths, len(names)),
                "energy": one_minus_cosine(whole["energy"], more["energy"]).flatten().numpy(),
                "coefficients": one_minus_cosine(whole["profile"], more["profile"]).flatten().numpy(),
            },
        )

    def baselines(self, n_tokens: int, causal: bool) -> list[dict[str, Any]]:
        """Every number of `heads` on uniform attention among the visible keys."""
        columns, _ = head_columns(uniform_attention(n_tokens, causal=causal), None, self.options, self._taken)
        kind = "uniform_causal" if causal else "uniform_full"
        return [
            closed_form(n_tokens, kind, "exact", name, values[0], math.nan)
            for name, values in columns.items()
        ]

    def reduced(self, tables: Mapping[str, pa.Table], kind: str) -> dict[str, Any]:
        """Columns of `nulls`: means over heads per sentence, and ρ within each sentence."""
        columns = per_sentence(tables, kind)
        if not columns or "spectral_entropy" not in tables["heads"].column_names:
            return columns
        frame = tables["heads"].to_pandas()
        rho = [
            (sample, name, value)
            for sample, part in frame[frame["head"] >= 0].groupby("sample")
            for name, value in summaries.correlated(part).items()
        ]
        more: dict[str, list[Any]] = {
            "sample": [one[0] for one in rho],
            "protocol": ["exact"] * len(rho),
            "scope": ["heads"] * len(rho),
            "metric": [one[1] for one in rho],
            "threshold": [math.nan] * len(rho),
            "value": [one[2] for one in rho],
        }
        return {"kind": kind, **{name: np.concatenate([columns[name], more[name]]) for name in more}}

    def finish(self, results: Results) -> dict[str, pa.Table]:
        """Uncertainty of sentences, phases of training, and the paper's values for the run's models."""
        return summaries.made_from(results)


def _keys(batch: Batch, number: int, names: list[int]) -> dict[str, Any]:
    return {
        "sample": np.repeat(batch.samples, len(names)),
        "layer": number,
        "head": names * len(batch.samples),
        "protocol": "exact",
    }


def _beginning(batch: Batch, lengths: list[int], fraction: float) -> Beginning:
    return Beginning(
        samples=batch.samples,
        lengths=lengths,
        token_ids=[ids[:n] for ids, n in zip(batch.token_ids, lengths, strict=True)],
        tokens=[names[:n] for names, n in zip(batch.tokens, lengths, strict=True)],
        groups=batch.groups,
        fraction=fraction,
    )


STUDY = WaveletStudy
