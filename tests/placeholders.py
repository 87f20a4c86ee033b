# SPDX-License-Identifier: MIT
"""What stands in the files of a run where a null belongs."""

import json

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from attnscope.results.schema import keys_in


def placeholders(results):
    """Columns of a run that may say "no value" otherwise than by null, as "table.column" with what is there.

    Those are texts that are "" where the column does not declare that as a text, and numbers below what a
    column can hold: 0 of counts, positions and whole numbers, the lower bound of those that declare one.
    Keys may be negative where the file says what that means. Columns that a source of texts has itself are
    its own matter.
    """
    result = []
    for file in sorted((results.path / "tables").glob("*.parquet")):
        table = pq.read_table(file)
        keys = keys_in(table.schema)
        for field in table.schema:
            metadata, column = field.metadata or {}, table[field.name]
            if field.name in keys and (pa.types.is_string(field.type) or b"meaning" in metadata):
                continue
            if pa.types.is_string(field.type) and b"kind" in metadata:
                if b"empty" not in metadata and pc.any(pc.equal(column, "")).as_py():
                    result.append(f'{file.stem}.{field.name}: ""')
            elif pa.types.is_integer(field.type) or b"low" in metadata:
                least, low = pc.min(column).as_py(), json.loads(metadata.get(b"low", b"0"))
                # a bound of a measured number is one up to rounding
                if least is not None and least < low - 1e-9:
                    result.append(f"{file.stem}.{field.name}: {least}")
    return result
