# SPDX-License-Identifier: MIT
"""Docstrings as the site wants them: doctests become code, and what only metrics share is hidden."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import griffe

_STUB = Path(__file__).resolve().parents[1] / "attnscope" / "__init__.pyi"
#: Names that a person imports from attnscope, and the few of its metrics that only a study needs.
PUBLIC = {*re.findall(r" as (\w+)", _STUB.read_text("utf-8")), "measure_quantities", "Measured"}
_BARE = re.compile(r"(?m)^>>> .*\n?(?:^(?!\n).+\n?)*")


def with_code(text: str) -> str:
    """Return a docstring whose `Example:` is the section that griffe knows; bare doctests are fenced."""
    text = re.sub(r"(?m)^Example:$", "Examples:", with_single_arguments(text))
    return _BARE.sub(lambda doctest: f"```pycon\n{doctest[0].rstrip()}\n```\n", text)


def with_single_arguments(text: str) -> str:
    """Return a docstring in which arguments that share a description have it each, as griffe reads them."""

    def repeat(entry: re.Match[str]) -> str:
        return "".join(f"    {name}: {entry[2]}" for name in entry[1].split(", "))

    return re.sub(r"(?m)^ {4}(\w+(?:, \w+)+): (.*\n(?: {8}.*\n)*)", repeat, text)


def with_columns(metric: str) -> str:
    """Return the columns that a metric gives in tables, as the last section of its docstring."""
    from attnscope.metrics.discovery import columns_of

    lines = [f"* `{quantity.name}`: {quantity.label}. {quantity.meaning}" for quantity in columns_of(metric)]
    return "\n\n**Columns in tables**\n\n" + "\n".join(lines) + "\n" if lines else ""


class Doctests(griffe.Extension):
    """Applies `with_code` to every docstring."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Change the docstring of an object; objects of the metrics that are not public lose theirs."""
        inside = obj.parent is not None and obj.parent.is_module and obj.path.startswith("attnscope.metrics.")
        if inside and not obj.is_module and obj.name not in PUBLIC:
            obj.docstring = None
        if obj.docstring:
            columns = with_columns(obj.name) if inside and obj.is_function else ""
            obj.docstring.value = with_code(obj.docstring.value) + columns
