# SPDX-License-Identifier: MIT
"""The study's quantities and its tables.

Quantities of signals have an axis of queries where each row is a signal; the tables hold their means over it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from attnscope.engine.schema import CHECKPOINT_KEYS, HEAD_KEYS
from attnscope.engine.tables import Column, Table
from attnscope.metrics.information import sink_sets
from attnscope.metrics.quantity import Quantity, field_of
from attnscope.metrics.signals import locality, power_spectrum, uncertainty, wavelet
from attnscope.studies.supports import SUPPORT
from attnscope.studies.wavelet_heads.harmonics import ORDERS
from attnscope.studies.wavelet_heads.options import METRICS, WaveletOptions

#: Quantities of `heads` by their metric.
HEADS: Mapping[str, tuple[Quantity, ...]] = {
    "power_spectrum": power_spectrum.QUANTITIES[:-1],
    "wavelet_transform": wavelet.QUANTITIES[:-2],
    "spectral_uncertainty": uncertainty.QUANTITIES,
    "local_global_ratio": locality.QUANTITIES,
}
#: Share of the power in each band, [batch, maps, band].
POWER_SHARE = power_spectrum.QUANTITIES[-1]
#: What a learned sink takes of each row: signals are of real keys, and no key stands for it.
LEARNED = next(one for one in sink_sets.QUANTITIES if one.name == "learned_sink_mass")
#: The coefficients of each scale at as many places, [batch, maps, scale, place].
PROFILE = replace(
    wavelet.ENERGY,
    name="wavelet_profile",
    label="coefficients, scale {scale}",
    meaning="Mean size of the coefficients of scale {scale} at a place.",
    read=field_of("profile"),
    axes=("scale", "place"),
    axis_when={},
)


def of_heads(options: WaveletOptions, metrics: Sequence[str] = METRICS) -> tuple[Quantity, ...]:
    """The quantities of `heads` under the options of a run, each a number per map."""
    # the shortest signals have so many scales of details, and those of all signals are compared
    levels = math.floor(math.log2(options.min_keys / 3))
    scales = over_queries(wavelet.ENERGY, options), over_queries(wavelet.POSITION_ENTROPY, options)
    found = []
    for metric, quantities in HEADS.items():
        for one in quantities if metric in metrics else ():
            stem, _, scale = one.name.rpartition("_")
            spread = [whole for whole in scales if whole.name == stem]
            if spread and int(scale) > levels:
                continue
            # the mean over queries of all scales at once, then the scale
            made = spread[0].at(scale=int(scale)) if spread else over_queries(one, options)
            found.append(replace(made, label=one.label, meaning=one.meaning))
    return tuple(found)


def over_queries(one: Quantity, options: WaveletOptions) -> Quantity:
    """The mean over queries of a quantity under the options of a run."""
    return one.with_options(**options.of(one.metric)).mean_over("query")


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
        Column(f"{what}_{shift}", label=words, meaning=f"Of two rotations {how}.")
        for what, words in (("norm", "activation norm"), ("entropy", "attention entropy (nats)"))
        for shift, how in (("aligned", "in phase"), ("shifted", "half a turn apart"))
    ),
)
_RHO = (
    Column(
        "rho",
        label="uncertainty",
        symbol=r"$\rho$",
        meaning="Correlation of position and spectral entropy across a text's heads.",
        low=-1.0,
        high=1.0,
    ),
    Column(
        "rho_fourier",
        label="uncertainty (Fourier)",
        meaning="Correlation of position and Fourier entropy across a text's heads.",
        low=-1.0,
        high=1.0,
    ),
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
    Table(
        "baselines",
        ("n_tokens", "metric", "kind", "support", "threshold", "protocol", "scope", *CHECKPOINT_KEYS),
        (Column("value"), Column("std", label="standard deviation"), Column("count", kind="count")),
        version=2,
    ),
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
