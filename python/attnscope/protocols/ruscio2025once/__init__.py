# SPDX-License-Identifier: MIT
"""The computations of the notebook of *Once upon a token* (Ruscio, 2025, ValeRuscio/Once_upon_a_token).

The notebook of the precursor of arXiv 2606.06160 measures how much of attention scores depends on absolute
position. Each docstring names the differences from the exact definition, which is in
`attnscope.metrics.positions` and `attnscope.statistics.leakage`. Use these to check the stored outputs, and
the exact functions to learn about a model. The ablation of feed-forward layers is not here: both of its fits
span one space, so the difference that it prints is rounding.
"""

from attnscope.protocols.ruscio2025once.bands import band_ablation, band_shares
from attnscope.protocols.ruscio2025once.leakage import Leakage, first_characters, leakage
from attnscope.protocols.ruscio2025once.position_probe import PositionProbe, position_probe
from attnscope.protocols.ruscio2025once.significance import (
    LeakageSignificance,
    leakage_significance,
    rank_adjusted,
)
from attnscope.protocols.ruscio2025once.softmax_statistics import SoftmaxStatistics, softmax_statistics

#: The notebook reads one text at a time.
INPUT_FORM = "whole"

__all__ = [
    "Leakage",
    "LeakageSignificance",
    "PositionProbe",
    "SoftmaxStatistics",
    "band_ablation",
    "band_shares",
    "first_characters",
    "leakage",
    "leakage_significance",
    "position_probe",
    "rank_adjusted",
    "softmax_statistics",
]
