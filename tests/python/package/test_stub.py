# SPDX-License-Identifier: MIT
"""`_core.pyi` says what the compiled module holds: the same names, arguments, order and defaults."""

import ast
import re
from pathlib import Path

import pytest

import attnscope
from attnscope import _core

PACKAGE = Path(attnscope.__file__).parent
STUB = ast.parse((PACKAGE / "_core.pyi").read_text(encoding="utf-8"))
FUNCTIONS = {node.name: node for node in STUB.body if isinstance(node, ast.FunctionDef)}
VALUES = {
    node.target.id: ast.unparse(node.annotation)
    for node in STUB.body
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
}


def split_outside_brackets(text):
    """The parts between commas that no bracket encloses."""
    parts, depth, start = [], 0, 0
    for place, letter in enumerate(text):
        depth += (letter in "[({") - (letter in "])}")
        if letter == "," and depth == 0:
            parts.append(text[start:place])
            start = place + 1
    return [part.strip() for part in [*parts, text[start:]] if part.strip()]


def of_binary(name):
    """Arguments of a compiled function, from its docstring's first line: [(name, default?)]."""
    line = (getattr(_core, name).__doc__ or "").partition("\n")[0]
    match = re.fullmatch(rf"{name}\((.*)\) -> .*", line)
    assert match, f"{name}: no signature in {line!r}"
    return [(part.partition(":")[0].strip(), " = " in part) for part in split_outside_brackets(match[1])]


def of_stub(name):
    arguments = FUNCTIONS[name].args
    positional = [argument.arg for argument in [*arguments.posonlyargs, *arguments.args]]
    defaults = [False] * (len(positional) - len(arguments.defaults)) + [True] * len(arguments.defaults)
    named = [
        (kwonlyarg.arg, value is not None)
        for kwonlyarg, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    ]
    return [*zip(positional, defaults, strict=True), *named]


def public(kind):
    return {
        name
        for name in dir(_core)
        if not name.startswith("_") and callable(getattr(_core, name)) == (kind == "function")
    }


def test_the_stub_names_every_function_of_the_binary_and_no_other():
    assert public("function") == set(FUNCTIONS)
    assert len(FUNCTIONS) == sum(isinstance(node, ast.FunctionDef) for node in STUB.body), (
        "a name stands twice"
    )


def test_the_stub_names_every_value_of_the_binary_with_its_type():
    assert {name: type(getattr(_core, name)).__name__ for name in public("value")} == VALUES


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_arguments_are_those_of_the_binary(name):
    assert of_stub(name) == of_binary(name)


def test_nothing_else_but_private_aliases_stands_in_the_stub():
    others = [
        ast.unparse(node)
        for node in STUB.body
        if not isinstance(node, (ast.FunctionDef, ast.AnnAssign, ast.ImportFrom))
    ]
    assert [other for other in others if not other.startswith("_")] == []


def test_the_package_says_that_it_is_typed():
    assert (PACKAGE / "py.typed").is_file()


def test_the_reader_of_signatures_sees_nested_brackets():
    assert split_outside_brackets("a: tuple[int, int], b: str = 'x'") == [
        "a: tuple[int, int]",
        "b: str = 'x'",
    ]
