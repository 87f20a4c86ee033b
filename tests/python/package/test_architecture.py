# SPDX-License-Identifier: MIT
"""The rules of the architecture that a test can hold: stems, arrows, what an import costs."""

import ast
import inspect
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

import attnscope as asc
from attnscope.capture.sites import TABLE

ROOT = Path(__file__).resolve().parents[3]
KERNELS = sorted(path.stem for path in (ROOT / "cpp/kernels").rglob("*.h"))
PACKAGE = ROOT / "python/attnscope"


def python_files():
    return sorted(path for path in PACKAGE.rglob("*.py") if path.name != "_build.py")


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("cpp/kernels", "{}.cpp"),
        ("cpp/bindings", "{}.cpp"),
        ("tests/cpp", "{}_test.cpp"),
        ("tests/python", "test_{}.py"),
        ("python/attnscope/metrics", "{}.py"),
        ("benchmarks", "{}.py"),
        ("tests/fuzz", "{}.cpp"),
        ("tests/fuzz/corpus", "{}.zip"),
    ],
)
def test_a_concept_has_its_file_in_every_folder(folder, name):
    """At its top, or in one of the folders that divide it."""
    file_counts = Counter(path.name for path in (ROOT / folder).rglob("*.*"))
    assert len(KERNELS) > 20
    expected = [name.format(stem) for stem in KERNELS]
    assert {name: file_counts[name] for name in expected if file_counts[name] != 1} == {}


def functions_with_scratch(header):
    """Return the functions of a header that allocate: their declaration names a workspace or scratch."""
    declarations = re.sub(r"//.*", "", header.read_text())
    pattern = r"^(?!inline|class|struct)[\w:<>, ]+? (\w+)\(([^;{]*)\);"
    return [
        name
        for name, parameters in re.findall(pattern, declarations, re.MULTILINE)
        if re.search("Workspace|Scratch", parameters)
    ]


def test_every_kernel_is_among_those_whose_allocations_fail():
    """And among those that run from eight threads: both tests call what tests/cpp/every_kernel.h calls."""
    calls = (ROOT / "tests/cpp/every_kernel.h").read_text()
    functions = [
        function
        for header in sorted((ROOT / "cpp/kernels").rglob("*.h"))
        for function in functions_with_scratch(header)
    ]
    assert len(functions) > 30
    assert [function for function in functions if not re.search(rf"\b{function}\(", calls)] == []


# The layers of the core from the bottom up, and below each what its folder may include.
LAYERS = {
    "simd": (),
    "matrix": ("simd",),
    "linalg": ("simd", "matrix"),
    "graphs": ("simd", "matrix", "linalg"),
    "homology": ("simd", "matrix", "linalg", "graphs"),
    "random_matrices": ("simd", "matrix", "linalg"),
    "signals": ("simd", "matrix"),
    "kernels": ("simd", "matrix", "linalg", "graphs", "homology", "random_matrices", "signals"),
}


def test_the_core_knows_eigen_pocketfft_and_std_only_and_includes_downward():
    folders = {path.name for path in (ROOT / "cpp").iterdir() if path.is_dir()}
    assert folders == {*LAYERS, "bindings", "cmake"}
    for layer, below in LAYERS.items():
        for path in sorted((ROOT / "cpp" / layer).rglob("*.[hc]*")):
            for include in re.findall(r'#\s*include\s*[<"]([^>"]+)[>"]', path.read_text()):
                is_own = include.startswith((f"{layer}/", *(f"{folder}/" for folder in below)))
                allowed = is_own or include.startswith("Eigen/")
                allowed = allowed or (include == "pocketfft_hdronly.h" and path.name == "fourier.cpp")
                allowed = allowed or re.fullmatch(r"[a-z_]+|immintrin\.h", include)
                assert allowed, f"{path.relative_to(ROOT)} includes {include}"


# The folders of the package from the bottom up; a folder imports from those below it and beside it.
LEVELS = (
    {"arguments", "untrusted"},
    {"devices", "gradients"},
    {"metrics"},
    {"protocols"},
    {"capture", "models"},
    {"statistics"},
    {"config"},
    {"texts", "results"},
    {"study_api"},
    {"analysis"},
    {"engine", "plots", "published", "report", "view"},
    {"studies"},
    {"demo"},
    {"cli", "training", "types"},
)
LEVEL = {folder: level for level, folders in enumerate(LEVELS) for folder in folders}


