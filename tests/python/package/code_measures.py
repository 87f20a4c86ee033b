#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Measures of the code that may only fall: fillers among names, docstrings, long functions, circles.

    python tests/python/package/code_measures.py

writes today's into `code_measures.json`, unless one of them is larger than the stored one. The test of the
same name holds the code to what is stored.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
STORED = Path(__file__).with_suffix(".json")
PACKAGE = "python/attnscope"
ROOTS = (PACKAGE, "tests", "benchmarks")

#: Pronouns, participles and fillers: none says what is in a name.
FILLERS = frozenset(
    (
        *("about", "alone", "any", "anyone", "asked", "begun", "both", "each", "every", "everything"),
        *("found", "given", "gone", "here", "kept", "known", "made", "many", "mine", "more"),
        *("much", "nothing", "one", "ones", "own", "put", "said", "same", "settled", "some"),
        *("such", "taken", "that", "there", "these", "this", "those", "told", "wanted", "what"),
        *("whatever", "whole", "whose", "wished", "wondered", "worded"),
    )
)
#: Words that begin no sentence of a docstring: behind them comes a clause without a main clause.
OPENERS = frozenset(
    (
        *("What", "Whatever", "Whether", "How", "Of", "Who", "Whoever", "Whom", "Whose", "Which"),
        *("Whichever", "Why", "That", "Those", "Such", "Besides", "Beside", "Thereof", "Thereby", "Wherever"),
        *("Wherefore",),
    )
)
MOST_LINES, MOST_BRANCHES = 60, 12
Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def sources() -> dict[str, ast.Module]:
    """Return every Python file of the project by its path, parsed."""
    files = [
        path for root in ROOTS for path in sorted((ROOT / root).rglob("*.py")) if path.name != "_build.py"
    ]
    return {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text("utf-8")) for path in files}


@cache
def nodes(tree: ast.Module) -> list[ast.AST]:
    """Return all nodes of a file's syntax."""
    return list(ast.walk(tree))


def folder_of(path: str) -> str:
    """Return the folder that a file counts for: `python/attnscope/engine`, `cpp/linalg`, `tests`."""
    parts = path.split("/")
    depth = {"python": 3, "cpp": 2}.get(parts[0], 1)
    return "/".join(parts[: min(depth, len(parts) - 1)])


def bound_names(tree: ast.Module) -> Iterator[str]:
    """Yield every name that a file binds: targets, parameters, functions, classes."""
    for node in nodes(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, (Function, ast.ClassDef)):
            yield node.name


def count_fillers(tree: ast.Module) -> int:
    """Return how many bound names are fillers."""
    return sum(name.strip("_").lower() in FILLERS for name in bound_names(tree))


#: Fillers that name what they are in C++: a verb, and a question about lanes.
NO_FILLERS_OF_CPP = frozenset(("any", "put"))
#: A comment or a string of C++; a word that declares nothing before a name.
_NO_CODE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:[^"\\\n]|\\.)*"', re.DOTALL)
_DECLARED = re.compile(r"([\w>&*\]])\s+[&*]*(\w+)\b(?=\s*[=;,(){\[:])")
_NO_TYPE = re.compile(r"\b(?:return|else|case|throw|new|delete|goto|co_return)$")


def count_cpp_fillers(text: str) -> int:
    """Return how many names that a C++ file declares are fillers.

    >>> count_cpp_fillers("const Index own = 1;  // whole\\nreturn found(own);")
    1
    """
    code = _NO_CODE.sub(" ", text)
    names = (
        match[2]
        for match in _DECLARED.finditer(code)
        if not _NO_TYPE.search(code[max(0, match.start() - 12) : match.start() + 1])
    )
    return sum(name.strip("_").lower() in FILLERS - NO_FILLERS_OF_CPP for name in names)


def cpp_sources() -> Iterator[tuple[str, str]]:
    """Yield the path and the text of every C++ file of the project."""
    for root in ("cpp", "tests/cpp"):
        for path in sorted((ROOT / root).rglob("*")):
            if path.suffix in (".h", ".cpp"):
                yield path.relative_to(ROOT).as_posix(), path.read_text("utf-8")


def docstrings(tree: ast.Module) -> Iterator[str]:
    """Yield the text of every docstring in front of its first section or example."""
    for node in nodes(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, Function)) and (text := ast.get_docstring(node)):
            yield re.split(r"\n\s*(?:[A-Z]\w+:\n|>>>)", text)[0]


def count_openers(tree: ast.Module) -> int:
    """Return how many sentences of docstrings begin with a word of `OPENERS`."""
    firsts = (word for text in docstrings(tree) for word in re.findall(r"(?:\A|[.!?:]\s+)([A-Z]\w*)", text))
    return sum(word in OPENERS for word in firsts)


def length(function: Function) -> int:
    """Return the lines of a function without its decorators and its docstring."""
    first = function.body[0]
    documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    document = (first.end_lineno or 0) - first.lineno + 1 if documented else 0
    return (function.end_lineno or 0) - function.lineno + 1 - document


