# SPDX-License-Identifier: MIT
"""The table `samples`: what every model read, and where it came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnscope.engine.schema import CHECKPOINT_KEYS
from attnscope.engine.tables import Table, described
from attnscope.engine.texts.sources import Sentence, extra_columns
from attnscope.engine.units import Unit
from attnscope.models import Encoder

if TYPE_CHECKING:
    import pyarrow as pa


SAMPLES = Table("samples", (*CHECKPOINT_KEYS, "sample"), columns=None)


def samples_table(
    unit: Unit, encoder: Encoder, extras: Mapping[str, Any], causal: Mapping[int, bool], study: str
) -> pa.Table:
    """The rows of `samples` of one unit.

    Args:
        extras: the sources' own columns, one value per sentence of the study.
        causal: sample -> whether every map of it was causal; nothing where nobody looked.
    """
    import pyarrow as pa

    inputs = unit.inputs
    numbers = [one.sentence.sample for one in inputs]
    ids = [one.encoded.ids.tolist() for one in inputs]
    tokens = [encoder.names(one) for one in ids]
    count, checkpoint = len(inputs), unit.checkpoint
    assert checkpoint is not None
    texts = [
        " ".join(own) if one.sentence.text is None else one.sentence.text
        for one, own in zip(inputs, tokens, strict=True)
    ]
    columns = {
        "model": pa.array([checkpoint.model] * count, pa.string()),
        "revision": pa.array([checkpoint.revision] * count, pa.string()),
        "step": pa.array([checkpoint.step] * count, pa.int64()),
        "sample": pa.array(numbers, pa.int64()),
        "group": pa.array([one.sentence.group for one in inputs], pa.string()),
        "text": pa.array(texts, pa.string()),
        "tokens": pa.array(tokens, pa.list_(pa.string())),
        "token_ids": pa.array(ids, pa.list_(pa.int64())),
        "n_tokens": pa.array([one.n_tokens for one in inputs], pa.int64()),
        "truncated": pa.array([one.encoded.truncated or one.sentence.cut for one in inputs], pa.bool_()),
        "bos": pa.array([one.encoded.starts_with_bos for one in inputs], pa.bool_()),
        "source": pa.array([one.sentence.source for one in inputs], pa.string()),
        "source_row": pa.array([one.sentence.source_row for one in inputs], pa.int64()),
    }
    if causal:
        columns["causal"] = pa.array([causal.get(number) for number in numbers], pa.bool_())
    positions = pa.array(numbers, pa.int64())
    columns.update({name: values.take(positions) for name, values in extras.items()})
    return described(pa.table(columns), SAMPLES, study)


def own_columns(sentences: Sequence[Sentence]) -> dict[str, Any]:
    """The sources' own columns, typed over all sentences so that every unit has the same schema."""
    import pyarrow as pa

    return {name: pa.array(values) for name, values in extra_columns(sentences).items()}
