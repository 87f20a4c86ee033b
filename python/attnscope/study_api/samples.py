# SPDX-License-Identifier: MIT
"""The table `samples`: every text as a model read it, with its tokens, their ids and what was cut."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from attnscope.models import Encoder
from attnscope.results.schema import CHECKPOINT_KEYS
from attnscope.study_api.tables import Table, with_metadata
from attnscope.study_api.units import Unit

if TYPE_CHECKING:
    import pyarrow as pa

SAMPLES = Table("samples", (*CHECKPOINT_KEYS, "sample"), columns=None)


def samples_table(
    unit: Unit, encoder: Encoder, extras: Mapping[str, pa.Array], causal: Mapping[int, bool], study: str
) -> pa.Table:
    """Return the table `samples` of one unit: its texts as the model read them, and the sources' own columns.

    The column `text_unit` is the first text that the model reads alike, of studies in which equal texts are
    one sample. The column `causal` says if every map of a sample was causal; it is null where the maps were
    not tested.
    """
    import pyarrow as pa

    checkpoint = unit.checkpoint
    assert checkpoint is not None
    place = {"model": checkpoint.model, "revision": checkpoint.revision, "step": checkpoint.step}
    rows = []
    for unit_text in unit.inputs:
        text, ids = unit_text.sentence, unit_text.encoded.ids.tolist()
        tokens = encoder.names(ids)
        rows.append(
            {
                **place,
                "sample": text.sample,
                "group": text.group,
                "text": " ".join(tokens) if text.text is None else text.text,
                "tokens": tokens,
                "token_ids": ids,
                "n_tokens": unit_text.n_tokens,
                "truncated": unit_text.encoded.truncated or text.cut,
                "bos": unit_text.encoded.starts_with_bos,
                "source": text.source or None,
                "source_row": text.source_row,
            }
        )
        if unit_text.first_equal is not None:
            rows[-1]["text_unit"] = unit_text.first_equal
    table = pa.Table.from_pylist(rows)
    if causal:
        flags = pa.array([causal.get(row["sample"]) for row in rows], pa.bool_())
        table = table.append_column("causal", flags)
    for name, values in extras.items():
        table = table.append_column(name, values.take(table["sample"]))
    return with_metadata(table, SAMPLES, study)