@cache
def ruff_findings(rule: str) -> list[dict[str, Any]]:
    """Return what ruff finds by one rule, wherever the project's own settings look away."""
    command = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--isolated",
        "--select",
        rule,
        "--output-format",
        "json",
    ]
    command += ["--config", 'lint.pydocstyle.convention="google"', "--exit-zero", "--no-cache", *ROOTS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [
        {**finding, "path": Path(finding["filename"]).relative_to(ROOT).as_posix()}
        for finding in json.loads(done.stdout)
    ]


def count_branches() -> dict[tuple[str, int], int]:
    """Return the branches of every function with more than 12, by file and line: ruff's PLR0912."""
    return {
        (finding["path"], finding["location"]["row"]): int(re.findall(r"\d+", finding["message"])[0])
        for finding in ruff_findings("PLR0912")
    }


def large_functions() -> dict[str, list[int]]:
    """Return lines and branches of every function above a limit, by file name and function."""
    branches, functions = count_branches(), {}
    for path, tree in sources().items():
        for node in nodes(tree):
            if isinstance(node, Function):
                lines, branching = length(node), branches.get((path, node.lineno), 0)
                if lines > MOST_LINES or branching > MOST_BRANCHES:
                    functions[f"{path.split('/')[-1]}: {node.name}"] = [lines, branching]
    return dict(sorted(functions.items()))


def count_moods() -> Counter[str]:
    """Return how many docstrings of functions are not imperative, by folder: ruff's D401."""
    paths = (finding["path"] for finding in ruff_findings("D401"))
    return Counter(folder_of(path) for path in paths if path.startswith(PACKAGE))


# --- circles of imports


def imported(tree: ast.AST, names: set[str], kind: str, *, typing: bool = False) -> set[str]:
    """Return the modules of the package that a file imports.

    Args:
        tree: the file, or a part of it.
        names: every module of the package.
        kind: "top" for what loads with the module, "run" also inside functions, "types" also for annotations.
        typing: whether the part is only for the type checker.
    """
    result: set[str] = set()
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            if not typing or kind == "types":
                result |= _targets(node, names)
        elif isinstance(node, Function) and kind == "top":
            continue
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            result |= imported(ast.Module(node.body, []), names, kind, typing=True)
            result |= imported(ast.Module(node.orelse, []), names, kind, typing=typing)
        elif isinstance(node, (ast.stmt, ast.excepthandler, ast.match_case)):
            result |= imported(node, names, kind, typing=typing)
    return result


def _targets(node: ast.Import | ast.ImportFrom, names: set[str]) -> set[str]:
    """Return the modules that an import names: the module itself, or one in it."""
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names} & names
    inner = {f"{node.module}.{alias.name}" for alias in node.names}
    return {name if name in names else str(node.module) for name in inner} & names


def circles(kind: str) -> list[list[str]]:
    """Return the groups of modules that import each other, each sorted."""
    modules = {module_name(path): tree for path, tree in sources().items() if path.startswith(PACKAGE)}
    graph = {name: imported(tree, set(modules), kind) - {name} for name, tree in modules.items()}
    reach = {name: _reachable(name, graph) for name in graph}
    groups = {frozenset({name, *(other for other in reach[name] if name in reach[other])}) for name in graph}
    return sorted(sorted(group) for group in groups if len(group) > 1)


def module_name(path: str) -> str:
    """Return the dotted name of a file of the package.

    >>> module_name("python/attnscope/view/__init__.py")
    'attnscope.view'
    """
    return path.removeprefix("python/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _reachable(name: str, graph: dict[str, set[str]]) -> set[str]:
    """Return every module that a module leads to."""
    reached: set[str] = set()
    pending = [name]
    while pending:
        following = graph[pending.pop()] - reached
        reached |= following
        pending += following
    return reached


# --- what is stored


def measure() -> dict[str, Any]:
    """Return every measure of the code as it is."""
    fillers: Counter[str] = Counter()
    openers: Counter[str] = Counter()
    for path, tree in sources().items():
        fillers[folder_of(path)] += count_fillers(tree)
        if path.startswith(PACKAGE):
            openers[folder_of(path)] += count_openers(tree)
    for path, text in cpp_sources():
        fillers[folder_of(path)] += count_cpp_fillers(text)
    return {
        "fillers": _nonzero(fillers),
        "openers": _nonzero(openers),
        "moods": _nonzero(count_moods()),
        "large functions": large_functions(),
        "circles": {kind: sum(map(len, circles(kind))) for kind in ("top", "run", "types")},
    }


def _nonzero(counts: Counter[str]) -> dict[str, int]:
    return {folder: count for folder, count in sorted(counts.items()) if count}


def growth(stored: dict[str, Any], today: dict[str, Any]) -> list[str]:
    """Return a line for every measure that is larger than the stored one.

    A folder that is not stored, because it was moved, counts for the sum alone.

    >>> growth({"openers": {"a": 1}}, {"openers": {"a": 2}})
    ['openers in a: 2, stored 1', 'openers: 2, stored 1']
    >>> growth({"openers": {"a": 2}}, {"openers": {"b": 2}})
    []
    """
    lines = []
    for measure_name, counts in today.items():
        before = stored.get(measure_name, {})
        if measure_name == "large functions":
            for function, sizes in counts.items():
                limits = before.get(function, [MOST_LINES, MOST_BRANCHES])
                if any(
                    size > max(limit, most) for size, limit, most in zip(sizes, limits, LIMITS, strict=True)
                ):
                    lines.append(f"{function}: {sizes[0]} lines and {sizes[1]} branches, at most {limits}")
            continue
        for folder, count in counts.items():
            if folder in before and count > before[folder]:
                lines.append(f"{measure_name} in {folder}: {count}, stored {before[folder]}")
        if sum(counts.values()) > sum(before.values()):
            lines.append(f"{measure_name}: {sum(counts.values())}, stored {sum(before.values())}")
    return lines


LIMITS = (MOST_LINES, MOST_BRANCHES)


def main() -> int:
    today = measure()
    stored = json.loads(STORED.read_text("utf-8")) if STORED.exists() else today
    if lines := growth(stored, today):
        print(*lines, sep="\n")
        return 1
    STORED.write_text(json.dumps(today, indent=1, ensure_ascii=False) + "\n", "utf-8")
    print(
        {
            name: len(counts) if name == "large functions" else sum(counts.values())
            for name, counts in today.items()
        }
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
