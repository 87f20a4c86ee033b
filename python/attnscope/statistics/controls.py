# SPDX-License-Identifier: MIT
"""A measured model against random-weight controls: the difference between initialisations.

An interval over texts of one control shrinks with the number of texts and does not include other
initialisations. So the initialisation is the unit: with several controls, each on its own texts, the variance
of their means holds both that between initialisations and what their texts leave. The measured model is one
draw of weights too: more controls give their mean more exactly, not the distance of a single model from it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from attnscope.arguments.scalars import fraction_argument
from attnscope.statistics._arguments import vector
from attnscope.statistics.comparisons import by_student
from attnscope.statistics.rounding import ROUNDED, is_one_number, resolution_argument, without_rounding

#: Fewer controls give too little information about initialisations.
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


def control_test(
    measured: Any, controls: Sequence[Any], *, confidence: float = 0.95, resolution: float = ROUNDED
) -> ControlTest:
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
        resolution: numbers that differ by less of themselves are equal, as in `paired_test`.

    Returns:
        ControlTest; all but the difference are NaN for fewer than 8 controls or two texts, and where nothing
        varies.

    Raises:
        ValueError: values of more than one dimension, confidence outside (0, 1), resolution outside [0, 1).
        TypeError: controls that are no list, or hold no numbers.

    Example:
        >>> from attnscope import statistics
        >>> controls = [[0.1 * k, 0.1 * k + 0.2] for k in range(8)]
        >>> result = statistics.control_test([1.0, 1.2, 1.1], controls)
        >>> round(result.difference, 6), result.controls
        (0.65, 8)

    References:
        Crawford and Howell, Comparing an individual's test score against norms derived from small samples,
        1998.
    """
    name = "control_test"
    confidence = fraction_argument(name, "confidence", confidence)
    resolution = resolution_argument(name, resolution)
    model_values = vector(name, "measured", measured)
    model_values = without_rounding(model_values[~np.isnan(model_values)], resolution)
    if not isinstance(controls, Iterable):
        raise TypeError(f"{name}: controls must be a list of the numbers of each, got {controls!r:.60}")
    control_values = [vector(name, "controls", values) for values in controls]
    control_values = [without_rounding(values[~np.isnan(values)], resolution) for values in control_values]
    control_values = [values for values in control_values if len(values)]
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite has no test
        means = without_rounding(np.array([values.mean() for values in control_values]), resolution)
        has_both = len(model_values) and len(means)
        difference = float(model_values.mean() - means.mean()) if has_both else math.nan
    count, texts = len(means), len(model_values)
    undefined = ControlTest(difference, *(math.nan,) * 6, count, texts)
    if count < FEWEST or texts < 2 or not math.isfinite(difference):
        return undefined
    # without a scale the squares of small numbers would vanish, and those of large ones overflow
    scale = max(float(np.abs(values - means[0]).max()) for values in (model_values, means, *control_values))
    if not 0 < scale < math.inf:
        return undefined
    model_values, means = (model_values - means[0]) / scale, (means - means[0]) / scale
    control_values = [values / scale for values in control_values]
    # The texts' part of the spread of the controls' means, and of the model's: few texts of the model
    # tell little.
    several = [values for values in control_values if len(values) > 1]
    of_controls = float(np.mean([values.var(ddof=1) / len(values) for values in several])) if several else 0.0
    of_one_text = float(np.mean([values.var(ddof=1) for values in several])) if several else 0.0
    of_texts = max(float(model_values.var(ddof=1)), of_one_text) / texts
    spread = float(means.var(ddof=1))
    # what two sums of the same numbers differ by in rounding is no variance
    of_texts = of_controls if is_one_number(of_texts, of_controls, resolution) else of_texts
    variance = spread * (1 + 1 / count) + max(0.0, of_texts - of_controls)
    if not variance > 0:
        return undefined
    tested = by_student(difference, math.sqrt(variance) * scale, count - 1, count, confidence)
    return ControlTest(*tested[:-1], math.sqrt(max(0.0, spread - of_controls)) * scale, count, texts)
