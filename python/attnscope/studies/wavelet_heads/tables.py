# SPDX-License-Identifier: MIT
"""The study's settings, its quantities and its tables.

Quantities of signals have an axis of queries where each row is a signal; the tables hold their means over it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field

from attnscope.metrics.information import sink_sets
from attnscope.metrics.quantity import Quantity, attribute_reader
from attnscope.metrics.signals import locality, power_spectrum, uncertainty, wavelet
from attnscope.results.schema import CHECKPOINT_KEYS, HEAD_KEYS
from attnscope.studies.nulls import BASELINES
from attnscope.studies.supports import SUPPORT
from attnscope.studies.wavelet_heads.harmonics import ORDERS
from attnscope.study_api.study import Options, one_of
from attnscope.study_api.tables import Column, Table

#: Bands of the table `spectra`.
BANDS = 32
#: Quantities of `heads` by their metric.
HEADS: Mapping[str, tuple[Quantity, ...]] = {
    "power_spectrum": power_spectrum.QUANTITIES[:-1],
    "wavelet_transform": wavelet.QUANTITIES[:-2],
    "spectral_uncertainty": uncertainty.QUANTITIES,
    "local_global_ratio": locality.QUANTITIES,
}
#: Functions that the study can be restricted to.
METRICS = (*HEADS, "scale_sensitivity")


class WaveletOptions(Options):
    """The options of a run of this study.

    Args:
        metrics: names of metrics; empty takes all.
        signal: "rows" (each query's attention over the keys that it sees, numbers averaged over queries),
            "last" (the last query's), "mean" (over queries by key), "offset" (over pairs by distance).
        min_keys: shorter signals are passed over.
        drop_first: leave out key 0 and divide each row by the rest.
        detrend: "none" or "mean".
        padding: the spectrum's transform is at least so many times as long as the signal.
        window: of the local/global ratio: tokens, or below 1 a fraction of the length.
        prefixes: fractions of each text that are read again for the scale sensitivity.
        nulls: "random_weights" (a model of the same configuration), "row_permutation"; "all" is short for
            both.
        harmonics: measure RoPE's rotations behind the model's activation.
        signals: numbers of the samples whose signals are stored whole, for scalograms.
    """

    metrics: Annotated[list[str], one_of(METRICS)] = Field(default=[])
    signal: Literal["rows", "last", "mean", "offset"] = "rows"
    min_keys: int = Field(default=32, ge=6)
    drop_first: bool = False
    detrend: Literal["none", "mean"] = "none"
    padding: float = Field(default=1.0, ge=1.0, le=64.0)
    window: float = Field(default=8.0, ge=0.0)
    prefixes: list[Annotated[float, Field(gt=0.0, lt=1.0)]] = Field(default=[0.5, 0.25])
    nulls: Annotated[list[str], one_of(("random_weights", "row_permutation"))] = Field(default=[])
    harmonics: bool = True
    signals: list[int] = Field(default=[0])

    def takes(self, metric: str) -> bool:
        """Return True if a metric is asked for."""
        return not self.metrics or metric in self.metrics

    def of(self, metric: str) -> dict[str, Any]:
        """Return options of the calls of a metric of signals."""
        signal: dict[str, Any] = self.model_dump(include={"signal", "min_keys", "drop_first"})
        options: dict[str, dict[str, Any]] = {
            "power_spectrum": {**signal, "detrend": self.detrend, "padding": self.padding, "bands": BANDS},
            "wavelet_transform": {**signal, "detrend": self.detrend, "resample": 32},
            "spectral_uncertainty": signal,
            "local_global_ratio": {"window": self.window, "drop_first": self.drop_first},
        }
        return options[metric]


#: Share of the power in each band, [batch, maps, band].
POWER_SHARE = power_spectrum.QUANTITIES[-1]
#: The share of a learned sink in each row: signals are of real keys, and no key represents it.
LEARNED = next(quantity for quantity in sink_sets.QUANTITIES if quantity.name == "learned_sink_mass")
#: The coefficients of each scale at as many places, [batch, maps, scale, place].
PROFILE = replace(
    wavelet.ENERGY,
    name="wavelet_profile",
    label="coefficients, scale {scale}",
    meaning="Mean size of the coefficients of scale {scale} at a place.",
    read=attribute_reader("profile"),
    axes=("scale", "place"),
    axis_when={},
)


def of_heads(options: WaveletOptions) -> list[Quantity]:
    """Return the quantities of `heads` under the options of a run, each a number per map."""
    # the shortest signals have so many scales of details, and those of all signals are compared
    levels = math.floor(math.log2(options.min_keys / 3))
    scales = over_queries(wavelet.ENERGY, options), over_queries(wavelet.POSITION_ENTROPY, options)
    selected = []
    for metric, quantities in HEADS.items():
        for quantity in quantities if options.takes(metric) else ():
            stem, _, scale = quantity.name.rpartition("_")
            spread = [scale_quantity for scale_quantity in scales if scale_quantity.name == stem]
            if spread and int(scale) > levels:
                continue
            # the mean over queries of all scales at once, then the scale
            averaged = spread[0].at(scale=int(scale)) if spread else over_queries(quantity, options)
            selected.append(replace(averaged, label=quantity.label, meaning=quantity.meaning))
    return selected


def over_queries(quantity: Quantity, options: WaveletOptions) -> Quantity:
    """Return the mean over queries of a quantity under the options of a run."""
    return quantity.with_options(**options.of(quantity.metric)).mean_over("query")


_TOKENS = Column("n_tokens", kind="count", label="tokens", meaning="Tokens of the text.")
_SAMPLES = Column("samples", kind="count", label="texts", meaning="Texts that have a value.")
_SAMPLE = (*CHECKPOINT_KEYS, "sample")
_INTERVAL = (
    Column("low", meaning="Lower end of the 95 % bootstrap interval over texts."),
    Column("high", meaning="Upper end of it."),
)
_OF_HEADS = (
    Table("heads", HEAD_KEYS, (_TOKENS, SUPPORT, *of_heads(WaveletOptions()), LEARNED)),
    Table(
        "scale_sensitivity",
        (*HEAD_KEYS, "fraction"),
        (
            _TOKENS,
            Column("energy", label="energies of the scales", meaning="1 − cosine of the energies."),
            Column("coefficients", label="resampled coefficients", meaning="1 − cosine of the coefficients."),
        ),
    ),
)
_HARMONICS = (
    Column("activation", "string", "text", "activation", "Function behind which the harmonics are measured."),
    Column("theta", label="frequency", symbol="θ", meaning="Radians per position.", low=0.0),
    Column("amplitude", meaning="Length of the rotating pair of the query, mean over heads.", low=0.0),
    Column("distortion_before", label="before", meaning="Power at all harmonics over power at θ."),
    *(
        Column(f"distortion_{order}", label=f"{order}θ", meaning=f"Power at {order}θ over power at θ.")
        for order in range(2, ORDERS + 1)
    ),
    *(
        Column(f"{measure}_{shift}", label=words, meaning=f"Of two rotations {how}.")
        for measure, words in (("norm", "activation norm"), ("entropy", "attention entropy (nats)"))
        for shift, how in (("aligned", "in phase"), ("shifted", "half a turn apart"))
    ),
)
_RHO = tuple(
    Column(name, "", "value", label, f"{pair} entropy across a text's heads.", symbol, low=-1.0, high=1.0)
    for name, label, symbol, pair in (
        ("rho", "uncertainty", r"$\rho$", "Correlation of position and spectral"),
        ("rho_fourier", "uncertainty (Fourier)", "", "Correlation of position and Fourier"),
    )
)
#: Tables that the texts fill, those of controls among them.
MEASURED = (
    *("heads", "head_means", "scale_sensitivity", "head_mean_scale_sensitivity"),
    *("spectra", "signals", "uncertainty", "heads_variants", "uncertainty_variants"),
)

TABLES = (
    *_OF_HEADS,
    *(table.head_means() for table in _OF_HEADS),
    Table("spectra", (*_SAMPLE, "layer", "protocol", "frequency"), (POWER_SHARE,)),
    Table(
        "signals",
        HEAD_KEYS,
        (_TOKENS, Column("signal", "list<float64>", label="attention", meaning="Of the last query by key.")),
    ),
    Table("harmonics", (*CHECKPOINT_KEYS, "layer", "input", "pair", "protocol"), _HARMONICS),
    Table("uncertainty", (*_SAMPLE, "protocol"), (Column("heads", kind="count", label="heads"), *_RHO)),
    BASELINES,
    Table("phases", (*CHECKPOINT_KEYS, "metric"), (Column("mean"), *_INTERVAL, _SAMPLES)),
    Table(
        "published",
        ("model", "step", "metric", "published"),
        (
            *(Column("published_low"), Column("published_high"), Column("here", label="mean of this run")),
            *(*_INTERVAL, _SAMPLES),
        ),
    ),
)
