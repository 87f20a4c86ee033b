# SPDX-License-Identifier: MIT
"""Examples of docstrings as the site wants them: doctests become code, never quotations."""

from __future__ import annotations

import re
from typing import Any

import griffe

_BARE = re.compile(r"(?m)^>>> .*\n?(?:^(?!\n).+\n?)*")


def with_code(text: str) -> str:
    """A docstring whose `Example:` is the section that griffe knows, and whose bare doctests are fenced."""
    text = re.sub(r"(?m)^Example:$", "Examples:", text)
    return _BARE.sub(lambda found: f"```pycon\n{found[0].rstrip()}\n```\n", text)


class Doctests(griffe.Extension):
    """Applies `with_code` to every docstring."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called for each object that is found."""
        if obj.docstring:
            obj.docstring.value = with_code(obj.docstring.value)
