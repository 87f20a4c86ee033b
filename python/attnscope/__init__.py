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
import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from attnscope._extras import install_finder

__version__ = "0.1.0"

# from here on, a library that is not installed says which extra brings it
install_finder()


def _public_names() -> dict[str, tuple[str, str]]:
    """Return each public name with its module and its name there, as `__init__.pyi` imports or assigns it."""
    imported: dict[str, tuple[str, str]] = {}
    public: dict[str, tuple[str, str]] = {}
    for node in ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            for name in node.names:
                imported[name.name] = (node.module, name.name)
                if name.asname and not name.asname.startswith("_"):
                    public[name.asname] = imported[name.name]
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
            public |= {
                target.id: imported[node.value.id] for target in node.targets if isinstance(target, ast.Name)
            }
    return public


_MODULES = _public_names()

__all__ = ["__version__", *sorted(_MODULES)]

#: Classes that people make objects of; all others are of results, and complete in `attnscope.types`.
_INPUT_CLASSES = {"AttentionFeatures", "Features", "LazyAttention", "Results", "Study"}
_RESULT_CLASSES = {
    name for name in _MODULES if name[0].isupper() and not name.endswith("Error")
} - _INPUT_CLASSES


def __getattr__(name: str) -> Any:
    if name == "_core":
        return importlib.import_module("attnscope._isa").load_core()
    if name not in _MODULES:
        import difflib

        # Python suggests only names that are loaded already, and notebooks do not show what it suggests.
        close = [] if name.startswith("_") else difflib.get_close_matches(name, __all__, 1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise AttributeError(f"module 'attnscope' has no attribute {name!r}{hint}")
    module, name_there = _MODULES[name]
    try:
        if module == "attnscope":
            value: Any = importlib.import_module(f"attnscope.{name}")
        else:
            value = getattr(importlib.import_module(module), name_there)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        message = f"attnscope.{name} needs torch, which is not installed; attnscope.load does not"
        raise ImportError(message) from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))} - _RESULT_CLASSES)


class _Package(ModuleType):
    """The import system sets a subpackage under its name, which for `capture` and `view` is a function's."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _MODULES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
