# SPDX-License-Identifier: MIT
"""The stored units of a run.

A unit is a folder with a Parquet file per table. It is written into `.NAME.tmp/` and renamed, so what bears
its name is complete. Its `unit.json` holds the hash and the rows of every file: a folder that is damaged or
of another plan is set aside and computed again.

Example:
    >>> import pyarrow as pa, tempfile
    >>> from pathlib import Path
    >>> from attnscope.results.folder_lock import FolderLock
    >>> from attnscope.results.store import Store
    >>> folder = Path(tempfile.mkdtemp())
    >>> store = Store(folder)
    >>> with FolderLock(folder):
    ...     store.open({"u1": "000000-u1"})
    ...     store.write("u1", {"heads": pa.table({"head": [0, 1]})})
    ...     store.rows("u1"), store.open({"u1": "000000-u1"})
    []
    ({'heads': 2}, ['u1'])
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from attnscope._system import machine_free_bytes
from attnscope.errors import DocumentError, ResultsError
from attnscope.results.files import (
    atomic_file,
    atomic_folder,
    hash_file,
    make_folder,
    naming,
    refuse_links,
    remove_leftovers,
)
from attnscope.results.schema import nullable_type, pandas_note
from attnscope.untrusted.documents import read_json
from attnscope.untrusted.limits import MAX_PARQUET_COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa

#: Rows of a row group of a gathered table.
ROW_GROUP = 65536
#: Bytes of a number of a column; what is not here is text, of which the offset takes four.
_BYTES = {"BOOLEAN": 0.125, "INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 8}
#: The file of a unit that names its files, with their hashes and rows.
UNIT_FILE = "unit.json"
#: The folder of units that are damaged or of another plan.
SET_ASIDE = "set-aside"


class Store:
    """The stored units of a run.

    Args:
        folder: the run folder; `units/` is made when missing.
        beside: folders of the same plan that other processes write into; their units are read, never changed.
    """

    def __init__(self, folder: Path, beside: Sequence[Path] = ()) -> None:
        self.folder = folder / "units"
        self.beside = [neighbour / "units" for neighbour in beside]
        self._names: dict[str, str] = {}
        self._manifests: dict[str, dict[str, Any]] = {}
        self._elsewhere: dict[str, Path] = {}

    def open(self, units: Mapping[str, str], say: Callable[[str], None] = print) -> list[str]:
        """Check the units of a plan (folder names by id), and set aside those that cannot be trusted."""
        refuse_links(self.folder.parent, self.folder.name)
        make_folder(self.folder)
        refuse_links(self.folder, SET_ASIDE)
        remove_leftovers(self.folder)
        self._names, self._manifests, self._elsewhere = dict(units), {}, {}
        ids = {name: unit for unit, name in units.items()}
        for path in sorted(self.folder.iterdir()):
            manifest = checked(path, ids[path.name]) if path.name in ids else None
            if manifest is not None:
                self._manifests[manifest["unit"]] = manifest
            elif path.name != SET_ASIDE:
                self._set_aside(path, say)
        for folder in self.beside:
            for name in os.listdir(folder) if folder.is_dir() else ():
                if name in ids and ids[name] not in self._manifests:
                    self._elsewhere[ids[name]] = folder / name
        return [unit for unit in units if unit in self._manifests]

    def write(
        self, unit: str, tables: Mapping[str, pa.Table], facts: Mapping[str, Any] | None = None
    ) -> None:
        """Store the tables of one unit; when this returns they survive a power cut."""
        manifest: dict[str, Any] = {"unit": unit, **(facts or {}), "files": {}}
        final = self.folder / self._names[unit]
        with atomic_folder(final) as folder:
            for name, table in tables.items():
                file = folder / f"{name}.parquet"
                with naming(final / file.name, file), open(file, "wb") as out:
                    write_table(table, out)
                manifest["files"][name] = {"sha256": hash_file(file), "rows": len(table)}
            with naming(final / UNIT_FILE, folder / UNIT_FILE):
                (folder / UNIT_FILE).write_text(json.dumps(manifest, indent=1) + "\n", "utf-8")
        self._manifests[unit] = manifest

    def adopt(self, unit: str, source: Path) -> bool:
        """Link the files of a unit that another process has stored, or copy them from another disk."""
        manifest = checked(source, unit)
        if manifest is None:
            return False
        with atomic_folder(self.folder / self._names[unit]) as folder:
            for file in source.iterdir():
                try:
                    os.link(file, folder / file.name)
                except OSError:
                    shutil.copyfile(file, folder / file.name)
        self._manifests[unit] = manifest
        return True

    def drop(self, unit: str) -> None:
        """Forget a unit whose inputs have changed, and set its folder aside."""
        del self._manifests[unit]
        self._set_aside(self.folder / self._names[unit], lambda _: None)

    def __contains__(self, unit: str) -> bool:
        return unit in self._manifests or unit in self._elsewhere

    def is_in_folder(self, unit: str) -> bool:
        """Return True if a stored unit is in this folder, not in one next to it."""
        return unit in self._manifests

    def count(self) -> int:
        """Return the number of stored units, in this folder and in those of other processes."""
        beside = {name for folder in self.beside if folder.is_dir() for name in os.listdir(folder)}
        return len({self._names[unit] for unit in self._manifests} | (beside & set(self._names.values())))

    def manifest(self, unit: str) -> dict[str, Any]:
        """Return the content of `unit.json` of a stored unit."""
        if unit in self._manifests:
            return self._manifests[unit]
        manifest = read_manifest(self._elsewhere[unit])
        if manifest is None:
            raise ResultsError(f"{self._elsewhere[unit] / UNIT_FILE} is damaged: start its shard again")
        return manifest

    def rows(self, unit: str) -> dict[str, int]:
        """Return the number of rows of each table of a stored unit."""
        return {name: file["rows"] for name, file in self.manifest(unit)["files"].items()}

    def files(self, units: Iterable[str], table: str) -> list[Path]:
        """Return the files of one table, in the order of the units."""
        return [
            self._elsewhere.get(unit, self.folder / self._names[unit]) / f"{table}.parquet"
            for unit in units
            if unit in self and table in self.manifest(unit)["files"]
        ]

    def read(self, unit: str, table: str) -> pa.Table:
        """Return one table of one stored unit."""
        import pyarrow.parquet as pq

        return pq.read_table(self.files([unit], table)[0])

    def gather(self, units: Sequence[str], table: str, path: Path) -> None:
        """Write one table over the stored units that have it, in their order, a few row groups at a time."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        files = self.files(units, table)
        run_table = dataset(files)
        note = pandas_note(run_table.schema, with_missing(files, run_table.schema))
        if not note and len(files) == 1 and pq.read_metadata(files[0]).num_rows <= ROW_GROUP:
            with atomic_file(path) as file:
                file.write(files[0].read_bytes())  # written as it would be here
            return
        schema = run_table.schema.with_metadata({**(run_table.schema.metadata or {}), **note})
        with atomic_file(path) as file, table_writer(file, schema) as writer:
            waiting: list[pa.RecordBatch] = []
            for batch in run_table.to_batches(use_threads=False, batch_size=ROW_GROUP, fragment_readahead=1):
                waiting.append(batch)
                if sum(map(len, waiting)) >= ROW_GROUP:
                    writer.write_table(pa.Table.from_batches(waiting, schema).combine_chunks())
                    waiting = []
            if waiting:
                writer.write_table(pa.Table.from_batches(waiting, schema).combine_chunks())

    def _set_aside(self, path: Path, say: Callable[[str], None]) -> None:
        aside = self.folder / SET_ASIDE
        make_folder(aside)
        target, count = aside / path.name, 1
        while os.path.lexists(target):
            target, count = aside / f"{path.name}.{count}", count + 1
        with naming(path):
            os.replace(path, target)
        say(
            f"{path.name} is corrupt or belongs to another study; moved to {target}; "
            "the unit will be recomputed"
        )


