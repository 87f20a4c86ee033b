# SPDX-License-Identifier: MIT
"""The quantities that queries and keys give at any length, without a map."""

from __future__ import annotations

from attnscope.metrics.quantity import Quantity

#: Metrics of the exact protocol that a pass over queries and keys measures: of rows and columns of a map,
#: and how far heads are from their mean, which takes a second pass.
ROW_AND_COLUMN_METRICS = frozenset(
    {
        "attention_entropy",
        "head_divergence",
        "incoming_attention",
        "local_global_ratio",
        "sink_excess",
        "sink_position",
        "sink_rate",
        "sink_share",
        "sink_test",
        "sink_tokens",
        "top_mass",
    }
)
#: Metrics that lazy attention estimates by functions of their own, where maps have them from a result that it
#: does not give: all singular values, or all distances from a law.
ESTIMATED_BY_NAME = frozenset({"effective_rank", "marchenko_pastur_deviation"})
#: Sites of maps that a pass over queries and keys stands for.
_SITES = frozenset({"attention", "head_mean"})
#: Options by which a caller says what queries see; lazy attention knows that itself.
_OF_VISIBILITY = frozenset({"support", "sink_mass"})


def needs_no_map(quantity: Quantity) -> bool:
    """Return True for an exact quantity of rows and columns, under the visibility of its layer.

    >>> from attnscope.metrics.discovery import quantity
    >>> needs_no_map(quantity("entropy")), needs_no_map(quantity("fiedler_value"))
    (True, False)
    """
    return (
        quantity.protocol == "exact"
        and set(quantity.needs) <= _SITES
        and quantity.metric in ROW_AND_COLUMN_METRICS
        and not _OF_VISIBILITY & set(quantity.options)
        # a percentile of all entries takes several passes over them
        and quantity.options.get("rule") != "frequency"
    )
