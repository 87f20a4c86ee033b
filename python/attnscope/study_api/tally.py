# SPDX-License-Identifier: MIT
"""Counts and times of a unit, stored with it, and their sums over a run.

Example:
    >>> from attnscope.study_api.tally import Tally
    >>> tally = Tally(units=1)
    >>> tally.add({"units": 2, "unit_seconds": 0.5, "undefined": {"fiedler_value": 3}})
    >>> tally.units, tally.unit_seconds, tally.undefined["fiedler_value"]
    (3, 0.5, 3)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from attnscope._precision import count_fallbacks
from attnscope._warn import collect_warnings
from attnscope.devices.call_counts import count_calls
from attnscope.errors import NonFiniteWarning, NotAttentionWarning

#: Names of what is counted by name.
COUNTED = ("non_finite", "undefined", "device_calls", "fallbacks")


@dataclass
class Tally:
    """The counts of a unit, or of all units of a run, that its provenance and its report contain.

    Attributes:
        device_calls: calls of measures that did not run in the core, by "device: measure".
        fallbacks: maps that "fast" measured exactly, by metric.
    """

    units: int = 0
    forward_seconds: float = 0.0
    metric_seconds: float = 0.0
    unit_seconds: float = 0.0
    non_finite: Counter[str] = field(default_factory=Counter)
    undefined: Counter[str] = field(default_factory=Counter)
    device_calls: Counter[str] = field(default_factory=Counter)
    fallbacks: Counter[str] = field(default_factory=Counter)
    models: dict[str, dict[str, Any]] = field(default_factory=dict)

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count warnings on maps without a value, and measures that ran elsewhere or otherwise than asked.

        A number per run, not a line per layer.
        """
        with (
            collect_warnings() as collected,
            count_calls(self.device_calls),
            count_fallbacks(self.fallbacks),
        ):
            yield
        for warning in collected:
            # captured rows are a softmax; with a learned sink they sum to less
            if not isinstance(warning, NotAttentionWarning):
                tally = self.non_finite if isinstance(warning, NonFiniteWarning) else self.undefined
                tally[warning.function] += warning.count

    def as_plain(self) -> dict[str, Any]:
        """Return every count and time as plain data."""
        return {name: dict(value) if isinstance(value, dict) else value for name, value in vars(self).items()}

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        """The counts by name, as plain data; unlike the times they say nothing of the machine."""
        return {name: dict(sorted(getattr(self, name).items())) for name in COUNTED if getattr(self, name)}

    def add_counts(self, counts: Mapping[str, Mapping[str, int]]) -> None:
        """Add the `counts` of another tally."""
        for name in COUNTED:
            getattr(self, name).update(counts.get(name, {}))

    def add(self, other: Mapping[str, Any]) -> None:
        """Add the counts of other units, as plain data, and what they say of models beside what is known."""
        for name, value in other.items():
            if name == "models":
                for title, facts in value.items():
                    self.models[title] = {**self.models.get(title, {}), **facts}
            elif isinstance(value, Mapping):
                getattr(self, name).update(value)
            else:
                setattr(self, name, getattr(self, name) + value)
