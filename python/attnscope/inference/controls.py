# SPDX-License-Identifier: MIT
"""A measured model against random-weight controls: how much one initialisation differs from another.

An interval over texts of one control shrinks with the number of texts and says nothing of other
initialisations. So the initialisation is the unit: with several controls, each on its own texts, the variance
of their means holds both that between initialisations and what their texts leave. The measured model is one
draw of weights too: more controls tell their mean better, and not how far a single model lies from it.
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
    """Test whether a model differs from random initialisations of itself, with the initialisation as unit.

    A model that is one more initialisation differs from the mean of K of them by the variance s²(1 + 1/K), s²
    that of the controls' means. To this comes what the model's mean over its texts varies more than those of
    the controls, by the larger of its own variance over texts and theirs. t has K − 1 degrees of freedom.
    Neither more texts nor more controls shrink the interval below what initialisations differ by: it is that
    of the difference to a single other one.

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
        Crawford and Howell, Comparing an individual's test score against norms derived from small samples,
        1998.
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
    # What texts add to the spread of the controls' means, and to the model's: few texts of its own say
    # little.
    several = [values for values in each if len(values) > 1]
    of_controls = float(np.mean([values.var(ddof=1) / len(values) for values in several])) if several else 0.0
    of_one_text = float(np.mean([values.var(ddof=1) for values in several])) if several else 0.0
    of_texts = max(float(own.var(ddof=1)), of_one_text) / texts
    spread = float(means.var(ddof=1))
    variance = spread * (1 + 1 / count) + max(0.0, of_texts - of_controls)
    if not variance > 0:
        return nothing
    tested = by_student(difference, math.sqrt(variance), count - 1, count, confidence)
    return ControlTest(*tested[:-1], math.sqrt(max(0.0, spread - of_controls)), count, texts)
