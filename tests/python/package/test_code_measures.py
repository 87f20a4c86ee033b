# SPDX-License-Identifier: MIT
"""Names, docstrings, functions and imports: what is against the rules is counted, and no count grows."""

import ast
import json
import re
import textwrap

import code_measures as measures
import pytest


@pytest.fixture(scope="module")
def stored():
    return json.loads(measures.STORED.read_text("utf-8"))


def test_nothing_grows(stored):
    """Lower counts are stored by `python tests/python/package/code_measures.py`."""
    assert measures.growth(stored, measures.measure()) == []


def tree(text):
    return ast.parse(textwrap.dedent(text))


def test_fillers_are_counted_where_they_are_bound():
    code = """
    def found(own, *, rows):
        for one in rows:
            _known = one.given
        return [whole for whole in rows]
    """
    assert measures.count_fillers(tree(code)) == 5
    assert measures.count_fillers(tree("rows = table.given(one)")) == 0


def test_fillers_of_cpp_are_counted_where_they_are_declared():
    code = """
    // the whole of it
    std::vector<double> found(Index own, const char* what = "given");
    for (const auto& one : rows) return found(one);
    bool any(LaneMask mask);
    """
    assert measures.count_cpp_fillers(code) == 4
    assert measures.count_cpp_fillers("return found(own); throw given;") == 0


def test_sentences_of_docstrings_are_counted_but_not_their_sections():
    code = '''
    """What is here. Returns follow. Whether they do: How it is.

    Args:
        a: text.

    What stands behind a section is no prose.
    """
    def f():
        """Return what is asked."""
    class A:
        """Of two."""
    '''
    assert measures.count_openers(tree(code)) == 4


def test_lines_of_a_function_are_counted_without_its_docstring():
    [function] = tree('def f(a,\n      b):\n    """One.\n\n    Two."""\n    a = 1\n    return b\n').body
    assert measures.length(function) == 4


def test_large_functions_are_found_with_their_branches(monkeypatch):
    code = "def f():\n" + "    a = 1\n" * 61 + "\ndef g():\n    return 1\n"
    monkeypatch.setattr(measures, "sources", lambda: {"a/b.py": ast.parse(code)})
    monkeypatch.setattr(measures, "count_branches", lambda: {("a/b.py", 64): 13})
    assert measures.large_functions() == {"b.py: f": [62, 0], "b.py: g": [2, 13]}


def test_ruff_is_asked_for_branches_and_moods():
    for (path, line), branches in measures.count_branches().items():
        source = (measures.ROOT / path).read_text("utf-8").splitlines()
        assert "def " in source[line - 1], path
        assert branches > measures.MOST_BRANCHES


def test_imports_of_three_strengths():
    code = tree("""
    import a.b
    from a import c
    if TYPE_CHECKING:
        from a.d import D
    def f():
        from a.e import e
    """)
    names = {"a.b", "a.c", "a.d", "a.e"}
    assert measures.imported(code, names, "top") == {"a.b", "a.c"}
    assert measures.imported(code, names, "run") == {"a.b", "a.c", "a.e"}
    assert measures.imported(code, names, "types") == names


def test_a_count_that_grows_is_named():
    before = {"fillers": {"a": 1, "b": 2}, "large functions": {"f.py: f": [70, 3]}, "circles": {"top": 0}}
    assert measures.growth(before, before) == []
    assert measures.growth(before, {"fillers": {"a": 2}}) == ["fillers in a: 2, stored 1"]
    assert measures.growth(before, {"fillers": {"c": 4}}) == ["fillers: 4, stored 3"]
    assert measures.growth(before, {"circles": {"top": 2}}) == [
        "circles in top: 2, stored 0",
        "circles: 2, stored 0",
    ]
    assert measures.growth(before, {"large functions": {"f.py: f": [69, 3]}}) == []
    assert len(measures.growth(before, {"large functions": {"f.py: f": [71, 3], "f.py: g": [2, 13]}})) == 2


def documented_arguments(node):
    """Yield the names in the section `Args:` of a function's or class's docstring."""
    section = re.search(r"(?:^|\n)Args:\n((?: {4}.*\n?|\n)*)", ast.get_docstring(node) or "")
    for names in re.findall(r"(?m)^ {4}(\*{0,2}\w+(?:, \w+)*):", section[1] if section else ""):
        yield from (name.lstrip("*") for name in names.split(", "))


def parameters(node):
    """Return the parameters of a function, or the fields of a class and those of its `__init__`."""
    if isinstance(node, ast.ClassDef):
        fields = {part.target.id for part in node.body if isinstance(part, ast.AnnAssign)}
        methods = [part for part in node.body if isinstance(part, ast.FunctionDef)]
        return fields.union(*(parameters(method) for method in methods if method.name == "__init__"))
    arguments = node.args
    listed = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return {argument.arg for argument in (*listed, arguments.vararg, arguments.kwarg) if argument}


def test_documented_arguments_are_parameters():
    unknown, documented = [], 0
    for path, module in measures.sources().items():
        for node in ast.walk(module):
            if not isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                continue
            names, accepted = list(documented_arguments(node)), parameters(node)
            documented += len(names)
            unknown += [f"{path}: {node.name}: {name}" for name in names if name not in accepted]
    assert documented > 1900
    assert unknown == []


def test_an_argument_that_is_gone_from_a_function_is_noticed():
    code = '''
    def f(rows, *, columns=(), **options):
        """Return both.

        Args:
            rows, widths: words: of a row,
                a colon: in a line that goes on.
            **options: others.
        """
    '''
    (function,) = tree(code).body
    assert list(documented_arguments(function)) == ["rows", "widths", "options"]
    assert set(documented_arguments(function)) - parameters(function) == {"widths"}