def repeating(schema: pa.Schema) -> list[str]:
    """Return columns worth a dictionary: all but measured numbers, whose table is mostly memory."""
    import pyarrow as pa

    def measured(kind: Any) -> bool:
        nested = hasattr(kind, "value_type") and not pa.types.is_dictionary(kind)
        return measured(kind.value_type) if nested else pa.types.is_floating(kind)

    return [field.name for field in schema if not measured(field.type)]


@contextmanager
def table_writer(file: IO[bytes], schema: pa.Schema) -> Iterator[Any]:
    """Open a writer of Parquet with a checksum for every page, and without needless dictionaries."""
    import pyarrow.parquet as pq

    how: dict[str, Any] = {"compression": "zstd", "write_page_checksum": True}
    with pq.ParquetWriter(file, schema, use_dictionary=repeating(schema), **how) as writer:
        yield writer


def write_table(table: pa.Table, file: IO[bytes]) -> None:
    """Write a table into an open file by `table_writer`."""
    with table_writer(file, table.schema) as writer:
        writer.write_table(table)


def dataset(files: Sequence[Path], footers: Sequence[Footer] = ()) -> Any:
    """Return Parquet files as one table in their order; a column that some of them lack is null there.

    Lists of one length in each file, such as the hidden states of models of unlike width, are lists of any
    length, and numbers of two precisions have the wider one.

    Args:
        files: of the table.
        footers: of each, where they are read already.
    """
    import pyarrow as pa
    import pyarrow.dataset as ds

    schemas = [footer.schema for footer in footers or map(footer_of, files)]
    schema = schemas[0]
    if any(not other.equals(schema) for other in schemas):
        unified = pa.unify_schemas(schemas, promote_options="permissive")
        schema = unified.with_metadata(schema.metadata)
    how = ds.ParquetFileFormat(default_fragment_scan_options=_checking())
    return ds.dataset([str(file) for file in files], schema=schema, format=how)


