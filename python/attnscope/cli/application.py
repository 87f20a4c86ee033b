# SPDX-License-Identifier: MIT
"""The command line: each command is a few lines that call the function of the same name.

Nothing heavy is imported before a command runs, so that help and version come at once.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option
from typer.core import TyperCommand, TyperGroup

from attnscope._nearest import nearest
from attnscope.cli import results_commands, runs
from attnscope.cli.errors import (
    DONE,
    FAILED,
    Json,
    a_folder,
    exits,
    say,
    show,
    show_beside,
    stand_in_for_closed_streams,
    standard_output,
    words,
)


class Suggesting(TyperGroup):
    """Commands, of which an unknown one is answered with the nearest."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the arguments begin with."""
        name = args[0] if args else ""
        if name and not name.startswith("-") and self.get_command(ctx, name) is None:
            in_python = ": analyze is Python only (attnscope.analyze); on the command line attnscope run"
            hint = in_python if name == "analyze" else nearest(name, self.list_commands(ctx))
            ctx.fail(f"there is no command {name!r}{hint}")
        return super().resolve_command(ctx, args)


class Valued(TyperCommand):
    """A command that refuses an option's value with the value in the message."""

    def make_context(self, *args: Any, **options: Any) -> Any:
        """Return the context of a call; what typer says of a value is completed by the value."""
        try:
            return super().make_context(*args, **options)
        except typer.BadParameter as error:
            faults: list[Any] = getattr(error.__cause__, "errors", list)()
            value = repr(str(faults[0]["input"])) if faults else ""
            if value and value not in error.message:
                error.message += f", got {value}"
            raise


