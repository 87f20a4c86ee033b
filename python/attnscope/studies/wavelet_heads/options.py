# SPDX-License-Identifier: MIT
"""The study's own settings."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator

from attnscope._nearest import nearest
from attnscope.engine.study import Names, Options

NULLS = ("random_weights", "row_permutation")
#: Functions that the study can be restricted to.
METRICS = (
    "power_spectrum",
    "wavelet_transform",
    "spectral_uncertainty",
    "local_global_ratio",
    "scale_sensitivity",
)


def _nulls(value: object) -> object:
    return list(NULLS) if value in ("all", ["all"]) else [value] if isinstance(value, str) else value


class WaveletOptions(Options):
    """What `options` of a run of this study may hold.

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
        harmonics: what RoPE's rotations become behind the model's own activation.
        signals: numbers of the samples whose signals are stored whole, for scalograms.
    """

    metrics: Names = Field(default=[])
    signal: Literal["rows", "last", "mean", "offset"] = "rows"
    min_keys: int = Field(default=32, ge=6)
    drop_first: bool = False
    detrend: Literal["none", "mean"] = "none"
    padding: float = Field(default=1.0, ge=1.0, le=64.0)
    window: float = Field(default=8.0, ge=0.0)
    prefixes: list[Annotated[float, Field(gt=0.0, lt=1.0)]] = Field(default=[0.5, 0.25])
    nulls: Annotated[list[Literal["random_weights", "row_permutation"]], BeforeValidator(_nulls)] = Field(
        default=[]
    )
    harmonics: bool = True
    signals: list[int] = Field(default=[0])

    @field_validator("metrics")
    @classmethod
    def _known(cls, names: list[str]) -> list[str]:
        for name in names:
            if name not in METRICS:
                raise ValueError(f"wavelet_heads has no metric {name!r}{nearest(name, METRICS)}")
        return names

    def takes(self, metric: str) -> bool:
        """Whether a metric is asked for."""
        return not self.metrics or metric in self.metrics

    def of(self, metric: str) -> dict[str, Any]:
        """Options of the calls of a metric of signals."""
        signal: dict[str, Any] = self.model_dump(include={"signal", "min_keys", "drop_first"})
        options: dict[str, dict[str, Any]] = {
            "power_spectrum": {**signal, "detrend": self.detrend, "padding": self.padding, "bands": BANDS},
            "wavelet_transform": {**signal, "detrend": self.detrend, "resample": RESAMPLED},
            "spectral_uncertainty": signal,
            "local_global_ratio": {"window": self.window, "drop_first": self.drop_first},
        }
        return options[metric]


#: Bands of the table `spectra`.
BANDS = 32
#: Points that each scale's coefficients are resampled to.
RESAMPLED = 32
