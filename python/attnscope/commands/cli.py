# SPDX-License-Identifier: MIT
"""The command line: each command is a few lines that call the function of the same name."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, ParamSpec, TypeVar

import typer

if TYPE_CHECKING:
    from attnscope.engine.config import Study
    from attnscope.engine.results import Results
    from attnscope.plots import LeftOut

DONE, FAILED, USAGE, SKIPPED = 0, 1, 2, 3

app = typer.Typer(
    name="attnscope",
    help="A microscope for transformer attention: studies, results, figures, metrics.",
    epilog="Exit codes: 0 done, 1 failed, 2 usage, 3 finished with checkpoints skipped or figures failed, "
    "130/143 interrupted and resumable.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

P = ParamSpec("P")
R = TypeVar("R")

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="A run folder.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bars and no notes.")]
Draw = Annotated[bool, typer.Option("--draw/--no-draw", help="Figures and report.html at the end.")]
Json = Annotated[bool, typer.Option("--json", help="The answer as JSON on standard output.")]


def main(arguments: list[str] | None = None) -> None:
    """The entry point `attnscope`; ends the process with one of the documented exit codes."""
    app(args=arguments, prog_name="attnscope")


def _version(asked: bool) -> None:
    if asked:
        from attnscope import __version__

        typer.echo(f"attnscope {__version__}")
        raise typer.Exit(DONE)


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Version, and no more.")
    ] = False,
) -> None:
    """Options of `attnscope` itself."""


def _exits(command: Callable[P, R]) -> Callable[P, R]:
    """Turns errors that a person can act upon into one line and an exit code; bugs keep their traceback."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **options: P.kwargs) -> R:
        from attnscope.engine.config import ConfigError
        from attnscope.engine.disk.lock import FolderLocked
        from attnscope.engine.schema import MissingError, ResultsError
        from attnscope.engine.stop import Interrupted
        from attnscope.models import LoadError

        try:
            return command(*args, **options)
        except Interrupted as stop:
            _say(str(stop))
            raise typer.Exit(128 + stop.signal) from None
        except KeyboardInterrupt:
            _say("stopped; the unit at work is lost, everything before it is stored")
            raise typer.Exit(130) from None
        except ConfigError as error:
            _say(f"error: {error}")
            raise typer.Exit(USAGE) from None
        except MissingError as error:
            _say(f"error: {error}")
            raise typer.Exit(USAGE) from None
        except BrokenPipeError:
            # whoever reads the output has enough of it (`| head`); what Python still holds back goes nowhere
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(128 + signal.SIGPIPE) from None
        except (OSError, LoadError, FolderLocked, ResultsError) as error:
            _say(f"error: {_words(error)}")
            raise typer.Exit(FAILED) from None

    return wrapped


