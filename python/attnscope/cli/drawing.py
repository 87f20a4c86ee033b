# SPDX-License-Identifier: MIT
"""Everything that is drawn of a finished run: its figures, its page of heads and its report."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attnscope.plots import LeftOut
    from attnscope.results.results import Results


def missing_libraries() -> list[str]:
    """Return the libraries that drawing needs and that are not installed."""
    return [name for name in ("matplotlib", "jinja2") if importlib.util.find_spec(name) is None]


def draw_run(
    results: Results, left_out: list[LeftOut], say: Callable[[str], None], *, quiet: bool = False
) -> Path:
    """Write the figures, the page of heads and the report of a run folder, and return the report.

    Args:
        results: of a run folder.
        left_out: gets the figures that were not drawn.
        say: gets a line before each figure, and the figures left out.
        quiet: say nothing but which figures failed.
    """
    from attnscope._memory import system_arrow_pool
    from attnscope.plots import draw_all

    # tables are read anew for every figure, and Arrow's own allocator keeps what they took
    with system_arrow_pool():
        drawn = draw_all(results, left_out=left_out, say=None if quiet else say)
        results.figures(drawn=drawn, left_out=left_out)
        for omission in left_out:
            if omission.failed or not quiet:
                say(str(omission))
        if results.path is not None and "heads" in results.tables():
            from attnscope.view import view

            view(results).save(results.path / "view.html")
        return Path(results.report(drawn=drawn, left_out=left_out))
