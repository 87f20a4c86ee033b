# SPDX-License-Identifier: MIT
"""LoRA adapters of PEFT as changes of the base model's matrices, read from their folder without PEFT.

An adapter adds s·B·A to a module's weight, s = alpha/r or alpha/√r. On a fused module the rows of B are those
of the fused matrix, so the base model's map splits them. B [out, r] and A [r, in] follow the computation, not
the storage: a transposed base (``fan_in_fan_out``) needs nothing done.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnscope import _warn
from attnscope.metrics.weights.low_rank import LowRank
from attnscope.models.families import OUTSIDE
from attnscope.models.json_files import read_json_object
from attnscope.models.name_patterns import Steps, matches
from attnscope.models.weight_entries import WeightEntry, WeightMap, place_of
from attnscope.models.weights import WeightFolder

_PART = re.compile(
    r"^(?:base_model\.model\.)?(?P<module>.+?)(?:\.modules_to_save(?:\.\w+)?)?(?:\.base_layer)?"
    r"\.(?P<part>lora_A|lora_B|lora_embedding_A|lora_embedding_B|lora_magnitude_vector|weight|bias)"
    r"(?:\.(?!weight|bias)\w+)?(?P<end>\.weight|\.bias)?$"
)
#: Starts that also change the base weights, so that the stored factors are not the whole change.
_CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
#: Above every scale of an adapter.
_MOST_ALPHA = 1e30


_Key = tuple[int, str, int | None]


class _Target(NamedTuple):
    """The tensors of one adapted module by part."""

    module: str
    parts: dict[str, str]


class Adapter:
    """A folder with adapter_config.json and adapter_model.safetensors.

    Args:
        path: the folder.
        base: the folder of the base model.
        base_map: its map.

    Raises:
        ValueError: another kind of adapter, a target or shape that the base does not have, a configuration of
            another form or with patterns that take too long.
    """

    def __init__(self, path: str | Path, base: WeightFolder, base_map: WeightMap) -> None:
        folder = Path(path).expanduser()
        self._config = read_json_object(folder / "adapter_config.json", function="weight_deltas")
        self._steps = Steps()
        self._refuse_other_kinds(folder)
        self._files = WeightFolder(folder)
        self._targets = self._matched(base_map)
        if not self._targets:
            raise ValueError(f"weight_deltas: the adapter {folder} changes no matrix of the base")
        trained_on = str(self._config.get("base_model_name_or_path") or "")
        names = {base.path.resolve().name, Path(str(base.config.get("_name_or_path") or ".")).name}
        if trained_on and Path(trained_on).name not in names:
            _warn.warn(
                f"weight_deltas: the adapter {folder} was trained on {_short(trained_on)}, "
                f"the base is {base.path}"
            )

    def _refuse_other_kinds(self, folder: Path) -> None:
        kind = str(self._config.get("peft_type") or "").upper()
        if kind != "LORA":
            stated = f"of kind {_short(kind)}" if kind else "of no kind"
            raise ValueError(f"weight_deltas: {folder} is an adapter {stated}; LORA alone is read")
        start = self._config.get("init_lora_weights", True)
        if isinstance(start, str) and start.lower().startswith(_CHANGES_BASE):
            raise ValueError(
                f"weight_deltas: {folder} was started by {_short(start)}, which changes the base weights too"
            )
        for option in ("use_qalora", "target_parameters", "alora_invocation_tokens", "layer_replication"):
            if self._config.get(option):
                raise ValueError(f"weight_deltas: {folder} uses {option}, which is not read")

    def changes(self, entry: WeightEntry) -> bool:
        """Return True if the adapter changes a matrix."""
        return entry.key in self._targets

    def delta(self, entry: WeightEntry, base_matrix: Callable[[], Tensor]) -> tuple[Tensor | LowRank, str]:
        """Return the change of one matrix [out, in] and the dtype it is stored in."""
        target = self._targets[entry.key]
        if "weight" not in target.parts:
            return self._factored(entry, target, base_matrix)
        name = target.parts["weight"]
        before = base_matrix()
        moved = entry.of(self._files.read(name)).to(before.dtype) - before
        if len(target.parts) == 1:
            return moved, self._files.dtypes[name]
        # beside its factors PEFT stores the table of an embedding, which may have been left as it was
        delta, dtype = self._factored(entry, target, base_matrix)
        if not bool(moved.any()):
            return delta, dtype
        return moved + (delta.dense() if isinstance(delta, LowRank) else delta), dtype

    def _factored(
        self, entry: WeightEntry, target: _Target, base_matrix: Callable[[], Tensor]
    ) -> tuple[Tensor | LowRank, str]:
        """Return the change that factors make, formed only where magnitudes turn it into no sum."""
        embedding = "lora_embedding_A" in target.parts
        a_name, b_name = (target.parts[f"lora_{'embedding_' if embedding else ''}{side}"] for side in "AB")
        left, right = (_wide(self._files.read(name)) for name in (b_name, a_name))
        if embedding:
            # of a table [tokens, width]: A is [r, tokens] and B is [width, r]
            left, right = right.T, left.T
        matrix = LowRank(
            entry.rows_of(left).flatten(0, -2), right, self._scale(target.module, right.shape[0])
        )
        if "lora_magnitude_vector" not in target.parts:
            return matrix, self._files.dtypes[b_name]
        if embedding:
            raise ValueError(f"weight_deltas: {target.module} is an embedding with magnitudes (DoRA)")
        magnitude = _wide(self._files.read(target.parts["lora_magnitude_vector"])).reshape(-1, 1)
        before = base_matrix()
        turned = before + matrix.dense().to(before.dtype)
        norms = torch.linalg.vector_norm(turned, dim=1, keepdim=True)
        return entry.rows_of(magnitude).flatten(0, -2) * turned / norms - before, self._files.dtypes[b_name]

    def moves(self) -> bool:
        """Return True if anything is changed: an adapter that was never trained has B = 0."""
        names = [name for target in self._targets.values() for name in target.parts.items()]
        return any(
            part in ("weight", "lora_magnitude_vector") or bool(self._files.read(name).any())
            for part, name in names
            if part not in ("lora_A", "lora_embedding_A")
        )

    def _scale(self, module: str, rank: int) -> float:
        """Return what multiplies the product of a module's factors."""
        stated = self._of_pattern("rank_pattern", module, self._config.get("r", rank))
        if stated != rank:
            raise ValueError(
                f"weight_deltas: the adapter states rank {_short(stated)} for {module}, its factors have "
                f"rank {rank}"
            )
        alpha = self._of_pattern("alpha_pattern", module, self._config.get("lora_alpha", 8))
        if isinstance(alpha, bool) or not isinstance(alpha, (int, float)) or not abs(alpha) < _MOST_ALPHA:
            raise ValueError(f"weight_deltas: alpha of {module} must be a number, got {_short(alpha)}")
        return float(alpha) / (math.sqrt(rank) if self._config.get("use_rslora") else rank)

    def _of_pattern(self, name: str, module: str, default: Any) -> Any:
        """Return the value of the first pattern that matches the end of a module's name, as PEFT does."""
        patterns = self._config.get(name) or {}
        if not isinstance(patterns, dict):
            raise ValueError(f"weight_deltas: {name} must be keys and values, got {_short(patterns)}")
        for key, value in patterns.items():
            try:
                if matches(rf"(.*\.)?({key})", module, self._steps):
                    return value
            except ValueError as error:
                raise ValueError(f"weight_deltas: {name}: {error}") from error
        return default

    def _matched(self, base_map: WeightMap) -> dict[_Key, _Target]:
        """Return the adapted module that changes each matrix, by the base's layer, role and expert."""
        parts: dict[str, dict[str, str]] = {}
        for tensor in self._files.shapes:
            match = _PART.match(tensor)
            if match is None:
                raise ValueError(f"weight_deltas: {tensor} of the adapter is of no kind that is read")
            if match["part"] != "bias" and match["end"] != ".bias" and "original_module" not in tensor:
                parts.setdefault(match["module"], {})[match["part"]] = tensor
        targets: dict[_Key, _Target] = {}
        wrong = []
        for module, names in parts.items():
            entries = [entry for entry in base_map if _is_of(entry, module)]
            if not entries:
                # a norm that was saved whole is no matrix
                if set(names) != {"weight"} or len(self._files.shapes[names["weight"]]) > 1:
                    wrong.append(f"the base has no {module}")
                continue
            if message := self._misfit(module, names, entries):
                wrong.append(message)
            for entry in entries:
                targets[entry.key] = _Target(module, names)
        if wrong:
            others = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
            raise ValueError(f"weight_deltas: adapter of another base: {'; '.join(wrong[:5])}{others}")
        return targets

    def _misfit(self, module: str, names: dict[str, str], entries: list[WeightEntry]) -> str:
        """Return the shapes of an adapted module that are not the base's, "" where all fit."""
        height, width = entries[0].shape
        if (rows := entries[0].rows) is not None:
            height = rows.period * rows.repeats
        shapes = {part: self._files.shapes[name] for part, name in names.items()}
        if message := _factors_misfit(module, shapes, height):
            return message
        if "weight" in shapes:
            got = shapes["weight"][-2:][::-1] if entries[0].transposed else shapes["weight"][-2:]
        elif {"lora_embedding_A", "lora_embedding_B"} <= shapes.keys():
            got = (shapes["lora_embedding_A"][-1], shapes["lora_embedding_B"][0])
        elif {"lora_A", "lora_B"} <= shapes.keys():
            got = (shapes["lora_B"][0], shapes["lora_A"][-1])
        else:
            return f"{module} has only {', '.join(sorted(shapes))}"
        if tuple(got) == (height, width):
            return ""
        return f"{module} is {[height, width]} in the base and {list(got)} in the adapter"


