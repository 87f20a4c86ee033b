# SPDX-License-Identifier: MIT
"""Statistics of measured numbers: intervals, tests, corrections, reference frames, emergence.

The unit of replication is the sample (one text): heads and layers of a sample are averaged before anything
is tested. Every draw is seeded. SciPy does the statistics; this package decides what is drawn,
what is left out and what an undefined result is.
"""

from attnscope.statistics.comparisons import Comparison, benjamini_hochberg, holm, paired_test, welch_test
from attnscope.statistics.controls import ControlTest, control_test
from attnscope.statistics.correlations import Correlation, correlation
from attnscope.statistics.emergence import emergence_splits, emergence_step
from attnscope.statistics.exchange import Exchange, MaxT, exchange_labels, max_t
from attnscope.statistics.frames import Frames, classify_frames
from attnscope.statistics.groups import jackknife, sign_flips
from attnscope.statistics.intervals import Interval, MedianInterval, bootstrap, median_interval, per_sample
from attnscope.statistics.mean_intervals import mean_intervals
from attnscope.statistics.partial import partial_correlation, within_correlation
from attnscope.statistics.sink_heads import SinkFrames, frames_of_sinks, heads_with_sinks

__all__ = [
    "Comparison",
    "ControlTest",
    "Correlation",
    "Exchange",
    "Frames",
    "Interval",
    "MaxT",
    "MedianInterval",
    "SinkFrames",
    "benjamini_hochberg",
    "bootstrap",
    "classify_frames",
    "control_test",
    "correlation",
    "emergence_splits",
    "emergence_step",
    "exchange_labels",
    "frames_of_sinks",
    "heads_with_sinks",
    "holm",
    "jackknife",
    "max_t",
    "mean_intervals",
    "median_interval",
    "paired_test",
    "partial_correlation",
    "per_sample",
    "sign_flips",
    "welch_test",
    "within_correlation",
]


def __dir__() -> list[str]:
    return [*__all__]
