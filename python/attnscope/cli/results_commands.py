# SPDX-License-Identifier: MIT
"""The commands that show what a run has stored: report, figures, tables, compare, view, check."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from attnscope.cli.errors import (
    FAILED,
    SKIPPED,
    Folder,
    Json,
    Trust,
    a_folder,
    say,
    show,
    show_beside,
    standard_output,
    warnings_in_lines,
)
from attnscope.results.json_rows import json_rows
from attnscope.untrusted.safe_text import write_csv

if TYPE_CHECKING:
    import pandas as pd

    from attnscope.plots import LeftOut
    from attnscope.results.results import Results


def report(
    folder: Folder,
    output: Annotated[
        Path | None,
        Option("--output", "-o", help="Output file [default: DIR/report.html].", callback=standard_output),
    ] = None,
) -> None:
    """Write the self-contained report of a run.

    Example: attnscope report runs/demo
    """
    show_beside(output, opened(folder).report(output))


def figures(
    folder: Folder,
    names: Annotated[list[str] | None, Argument(metavar="NAME", help="Only these figures.")] = None,
    output: Annotated[
        Path | None,
        Option("--output", "-o", help="Output folder [default: DIR/figures].", callback=a_folder),
    ] = None,
    formats: Annotated[
        list[str] | None, Option("--format", help="pdf, png, svg, eps, ...; may be repeated.")
    ] = None,
    width: Annotated[
        str, Option(help="single (3.4 in), double (7 in), or such as 3.25in, 8.6cm, 246pt.")
    ] = "double",
    font: Annotated[str, Option(help="A family of letters, such as serif.")] = "",
    font_size: Annotated[float, Option(help="Points, of labels.")] = 8.0,
    palette: Annotated[str, Option(help="Colours in the place of the style's, comma separated.")] = "",
    labels: Annotated[list[str] | None, Option("--label", help="OLD=NEW words; may be repeated.")] = None,
    letters: Annotated[bool, Option("--letters", help="Letter the panels a, b, c.")] = False,
    dpi: Annotated[float | None, Option(help="Resolution of PNG files [default: 200].")] = None,
    listed: Annotated[bool, Option("--list", help="Only say what figures there are.")] = False,
) -> None:
    """Draw the figures of a run, with their captions for LaTeX.

    Example: attnscope figures runs/demo depth sink_maps --width single --font serif --format pdf
    """
    from attnscope.errors import ResultsError
    from attnscope.plots import NotDrawable, figures_of

    for renaming in labels or ():
        if "=" not in renaming:
            raise typer.BadParameter(f"--label: expected OLD=NEW, got {renaming!r}")
    results = opened(folder)
    if listed:
        held = set(results.tables())
        for name, figure in figures_of(results).items():
            missing = [table for table in figure.tables if table not in held]
            note = f" (not of this run: no table {', '.join(missing)})" if missing else ""
            show(f"{name:<22} {figure.caption}{note}")
        return
    left_out: list[LeftOut] = []
    options = {"width": width, "font": font, "font_size": font_size, "letters": letters, "dpi": dpi}
    options |= {"formats": formats or ("pdf", "png"), "palette": listed_in(palette)}
    options["labels"] = dict(renaming.partition("=")[::2] for renaming in labels or ())
    try:
        with warnings_in_lines():
            files = results.figures(output, names or None, left_out=left_out, **options)
    except ResultsError:  # of a table, which is no fault of an option
        raise
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    except NotDrawable as error:
        raise ResultsError(str(error)) from error
    for file in files:
        show(file)
    for omission in left_out:
        say(str(omission))
    if any(omission.failed for omission in left_out):
        raise typer.Exit(SKIPPED)


def tables(
    folder: Folder,
    table: Annotated[str, Option(help="Which table; heads.")] = "",
    by: Annotated[str, Option(help="Columns to group by [default: model,layer; a series by step too].")] = "",
    columns: Annotated[str, Option(help='These columns, comma separated, or "all"; as many as fit.')] = "",
    latex: Annotated[
        bool, Option("--latex", help="As LaTeX; without --table and --by all tables of the report.")
    ] = False,
    width: Annotated[
        str, Option(help="Of LaTeX: single, for a column of a two-column paper, or double (table*).")
    ] = "single",
    csv: Annotated[
        Path | None, Option(help="Write every table as CSV into this folder.", callback=a_folder)
    ] = None,
    as_json: Json = False,
) -> None:
    """Print a stored table's means (medians of counts), the report's tables as LaTeX, or export all tables.

    Example: attnscope tables runs/demo --by step,layer --columns sink_share,entropy
    """
    from attnscope.errors import ResultsError
    from attnscope.results.summaries import kinds_of

    if latex and as_json:
        raise typer.BadParameter("give --latex or --json, not both")
    if csv is not None and (chosen := [text for text in (table, by, columns, "--latex" * latex) if text]):
        raise typer.BadParameter(f"--csv writes every table as it is stored, without {chosen[0]!r}")
    results = opened(folder)
    if csv is not None:
        files = [str(file) for file in results.to_csv(csv)]
        show(json.dumps(files, ensure_ascii=False) if as_json else "\n".join(files))
        return
    if latex and not table and not by:
        from attnscope.plots import NotDrawable
        from attnscope.report import latex_tables

        try:
            typer.echo(latex_tables(results, width=width, columns=listed_in(columns) or None), nl=False)
        except NotDrawable as error:
            raise ResultsError(f"tables: {error}") from error
        except ResultsError:
            raise
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
        return
    table = table or "heads"
    keys = list(dict.fromkeys(listed_in(by))) or _usual_keys(results, table)
    frame = statistics(results, table, keys, "" if columns == "all" else columns)
    if as_json:
        show(json.dumps(json_rows(frame), ensure_ascii=False))
    elif latex:
        titled = frame.rename(columns=_titles(kinds_of(results, table)))
        show(_latex_of(titled, table, keys, width, is_chosen=columns not in ("", "all")))
    else:
        letters = 10_000 if columns else shutil.get_terminal_size((100, 24)).columns
        text, hidden = narrow(frame, kinds_of(results, table), letters)
        show(text)
        if hidden:
            say(f"{hidden} more columns: --columns all, or names such as --columns {frame.columns[-1]}")


def _usual_keys(results: Results, table: str) -> list[str]:
    """Return the keys that a table is grouped by where none are named: checkpoints are never averaged."""
    keys = results.key_columns(table)
    usual: list[str] = [key for key in ("model", "layer") if key in keys]
    checkpoint = [key for key in ("model", "revision", "step") if key in keys]
    if "model" not in checkpoint:
        return usual
    checkpoints = results.table(table, checkpoint).drop_duplicates()
    telling = ["model"]
    for key in ("step", "revision"):
        if key in checkpoint and checkpoints.duplicated(telling).any():
            telling.append(key)
    return [*telling, *usual[1:]]


def _latex_of(frame: Any, table: str, keys: Sequence[str], width: str, *, is_chosen: bool) -> str:
    """Return statistics of a stored table, under headings that name those that are no means, as LaTeX.

    Raises:
        BadParameter: another width, or columns that do not fit a page.
    """
    from attnscope.report.latex_tables import latex_table
    from attnscope.report.section import Table
    from attnscope.study_api.number_text import rounded

    floats = [name for name in frame if frame[name].dtype.kind == "f"]
    cells = frame.assign(**{name: [rounded(value, ".4g") for value in frame[name]] for name in floats})
    caption = f"Means of {table} by {', '.join(keys)}" if keys else f"Means of {table}"
    if any(str(name).endswith(")") for name in frame):
        caption += ", and the statistics that headings name"
    columns = [name for name in frame if name not in keys] if is_chosen else None
    try:
        return latex_table(
            Table(table, caption, cells, len(keys)), table, width=width, columns=columns
        ).rstrip()
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def compare(
    first: Annotated[Path, Argument(metavar="A", help="A run folder.")],
    second: Annotated[Path | None, Argument(metavar="B", help="Another run folder.")] = None,
    table: Annotated[str, Option(help="Which table of the runs [default: heads].")] = "",
    published: Annotated[
        str, Option(metavar="PAPER", help="Beside the numbers that this paper printed, instead of B.")
    ] = "",
    against: Annotated[str, Option(metavar="MODEL", help="Only this published model.")] = "",
    csv: Annotated[
        Path | None, Option(help="Write the comparison to this CSV file.", callback=standard_output)
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare two runs metric by metric over the rows that both have, or a run with published numbers.

    Example: attnscope compare runs/gpt2-float32 runs/gpt2-bfloat16
    """
    from attnscope.results.files import atomic_file

    if (second is None) == (not published):
        raise typer.BadParameter("give a second run folder, or --published PAPER")
    if against and not published:
        raise typer.BadParameter(f"--against is of --published PAPER, got {against!r}")
    if table and published:
        raise typer.BadParameter(f"--table is of two runs, got {table!r} beside --published")
    if second is not None:
        with warnings_in_lines():
            frame = opened(first).compare(opened(second), table or "heads")
        text = comparison_text(frame)
        answer = json.dumps(json_rows(frame), ensure_ascii=False)
    else:
        from attnscope.published import compare_published

        comparison = compare_published(opened(first), published, against or None)
        frame, text = comparison.table, str(comparison)
        models = [] if frame.empty else list(frame["published_model"].unique())
        if not against and len(models) > 1 and not frame["same_model"].any():
            hint = (
                f"none of the run's models was published; --against MODEL chooses one of {', '.join(models)}"
            )
            text = "\n".join([*comparison.statements, hint])
        rows = json_rows(frame)
        answer = json.dumps({"statements": comparison.statements, "rows": rows}, ensure_ascii=False)
    if csv is not None:
        with atomic_file(csv) as file:
            write_csv(frame, file)
    show_beside(csv, answer if as_json else text)


