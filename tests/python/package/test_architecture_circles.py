# SPDX-License-Identifier: MIT
"""No circle of imports in the package: not when it is loaded, not inside functions, not for types alone.

A circle that a late or a type-only import cuts is still one for the reader: two files are one subject, or a
third one, which both know, has no file yet.
"""

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3] / "python"
#: Which imports count: those that run when a module is loaded, those inside functions too, all of them.
STRENGTHS = ("load", "run", "types")


@cache
def parse(path):
    """Return the syntax tree of a file."""
    return ast.parse(path.read_text("utf-8"))


def modules(root):
    """Return the file of every module of the package by its dotted name."""
    files = {}
    for path in sorted((root / "attnscope").rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return files


def imported_names(tree, strength):
    """Return what the import statements of a module name, each also with the names behind its `import`."""
    names = set()

    def visit(node, in_function, for_types):
        if isinstance(node, ast.ImportFrom) and node.module:
            statement = {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            statement = {alias.name for alias in node.names}
        else:
            in_function |= isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
            guarded = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
            for child in ast.iter_child_nodes(node):
                visit(child, in_function, for_types or (guarded and child in node.body))
            return
        if (not for_types or strength == "types") and (not in_function or strength != "load"):
            names.update(statement)

    visit(tree, False, False)
    return names


def import_graph(files, strength):
    """Return the modules that each module imports; a package counts only where names of its own are."""
    graph = {}
    for name, path in files.items():
        targets = imported_names(parse(path), strength) & set(files)
        within = {target.rpartition(".")[0] for target in targets if target.count(".") > 1}
        # "from attnscope.plots import lines" is an import of the module, not of its package
        graph[name] = {target for target in targets if target not in within or _is_used(path, target, files)}
        graph[name].discard(name)
    return graph


def _is_used(path, package, files):
    """Return True if a file imports names of a package itself, not only modules in it."""
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.ImportFrom) and node.module == package:
            if any(f"{package}.{alias.name}" not in files for alias in node.names):
                return True
        elif isinstance(node, ast.Import) and any(alias.name == package for alias in node.names):
            return True
    return False


def circles(graph):
    """Return the strongly connected components of more than one module (Tarjan)."""
    index, lowest, stack, components = {}, {}, [], []

    def connect(node):
        index[node] = lowest[node] = len(index)
        stack.append(node)
        for target in sorted(graph[node]):
            if target not in index:
                connect(target)
                lowest[node] = min(lowest[node], lowest[target])
            elif target in stack:
                lowest[node] = min(lowest[node], index[target])
        if lowest[node] == index[node]:
            place = stack.index(node)
            component, stack[place:] = stack[place:], []
            if len(component) > 1:
                components.append(sorted(component))

    for node in graph:
        if node not in index:
            connect(node)
    return components


@pytest.mark.parametrize("strength", STRENGTHS)
def test_no_modules_import_each_other(strength):
    files = modules(ROOT)
    graph = import_graph(files, strength)
    assert len(files) > 300
    assert sum(map(len, graph.values())) > 1000
    assert circles(graph) == []


@pytest.mark.parametrize(("strength", "expected"), [("load", 0), ("run", 1), ("types", 2)])
def test_a_circle_is_found_at_its_strength(tmp_path, strength, expected):
    package = tmp_path / "attnscope"
    package.mkdir()
    texts = {
        "__init__": "",
        "a": "from attnscope import b\n",
        "b": "def f():\n    from attnscope.a import g\n",
        "c": "import attnscope.d\n",
        "d": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from attnscope.c import T\n",
    }
    for name, text in texts.items():
        (package / f"{name}.py").write_text(text, "utf-8")
    assert len(circles(import_graph(modules(tmp_path), strength))) == expected
