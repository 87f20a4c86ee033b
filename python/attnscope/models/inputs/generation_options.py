# SPDX-License-Identifier: MIT
"""Settings of a generation: by the call, by a configuration that is passed, or by the model's."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn


def generation_option(model: nn.Module, options: Mapping[str, Any], name: str) -> Any:
    """Return an option of ``model.generate(**options)``, None where nothing sets it.

    An option of the call overrules the configuration that is passed, and that the model's for all that it
    names.

    Args:
        model: of transformers, or a module that holds one.
        options: of the call, `generation_config` among them.
        name: of the option.
    """
    if name in options:
        return options[name]
    from transformers import GenerationConfig

    loaded, passed = first_attribute(model, "generation_config"), options.get("generation_config")
    if passed is None:
        return getattr(loaded, name, None)
    value, default = getattr(passed, name, None), getattr(GenerationConfig(), name, None)
    takes_stored = name.endswith("_token_id") or _fills_defaults(loaded, options)
    return getattr(loaded, name, value) if value == default and takes_stored else value


def _fills_defaults(loaded: Any, options: Mapping[str, Any]) -> bool:
    """Return True where the model's settings replace those of a passed configuration that are defaults.

    Transformers 5 always does; before, a default is also what a caller may have set, and it is replaced on
    request, or where the model's settings were stored by version 4.50 or later.
    """
    use_defaults = options.get("use_model_defaults")
    if use_defaults is not None or not is_before_transformers_5():
        return use_defaults is not False
    stored = str(getattr(loaded, "transformers_version", None) or "")
    return tuple(int(part) for part in re.findall(r"\d+", stored)[:2]) >= (4, 50)


def is_before_transformers_5() -> bool:
    """Return True for the versions whose `generate` has other rules."""
    import transformers

    return int(transformers.__version__.split(".")[0]) < 5


def generation_options_among(names: Iterable[str]) -> frozenset[str]:
    """Return the names that are settings of a generation, and no input of a model.

    >>> sorted(generation_options_among(["input_ids", "do_sample", "max_new_tokens"]))
    ['do_sample', 'max_new_tokens']
    """
    from transformers import GenerationConfig

    settings = GenerationConfig()
    return frozenset(name for name in names if hasattr(settings, name))


def first_attribute(model: nn.Module, name: str) -> Any:
    """Return an attribute of a model, or of the first module inside that has it; None without one."""
    values = (getattr(module, name, None) for module in model.modules())
    return next((value for value in values if value is not None), None)
