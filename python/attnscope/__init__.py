# SPDX-License-Identifier: MIT
"""attnscope: a microscope for transformer attention.

Metrics take attention tensors [..., n, n] (rows are queries, columns keys) and return tensors [...];
`capture` streams attention out of a Hugging Face model one layer at a time; `run` does whole studies from a
config.
Every name is imported when it is first used, so that importing the package costs nothing, and `load` works
without torch.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

__version__ = "0.1.0"

#: Every public name and its module, as `__init__.pyi` imports them.
_MODULES: dict[str, str] = {
    name.name: node.module
    for node in ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")).body
    if isinstance(node, ast.ImportFrom) and node.module is not None
    for name in node.names
    if not name.name.startswith("_")
}

__all__ = ["__version__", *sorted(_MODULES)]


def __getattr__(name: str) -> Any:
    if name == "_core":
        return importlib.import_module("attnscope._isa").load_core()
    if name not in _MODULES:
        import difflib

        # Python suggests only names that are loaded already, and notebooks do not show what it suggests.
        close = [] if name.startswith("_") else difflib.get_close_matches(name, __all__, 1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise AttributeError(f"module 'attnscope' has no attribute {name!r}{hint}")
    module = _MODULES[name]
    try:
        if module == "attnscope":
            value: Any = importlib.import_module(f"attnscope.{name}")
        else:
            value = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        message = f"attnscope.{name} needs torch, which is not installed; attnscope.load does not"
        raise ImportError(message) from error
    if isinstance(value, FunctionType):
        value = _naming_options(value)
    globals()[name] = value
    return value


def _naming_options(function: FunctionType) -> Callable[..., Any]:
    """The same function, whose error at an option that it does not take names the nearest that it takes."""

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        try:
            return function(*args, **options)
        except TypeError as error:
            # nothing behind the call: what failed is the call itself, and not a line of the function
            if error.__traceback__ is not None and error.__traceback__.tb_next is None:
                raise TypeError(_wrong_call(function, args, options) or str(error)) from None
            raise

    call.__module__ = __name__
    return call


def _wrong_call(function: FunctionType, args: tuple[Any, ...], options: dict[str, Any]) -> str:
    from attnscope._nearest import nearest

    parameters = inspect.signature(function).parameters.values()
    named = [one.name for one in parameters if one.kind is not one.VAR_KEYWORD]
    if unknown := [name for name in options if name not in named]:
        return f"{function.__name__}: there is no option {unknown[0]!r}{nearest(unknown[0], named)}"
    by_place = [one.name for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD]
    if len(args) > len(by_place):
        rest = [name for name in named if name not in by_place]
        given = args[len(by_place)]
        shown = repr(given) if isinstance(given, (str, int, float)) else type(given).__name__
        return (
            f"{function.__name__}: takes {' and '.join(by_place)} by place and options by name "
            f"({', '.join(rest)}), got {shown} by place"
        )
    return ""


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """The import system sets a subpackage under its name, which for `capture` and `view` is a function's."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _MODULES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
