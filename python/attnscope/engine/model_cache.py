# SPDX-License-Identifier: MIT
"""The one model that a process holds in memory."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attnscope._memory import peak_bytes
from attnscope.models import Checkpoint, Encoder, LoadedModel, load_model
from attnscope.models.loading import free_disk, random_weights_model
from attnscope.study_api.batches import LAYER_BYTES
from attnscope.study_api.plan import Plan, megabytes

if TYPE_CHECKING:
    from attnscope.config.run_config import ModelSource

#: Memory of a process that has imported torch and transformers and holds no model (measured: 460 MB).
BARE = 512 * 1024**2


class HeldModel:
    """Loads a model when it is asked for, and lets the one before go."""

    def __init__(self) -> None:
        self._held: tuple[Any, LoadedModel] | None = None

    def get(self, checkpoint: Checkpoint, source: ModelSource, seed: int, control: int | None) -> LoadedModel:
        """Return a checkpoint, or its random-weight control whose seed has that position among the run's."""
        key = (checkpoint, control)
        if self._held is None or self._held[0] != key:
            self.release()
            options: dict[str, Any] = {"device": source.device, "trust_remote_code": source.trust_remote_code}
            options["dtype"] = source.dtype
            if control is None:
                self._held = key, load_model(checkpoint, **options)
            else:
                seeds = np.random.SeedSequence([seed, control])
                drawn = int(seeds.generate_state(1)[0]) if control else seed
                self._held = key, random_weights_model(checkpoint, seed=drawn, **options)
        return self._held[1]

    def release(self, *, remove: bool = False) -> str:
        """Release the model, with `remove` its files in the hub's cache too; return how much that frees."""
        if self._held is None:
            return ""
        loaded, self._held = self._held[1], None
        message = f"{loaded.checkpoint.title}: {megabytes(free_disk(loaded))} of disk freed" if remove else ""
        del loaded
        gc.collect()
        return message


def needed_bytes(plan: Plan) -> int:
    """Return the memory of a process that holds the largest checkpoint of a plan and measures its longest
    text.

    The weights of a hub id are not known before they are fetched, and count as nothing.
    """
    folders = (Path(checkpoint.path) for checkpoint in plan.checkpoints if checkpoint.local)
    files = (folder.glob("*.safetensors") for folder in folders)
    weights = max((sum(file.stat().st_size for file in shards) for shards in files), default=0)
    heads = max(plan.heads.values(), default=1)
    longest = max((text.n_tokens for unit in plan.units for text in unit.inputs), default=0)
    return BARE + weights + int(plan.settings.max_memory or peak_bytes(LAYER_BYTES, heads, longest))


def about_model(loaded: LoadedModel, encoder: Encoder | None) -> dict[str, Any]:
    """Return the provenance's entry of a model."""
    return {
        "path": loaded.checkpoint.path,
        "revision": loaded.checkpoint.revision,
        "commit": loaded.commit,
        "architecture": loaded.architecture,
        "tokenizer": encoder.tokenizer_name if encoder else None,
        "parameters": loaded.parameters,
        "dtype": loaded.dtype,
        "device": loaded.device,
        "attention": str(getattr(loaded.model.config, "_attn_implementation", "")),
    }