def comparison_text(frame: pd.DataFrame) -> str:
    """Return the rows of two runs' comparison as text; of metrics without a value in both, their number."""
    has_values = (frame["finite"] > 0) | ~frame["equal"]
    text = frame[has_values].to_string(index=False, float_format="{:.6g}".format) if any(has_values) else ""
    count = int(sum(~has_values))
    metrics = "1 more metric has" if count == 1 else f"{count} more metrics have"
    left_out = f"{metrics} no value in either run" if count else ""
    return "\n".join(filter(None, [text, left_out]))


def check(
    folder: Folder,
    plan: Annotated[
        bool, Option("--plan", help="Read texts and models that study.yaml names, and list what would run.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Check a run folder of any origin: hashes of units and tables, links, what is missing. Runs nothing.

    Ends with 0 where all is there and as it was written, 1 where something is damaged, 3 where nothing is
    damaged and units are missing.

    Example: attnscope check runs/demo
    """
    from attnscope.errors import command
    from attnscope.results.check import check_folder
    from attnscope.results.schema import SAVED

    report = check_folder(folder)
    pending = pending_units(folder) if plan else []
    if as_json:
        answer = {**asdict(report), "whole": report.is_whole, "complete": report.is_complete}
        answer |= {"pending": pending} if plan else {}
        show(json.dumps(answer, ensure_ascii=False, default=str))
    else:
        show(report)
        for line in pending:
            show(f"  would run: {line}")
        has_work = bool(report.damaged or report.missing) and report.is_repairable
        if has_work and report.state != SAVED:
            show(f"to set aside what is damaged and to compute what is missing: {command('resume', folder)}")
        elif report.is_whole and report.is_complete:
            show("complete, and as it was written")
    if not report.is_whole:
        raise typer.Exit(FAILED)
    if not report.is_complete:
        raise typer.Exit(SKIPPED)


def pending_units(folder: Path) -> list[str]:
    """Return a line for every unit that `resume` would compute; no code that comes with a model is run."""
    from attnscope.config.run_config import RunConfig
    from attnscope.engine.planning import make_plan
    from attnscope.engine.run_folder import read_settings
    from attnscope.errors import ConfigError
    from attnscope.results.store import damage

    settings = read_settings(folder)
    for source in settings.models:
        if not Path(source.path).expanduser().exists() and not any(mark in source.path for mark in "*?["):
            raise ConfigError(f"check: {source.path} is no folder here; resume would fetch it from the hub")
    models = [{**source.model_dump(), "trust_remote_code": False} for source in settings.models]
    plan = make_plan(RunConfig(**{**settings.to_dict(), "models": models}))
    return [
        f"{unit.folder} {unit.stage}, {unit.title}"
        for unit in plan.units
        if damage(folder / "units" / unit.folder, unit.id)
    ]


def view(
    folder: Folder,
    output: Annotated[
        Path | None,
        Option("--output", "-o", help="Output file [default: DIR/view.html].", callback=standard_output),
    ] = None,
    sample: Annotated[
        int | None,
        Option(min=0, help="Index of the text whose matrices are recomputed and shown [default: 0]."),
    ] = None,
    trust_remote_code: Trust = False,
) -> None:
    """Build an interactive page of every head: maps of all metrics, and the matrices of a sentence.

    Example: attnscope view runs/demo --sample 0
    """
    from attnscope.errors import ResultsError
    from attnscope.view import view as look_at

    results = opened(folder)
    with warnings_in_lines():
        try:
            page = look_at(
                results, sample=0 if sample is None else sample, trust_remote_code=trust_remote_code
            )
        except ResultsError as error:
            if sample is not None:
                raise
            say(f"without matrices of sentence 0: {error}")
            page = look_at(results)
    show_beside(output, page.save(output or folder / "view.html"))


def opened(folder: Path) -> Results:
    """Return the results of a run folder; of a run that is not finished it is said what is missing."""
    from attnscope.results.results import load
    from attnscope.study_api.unfinished import unfinished

    with warnings_in_lines():
        results = load(folder)
    if missing := unfinished(results):
        say(missing)
    return results


def statistics(results: Results, table: str, by: Sequence[str], columns: str = "") -> pd.DataFrame:
    """Summarise the numeric columns by their kind: first within each sentence, then over sentences.

    Equal texts are one, as in the report, unless each text is asked for. Rows of several quantities, which
    `QUANTITY_KEYS` tell apart, are never averaged.
    """
    from attnscope._nearest import nearest
    from attnscope.errors import MissingError, ResultsError
    from attnscope.results.equal_texts import of_distinct_texts
    from attnscope.results.schema import QUANTITY_KEYS, check_columns
    from attnscope.results.summaries import grouped, kinds_of

    frame = (results if "sample" in by else of_distinct_texts(results)).table(table)
    keys = results.key_columns(table)
    if frame.empty:
        raise ResultsError(f"tables: table {table!r} has no rows")
    if not by:
        present = ", ".join(keys) or "none, and its numbers belong to no model"
        raise ResultsError(f"tables: say by which keys of table {table!r} to group; there are: {present}")
    for key in by:
        if key not in keys:
            raise MissingError(f"{key!r} is no key of table {table!r}{nearest(key, keys)}")
    by = [*by, *(key for key in QUANTITY_KEYS if key in keys and key not in by and frame[key].nunique() > 1)]
    kinds = kinds_of(results, table)
    names = listed_in(columns)
    check_columns(table, names, kinds)
    kinds = {name: kinds[name] for name in names or kinds if frame[name].notna().any()}
    kinds.pop("sample", None)  # a number of a text, even where a file does not name it among its keys
    if not kinds:
        raise ResultsError(f"tables: table {table!r} has no column of single numbers beside its keys")
    inner = [*by, "sample"] if "sample" in frame and "sample" not in by else list(by)
    by_sample = grouped(frame, inner, kinds)
    return by_sample if inner == list(by) else grouped(by_sample, list(by), kinds)


def narrow(frame: pd.DataFrame, kinds: Mapping[str, str], width: int) -> tuple[str, int]:
    """Return the leading columns that fit into a width, each under its statistic where that is no mean."""
    titled = frame.rename(columns=_titles(kinds))

    def text(room: int) -> str:
        return str(titled.iloc[:, :room].to_string(index=False, float_format="{:.4g}".format))

    keys, room = sum(name not in kinds for name in frame), len(frame.columns)
    while room > keys + 1 and max(map(len, text(room).splitlines()), default=0) > width:
        room -= 1
    return text(room), len(frame.columns) - room


def _titles(kinds: Mapping[str, str]) -> dict[str, str]:
    """Return headings of the columns whose statistic is no mean."""
    from attnscope.results.summaries import STATISTIC

    return {name: f"{name} ({STATISTIC[kind]})" for name, kind in kinds.items() if kind in STATISTIC}


def listed_in(text: str) -> list[str]:
    """Return the parts of a text between its commas."""
    return [part.strip() for part in text.split(",") if part.strip()]
