# SPDX-License-Identifier: MIT
"""What measured numbers allow one to say: intervals, tests, corrections, reference frames, emergence.

The unit of replication is the sample (one text): heads and layers of a sample are averaged before anything
is tested. Every draw is seeded. SciPy and statsmodels do the statistics; this package decides what is drawn,
what is left out and what an undefined result is.
"""

from attnscope.inference.comparisons import (
    Comparison,
    benjamini_hochberg,
    holm,
    paired_test,
    welch_test,
)
from attnscope.inference.emergence import emergence_step
from attnscope.inference.frames import Frames, classify_frames
from attnscope.inference.groups import jackknife, sign_flips
from attnscope.inference.intervals import Correlation, Interval, bootstrap, correlation, per_sample

__all__ = [
    "Comparison",
    "Correlation",
    "Frames",
    "Interval",
    "benjamini_hochberg",
    "bootstrap",
    "classify_frames",
    "correlation",
    "emergence_step",
    "holm",
    "jackknife",
    "paired_test",
    "per_sample",
    "sign_flips",
    "welch_test",
]
