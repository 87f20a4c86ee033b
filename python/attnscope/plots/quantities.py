# SPDX-License-Identifier: MIT
"""What the columns of the tables are called on an axis and in a sentence."""

from __future__ import annotations

from attnscope.metrics.quantity import Quantity, unmeasured
from attnscope.metrics.quantity import quantity as declared

#: Columns that are made of measured ones.
QUANTITIES: dict[str, Quantity] = {
    one.name: one
    for one in (
        unmeasured(
            "mp_over_edge",
            "largest / edge",
            "Largest eigenvalue over the upper edge of the random law.",
            low=0,
        ),
    )
}


def quantity(name: str) -> Quantity:
    r"""What is known about a column; an unknown one is called by its own name.

    >>> quantity("fiedler_value").axis, quantity("my_metric").axis
    ('Fiedler value $\\lambda_2$', 'my metric')
    """
    return QUANTITIES.get(name) or declared(name)
