# SPDX-License-Identifier: MIT
"""The computations of the notebooks of *The Phenomenology of Hallucinations* (arXiv 2603.13911).

Each docstring names what differs from the exact definition, which stands in `attnscope.metrics.clouds`. Use
these to check stored outputs, and the exact functions to learn about a model.
"""

from attnscope.protocols.ruscio2026.dimension import entropy, isotropy, lid
from attnscope.protocols.ruscio2026.topology import Topology, boundary, topology

__all__ = ["Topology", "boundary", "entropy", "isotropy", "lid", "topology"]
