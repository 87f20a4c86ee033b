# SPDX-License-Identifier: MIT
"""A measured model against random-weight controls: how much one initialisation differs from another.

An interval over texts of one control shrinks with the number of texts and says nothing of other
initialisations. So the initialisation is the unit: with several controls, each on its own texts, the variance
of their means holds both that between initialisations and what their texts leave.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from attnscope._checks import fraction_argument
from attnscope.inference._arguments import vector
from attnscope.inference.comparisons import by_student

#: Fewer controls say too little of initialisations.
FEWEST = 8


class ControlTest(NamedTuple):
    """A model's mean less that of controls: interval, t and two-sided p of initialisations.

    `between` is the standard deviation between initialisations, without what the texts add; `controls` their
    number, `texts` those of the model.
    """

    difference: float
    low: float
    high: float
    statistic: float
    freedom: float
    p_value: float
    between: float
    controls: int
    texts: int


def control_test(measured: Any, controls: Sequence[Any], *, confidence: float = 0.95) -> ControlTest:
    """Whether a model differs from random initialisations of itself, with the initialisation as unit.

    The difference of means has the variance s²/K of the K controls' means, which differ by initialisation and
    by their texts, plus that of the model's mean over its texts; its degrees of freedom are those of Welch
    and Satterthwaite. With more texts the interval does not shrink below what K initialisations say.

    Args:
        measured: the model, one number a text; NaN is left out.
        controls: of each control one number a text, of the same texts, a share of them, or others.
        confidence: of the interval.

    Returns:
        ControlTest; all but the difference are NaN for fewer than 8 controls or two texts, and where nothing
        varies.

    Raises:
        ValueError: values of more than one dimension, confidence outside (0, 1).

    Example:
        >>> from attnscope import inference
        >>> controls = [[0.1 * k, 0.1 * k + 0.2] for k in range(8)]
        >>> found = inference.control_test([1.0, 1.2, 1.1], controls)
        >>> round(found.difference, 6), found.controls
        (0.65, 8)

    References:
        Satterthwaite, An approximate distribution of estimates of variance components, 1946.
    """
    name = "control_test"
    confidence = fraction_argument(name, "confidence", confidence)
    own = vector(name, "measured", measured)
    own = own[~np.isnan(own)]
    each = [vector(name, "controls", values) for values in controls]
    each = [values[~np.isnan(values)] for values in each]
    each = [values for values in each if len(values)]
    means = np.array([values.mean() for values in each])
    difference = float(own.mean() - means.mean()) if len(own) and len(means) else math.nan
    count, texts = len(means), len(own)
    nothing = ControlTest(difference, *(math.nan,) * 6, count, texts)
    if count < FEWEST or texts < 2:
        return nothing
    of_controls, of_texts = means.var(ddof=1) / count, own.var(ddof=1) / texts
    variance = of_controls + of_texts
    if not variance > 0:
        return nothing
    freedom = variance**2 / (of_controls**2 / (count - 1) + of_texts**2 / (texts - 1))
    tested = by_student(difference, math.sqrt(variance), freedom, count, confidence)
    # What the texts of each control add to the spread of their means.
    within = [values.var(ddof=1) / len(values) for values in each if len(values) > 1]
    between = means.var(ddof=1) - (float(np.mean(within)) if within else 0.0)
    return ControlTest(*tested[:-1], math.sqrt(max(0.0, between)), count, texts)