def _checking() -> Any:
    """Return options of a reader that checks every page, within the bounds of files of unknown origin."""
    import pyarrow.dataset as ds

    return ds.ParquetFragmentScanOptions(
        page_checksum_verification=True, thrift_container_size_limit=MAX_PARQUET_COLUMNS
    )


class Footer(NamedTuple):
    """The metadata of the row groups of a Parquet file, and its schema."""

    metadata: Any
    schema: Any


def footer_of(file: Path) -> Footer:
    """Return the footer of a Parquet file, within the bounds of a reader."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(file, thrift_container_size_limit=MAX_PARQUET_COLUMNS) as opened:
        return Footer(opened.metadata, opened.schema_arrow)


def refuse_more_than_memory(
    files: Sequence[Path], footers: Sequence[Footer], columns: Sequence[str] | None
) -> None:
    """Raise ResultsError where columns of Parquet files (None: all) take more memory than is free.

    A file of some kilobytes can describe billions of equal rows, or a text of megabytes that a dictionary
    holds once and every row repeats. A row is read of texts alone that could be such ones, as places in their
    dictionary.
    """
    needed = rows = 0
    repeated: dict[str, int] = {}
    for footer in footers:
        rows += footer.metadata.num_rows
        for group in map(footer.metadata.row_group, range(footer.metadata.num_row_groups)):
            for chunk in map(group.column, range(group.num_columns)):
                if columns is None or chunk.path_in_schema.partition(".")[0] in columns:
                    width = _BYTES.get(chunk.physical_type)
                    text = 0 if width else chunk.total_uncompressed_size
                    needed += chunk.num_values * (width or 4) + text
                    if text and chunk.has_dictionary_page:
                        largest = chunk.num_values * text
                        repeated[chunk.path_in_schema] = repeated.get(chunk.path_in_schema, 0) + largest
    free = machine_free_bytes()
    if needed <= free < needed + sum(repeated.values()):
        for path in sorted(repeated, key=lambda path: -repeated[path]):
            needed += _bytes_of_texts(files, path, free - needed)
    if needed > free:
        raise ResultsError(
            f"{files[0]}: {rows:,} rows take at least {needed / 1024**3:.1f} GB of memory, and "
            f"{free / 1024**3:.1f} GB are free"
        )


def _bytes_of_texts(files: Sequence[Path], path: str, limit: int) -> int:
    """Return how many bytes the texts of a column have, each as often as a row holds it, or the first number
    above a limit. They are read as places in a dictionary.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.dataset as ds

    how = ds.ParquetFileFormat(dictionary_columns=[path], default_fragment_scan_options=_checking())
    total = 0
    for file in files:
        column = path.partition(".")[0]
        scan = {"batch_size": ROW_GROUP, "batch_readahead": 1, "fragment_readahead": 1, "use_threads": False}
        for batch in ds.dataset(str(file), format=how).to_batches(columns=[column], **scan):
            texts = batch.column(0)
            while hasattr(texts, "flatten") and pa.types.is_nested(texts.type):
                texts = texts.flatten()
                if isinstance(texts, list):  # fields of a record
                    return total
            if pa.types.is_dictionary(texts.type):
                lengths = pc.binary_length(texts.dictionary).cast(pa.int64())
                total += pc.sum(lengths.take(texts.indices)).as_py() or 0
            if total > limit:
                return total
    return total


