# SPDX-License-Identifier: MIT
"""Shared parts of the commands: their common arguments, exit codes, and errors in one line."""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Annotated, ParamSpec, TypeVar

import typer

from attnscope._extras import EXTRA_OF
from attnscope.untrusted.safe_text import escape_controls

DONE, FAILED, USAGE, SKIPPED = 0, 1, 2, 3

P = ParamSpec("P")
R = TypeVar("R")

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="A run folder.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bars and no notes.")]
Draw = Annotated[bool, typer.Option("--draw/--no-draw", help="Figures and report.html at the end.")]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust-remote-code", help="Run the Python code of models for which the stored study asks it."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="The answer as JSON on standard output.")]


def standard_output(file: Path | None) -> Path | None:
    """Return the file that an option names; `-` stands for standard output.

    >>> standard_output(Path("-")), standard_output(Path("-.html"))
    (PosixPath('/dev/stdout'), PosixPath('-.html'))
    """
    return Path("/dev/stdout") if file == Path("-") else file


def a_folder(folder: Path | None) -> Path | None:
    """Return the folder that an option names, and refuse `-`, which stands for a file elsewhere."""
    if folder == Path("-"):
        raise typer.BadParameter("a folder is needed, got '-', which is standard output; ./- is a folder")
    return folder


def exits(command: Callable[P, R]) -> Callable[P, R]:
    """Turn errors that a person can act upon into one line and an exit code; bugs keep their traceback."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **options: P.kwargs) -> R:
        from attnscope.errors import (
            ConfigError,
            FolderLocked,
            Interrupted,
            MissingError,
            ResultsError,
            UnitsFailed,
        )
        from attnscope.models import LoadError

        try:
            with spaced_interrupts():
                return command(*args, **options)
        except Interrupted as stop:
            ignore_signals()
            say(str(stop))
            raise typer.Exit(128 + stop.signal) from None
        except KeyboardInterrupt:
            ignore_signals()
            say("stopped; what was at work is lost, and everything that was stored before it is there")
            raise typer.Exit(130) from None
        except (ConfigError, MissingError) as error:
            say(f"error: {error}")
            raise typer.Exit(USAGE) from None
        except ModuleNotFoundError as error:
            if error.name not in EXTRA_OF:
                raise
            say(f"error: {error}")
            raise typer.Exit(USAGE) from None
        except BrokenPipeError:
            # the reader of the output has closed it (`| head`); Python's buffered output is discarded
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(128 + signal.SIGPIPE) from None
        except (OSError, LoadError, FolderLocked, ResultsError, UnitsFailed) as error:
            say(f"error: {words(error)}")
            raise typer.Exit(FAILED) from None
        except (MemoryError, RuntimeError) as error:
            from attnscope._memory import is_out_of_memory

            if not (isinstance(error, MemoryError) or is_out_of_memory(error)):
                raise
            say(f"error: memory ran out: {words(error)}; what is stored stays (max_memory bounds a run)")
            raise typer.Exit(FAILED) from None

    return wrapped


#: Seconds in which a command closes what an interrupt ends.
CLOSING = 1.0


@contextlib.contextmanager
def spaced_interrupts() -> Iterator[None]:
    """Let Ctrl-C interrupt at most once a second while inside, and no more once an interrupt leaves.

    Held down it would interrupt what the first one closes: an exception in a generator that is closed is
    printed and lost, and one in front of the exit code hides it. Where Ctrl-C is ignored, as by a shell's
    background job, or handled by somebody else, it stays so.
    """
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if threading.current_thread() is not threading.main_thread() or not is_default:
        yield
        return
    raised_at = float("-inf")

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal raised_at
        now = time.monotonic()
        if now - raised_at >= CLOSING:
            raised_at = now
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        # a command that was interrupted ends, and nothing interrupts it until then
        if isinstance(sys.exc_info()[1], KeyboardInterrupt):
            ignore_signals()
        else:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def ignore_signals() -> None:
    """Let no further Ctrl-C or SIGTERM disturb a command that was stopped and is about to end.

    Otherwise one more would print a traceback while Python ends, and hide the exit code.
    """
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)


def say(text: str) -> None:
    """Print a message on standard error, in which names send no escape sequence to the terminal."""
    # a log on a full disk, or a terminal that was closed, changes nothing about the work
    with contextlib.suppress(OSError):
        print(f"attnscope: {escape_controls(text)}", file=sys.stderr)


def show(text: object) -> None:
    """Print an answer on standard output, in which names send no escape sequence to the terminal.

    JSON is the same data as before.
    """
    typer.echo(escape_controls(str(text)))


def show_beside(file: Path | None, answer: object) -> None:
    """Print an answer, unless the file that was written is standard output, or another open one."""
    from attnscope.results.files import descriptor_of

    if file is None or descriptor_of(file) is None:
        show(answer)


def silent(text: str) -> None:
    return


class ClosedStream(io.TextIOBase):
    """The stand-in for a standard output that a shell has closed; to write to it is an OSError."""

    def write(self, text: str) -> int:
        """Raise OSError."""
        raise OSError(errno.EBADF, "is closed", "standard output")


def stand_in_for_closed_streams() -> None:
    """Put streams in the places of standard output and error where a shell has closed them (`>&-`).

    Python has none there: what it prints is lost without a word, and messages for standard error would go to
    standard output. It is an error that nobody takes an answer, and none that nobody reads messages. Files
    that are opened later do not get the numbers of the closed streams, to which libraries print.
    """
    while (spare := os.open(os.devnull, os.O_RDONLY)) <= 2:
        pass
    if sys.stdout is None:
        sys.stdout = ClosedStream()
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  for the rest of the process
    os.close(spare)


@contextlib.contextmanager
def warnings_in_lines() -> Iterator[None]:
    """Say what is warned of inside as messages of a command, each once."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for message in dict.fromkeys(str(warning.message) for warning in caught):
        say(f"warning: {message}")


def words(error: BaseException) -> str:
    """Return the message of an error; that of the system names the file first."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error) or type(error).__name__