app = typer.Typer(
    cls=Suggesting,
    name="attnscope",
    help="A microscope for transformer attention: studies, results, figures, metrics.",
    epilog="Exit codes: 0 done, 1 failed, 2 usage, 3 finished with checkpoints skipped or figures failed, "
    "130/143 interrupted and resumable.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line `attnscope`; end the process with one of the documented exit codes."""
    stand_in_for_closed_streams()
    try:
        app(args=arguments, prog_name="attnscope")
    except OSError as error:  # of help and version, which are written outside of a command
        say(f"error: {words(error)}")
        sys.exit(FAILED)


def _version(requested: bool) -> None:
    if requested:
        from attnscope import __version__

        show(f"attnscope {__version__}")
        raise typer.Exit(DONE)


@app.callback()
def _options(
    version: Annotated[
        bool, Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Options of `attnscope` itself."""


def metrics(
    name: Annotated[
        str, Argument(metavar="NAME", help="A metric, or a column; without it, all metrics are listed.")
    ] = "",
    as_json: Json = False,
) -> None:
    """Describe a metric: definition, arguments, reference, and a closed-form answer.

    Example: attnscope metrics fiedler_value
    """
    from attnscope.cli.doctor import describe, first_lines

    if name:
        text = describe(name)
        show(json.dumps({"name": name, "text": text}, ensure_ascii=False) if as_json else text)
        return
    lines = first_lines()
    width = max(map(len, lines))
    text = "\n".join(f"{metric:<{width}}  {line}" for metric, line in lines.items())
    show(json.dumps(lines, ensure_ascii=False) if as_json else text)


def configs(
    name: Annotated[str, Argument(metavar="NAME", help="A packaged study; without it, all are listed.")] = "",
    as_json: Json = False,
) -> None:
    """List the studies that come with the package and the analyses of NAME:ANALYSIS, or print one as YAML.

    Example: attnscope configs phi-2
    """
    from attnscope.config import packaged_configs as packaged
    from attnscope.errors import MissingError

    if name:
        if not packaged.is_packaged(name):
            raise MissingError(f"there is no packaged study {name!r}{nearest(name, packaged.packaged())}")
        text = packaged.packaged_text(name)
        show(json.dumps({"name": name, "yaml": text}) if as_json else text)
        return
    studies = packaged.catalogue()
    parts = packaged.analyses()
    if as_json:
        show(json.dumps({"studies": [vars(study) for study in studies], "analyses": parts}))
        return
    width = max(len(study.name) for study in studies)
    for study in studies:
        series = f" at {', '.join(study.revisions)}" if study.revisions else ""
        show(f"{study.name:<{width}}  {', '.join(study.models) or study.about}{series}")
    show("\nAny of them can be cut to one analysis of the paper, attnscope run NAME:ANALYSIS")
    for name, keys in parts.items():
        show(f"{name:<{width}}  {keys['texts.samples']} texts, at most {keys['max_tokens']} tokens")


def init(
    study: Annotated[str, Argument(metavar="STUDY", help="Which study [default: the study of sinks].")] = "",
    output: Annotated[Path, Option("--output", "-o", help="The file.", callback=standard_output)] = Path(
        "study.yaml"
    ),
) -> None:
    """Write a YAML file with every setting of a study, its type, meaning and default.

    Example: attnscope init -o study.yaml
    """
    from attnscope.cli.settings import written
    from attnscope.results.files import descriptor_of, write_bytes

    if output.exists() and descriptor_of(output) is None:
        raise typer.BadParameter(f"{output} is there already; choose another name with --output")
    write_bytes(output, written(study).encode())
    show_beside(output, f"{output}: name the model and the texts in it, then: attnscope run {output}")


def new(
    kind: Annotated[str, Argument(metavar="metric|study", help="What the package adds.")],
    name: Annotated[
        str, Argument(metavar="NAME", help="Its name, as in attnscope metrics NAME, or run NAME.")
    ],
    output: Annotated[
        Path | None, Option("--output", "-o", help="The folder [default: ./NAME].", callback=a_folder)
    ] = None,
) -> None:
    """Write a package with a metric or a study of your own, with its test.

    Example: attnscope new metric self_attention
    """
    from attnscope.cli.new_package import write_package

    folder = output or Path(name)
    for path in write_package(kind, name, folder):
        show(str(path))
    show(f"next: pip install -e {folder} && pytest {folder}")


def doctor(
    model: Annotated[
        str, Option(metavar="MODEL", help="A folder or hub id: check what is captured of this model instead.")
    ] = "",
    as_json: Json = False,
) -> None:
    """Check build, instruction sets, threads, torch, and every kernel on a known answer; or a model.

    Example: attnscope doctor --model gpt2
    """
    if model:
        _examine_model(model, as_json)
        return
    from attnscope.cli.doctor import examine, facts, show_config, verdict

    checks = examine()
    if as_json:
        report = {"config": facts(), "checks": [vars(check) for check in checks]}
        show(json.dumps({**report, "verdict": verdict(checks)}, ensure_ascii=False))
    else:
        show(show_config() + "\n")
        width = max(len(check.name) for check in checks)
        for check in checks:
            mark = "BAD " if not check.ok else "note" if check.note else "ok  "
            show(f"{mark}  {check.name:<{width}}  {check.result}")
        show(f"\n{verdict(checks)}")
    if not all(check.ok for check in checks):
        raise typer.Exit(FAILED)


def _examine_model(name: str, as_json: bool) -> None:
    """Show the checks of a model by its name; a fault fails."""
    from attnscope.capture.verification.verify import verify
    from attnscope.models import find_checkpoints, load_model

    verification = verify(load_model(find_checkpoints(name)[-1]).model)
    if as_json:
        checks = [vars(check) for check in verification.checks]
        show(json.dumps({"model": verification.model, "checks": checks}, ensure_ascii=False))
    else:
        show(repr(verification))
    if not verification.ok:
        raise typer.Exit(FAILED)


for command in (
    *(runs.run, runs.resume, runs.gather, runs.slurm, runs.demo),
    *(
        results_commands.report,
        results_commands.figures,
        results_commands.tables,
        results_commands.compare,
        results_commands.view,
        results_commands.check,
    ),
    *(metrics, configs, init, new, doctor),
):
    app.command(cls=Valued)(exits(command))


if __name__ == "__main__":
    main()
