# SPDX-License-Identifier: MIT
"""The wavelet study's own settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from attnscope.engine.config import ConfigError
from attnscope.engine.mistakes import explain

NULLS = ("random_weights", "row_permutation")


def _nulls(value: object) -> object:
    return list(NULLS) if value in ("all", ["all"]) else [value] if isinstance(value, str) else value


class WaveletOptions(BaseModel):
    """What `options` of a study may hold.

    Args:
        signal: "rows" (each query's attention over the keys that it sees, numbers averaged over queries),
            "last" (the last query's), "mean" (over queries by key), "offset" (over pairs by distance).
        min_keys: shorter signals are passed over.
        drop_first: leave out key 0 and divide each row by the rest.
        detrend: "none" or "mean".
        padding: the spectrum's transform is at least so many times as long as the signal.
        window: of the local/global ratio: tokens, or below 1 a fraction of the length.
        prefixes: fractions of each text that are read again for the scale sensitivity.
        nulls: "random_weights" (a twin of the configuration), "row_permutation"; "all" is short for both.
        harmonics: what RoPE's rotations become behind the model's own activation.
        signals: numbers of the samples whose signals are stored whole, for scalograms.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    signal: Literal["rows", "last", "mean", "offset"] = "rows"
    min_keys: int = Field(default=32, ge=6)
    drop_first: bool = False
    detrend: Literal["none", "mean"] = "none"
    padding: float = Field(default=1.0, ge=1.0, le=64.0)
    window: float = Field(default=8.0, ge=0.0)
    prefixes: list[Annotated[float, Field(gt=0.0, lt=1.0)]] = [0.5, 0.25]
    nulls: Annotated[list[Literal["random_weights", "row_permutation"]], BeforeValidator(_nulls)] = []
    harmonics: bool = True
    signals: list[int] = [0]

    @classmethod
    def read(cls, options: Mapping[str, Any]) -> WaveletOptions:
        """The options of a study.

        Args:
            options: as they stand in its configuration.

        Raises:
            ConfigError: an unknown key (the nearest right name is given) or a wrong value.

        >>> WaveletOptions.read({"signal": "last"}).prefixes
        [0.5, 0.25]
        """
        try:
            return cls(**dict(options))
        except ValidationError as error:
            raise ConfigError(f"options: {explain(error, cls)}") from None

    def reading(self, *, detrend: bool = True) -> dict[str, Any]:
        """What the metrics of signals take.

        Args:
            detrend: whether the metric takes that option.
        """
        taken = {"signal": self.signal, "min_keys": self.min_keys, "drop_first": self.drop_first}
        return {**taken, "detrend": self.detrend} if detrend else taken
