# SPDX-License-Identifier: MIT
"""The study's figures; importing the modules declares them."""

from attnscope.studies.hallucination_geometry.figures import (  # noqa: F401
    along,
    clouds,
    detection,
    interventions,
)
from attnscope.studies.hallucination_geometry.figures.declared import FIGURES as FIGURES
