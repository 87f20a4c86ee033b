# SPDX-License-Identifier: MIT
"""Every example in a docstring is run, and says what it prints."""

import doctest
import importlib
import pkgutil

import pytest

import attnscope

SKIPPED = ("attnscope._core", "attnscope.commands.cli", "attnscope.__main__")
MODULES = [
    info.name
    for info in pkgutil.walk_packages(attnscope.__path__, "attnscope.")
    if not info.name.startswith(SKIPPED)
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    module = importlib.import_module(name)
    failed, _ = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert failed == 0
