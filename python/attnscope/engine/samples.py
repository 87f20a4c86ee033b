# SPDX-License-Identifier: MIT
"""The table `samples`: what every model read, and where it came from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attnscope.engine.plan import Plan, Unit
from attnscope.engine.sources import extra_columns
from attnscope.models import Encoder

if TYPE_CHECKING:
    import pyarrow as pa


def samples_table(
    unit: Unit,
    encoder: Encoder,
    extras: dict[str, Any] | None = None,
    causal: Mapping[int, bool] | None = None,
) -> pa.Table:
    """The rows of `samples` of one unit.

    Args:
        unit: its sentences.
        encoder: of its model.
        extras: the sources' own columns, one value per sentence of the study.
        causal: sample -> whether every map of it was causal; None where nobody looked.
    """
    import pyarrow as pa

    inputs = unit.inputs
    numbers = [one.sentence.sample for one in inputs]
    ids = [one.encoded.ids.tolist() for one in inputs]
    tokens = [encoder.names(one) for one in ids]
    count, checkpoint = len(inputs), unit.checkpoint
    texts = [one.sentence.text for one in inputs]
    columns = {
        "model": pa.array([checkpoint.model] * count, pa.string()),
        "revision": pa.array([checkpoint.revision] * count, pa.string()),
        "step": pa.array([checkpoint.step] * count, pa.int64()),
        "sample": pa.array(numbers, pa.int64()),
        "group": pa.array([one.sentence.group for one in inputs], pa.string()),
        "text": pa.array(
            [" ".join(tokens[at]) if text is None else text for at, text in enumerate(texts)], pa.string()
        ),
        "tokens": pa.array(tokens, pa.list_(pa.string())),
        "token_ids": pa.array(ids, pa.list_(pa.int64())),
        "n_tokens": pa.array([one.n_tokens for one in inputs], pa.int64()),
        "truncated": pa.array([one.encoded.truncated or one.sentence.cut for one in inputs], pa.bool_()),
        "bos": pa.array([one.encoded.starts_with_bos for one in inputs], pa.bool_()),
        "source": pa.array([one.sentence.source for one in inputs], pa.string()),
        "source_row": pa.array([one.sentence.source_row for one in inputs], pa.int64()),
    }
    if causal is not None:
        columns["causal"] = pa.array([causal[number] for number in numbers], pa.bool_())
    positions = pa.array(numbers, pa.int64())
    columns.update({name: values.take(positions) for name, values in (extras or {}).items()})
    return pa.table(columns)


def own_columns(plan: Plan) -> dict[str, Any]:
    """The sources' own columns, typed over all sentences so that every shard has the same schema."""
    import pyarrow as pa

    return {name: pa.array(values) for name, values in extra_columns(plan.sentences).items()}
