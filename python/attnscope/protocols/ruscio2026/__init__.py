# SPDX-License-Identifier: MIT
"""The computations of the notebooks of *The Phenomenology of Hallucinations* (arXiv 2603.13911).

Each docstring names the differences from the exact definition, which is in
`attnscope.metrics.clouds`, `asc.sensitivity`, `asc.readout` and the study of this paper. Use these to
check stored outputs, and the exact functions to learn about a model.
"""

from attnscope.protocols.ruscio2026.causality import (
    answer_of,
    bypass,
    compression,
    first_rows,
    loops,
    refused,
    steering,
)
from attnscope.protocols.ruscio2026.dimension import entropy, isotropy, lid
from attnscope.protocols.ruscio2026.gradients import grad_alignment, grad_blockage, uncertain_tokens
from attnscope.protocols.ruscio2026.readout import (
    BoundaryReadout,
    attn_entropy,
    attn_sink,
    boundary_readout,
    lens,
    neuron_score,
    vocab_alignment,
)
from attnscope.protocols.ruscio2026.sensitivity import fisher, hessian, jacobian
from attnscope.protocols.ruscio2026.topology import Topology, boundary, topology

__all__ = [
    "BoundaryReadout",
    "Topology",
    "answer_of",
    "attn_entropy",
    "attn_sink",
    "boundary",
    "boundary_readout",
    "bypass",
    "compression",
    "entropy",
    "first_rows",
    "fisher",
    "grad_alignment",
    "grad_blockage",
    "hessian",
    "isotropy",
    "jacobian",
    "lens",
    "lid",
    "loops",
    "neuron_score",
    "refused",
    "steering",
    "topology",
    "uncertain_tokens",
    "vocab_alignment",
]
