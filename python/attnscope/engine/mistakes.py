# SPDX-License-Identifier: MIT
"""Mistakes in settings, in words."""

from __future__ import annotations

import typing
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from attnscope._nearest import nearest


def explain(error: ValidationError, model: type[BaseModel], key: str = "", more: Iterable[str] = ()) -> str:
    """One line per mistake: where it is, what was expected, what was given."""
    lines = []
    for item in error.errors(include_url=False):
        where = key
        for part in item["loc"]:
            where += f"[{part}]" if isinstance(part, int) else f".{part}" if where else str(part)
        if item["type"] == "extra_forbidden":
            *parents, last = item["loc"]
            owner = [*_fields(model, parents), *(more if not parents else ())]
            inside = f" in {where.rpartition('.')[0]}" if parents or key else ""
            lines.append(f"unknown key {str(last)!r}{inside}{nearest(str(last), owner)}")
        elif item["type"] == "missing":
            option = " (--model on the command line)" if where == "models" else ""
            lines.append(f"{where} is missing{option}")
        else:
            message = item["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
            given = "" if "got " in message else f", got {item['input']!r}"
            lines.append(f"{where}: {message[0].lower()}{message[1:]}{given}")
    return "; ".join(dict.fromkeys(lines))


def _fields(model: type[BaseModel], path: Sequence[int | str]) -> list[str]:
    """Names of the keys at a place of the configuration."""
    for part in path:
        if isinstance(part, str) and part in model.model_fields:
            model = models_in(model.model_fields[part].annotation)[0]
    return list(model.model_fields)


def models_in(kind: Any) -> list[type[BaseModel]]:
    """The models that a value of this type can be or hold."""
    inside = typing.get_args(kind)
    if not inside:
        return [kind] if isinstance(kind, type) and issubclass(kind, BaseModel) else []
    return [model for one in inside for model in models_in(one)]


def differences(there: Any, here: Any, key: str = "") -> Iterator[tuple[str, str, str]]:
    """Where two studies differ, as plain data: the key and what either says, cut to 60 letters.

    >>> list(differences({"texts": [{"column": "a"}]}, {"texts": [{"column": "b"}]}))
    [('texts[0].column', "'a'", "'b'")]
    """
    if isinstance(there, dict) and isinstance(here, dict):
        for name in {**there, **here}:
            yield from differences(there.get(name), here.get(name), f"{key}.{name}" if key else str(name))
    elif isinstance(there, list) and isinstance(here, list) and len(there) == len(here):
        for place, pair in enumerate(zip(there, here, strict=True)):
            yield from differences(*pair, f"{key}[{place}]")
    elif there != here:
        yield key, f"{there!r:.60}", f"{here!r:.60}"