@app.command()
@_exits
def run(
    config: Annotated[
        str, typer.Argument(metavar="[CONFIG]", help="A YAML file or the name of a packaged study.")
    ] = "attention_sinks",
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model", "-m", help="Folder, pattern of checkpoint folders, or hub id; may be repeated."
        ),
    ] = None,
    revision: Annotated[
        list[str] | None, typer.Option("--revision", "-r", help="Revision such as step512; may be repeated.")
    ] = None,
    texts: Annotated[
        list[str] | None,
        typer.Option(
            "--texts",
            "-t",
            help=".txt (a sentence a line), .csv, .jsonl, .parquet, or a data set's folder or name.",
        ),
    ] = None,
    column: Annotated[str, typer.Option(help="Column of the texts.")] = "",
    samples: Annotated[int | None, typer.Option(min=1, help="How many sentences of each source.")] = None,
    sampling: Annotated[
        Literal["first", "random", "paper"] | None, typer.Option(help="By which rule they are chosen.")
    ] = None,
    block: Annotated[int | None, typer.Option(min=1, help="Sentences per unit of work.")] = None,
    name: Annotated[str, typer.Option(help="Name of the run folder.")] = "",
    output: Annotated[str, typer.Option(help="Folder that holds the run folders.")] = "",
    protocol: Annotated[Literal["exact", "ruscio2025", "both"] | None, typer.Option()] = None,
    bos: Annotated[
        Literal["keep", "drop", "replace"] | None, typer.Option(help="What becomes of BOS.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0)] = None,
    max_memory: Annotated[str, typer.Option(help="Bound for the attention alive at a time, e.g. 4GB.")] = "",
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any key of the study; may be repeated."),
    ] = None,
    plan_only: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan and what it will take.")
    ] = False,
    draw: Draw = True,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Do a study: tables, figures and report.html in runs/NAME.

    Example: attnscope run attention_sinks --model gpt2 --texts sentences.csv --column text --samples 100
    """
    from attnscope.engine.config import Study
    from attnscope.engine.run import run as run_study

    values: dict[str, Any] = {}
    if model:
        values["models"] = [{"path": path, "revisions": revision or []} for path in model]
    if texts:
        values["texts"] = [{"path": path, "column": column} for path in texts]
    given = {
        "block": block,
        "name": name or None,
        "output": output or None,
        "protocols": protocol,
        "bos": bos,
        "seed": seed,
        "max_memory": max_memory or None,
    }
    values.update({key: value for key, value in given.items() if value is not None})
    sets = list(assignments or [])
    if sampling:
        sets.insert(0, f"texts.sampling={sampling}")
    if samples:
        sets.insert(0, f"texts.samples={samples}")
    if column and not texts:
        sets.insert(0, f"texts.column={column}")
    if revision and not model:
        sets.insert(0, f"models.revisions={json.dumps(revision)}")
    study = Study.from_yaml(config, overrides=sets, **values)
    if plan_only:
        _plan(study, as_json)
        return
    results = run_study(study, progress=not quiet, say=_silent if quiet else None)
    _finished(results, quiet, as_json, draw)


@app.command()
@_exits
def resume(folder: Folder, draw: Draw = True, quiet: Quiet = False, as_json: Json = False) -> None:
    """Go on with a run that was stopped or killed, from its first missing unit.

    Example: attnscope resume runs/attention_sinks-gpt2
    """
    from attnscope.engine.run import resume as resume_study

    results = resume_study(folder, progress=not quiet, say=_silent if quiet else None)
    _finished(results, quiet, as_json, draw)


@app.command()
@_exits
def demo(
    folder: Annotated[Path, typer.Argument(metavar="[DIR]", help="The run folder.")] = Path("runs/demo"),
    samples: Annotated[int, typer.Option(min=1, help="Sequences of each kind of input.")] = 12,
    quiet: Quiet = False,
) -> None:
    """Train a small model, run the sink study over its checkpoints, draw, report. No download.

    Example: attnscope demo runs/demo
    """
    from attnscope.demo import run_demo

    run_demo(folder, samples=samples, progress=not quiet, say=_silent if quiet else typer.echo)


@app.command()
@_exits
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


@app.command()
@_exits
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
        _say(str(one))
    if any(one.failed for one in left_out):
        raise typer.Exit(SKIPPED)


@app.command()
@_exits
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


@app.command()
@_exits
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
            _say(f"warning: {warning.message}")
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


@app.command()
@_exits
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


@app.command()
@_exits
def metrics(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="A metric; without it, all are listed.")] = "",
    as_json: Json = False,
) -> None:
    """Print what a metric is: definition, arguments, reference, and a closed-form answer.

    Example: attnscope metrics fiedler_value
    """
    from attnscope.commands.catalogue import describe, first_lines

    if name:
        text = describe(name)
        typer.echo(json.dumps({"name": name, "text": text}, ensure_ascii=False) if as_json else text)
        return
    lines = first_lines()
    width = max(map(len, lines))
    typer.echo(
        json.dumps(lines, ensure_ascii=False)
        if as_json
        else "\n".join(f"{metric:<{width}}  {line}" for metric, line in lines.items())
    )


@app.command()
@_exits
def configs(as_json: Json = False) -> None:
    """List the studies that come with the package, and the analyses that NAME:ANALYSIS picks out of them.

    Example: attnscope configs
    """
    from attnscope.engine.packaged import analyses, analysis_keys, catalogue

    found, parts = catalogue(), {name: analysis_keys(name) for name in analyses()}
    if as_json:
        typer.echo(json.dumps({"studies": [vars(one) for one in found], "analyses": parts}))
        return
    width = max(len(one.name) for one in found)
    for one in found:
        series = f" at {', '.join(one.revisions)}" if one.revisions else ""
        typer.echo(f"{one.name:<{width}}  {', '.join(one.models) or one.about}{series}")
    typer.echo("\nAny of them can be cut to one analysis of the paper, attnscope run NAME:ANALYSIS")
    for name, keys in parts.items():
        typer.echo(f"{name:<{width}}  {keys['texts.samples']} sentences, at most {keys['max_tokens']} tokens")


@app.command()
@_exits
def doctor(as_json: Json = False) -> None:
    """Check build, instruction sets, threads, torch, and every kernel on a known answer.

    Example: attnscope doctor
    """
    from attnscope.commands.doctor import examine, facts, show_config, verdict

    checks = examine()
    if as_json:
        report = {
            "config": facts(), "checks": [vars(check) for check in checks], "verdict": verdict(checks),
        }  # fmt: skip
        typer.echo(json.dumps(report, ensure_ascii=False))
    else:
        typer.echo(show_config() + "\n")
        width = max(len(check.name) for check in checks)
        for check in checks:
            mark = "BAD " if not check.ok else "note" if check.note else "ok  "
            typer.echo(f"{mark}  {check.name:<{width}}  {check.found}")
        typer.echo(f"\n{verdict(checks)}")
    if not all(check.ok for check in checks):
        raise typer.Exit(FAILED)


def _plan(study: Study, as_json: bool) -> None:
    from attnscope.commands.dry_run import dry_run

    estimate = dry_run(study)
    typer.echo(json.dumps(estimate.to_dict(), ensure_ascii=False) if as_json else str(estimate))
    if estimate.skipped:
        raise typer.Exit(SKIPPED)


def _finished(results: Results, quiet: bool, as_json: bool, draw: bool) -> None:
    skipped = results.provenance.get("skipped", [])
    left_out: list[LeftOut] = []
    report = _drawn(results, quiet or as_json, left_out) if draw else None
    if as_json:
        answer = {
            "folder": str(results.path),
            "tables": {name: len(results.arrow(name, [])) for name in results.tables()},
            "skipped": skipped,
            "report": None if report is None else str(report),
            "figures_left_out": {one.name: one.reason for one in left_out},
        }
        typer.echo(json.dumps(answer, ensure_ascii=False))
    elif not quiet:
        typer.echo(f"{results!r}")
        if report is not None:
            typer.echo(f"report: {report}")
    if skipped:
        names = ", ".join(entry["checkpoint"] for entry in skipped)
        _say(f"finished, {len(skipped)} checkpoint{'s' if len(skipped) > 1 else ''} skipped: {names}")
    if skipped or any(one.failed for one in left_out):
        raise typer.Exit(SKIPPED)


def _drawn(results: Results, quiet: bool, left_out: list[LeftOut]) -> Path | None:
    """Figures and report of a finished run; None where what draws them is not installed."""
    missing = [name for name in ("matplotlib", "jinja2") if importlib.util.find_spec(name) is None]
    if missing:
        if not quiet:
            _say(f"no figures and no report without {', '.join(missing)}: pip install 'attnscope[figures]'")
        return None
    results.figures(left_out=left_out)
    for one in left_out:
        if one.failed or not quiet:
            _say(str(one))
    return Path(results.report())


def _say(text: str) -> None:
    print(f"attnscope: {text}", file=sys.stderr)


def _silent(text: str) -> None:
    return


def _words(error: BaseException) -> str:
    """The message of an error; that of the system names the file first."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error) or type(error).__name__


if __name__ == "__main__":
    main()
