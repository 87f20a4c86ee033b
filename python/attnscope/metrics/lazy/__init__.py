# SPDX-License-Identifier: MIT
"""Attention given by its queries and keys, measured without its map."""

import inspect

from attnscope.metrics.lazy import (
    core_functions,
    effective_rank,
    graph_functions,
    layer_functions,
    null_distance,
    position_functions,
    spectral_functions,
)
from attnscope.metrics.lazy.passes import FUNCTIONS

_MODULES = (
    core_functions,
    effective_rank,
    graph_functions,
    layer_functions,
    null_distance,
    position_functions,
    spectral_functions,
)
# each of these modules holds functions under the names of the core's
for _module in _MODULES:
    for _name, _function in inspect.getmembers(_module, inspect.isfunction):
        if _function.__module__ == _module.__name__ and not _name.startswith("_"):
            FUNCTIONS[_name] = _function