def with_missing(files: Sequence[Path], schema: pa.Schema) -> list[str]:
    """Return the columns of whole numbers and truth values that hold a null in some of the files, or that one
    lacks, from what the files say of their columns.
    """
    import pyarrow.parquet as pq

    nullable = {field.name for field in schema if nullable_type(field.type)}
    missing: set[str] = set()
    for file in files if nullable else ():
        metadata = pq.read_metadata(file)
        missing |= nullable - set(metadata.schema.to_arrow_schema().names) if metadata.num_rows else set()
        for group in map(metadata.row_group, range(metadata.num_row_groups)):
            for column in map(group.column, range(group.num_columns)):
                if column.path_in_schema in nullable and column.statistics and column.statistics.null_count:
                    missing.add(column.path_in_schema)
    return [name for name in schema.names if name in missing]


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Return what a unit's `unit.json` holds, None where it is no manifest of a unit."""
    try:
        manifest = read_json(folder / UNIT_FILE)
        files = manifest["files"]
        is_complete = isinstance(manifest["unit"], str) and all(
            isinstance(name, str) and isinstance(file["sha256"], str) and type(file["rows"]) is int
            for name, file in files.items()
        )
        is_complete = is_complete and all(
            isinstance(name, str) and type(number) is int
            for counted in manifest.get("counts", {}).values()
            for name, number in counted.items()
        )
        is_complete = is_complete and all(isinstance(note, str) for note in manifest.get("notes", ()))
    except (OSError, DocumentError, KeyError, TypeError, AttributeError):
        return None
    return manifest if is_complete else None


def damage(folder: Path, unit: str = "") -> str:
    """Return the reason why a unit's folder cannot be trusted, "" where every file is as it was written.

    Args:
        unit: the id that it must have; "" takes any.
    """
    if folder.is_symlink():
        return "it is a link"
    manifest = read_manifest(folder)
    if manifest is None:
        return f"{UNIT_FILE} is missing or damaged"
    if unit and manifest["unit"] != unit:
        return "it is of another plan"
    hashes = {f"{name}.parquet": file["sha256"] for name, file in manifest["files"].items()}
    try:
        present = {path.name for path in folder.iterdir()}
        for name in sorted({UNIT_FILE, *hashes} ^ present):
            return f"{name} is {'not listed' if name in present else 'missing'}"
        for name, digest in hashes.items():
            if (folder / name).is_symlink():
                return f"{name} is a link"
            if hash_file(folder / name) != digest:
                return f"{name} is not as it was written"
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    return ""


def checked(folder: Path, unit: str) -> dict[str, Any] | None:
    """Return the manifest of a unit, None where a file of it is not as it was written."""
    return None if damage(folder, unit) else read_manifest(folder)
