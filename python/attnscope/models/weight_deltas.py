# SPDX-License-Identifier: MIT
"""Changes by training: W(after) − W(before) of two folders, one matrix at a time, no model loaded.

Both folders' safetensors files are read in blocks of rows, so the memory needed is one matrix in float32 and
one block, however large the models are. Where the second folder holds a LoRA adapter, the change is known in
factors and stays so: `attnscope.metrics.weights.low_rank`.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attnscope import _core
from attnscope.metrics.weights.delta_statistics import DeltaStatistics, statistics_of
from attnscope.metrics.weights.low_rank import LowRank
from attnscope.models.architecture import weight_map
from attnscope.models.json_files import read_json_object
from attnscope.models.weight_adapters import Adapter
from attnscope.models.weight_entries import WeightEntry, WeightMap
from attnscope.models.weights import WeightFolder


@dataclass(frozen=True)
class WeightDelta:
    """The change of one matrix.

    Attributes:
        layer: its block, -1 outside the blocks.
        role: as in `WeightEntry`.
        expert: number of a routed expert, None for a matrix that every token passes.
        delta: W(after) − W(before), [out, in] float32 (float64 when a side is), or its factors.
        before_dtype: stored, as "bfloat16".
        after_dtype: stored; of an adapter that of its factors.
        finite: whether every entry is a finite number; a delta that is not is passed on as it is.
        sums: what `statistics` are made of, of the rows compared before ids were left out.
        tied: of unembed: "tied" where both sides share it with the embedding, "untied" where one does.
        tokens: of embed and unembed whose vocabularies differ: ids of the rows compared, else None.
        added: rows that only `after` has.
        removed: rows that only `before` has.
        changed: rows left out because the tokenizers call their ids by different tokens.
    """

    layer: int
    role: str
    expert: int | None
    delta: Tensor | LowRank
    before_dtype: str
    after_dtype: str
    finite: bool
    sums: Tensor
    tied: str = ""
    tokens: Tensor | None = None
    added: int = 0
    removed: int = 0
    changed: int = 0

    def statistics(self, rounded: str = "after") -> DeltaStatistics:
        """Return size, rounding and direction of the change, see `attnscope.delta_statistics`.

        An adapter's change is not stored in the base's dtype, so it has no rounding: those fields are NaN.

        Args:
            rounded: "after", or "both" for two checkpoints of one run.
        """
        rows = self.delta.shape[0] + self.changed
        return statistics_of(self.sums, rows * self.delta.shape[1], rounded)

    def __repr__(self) -> str:
        kind = "LowRank" if isinstance(self.delta, LowRank) else str(self.delta.dtype).removeprefix("torch.")
        expert = "" if self.expert is None else f", expert={self.expert}"
        return f"WeightDelta(layer={self.layer}, {self.role}{expert}, delta={kind}{list(self.delta.shape)})"


def weight_deltas(
    before: str | Path,
    after: str | Path,
    *,
    roles: Iterable[str] | None = None,
    layers: Iterable[int] | None = None,
) -> Iterator[WeightDelta]:
    """Compute the change of every matrix between two checkpoints of one architecture, without loading either.

    ΔW = W(after) − W(before), subtracted in float32 (float64 where a side is stored so).

    Args:
        before: folder of config.json and safetensors files.
        after: such a folder, or one with a LoRA adapter of `before` (adapter_config.json).
        roles: as "q" or "down"; None takes all.
        layers: numbers of blocks, -1 for embed and unembed; None takes all.

    Returns:
        An iterator of `WeightDelta`, in the order of layers; each holds one matrix [out, in], and peak memory
        is the largest one in float32, twice where the caller keeps the last one, and 8 MB of a file. An
        adapter yields only what it changes, as `LowRank` factors that are never multiplied out; with DoRA the
        matrix is formed.

    Raises:
        TypeError: a side that is no path, such as a model.
        ValueError: no folder, no safetensors, quantised weights, another architecture or adapter of another
            base (up to five names or shapes that differ), an adapter that is not LoRA, identical weights, a
            role or layer that the model does not have.

    Example:
        A model whose queries were doubled: the change of q is q.

        >>> import tempfile, torch, attnscope as asc
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> config = LlamaConfig(vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
        ...                      num_attention_heads=2)
        >>> model, base, tuned = LlamaForCausalLM(config), tempfile.mkdtemp(), tempfile.mkdtemp()
        >>> model.save_pretrained(base)
        >>> q = model.model.layers[0].self_attn.q_proj.weight
        >>> old = q.detach().clone()
        >>> _ = q.data.mul_(2)
        >>> model.save_pretrained(tuned)
        >>> changes = {found.role: found.delta for found in asc.weight_deltas(base, tuned)}
        >>> torch.equal(changes["q"], old), int(changes["k"].count_nonzero())
        (True, 0)

    References:
        Hu et al., LoRA, arXiv 2106.09685, 2021, for the factors of an adapter.
    """
    for name, side in (("before", before), ("after", after)):
        if not isinstance(side, (str, os.PathLike)):
            raise TypeError(
                f"weight_deltas: {name} must be a folder of weights, got {type(side).__name__}; "
                "model.save_pretrained(FOLDER) writes one"
            )
    base = WeightFolder(before)
    base_map = weight_map(base.path)
    selected = base_map.select(roles, layers)
    if (Path(after).expanduser() / "adapter_config.json").is_file():
        adapter = Adapter(after, base, base_map)
        if not adapter.moves():
            raise ValueError(f"weight_deltas: the adapter {after} was never trained: its factors B are 0")
        return _adapted(adapter, base, [entry for entry in selected if adapter.changes(entry)], base_map.tied)
    tuned = WeightFolder(after)
    tuned_map = weight_map(tuned.path)
    pairs = _pairs(base_map, tuned_map, selected)
    if not any(_differ(base, entry, tuned, other) for entry, other in pairs):
        raise ValueError(f"weight_deltas: before and after hold the same weights ({before}, {after})")
    tied = {(True, True): "tied", (False, False): ""}.get((base_map.tied, tuned_map.tied), "untied")
    return _subtracted(base, tuned, pairs, tied)


def _pairs(
    before: WeightMap, after: WeightMap, selected: Iterable[WeightEntry]
) -> list[tuple[WeightEntry, WeightEntry]]:
    """Return the entries of both sides by layer, role and expert. All entries are compared, not the selected
    alone.
    """
    before_by_key = {entry.key: entry for entry in before}
    other = {entry.key: entry for entry in after}
    wrong = [f"{entry.title} is only in before" for entry in before if entry.key not in other]
    wrong += [f"{entry.title} is only in after" for entry in after if entry.key not in before_by_key]
    for key in before_by_key.keys() & other.keys():
        a, b = before_by_key[key].shape, other[key].shape
        # a vocabulary may grow: rows outside the blocks may differ
        if a[1] != b[1] or (a[0] != b[0] and key[0] >= 0):
            wrong.append(f"{before_by_key[key].title} is {list(a)} in before and {list(b)} in after")
    if wrong:
        others = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise ValueError(f"weight_deltas: not one architecture: {'; '.join(sorted(wrong)[:5])}{others}")
    return [(before_by_key[entry.key], other[entry.key]) for entry in selected]


def _subtracted(
    base: WeightFolder, tuned: WeightFolder, pairs: Iterable[tuple[WeightEntry, WeightEntry]], tied: str
) -> Iterator[WeightDelta]:
    changed_ids: set[int] | None = None
    for entry, other in pairs:
        kinds = base.dtypes[entry.tensor], tuned.dtypes[other.tensor]
        rows = min(entry.shape[0], other.shape[0])
        delta, sums = _difference(base, entry, tuned, other)
        tokens, left_out = None, 0
        if entry.layer < 0:
            if changed_ids is None:
                changed_ids = _changed_ids(base.path, tuned.path)
            left_out = sum(at < rows for at in changed_ids)
            if left_out or entry.shape != other.shape:
                tokens = torch.tensor(
                    [at for at in range(rows) if at not in changed_ids], dtype=torch.int64, device="cpu"
                )
                delta = delta[tokens] if left_out else delta
        yield WeightDelta(
            layer=entry.layer,
            role=entry.role,
            expert=entry.expert,
            delta=delta,
            before_dtype=kinds[0],
            after_dtype=kinds[1],
            finite=bool(sums.isfinite().all()),
            sums=sums,
            tied=tied if entry.role == "unembed" else "",
            tokens=tokens,
            added=other.shape[0] - rows,
            removed=entry.shape[0] - rows,
            changed=left_out,
        )
        del delta


def _difference(
    base: WeightFolder, entry: WeightEntry, tuned: WeightFolder, other: WeightEntry
) -> tuple[Tensor, Tensor]:
    """Return W(after) − W(before) over the rows of both, and the sums of `delta_statistics`."""
    rows = min(entry.shape[0], other.shape[0])
    double = "float64" in (base.dtypes[entry.tensor], tuned.dtypes[other.tensor])
    delta = torch.empty(rows, entry.shape[1], dtype=torch.float64 if double else torch.float32, device="cpu")
    sums = torch.zeros(7, dtype=torch.float64, device="cpu")
    if (entry.transposed, entry.rows) != (other.transposed, other.rows):
        before = whole_matrix(base, entry)[:rows]
        delta.copy_(whole_matrix(tuned, other)[:rows]).sub_(before)
        return delta, _core.delta_statistics(before, delta + before, None)[0]
    for (index, old), (_, new) in zip(
        _matrix_blocks(base, entry), _matrix_blocks(tuned, other), strict=False
    ):
        if (index[0].start or 0) >= rows:
            break
        piece = delta[index]
        old, new = old[: len(piece)], new[: len(piece)]
        if piece.is_contiguous() and piece.dtype == torch.promote_types(
            torch.promote_types(old.dtype, new.dtype), torch.float32
        ):
            statistics, _ = _core.delta_statistics(old, new, piece)
        else:
            statistics, _ = _core.delta_statistics(old, new, None)
            piece.copy_(new).sub_(old.to(piece.dtype))
        largest = torch.maximum(sums[6], statistics[6])
        sums += statistics
        sums[6] = largest
    return delta, sums


def _matrix_blocks(folder: WeightFolder, entry: WeightEntry) -> Iterator[tuple[tuple[slice, slice], Tensor]]:
    """Yield the matrix [out, in] of an entry piece by piece: the rows and columns of each piece, and its
    values.
    """
    all_rows = slice(None)
    if entry.transposed:
        # blocks of the stored rows are columns of the matrix; its rows are all in each
        for first, block in folder.blocks(entry.tensor, entry.index):
            columns = WeightEntry(
                entry.layer, entry.role, None, (entry.shape[0], len(block)), "", entry.rows, None, True
            )
            yield (all_rows, slice(first, first + len(block))), columns.of(block)
        return
    done = 0
    for first, end in entry.rows.runs() if entry.rows else [(0, entry.shape[0])]:
        for row, block in folder.blocks(entry.tensor, entry.index, first, end):
            yield (slice(done + row - first, done + row - first + len(block)), all_rows), block
        done += end - first


def _differ(base: WeightFolder, entry: WeightEntry, tuned: WeightFolder, other: WeightEntry) -> bool:
    """Return True if two matrices differ anywhere; it reads as far as the first block that does."""
    if entry.shape != other.shape:
        return True
    if entry.transposed != other.transposed or entry.rows != other.rows:
        return not torch.equal(whole_matrix(base, entry).double(), whole_matrix(tuned, other).double())
    pieces = zip(_matrix_blocks(base, entry), _matrix_blocks(tuned, other), strict=True)
    return any(not bool((a == b).all()) for (_, a), (_, b) in pieces)


def _adapted(
    adapter: Adapter, base: WeightFolder, entries: Iterable[WeightEntry], tied: bool
) -> Iterator[WeightDelta]:
    for entry in entries:
        delta, dtype = adapter.delta(entry, partial(whole_matrix, base, entry))
        if isinstance(delta, LowRank):
            finite = all(bool(torch.isfinite(factor).all()) for factor in (delta.left, delta.right))
        else:
            finite = bool(torch.isfinite(delta).all())
        sums = _sums_of_adapted(whole_matrix(base, entry), delta)
        yield WeightDelta(
            layer=entry.layer,
            role=entry.role,
            expert=entry.expert,
            delta=delta,
            before_dtype=base.dtypes[entry.tensor],
            after_dtype=dtype,
            finite=finite,
            sums=sums,
            # an adapter changes one of the two uses of a shared table
            tied="untied" if tied and entry.role == "unembed" else "",
        )


def _sums_of_adapted(before: Tensor, delta: Tensor | LowRank) -> Tensor:
    """Return the sums of a change that no dtype has rounded."""
    unknown = torch.tensor(torch.nan, dtype=torch.float64, device="cpu")
    wide = before.double()
    if isinstance(delta, LowRank):
        energy = delta.energy()
        product = delta.scale * (delta.left.double() * (wide @ delta.right.double().T)).sum()
    else:
        energy, product = delta.double().square().sum(), (delta.double() * wide).sum()
    return torch.stack([energy, wide.square().sum(), product, *[unknown] * 4])


def whole_matrix(folder: WeightFolder, entry: WeightEntry) -> Tensor:
    """Return one matrix [out, in] of a folder in float32, float64 when it is stored so."""
    double = folder.dtypes[entry.tensor] == "float64"
    matrix = torch.empty(entry.shape, dtype=torch.float64 if double else torch.float32, device="cpu")
    for index, block in _matrix_blocks(folder, entry):
        matrix[index] = block.to(matrix.dtype)
    return matrix


def _changed_ids(before: Path, after: Path) -> set[int]:
    """Return the ids that the two folders' tokenizers give to different tokens; none without a
    tokenizer.json.
    """
    old_ids, other = vocabulary_of(before), vocabulary_of(after)
    return {at for at in old_ids.keys() & other.keys() if old_ids[at] != other[at]}


def vocabulary_of(folder: Path) -> dict[int, str]:
    """Return the tokens of a folder's tokenizer.json by id, none without such a file.

    Raises:
        ValueError: the file is no JSON, or of another form.
    """
    file = folder / "tokenizer.json"
    if not file.is_file():
        return {}
    stored = read_json_object(file, function="weight_deltas")
    model, added = stored.get("model", {}), stored.get("added_tokens", [])
    try:
        vocabulary: Any = model.get("vocab", {})
        if isinstance(vocabulary, dict):
            tokens = {operator.index(place): str(token) for token, place in vocabulary.items()}
        else:
            tokens = {place: str(entry[0]) for place, entry in enumerate(vocabulary)}
        return tokens | {operator.index(entry["id"]): str(entry["content"]) for entry in added}
    except (AttributeError, TypeError, KeyError, IndexError) as error:
        raise ValueError(f"weight_deltas: {file} is no tokenizer as it is written by tokenizers") from error
