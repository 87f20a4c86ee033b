# SPDX-License-Identifier: MIT
"""Stored results: tidy tables, read as pandas, xarray, Parquet or CSV.

This module needs neither torch nor transformers: a run folder can be read wherever pandas and pyarrow are.
"""

from __future__ import annotations

import html
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope._nearest import nearest
from attnscope._warn import warn
from attnscope.arguments.scalars import flag
from attnscope.errors import DocumentError, MissingError, ResultsError, command
from attnscope.results.files import atomic_file, fault_of, hash_file, remove, write_bytes
from attnscope.results.json_rows import plain_cell
from attnscope.results.schema import (
    AXES,
    FINISHED,
    SAVED,
    check_columns,
    check_provenance,
    column_list,
    keys_in,
    newer_version,
    nullable_type,
    with_keys,
)
from attnscope.untrusted.documents import dump_yaml, read_json, read_yaml
from attnscope.untrusted.names import file_name_fault, path_fault
from attnscope.untrusted.safe_text import write_csv

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    import xarray as xr


#: What `save` writes into a folder.
_SAVED = frozenset(("tables", "study.yaml", "provenance.json"))
#: The folder in it that `save` writes into before its names appear.
_UNFINISHED = ".save.tmp"


class Results(Mapping[str, "pd.DataFrame"]):
    """The tables of one run by name, with the study and the provenance they come from.

    A mapping: `results["heads"]` is a DataFrame, as is `results.heads`; `"heads" in results`, `len(results)`,
    `dict(results)`. Two results are equal if they are the same object. They can be pickled, without the model
    that they are of.

    Args:
        tables: DataFrames or Arrow tables by name; key columns first. Labels of rows that have a name, as an
            index has, are columns; a column that a number names is called by its digits, as in a file.
        study: the resolved configuration, as plain data.
        provenance: what made the tables: versions, model commits, machine, seeds.
        path: the run folder, or None for results that live in memory only.
        files: the Parquet files that a table is made of, in their order, by name.

    Raises:
        ValueError: a table whose name cannot be the name of a file, or with two columns of one name.

    >>> import pandas as pd
    >>> heads = pd.DataFrame({"model": ["m"], "revision": [""], "step": [-1], "sample": [0], "layer": [0],
    ...                       "head": [0], "protocol": ["exact"], "fiedler_value": [0.5]})
    >>> results = Results({"heads": heads})
    >>> results.tables(), float(results.to_xarray()["fiedler_value"].sel(layer=0, head=0).item())
    (['heads'], 0.5)
    """

    def __init__(
        self,
        tables: Mapping[str, pd.DataFrame | pa.Table] | None = None,
        *,
        study: Mapping[str, Any] | None = None,
        provenance: Mapping[str, Any] | None = None,
        path: str | Path | None = None,
        files: Mapping[str, Sequence[Path]] | None = None,
    ) -> None:
        for name in {**(tables or {}), **(files or {})}:
            if fault := file_name_fault(str(name)):
                raise ValueError(f"Results: the name of a table {fault}")
        self.study: dict[str, Any] = dict(study or {})
        self.provenance: dict[str, Any] = dict(provenance or {})
        self.path = None if path is None else Path(path)
        self.model: Callable[[], Any] | None = None  # a weak reference, of results made in memory
        self.inputs: dict[int, Any] = {}  # of samples that are more than token ids
        self._tables: dict[str, Any] = {name: _as_stored(table) for name, table in (tables or {}).items()}
        for name, table in self._tables.items():
            columns: list[str] = list(table.column_names if hasattr(table, "schema") else table.columns)
            if twice := [column for column in dict.fromkeys(columns) if columns.count(column) > 1]:
                raise ValueError(f"Results: table {name!r} has two columns {twice[0]!r:.80}")
        self.files = {name: list(paths) for name, paths in (files or {}).items()}
        self._verified: set[Path] = set()

    def __repr__(self) -> str:
        rows = ", ".join(f"{name} {self._rows(name):,}" for name in self.tables())
        return f"Results({str(self.path) if self.path else 'in memory'}: {rows or 'no tables'} rows)"

    def __getitem__(self, name: str) -> pd.DataFrame:
        """Return the table of that name."""
        return self.table(name)

    def __getattr__(self, name: str) -> pd.DataFrame:
        """Return the table of that name, where nothing else of the results is called so."""
        # copies and pickles ask for such names before there are any tables
        if name.startswith("_"):
            raise AttributeError(f"Results has no attribute {name!r}")
        if name not in self.tables():
            raise AttributeError(
                f"Results has no attribute and no table {name!r}{nearest(name, self.tables())}"
            )
        return self.table(name)

    def __dir__(self) -> list[str]:
        """Return the names of attributes and of tables, for completion."""
        return [*super().__dir__(), *self.tables()]

    def __iter__(self) -> Iterator[str]:
        """Yield the names of the tables, as `tables` gives them."""
        return iter(self.tables())

    def __len__(self) -> int:
        """Return the number of tables."""
        return len(self.tables())

    def __contains__(self, name: object) -> bool:
        """Return True if there is a table of that name; it is not read."""
        return name in self.tables()

    def __bool__(self) -> bool:
        """Return True: results are there, with or without tables."""
        return True

    # tables are compared cell by cell, which makes no truth value
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled: all but the reference to a model in memory."""
        return {**vars(self), "model": None}

    def _repr_html_(self) -> str:
        """Return tables with their rows and keys, and the folder."""
        import pandas as pd

        names = self.tables()
        rows = [(f"{self._rows(name):,}", ", ".join(self.key_columns(name))) for name in names]
        shown = pd.DataFrame(rows, names, ["rows", "keys"])
        where = html.escape(str(self.path) if self.path else "in memory")
        return f"<p>Results, {where}; <code>results[name]</code> is a DataFrame</p>{shown.to_html()}"

    @property
    def left_out(self) -> pd.DataFrame:
        """The columns without any value, a row for each: column, reason."""
        import pandas as pd

        reasons = dict(self.provenance.get("left_out") or {})
        return pd.DataFrame({"column": list(reasons), "reason": list(reasons.values())}, dtype=str)

    def tables(self) -> list[str]:
        """Return the names of the tables: `samples`, then the others by name."""
        names = {*self._tables, *self._stored()}
        return sorted(names, key=lambda name: (name != "samples", name))

    def table(self, name: str, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """Return one table as a DataFrame, keys first; whole numbers of which some are missing are
        `Int64`, truth values `boolean`.

        Args:
            name: a name from `tables()`.
            columns: only these columns; None reads all.

        Raises:
            MissingError: no such table or column; the message carries the nearest right name.
            ResultsError: the file is damaged, is not as the run wrote it, or does not fit into memory.
        """
        import pandas as pd

        chosen = column_list("table", "columns", columns)
        stored = self._tables.get(name)
        if not isinstance(stored, pd.DataFrame):
            return _frame(self.arrow(name, chosen))
        check_columns(name, chosen or (), stored.columns)
        return stored.copy() if chosen is None else stored[chosen].copy()

    def key_columns(self, name: str) -> list[str]:
        """Return the columns that tell the rows of a table apart, as its file names them.

        A DataFrame that `table` gave carries them in its `attrs`; of any other they are the columns that are
        called like an axis (model, revision, step, sample, layer, head, protocol, ...).
        """
        stored = self._tables.get(name)
        if stored is not None and not hasattr(stored, "schema"):
            return [key for key in stored.attrs.get("keys", AXES) if key in stored.columns]
        return keys_in(self.schema(name))

    def schema(self, name: str) -> pa.Schema:
        """Return names and types of a table's columns, no row of a stored one being read; errors as of
        `table`.
        """
        return self.arrow(name).schema if name in self._tables else self._read(name, ()).schema

    def column_names(self, name: str) -> list[str]:
        """Return the names of a table's columns, no row of a stored one being read; errors as of `table`."""
        stored = self._tables.get(name)
        if stored is not None and not hasattr(stored, "schema"):
            return [str(column) for column in stored.columns]
        return list(self.schema(name).names)

    def arrow(self, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        """Return one table as an Arrow table; arguments and errors as of `table`."""
        import pyarrow as pa

        chosen = column_list("arrow", "columns", columns)
        table = self._tables[name] if name in self._tables else self._read(name, chosen)
        if not isinstance(table, pa.Table):
            table = _arrow_of(name, table)
        check_columns(name, chosen or (), table.column_names)
        return table if chosen is None else table.select(chosen)

    def to_xarray(
        self, table: str = "heads", *, metrics: Sequence[str] | None = None, protocol: str = "exact"
    ) -> xr.Dataset:
        """Return the numeric columns of a table as arrays with named axes.

        Axes: model, revision, sample, layer, head (those that the table has; `graphs` adds threshold); `step`
        is a second index along revision, so `.sel(step=512)` works. Models stand in the order of the table,
        which is that of the plan. Flags are 0 and 1; cells that the table lacks, and missing ones, are NaN.

        Args:
            table: which table.
            metrics: only these columns; None takes every numeric one.
            protocol: the rows of this protocol.

        Raises:
            MissingError: no such table or column.
            ResultsError: the table has no rows of this protocol, or two rows share one cell.
        """
        from attnscope.results.summaries import as_xarray

        return as_xarray(self, table, metrics=metrics, protocol=protocol)

    def features(self, columns: Sequence[str] | None = None) -> Any:
        """Return a row of features for each text, for classifiers; see `attnscope.results.features`.

        Where torch is not installed, what metrics alone say is missing: names and options of metrics in
        `about`, and vectors; of head means, numbers of single heads are features too.

        Args:
            columns: only these columns of the tables; None: all but positions, constants and numbers per
                token.
        """
        from attnscope.results.features import features_of

        return features_of(self, columns)

    def variants(self, table: str | None = None) -> pd.DataFrame:
        """Return averages of controls of a table, None of all, a row for each; see
        `attnscope.results.summaries`.
        """
        from attnscope.results.summaries import in_rows

        return in_rows(self, table)

    def to_csv(self, folder: str | Path) -> list[Path]:
        """Write every table as `NAME.csv` into a folder, made when missing; lists (tokens) become JSON text.

        A spreadsheet computes a cell that begins with ``=``, ``+``, ``-`` or ``@``. Text that begins so and
        is no number gets an apostrophe in front, names of columns too; Parquet holds the text as it is.
        Whole numbers stay whole and a missing one is an empty cell, of which `pandas.read_csv` makes floats
        unless it is given `dtype_backend="numpy_nullable"`.

        Returns:
            the files written.

        Raises:
            ResultsError: a table holds half of a surrogate pair, which is no text of a file.
        """
        import pandas as pd

        files = self._files(folder, "csv")
        for name, file in files.items():
            frame = self.table(name)
            try:
                for column in (name for name in frame.columns if pd.api.types.is_object_dtype(frame[name])):
                    frame[column] = frame[column].map(_in_csv)
                with atomic_file(file) as out:
                    write_csv(frame, out)
            except UnicodeEncodeError as error:
                raise ResultsError(f"table {name!r} cannot be written as CSV: {error}") from error
        return list(files.values())

    def to_parquet(self, folder: str | Path) -> list[Path]:
        """Write every table as `NAME.parquet`, which names its keys, into a folder as `to_csv`.

        pandas reads them with the types of `table`, and so it does the files in `tables` of a run. Files in
        `units` have no note for pandas: `pandas.read_parquet(file, dtype_backend="numpy_nullable")` keeps
        their whole numbers whole.
        """
        from attnscope.results.store import write_table

        files = self._files(folder, "parquet")
        for name, file in files.items():
            with atomic_file(file) as out:
                write_table(with_keys(self.arrow(name), name, self.key_columns(name)), out)
        return list(files.values())

    def _files(self, folder: str | Path, ending: str) -> dict[str, Path]:
        """Return a file's path for every table, in a folder that is made when missing."""
        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        return {name: target / f"{name}.{ending}" for name in self.tables()}

    def save(self, path: str | Path, *, overwrite: bool = False) -> Results:
        """Write a run folder (`tables/`, `study.yaml`, `provenance.json`) that `attnscope.load` reads.

        The tables appear all at once: what is interrupted, or cannot be written, leaves no part of them. A
        kill between the two moves that replace saved results leaves old and new ones under hidden names,
        which `load` gives.

        Args:
            path: of the folder.
            overwrite: replace results that were saved there; never a run, whose units are dear.

        Raises:
            FileExistsError: the folder has something in it; with `overwrite` anything but saved results.
            ResultsError: a table, the study or the provenance holds what its file cannot.
        """
        overwrite = flag("save", "overwrite", overwrite)
        target = Path(path)
        held = {file.name for file in target.iterdir()} - {_UNFINISHED} if target.exists() else set()
        if held:
            if not overwrite:
                raise FileExistsError(
                    f"save: {target} exists and is not empty; overwrite=True replaces saved results"
                )
            if foreign := sorted(held - _SAVED):
                raise FileExistsError(f"save: {target} holds {foreign[0]!r:.80} and is not overwritten")
        if overwrite and any(map(os.path.lexists, (target, *_replacing(target.resolve())))):
            self._replace(target)
        else:
            self._write(target)
        return load(target)

    def _replace(self, target: Path) -> None:
        """Write saved results anew; the old ones, which may be read meanwhile, go when that is done."""
        target = target.resolve()
        new, old = _replacing(target)
        if self.path is not None and self.path.resolve() == new:
            raise FileExistsError(f"save: {new} is where saving begins; rename it to {target.name}")
        if Path.cwd().is_relative_to(target):
            raise FileExistsError(f"save: {target} is replaced as a whole, and this process works in it")
        remove(new)
        self._write(new)
        if target.exists():
            remove(old)
            target.rename(old)
        new.rename(target)
        remove(old)

    def _write(self, target: Path) -> None:
        """Write the tables, the study and the provenance into a folder, the tables last and all at once."""
        is_new = not target.exists()
        target.mkdir(parents=True, exist_ok=True)
        unfinished = target / _UNFINISHED
        try:
            remove(unfinished)
            self._write_files(unfinished)
            for name in ("study.yaml", "provenance.json", "tables"):
                (unfinished / name).replace(target / name)
        except BaseException:
            if is_new:
                remove(target)
            raise
        finally:
            remove(unfinished)

    def _write_files(self, folder: Path) -> None:
        """Write the tables, the study and the provenance, one after the other."""
        import yaml

        try:
            files = self.to_parquet(folder / "tables")
            study = dump_yaml(self.study)
            write_bytes(folder / "study.yaml", study.encode())
            tables = {file.stem: {"sha256": hash_file(file), "rows": self._rows(file.stem)} for file in files}
            # of a run that was not finished the folder goes on to say so
            state = self.provenance.get("state", FINISHED)
            facts = {"state": SAVED if state == FINISHED else state, "tables": tables}
            provenance = json.dumps({**self.provenance, **facts}, indent=2, ensure_ascii=False)
            write_bytes(folder / "provenance.json", f"{provenance}\n".encode())
        except (yaml.YAMLError, TypeError, UnicodeEncodeError) as error:
            reason = " ".join(str(error).split())
            raise ResultsError(f"save: the study and the provenance must be plain data: {reason}") from error

    def compare(self, other: Results, table: str = "heads") -> pd.DataFrame:
        """Compare two runs, metric by metric, over the rows that both have; see `results.summaries`."""
        from attnscope.results.summaries import compared

        return compared(self, other, table)

    def figures(
        self, folder: str | Path | None = None, names: Sequence[str] | None = None, **options: Any
    ) -> Any:
        """Draw the study's figures from the stored tables; see `attnscope.plots`."""
        # the public name, because drawing is above results: they are read where nothing can be drawn
        import attnscope

        return attnscope.figures(self, folder, names, **options)

    def report(self, path: str | Path | None = None, **options: Any) -> Any:
        """Write the self-contained report; see `attnscope.report`."""
        import attnscope

        return attnscope.report(self, path, **options)

    def _rows(self, name: str) -> int:
        return len(self._tables[name] if name in self._tables else self.arrow(name, []))

    def _stored(self) -> dict[str, list[Path]]:
        """Return the files of each table on disk, in their order, by the table's name."""
        if self.files or self.path is None:
            return self.files
        paths = sorted((self.path / "tables").glob("*.parquet"))
        return {file.stem: [file] for file in paths if file.is_file()}

    def _read(self, name: str, columns: Sequence[str] | None) -> pa.Table:
        import pyarrow as pa

        from attnscope.results.store import dataset, footer_of, refuse_more_than_memory

        files = self._stored().get(name)
        if files is None:
            if self.path is not None and name in self.provenance.get("tables", {}):
                raise MissingError(f"{self.path} {_lacks([name])}{_again(self.path)}")
            where = self.path or "these results"
            raise MissingError(f"no table {name!r} in {where}{nearest(name, self.tables())}")
        try:
            for file in files:
                self._verify(file)
            footers = [footer_of(file) for file in files]
            stored = dataset(files, footers)
            if columns == ():
                return stored.schema.empty_table()
            check_columns(name, columns or (), stored.schema.names)
            refuse_more_than_memory(files, footers, columns)
            return stored.to_table(columns=None if columns is None else list(columns))
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise ResultsError(f"{error.filename or files[0]} {fault_of(error)}") from error
            reason = " ".join(str(error).split())
            raise ResultsError(f"{files[0]} is not a readable Parquet file: {reason}") from error

    def _verify(self, file: Path) -> None:
        """Raise ResultsError where a file of the run folder is not as it was written; each is hashed once."""
        from attnscope.results.store import UNIT_FILE, read_manifest

        if file in self._verified or self.path is None:
            return
        facts: Any = {}
        if file.parent == self.path / "tables":
            facts = self.provenance.get("tables", {}).get(file.stem, {})
        elif (file.parent / UNIT_FILE).is_file():
            facts = (read_manifest(file.parent) or {"files": {}})["files"].get(file.stem, {"sha256": ""})
        if "sha256" in facts and hash_file(file) != facts["sha256"]:
            raise ResultsError(f"{file} is not as it was written (its SHA-256 differs){_again(self.path)}")
        self._verified.add(file)


def _in_csv(cell: Any) -> Any:
    """Return a list or a record as JSON text, anything else as it is."""
    if isinstance(cell, (str, bytes)) or not hasattr(cell, "__len__"):
        return cell
    return json.dumps(plain_cell(cell), ensure_ascii=False)


def load(path: str | Path) -> Results:
    """Open the results of a run folder; tables are read when asked for.

    Args:
        path: a folder with `tables/*.parquet`, as `attnscope run` writes it; of a run that was stopped, the
            tables of its stored units.

    Returns:
        the results; nothing but the two small text files is read yet. A warning names tables that the run has
        written and whose files are gone.

    Raises:
        FileNotFoundError: no such folder, or nothing is stored yet: the message says how to go on.
        ResultsError: `study.yaml` or `provenance.json` cannot be read, or a later version of attnscope has
            written them.

    Example:
        >>> import tempfile, pandas as pd
        >>> from attnscope.results.results import Results, load
        >>> folder = tempfile.mkdtemp() + "/run"
        >>> heads = pd.DataFrame({"head": [0], "entropy": [1.5]})
        >>> _ = Results({"heads": heads}, study={"seed": 7}).save(folder)
        >>> load(folder).study["seed"], load(folder).table("heads")["entropy"].item()
        (7, 1.5)
    """
    folder = Path(path)
    if fault := path_fault(str(folder), "strict"):
        raise ResultsError(f"load: the path {fault}; Arrow reads tables where names are UTF-8")
    if not folder.is_dir():
        leftovers = [str(place) for place in _replacing(folder.absolute()) if os.path.isdir(place)]
        hint = (
            f"; a save that was killed has left {' and '.join(leftovers)}: rename one, or save again"
            if leftovers
            else ""
        )
        raise FileNotFoundError(f"load: there is no folder {folder}{hint}")
    facts: list[dict[str, Any]] = []
    for name, read in (("study.yaml", read_yaml), ("provenance.json", read_json)):
        file = folder / name
        try:
            content = read(file) if os.path.lexists(file) else {}
            if content is None and name == "study.yaml":
                content = {}  # an empty file
            if not isinstance(content, dict):
                raise DocumentError(f"expected keys and values, got {type(content).__name__}")
            if name == "provenance.json":
                check_provenance(content)
        except (DocumentError, OSError) as error:
            raise ResultsError(f"load: {file} {fault_of(error)}") from error
        facts.append(content)
    if newer := newer_version(facts[1]):
        raise ResultsError(
            f"load: {folder} was written by attnscope {newer}, in which columns may mean other things than "
            f"in this one, {_version()}: install {newer} to read it"
        )
    # tables are written at the end: those of a run that has not come to it are some of all, or of before
    has_tables = any((folder / "tables").glob("*.parquet"))
    is_gathered = has_tables and (
        facts[1].get("state", FINISHED) in (FINISHED, SAVED) or not any(_manifests(folder))
    )
    files = {} if is_gathered else tables_of_units(folder)
    results = Results(study=facts[0], provenance=facts[1], path=folder, files=files)
    if lost := [name for name in facts[1].get("tables", {}) if name not in results]:
        warn(f"load: {folder} {_lacks(lost)}{_again(folder)}", UserWarning)
    return results


def _version() -> str:
    from attnscope import __version__

    return __version__


def _replacing(target: Path) -> tuple[Path, Path]:
    """Return the folders of the new results and of the old ones while saved results are replaced."""
    return target.with_name(f".{target.name}.new"), target.with_name(f".{target.name}.old")


def _lacks(names: Sequence[str]) -> str:
    """Return which tables of a run have no file, in words."""
    listed = ", ".join(repr(name) for name in names[:5]) + (", ..." if len(names) > 5 else "")
    return f"lacks {'table' if len(names) == 1 else 'tables'} {listed}, which its run has written"


def _again(folder: Path) -> str:
    """Return how tables are written again, where the units of their run are at hand."""
    return f"; to write it again: {command('resume', folder)}" if (folder / "units").is_dir() else ""


def _as_stored(table: Any) -> Any:
    """Return a DataFrame as a file holds it: named labels of rows are columns, names of columns are texts,
    and a missing revision is an empty one.
    """
    index = getattr(table, "index", None)
    if index is not None and not all(isinstance(name, str) for name in table.columns):
        table = table.set_axis(map(str, table.columns), axis="columns")
    if index is not None and list(table.columns).count("revision") == 1:
        table = _with_empty_revisions(table)
    names = [name for name in getattr(index, "names", ()) if name is not None and name not in table.columns]
    if not names:
        return table
    labelled = table.reset_index(level=names)
    labelled.attrs = dict(table.attrs)
    return labelled


def _with_empty_revisions(table: pd.DataFrame) -> pd.DataFrame:
    """Return a DataFrame whose missing revisions are "", as those of models without revisions.

    A CSV file does not tell an empty text from none. Columns of anything but texts stay as they are.
    """
    revisions = table["revision"].astype(object)
    is_missing = revisions.isna()
    if not is_missing.any() or not all(isinstance(name, str) for name in revisions[~is_missing]):
        return table
    return table.assign(revision=revisions.where(~is_missing, ""))


def _arrow_of(name: str, frame: pd.DataFrame) -> pa.Table:
    """Return a DataFrame as an Arrow table; ResultsError where a column holds values of several types."""
    import pyarrow as pa

    try:
        return pa.Table.from_pandas(frame, preserve_index=False)
    except (pa.ArrowException, OverflowError, UnicodeEncodeError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise ResultsError(f"table {name!r} cannot be stored: {reason}") from error


def _frame(table: pa.Table) -> pd.DataFrame:
    """Return a DataFrame; whole numbers and truth values with a null among them stay what they are, and
    categories are their values.
    """
    import pandas as pd
    import pyarrow as pa

    for at, column in enumerate(table.columns):
        if pa.types.is_dictionary(column.type):
            field = table.schema.field(at).with_type(column.type.value_type)
            table = table.set_column(at, field, column.cast(field.type))

    # what pandas noted in the file of somebody else may be no JSON, or make an index of a key
    frame = table.replace_schema_metadata(None).to_pandas()
    frame.attrs["keys"] = keys_in(table.schema)
    for name, column in zip(table.column_names, table.columns, strict=True):
        if column.null_count and (name_of_kind := nullable_type(column.type)):
            kind = pd.api.types.pandas_dtype(name_of_kind)
            frame[name] = column.to_pandas(types_mapper={column.type: kind}.get)
    return frame


def _manifests(folder: Path) -> Iterator[Path]:
    """Yield the files by which the stored units of a run are known."""
    return (folder / "units").glob("[!.]*/unit.json")


def tables_of_units(folder: Path) -> dict[str, list[Path]]:
    """Return the files of each table over the stored units of a run, in their order.

    Sums that a later stage reads are no tables and are left out.
    """
    files_of_tables: dict[str, list[Path]] = {}
    for manifest in sorted(_manifests(folder)):
        for file in sorted(manifest.parent.glob("*.parquet")):
            if file.is_file() and not file.name.startswith("reduced-"):
                files_of_tables.setdefault(file.stem, []).append(file)
    if not files_of_tables:
        has_units = (folder / "units").is_dir()
        hint = f"; the run is not finished: {command('resume', folder)}" if has_units else ""
        raise FileNotFoundError(f"load: {folder} holds no tables/*.parquet{hint}")
    return files_of_tables
