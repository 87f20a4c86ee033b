# SPDX-License-Identifier: MIT
"""The commands that show what a run has stored: report, figures, tables, compare, view."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnscope.commands.exits import SKIPPED, Folder, Json, say

if TYPE_CHECKING:
    from attnscope.plots import LeftOut


def report(
    folder: Folder,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where to write; DIR/report.html.")
    ] = None,
) -> None:
    """Write the self-contained report of a run.

    Example: attnscope report runs/demo
    """
    from attnscope.engine.results import load

    typer.echo(load(folder).report(output))


def figures(
    folder: Folder,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Only these figures.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where to write; DIR/figures.")
    ] = None,
) -> None:
    """Draw the figures of a run as PDF and PNG.

    Example: attnscope figures runs/demo
    """
    from attnscope._nearest import nearest
    from attnscope.engine.results import load
    from attnscope.engine.schema import MissingError, ResultsError
    from attnscope.plots import NotDrawable, figures_of

    results = load(folder)
    left_out: list[LeftOut] = []
    own = figures_of(results)
    for name in names or []:
        if name not in own:
            raise MissingError(f"there is no figure {name!r}{nearest(name, own)}")
    try:
        files = results.figures(output, names or None, left_out=left_out)
    except NotDrawable as error:
        raise ResultsError(str(error)) from error
    for file in files:
        typer.echo(file)
    for one in left_out:
        say(str(one))
    if any(one.failed for one in left_out):
        raise typer.Exit(SKIPPED)


def tables(
    folder: Folder,
    table: Annotated[str, typer.Option(help="Which table; heads.")] = "",
    by: Annotated[str, typer.Option(help="Key columns that stay apart, comma separated; model,layer.")] = "",
    latex: Annotated[
        bool, typer.Option("--latex", help="As LaTeX; without --table and --by all tables of the report.")
    ] = False,
    csv: Annotated[Path | None, typer.Option(help="Write every table as CSV into this folder.")] = None,
    as_json: Json = False,
) -> None:
    """Print the means of a stored table, the report's tables as LaTeX, or export all tables.

    Example: attnscope tables runs/demo --by step,layer --latex
    """
    from attnscope.commands.summary import latex_table, means
    from attnscope.engine.results import load
    from attnscope.engine.schema import ResultsError

    results = load(folder)
    if csv is not None:
        for file in results.to_csv(csv):
            typer.echo(file)
        return
    if latex and not table and not by:
        from attnscope.plots import NotDrawable
        from attnscope.report import latex_tables

        try:
            typer.echo(latex_tables(results), nl=False)
        except NotDrawable as error:
            raise ResultsError(f"tables: {error}") from error
        return
    by = by or "model,layer"
    frame = means(results, table or "heads", [key.strip() for key in by.split(",") if key.strip()])
    if as_json:
        typer.echo(frame.to_json(orient="records"))
    else:
        typer.echo(latex_table(frame) if latex else frame.to_string(index=False, float_format="%.6g"))


def compare(
    first: Annotated[Path, typer.Argument(metavar="A", help="A run folder.")],
    second: Annotated[Path | None, typer.Argument(metavar="[B]", help="Another run folder.")] = None,
    table: Annotated[str, typer.Option(help="Which table.")] = "heads",
    published: Annotated[
        str,
        typer.Option(metavar="PAPER", help="Beside the numbers of ruscio2025 or ruscio2024 instead of B."),
    ] = "",
    against: Annotated[str, typer.Option(metavar="MODEL", help="Only this published model.")] = "",
    csv: Annotated[Path | None, typer.Option(help="Write the comparison to this CSV file.")] = None,
    as_json: Json = False,
) -> None:
    """Compare two runs metric by metric over the rows that both have, or a run with published numbers.

    Example: attnscope compare runs/gpt2-float32 runs/gpt2-bfloat16
    """
    from attnscope.engine.results import load

    if (second is None) == (not published):
        raise typer.BadParameter("give a second run folder, or --published PAPER")
    if second is not None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            frame = load(first).compare(load(second), table)
        for warning in caught:
            say(f"warning: {warning.message}")
        text = frame.to_string(index=False, float_format="%.6g")
    else:
        from attnscope.published import compare_published

        found = compare_published(load(first), published, against or None)
        frame, text = found.table, str(found)
    if csv is not None:
        frame.to_csv(csv, index=False)
    if not as_json:
        typer.echo(text)
    elif second is not None:
        typer.echo(frame.to_json(orient="records"))
    else:
        rows = json.loads(frame.to_json(orient="records", double_precision=15))
        typer.echo(json.dumps({"statements": found.statements, "rows": rows}, ensure_ascii=False))


def view(
    folder: Folder,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where to write; DIR/view.html.")
    ] = None,
    sample: Annotated[
        int | None, typer.Option(min=0, help="Capture this sentence again and show its matrices.")
    ] = None,
) -> None:
    """Write a page to look at heads with: maps of every metric, and the matrices of a sentence.

    Example: attnscope view runs/demo --sample 0
    """
    from attnscope.engine.results import load
    from attnscope.view import view as look_at

    typer.echo(look_at(load(folder), sample=sample).save(output or folder / "view.html"))
