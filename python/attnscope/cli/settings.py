# SPDX-License-Identifier: MIT
"""Every setting of a study as YAML that explains itself."""

from __future__ import annotations

import re
import textwrap
import types
import typing
from typing import Any

import yaml
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from attnscope.config.run_config import RunConfig, models_in
from attnscope.config.study_folders import default_study
from attnscope.study_api.study import study_class

#: Columns of a comment behind its mark: with the indent of an option a line has 80.
_WIDTH = 76
_FIRST = {"models": [{"path": "MODEL_FOLDER_OR_HUB_NAME"}], "texts": [{"path": "sentences.txt"}]}


def written(study: str = "") -> str:
    """Return the settings of a study with their defaults, each under a comment with its type and meaning."""
    name = study or default_study()
    study_type = study_class(name)
    lines = [f"# Settings of {study_type.name}; a key left out keeps the value shown."]
    meanings = _meanings(RunConfig)
    for key, field in RunConfig.model_fields.items():
        if key == "options":
            continue
        value = study_type.name if key == "study" else _FIRST.get(key, _default(field))
        lines += _entry(key, value, field, meanings)
    lines.append("options:")
    option_meanings = _meanings(study_type.Options)
    options: type[BaseModel] = study_type.Options
    for key, field in options.model_fields.items():
        lines += [f"  {line}" for line in _entry(key, _default(field), field, option_meanings)]
    if not options.model_fields:
        lines[-1] = "options: {}"
    return "\n".join(lines) + "\n"


def _entry(key: str, value: Any, field: Any, meanings: dict[str, str]) -> list[str]:
    """Return a key with its value, under its meaning and that of every key below it."""
    meaning = f"{meanings.get(key, '')} ({_name(field.annotation)})".lstrip()
    comments = textwrap.wrap(meaning, _WIDTH, break_on_hyphens=False)
    for model in models_in(field.annotation):
        key_meanings = _meanings(model)
        comments.append(f"Keys of {model.__name__}:")
        for inner_key, inner in model.model_fields.items():
            needed = "needed" if inner.is_required() else f"default {_plain(_default(inner))}"
            meaning = f"{key_meanings.get(inner_key, '')} ({_name(inner.annotation)}, {needed})".lstrip()
            line = f"{inner_key}: {meaning}"
            comments += textwrap.wrap(
                line, _WIDTH, initial_indent="    ", subsequent_indent="      ", break_on_hyphens=False
            )
    text: str = yaml.safe_dump({key: value}, allow_unicode=True, sort_keys=False)
    return [*(f"# {line}" for line in comments), *text.rstrip().splitlines()]


def _default(field: Any) -> Any:
    value = field.get_default(call_default_factory=True)
    return None if value is PydanticUndefined else _data(value)


def _data(value: Any) -> Any:
    """Return plain data that YAML writes as it is read."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, dict):
        return {str(key): _data(entry) for key, entry in value.items()}
    return [_data(entry) for entry in value] if isinstance(value, (list, tuple, set, frozenset)) else value


def _plain(value: Any) -> str:
    text: str = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True)
    return text.removesuffix("...\n").strip() or '""'


def _name(kind: Any) -> str:
    """Return a type in words of Python, without the machinery of its checks."""
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return _name(inside[0])
    if origin is typing.Literal:
        return " | ".join(repr(literal) for literal in inside)
    if origin in (typing.Union, types.UnionType):
        return " | ".join("null" if member is type(None) else _name(member) for member in inside)
    if origin in (tuple, list):
        return f"list of {_name(inside[0])}" if inside else "list"
    if origin is dict:
        return "mapping"
    return str(getattr(kind, "__name__", kind))


def _meanings(model: type[BaseModel]) -> dict[str, str]:
    """Return the meaning of each key in a model's docstring, under Args or Attributes."""
    meanings: dict[str, str] = {}
    key = ""
    for line in (model.__doc__ or "").splitlines():
        if match := re.fullmatch(r" {8}(\w+): (.*)", line):
            key = match[1]
            meanings[key] = match[2]
        elif key and re.match(r" {12,}\S", line):
            meanings[key] += " " + line.strip()
        else:
            key = ""
    return meanings