def _short(value: Any) -> str:
    """Return a value of a configuration for a message."""
    # Python refuses to write whole numbers of more than some thousand digits
    long = isinstance(value, int) and value.bit_length() > 64
    return "a long number" if long else repr(value)[:80]


def _wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def _factors_misfit(module: str, shapes: dict[str, tuple[int, ...]], height: int) -> str:
    """Return what keeps the factors of a module from being multiplied, "" where nothing does."""
    for ends in ("lora_A", "lora_B"), ("lora_embedding_A", "lora_embedding_B"):
        factors = [shapes[end] for end in ends if end in shapes]
        if any(len(shape) != 2 or 0 in shape for shape in factors):
            return f"{module} has factors {' and '.join(str(list(shape)) for shape in factors)}, no matrices"
        if len(factors) == 2 and factors[0][0] != factors[1][1]:
            return f"{module} has factors of ranks {factors[0][0]} and {factors[1][1]}"
        if len(factors) == 1:
            return f"{module} has only {', '.join(sorted(shapes))}"
    magnitude = shapes.get("lora_magnitude_vector")
    if magnitude is not None and "lora_A" in shapes and math.prod(magnitude) != height:
        return f"{module} has {math.prod(magnitude)} magnitudes for {height} rows"
    return ""


def _is_of(entry: WeightEntry, module: str) -> bool:
    """Return True if a base matrix is of the module, before whose name a file may lack a prefix."""
    inside, outside = place_of(entry.tensor), place_of(f"{module}.weight")
    if inside is None or outside is None:
        return inside is outside and module.rpartition(".")[2] in OUTSIDE[entry.role]
    stacks = sorted((inside.stack, outside.stack), key=len)
    return inside[1:] == outside[1:] and f".{stacks[1]}".endswith(f".{stacks[0]}")
