# SPDX-License-Identifier: MIT
"""Models and tokenizers from folders and from the hub, one checkpoint at a time.

transformers is imported when something is loaded, never before.
"""

from attnscope.errors import LoadError, WeightMapError
from attnscope.models.architecture import weight_map
from attnscope.models.checkpoints import Checkpoint, find_checkpoints, step_of
from attnscope.models.loading import LoadedModel, load_model, load_tokenizer
from attnscope.models.tokens import Encoded, Encoder
from attnscope.models.weight_entries import Rows, WeightEntry, WeightMap
from attnscope.models.weight_verification import verify_weight_map

__all__ = [
    "Checkpoint",
    "Encoded",
    "Encoder",
    "LoadError",
    "LoadedModel",
    "Rows",
    "WeightEntry",
    "WeightMap",
    "WeightMapError",
    "find_checkpoints",
    "load_model",
    "load_tokenizer",
    "step_of",
    "verify_weight_map",
    "weight_map",
]