@cache
def nodes(path):
    """All nodes of a file's syntax."""
    return list(ast.walk(ast.parse(path.read_text())))


def imports(path, within=None):
    """Modules of attnscope that a file, or a node of it, imports, as their parts behind the package."""
    for node in nodes(path) if within is None else ast.walk(within):
        if isinstance(node, ast.ImportFrom) and node.module == "attnscope":
            yield from ([name.name] for name in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("attnscope."):
            yield [*node.module.split(".")[1:], *(name.name for name in node.names)]
        elif isinstance(node, ast.Import):
            yield from (
                alias.name.split(".")[1:] for alias in node.names if alias.name.startswith("attnscope.")
            )
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "importlib.import_module":
            # the beginning of a name that is put together says the folder
            name = node.args[0].values[0] if isinstance(node.args[0], ast.JoinedStr) else node.args[0]
            if isinstance(name, ast.Constant) and name.value.startswith("attnscope."):
                yield name.value.split(".")[1:]


def test_imports_of_the_package_go_downward():
    folders = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    assert folders == set(LEVEL)
    for path in python_files():
        top, *inner = path.relative_to(PACKAGE).parts
        for first, *_ in filter(None, imports(path)):
            where = f"{path.relative_to(PACKAGE)} imports {first}"
            if inner and first in LEVEL:
                assert LEVEL[first] <= LEVEL[top], where
            elif not inner and top.startswith("_") and not top.startswith("__"):
                # torch.compile follows an import statement, and nothing else, to the operators
                allowed = top in ("_calls.py", "_checks.py") and first in (
                    "arguments",
                    "devices",
                    "gradients",
                )
                assert first not in LEVEL or first == "untrusted" or allowed, where


# The folders that every study shares, and which of them each may import.
SHARED = {
    "engine": (),
    "plots": (),
    "published": (),
    "report": ("plots",),
    "view": ("engine", "plots"),
}


def test_arrows_among_the_folders_that_studies_share():
    result = set()
    for path in python_files():
        top, *inner = path.relative_to(PACKAGE).parts
        if top in SHARED and inner:
            functions = [node for node in nodes(path) if isinstance(node, ast.FunctionDef)]
            lazy = [(node.name, first) for node in functions for first, *_ in imports(path, node)]
            firsts = [first for first, *_ in imports(path)]
            eager = [("", edge) for edge in firsts if firsts.count(edge) > [of for _, of in lazy].count(edge)]
            against = {folder for folder in SHARED if folder != top} - set(SHARED[top])
            file = path.relative_to(PACKAGE).as_posix()
            result |= {(file, name, first) for name, first in [*lazy, *eager] if first in against}
    assert result == set()


def test_no_header_of_torch_is_included():
    for path in (ROOT / "cpp").rglob("*.*"):
        assert not re.search(r'#\s*include\s*[<"](ATen|torch|c10)/', path.read_text()), path


def loaded_by(script):
    """Modules in memory after a script has run in a process of its own."""
    script += "; import sys; print('MODULES', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.partition("MODULES")[2].split())


HEAVY = {"torch", "transformers", "matplotlib", "pandas", "pyarrow", "pydantic", "yaml", "scipy", "numpy"}


def test_importing_the_package_loads_nothing_else():
    loaded = loaded_by("import attnscope")
    assert not loaded & (HEAVY | {"typer"})
    assert {name for name in loaded if name.startswith("attnscope")} == {"attnscope", "attnscope._extras"}


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_and_version_load_nothing_heavy(option):
    script = (
        "import contextlib, attnscope.cli.application as cli\n"
        f"with contextlib.suppress(SystemExit): cli.main([{option!r}])\nNone"
    )
    assert not loaded_by(script) & HEAVY


def test_a_metric_loads_torch_and_its_own_modules(fresh):
    done = fresh("import sys, attnscope; attnscope.fiedler_value; print(*sys.modules)")
    loaded = set(done.stdout.split())
    assert "attnscope.metrics.graphs.fiedler" in loaded, done.stderr
    assert not loaded & (HEAVY - {"torch", "numpy"})
    metric_modules = {name for name in loaded if name.startswith("attnscope.metrics.")}
    assert not metric_modules & {
        "attnscope.metrics.discovery",
        "attnscope.metrics.plan",
        "attnscope.metrics.measure",
    }


def test_packages_called_like_a_function_do_not_hide_it(fresh):
    done = fresh(
        "import attnscope.view.page, attnscope.capture.layer, attnscope as asc; "
        "assert callable(asc.view) and callable(asc.capture); from attnscope import capture; "
        "assert callable(capture)"
    )
    assert done.returncode == 0, done.stderr


MOST_FILES = 20
SOURCES = (".py", ".pyi", ".h", ".cpp", ".js", ".css", ".html")


def sources():
    """Source files of the package, the core, the tests and the benchmarks."""
    for folder in ("python", "cpp", "tests", "benchmarks"):
        for path in (ROOT / folder).rglob("*.*"):
            if path.suffix in SOURCES and path.name not in ("_build.py", "_core.pyi"):
                yield path.relative_to(ROOT)


def test_folders_stay_small():
    count = Counter(path.parent for path in sources())
    assert not {str(folder): number for folder, number in count.items() if number > MOST_FILES}


def test_what_studies_share_names_none_of_them():
    words = re.compile(r"ruscio|wavelet|sink_study|attention_sinks", re.IGNORECASE)
    for folder in ("config", "texts", "results", "study_api", "engine", "report", "plots", "statistics"):
        files = [path for path in (PACKAGE / folder).rglob("*.*") if "__pycache__" not in path.parts]
        assert files
        for path in files:
            match = words.search(path.read_text())
            assert not match, f"{path}: {match and match[0]}"


@pytest.mark.parametrize("folder", ["plots", "report", "view", "published"])
def test_what_every_study_uses_knows_no_paper_and_computes_no_spectrum(folder):
    words = re.compile(r"ruscio|wavelet|sink|linalg|eigvals|[._]eigh|svd", re.IGNORECASE)
    for path in (PACKAGE / folder).rglob("*.*"):
        if path.suffix in (".py", ".html", ".js", ".css"):
            match = words.search(path.read_text())
            assert not match, f"{path}: {match and match[0]}"


def test_nothing_is_called_utils():
    tops = [path for path in ROOT.iterdir() if path.name not in (".git", ".venv", "build")]
    assert len(tops) > 7
    named = re.compile(r"(utils?|helpers?|misc|common)(\.\w+)?")
    assert not [path for top in tops for path in (top, *top.rglob("*")) if named.fullmatch(path.name)]


def test_no_exception_is_swallowed():
    files = python_files()
    assert len(files) > 300
    for path in files:
        for node in nodes(path):
            if isinstance(node, ast.ExceptHandler):
                empty = all(isinstance(child, ast.Pass) for child in node.body)
                assert not (
                    empty and (node.type is None or ast.unparse(node.type) in ("Exception", "BaseException"))
                ), f"{path.name}:{node.lineno}"


def selections_by_hand(tree):
    """Yield the lines that select rows of a table by the value of one of its columns, without the kit."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript):
            table = node.value.value if is_attribute(node.value, "loc") else node.value
            first = (
                node.slice.elts[0] if isinstance(node.slice, ast.Tuple) and node.slice.elts else node.slice
            )
            if any(compares_column(part, ast.dump(table)) for part in conjunction(first)):
                yield node.lineno


def is_attribute(node, name):
    return isinstance(node, ast.Attribute) and node.attr == name


def conjunction(condition):
    """Return the parts that `&` joins, those of `~` too."""
    if isinstance(condition, ast.BinOp) and isinstance(condition.op, ast.BitAnd):
        return [*conjunction(condition.left), *conjunction(condition.right)]
    return [condition.operand] if isinstance(condition, ast.UnaryOp) else [condition]


def compares_column(condition, table):
    """Return True for `table["a"] == value` and `table["a"].isin(values)`; values are no column of it."""
    if isinstance(condition, ast.Compare) and isinstance(condition.ops[0], (ast.Eq, ast.NotEq)):
        sides = [condition.left, condition.comparators[0]]
        return [is_column(side, table) for side in sides] == [True, False]
    is_call = isinstance(condition, ast.Call) and is_attribute(condition.func, "isin")
    return is_call and is_column(condition.func.value, table)


def is_column(node, table):
    return isinstance(node, ast.Subscript) and ast.dump(node.value) == table


@pytest.mark.parametrize(
    ("code", "is_by_hand"),
    [
        ('rows = table[table["design"] == "swap"]', True),
        ('rows = table[(table["layer"] > 0) & (table["design"] != "swap")]', True),
        ('rows = table.loc[table["design"] == "swap", "value"]', True),
        ('rows = table[~table["design"].isin(designs)]', True),
        ('rows = table[table["bucket"] == table["contrast"]]', False),
        ('rows = table[table["layer"] > 0]', False),
        ('rows = where(table, design="swap")', False),
        ("values = values[seeds == seed]", False),
    ],
)
def test_selections_by_hand_are_recognised(code, is_by_hand):
    assert bool([*selections_by_hand(ast.parse(code))]) is is_by_hand


def test_studies_select_rows_with_the_kit():
    """`where` and `without` of attnscope.study_api.selection, the same in every study."""
    for path in sorted((PACKAGE / "studies").rglob("*.py")):
        lines = [*selections_by_hand(ast.parse(path.read_text()))]
        assert lines == [], f"{path.relative_to(PACKAGE)}: lines {lines}"


def test_studies_write_no_interval_and_no_list_of_stages_themselves():
    """`interval_text` of attnscope.study_api.number_text and `Stages` do."""
    for path in sorted((PACKAGE / "studies").rglob("*.py")):
        source = path.read_text()
        assert not re.search(r"\[\{[^{}]+\}, \{[^{}]+\}\]", source), f"{path}: an interval"
        assert not re.search(r"def stages\(", source), f"{path}: a list of stages"


PUBLIC = sorted(name for name in set(asc.__all__) - {"__version__"} if inspect.isfunction(getattr(asc, name)))


def test_public_functions_document_themselves():
    assert len(PUBLIC) > 90
    for name in PUBLIC:
        document = inspect.getdoc(getattr(asc, name)) or ""
        expected = ["Returns:", ">>>"] + (
            ["Args:"] if inspect.signature(getattr(asc, name)).parameters else []
        )
        for part in expected:
            assert part in document, f"{name} lacks {part}"


def test_every_public_name_is_there():
    assert len(asc.__all__) > 140
    for name in asc.__all__:
        assert getattr(asc, name) is not None, name
    assert set(asc.__all__) <= {*dir(asc), *dir(asc.types)}
    assert {"Study", "LazyAttention", "sink_share"} <= set(dir(asc))
    assert not {"SinkShare", "ast", "sys", "Any", "Path"} & set(dir(asc))


def test_classes_of_results_are_named_apart_and_in_both_places():
    stub = (PACKAGE / "types" / "__init__.pyi").read_text()
    assert re.findall(r"^from attnscope import (\w+) as \1$", stub, re.MULTILINE) == sorted(
        asc.types.__all__, key=str.lower
    )
    assert asc.types.SinkShare is asc.SinkShare
    with pytest.raises(AttributeError, match=r"module 'attnscope.types' has no attribute 'Nothing'"):
        _ = asc.types.Nothing


@pytest.mark.parametrize("module", ["plots", "demo", "statistics", "types"])
def test_modules_complete_their_public_names_alone(module):
    part = getattr(asc, module)
    assert set(dir(part)) == set(part.__all__)


def test_no_two_test_files_share_a_name():
    """pytest imports them by their bare names: of two, the second would be an error, or the first again."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert len(names) == len(set(names)), sorted({name for name in names if names.count(name) > 1})


MAPS = {"attention", "scores", "lse"}


@pytest.mark.parametrize("name", ["hallucination_geometry", "pretraining_writes"])
def test_studies_of_states_and_of_weights_capture_no_map(name):
    """So no mask or learned sink can be misread there."""
    assert set(TABLE) >= MAPS
    for path in (PACKAGE / "studies" / name).rglob("*.py"):
        for call in (node for node in nodes(path) if isinstance(node, ast.Call)):
            where, function = f"{path.name}:{call.lineno}", call.func
            called = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
            if called in ("Forward", "forward", "capture", "step"):
                words = {constant.value for constant in ast.walk(call) if isinstance(constant, ast.Constant)}
                assert not words & MAPS, where
            if called in ("matrices", "layers") and isinstance(function, ast.Attribute):
                assert getattr(function.value, "id", "") != "run", where
