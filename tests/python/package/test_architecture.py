# SPDX-License-Identifier: MIT
"""The rules of the architecture that a test can hold: stems, arrows, what an import costs."""

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import attnscope as asc

ROOT = Path(__file__).resolve().parents[3]
KERNELS = sorted(path.stem for path in (ROOT / "cpp/kernels").rglob("*.h"))
PACKAGE = ROOT / "python/attnscope"


def python_files():
    return sorted(path for path in PACKAGE.rglob("*.py") if path.name != "_build.py")


@pytest.mark.parametrize("stem", KERNELS)
@pytest.mark.parametrize(
    ("room", "name"),
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
def test_a_concept_has_its_file_in_every_room(stem, room, name):
    """At the top of the room, or in one of the folders that divide it."""
    found = list((ROOT / room).rglob(name.format(stem)))
    assert len(found) == 1, f"{room} has {len(found)} files {name.format(stem)}: {found}"


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


def test_the_core_knows_eigen_and_std_only_and_includes_downward():
    folders = {path.name for path in (ROOT / "cpp").iterdir() if path.is_dir()}
    assert folders == {*LAYERS, "bindings", "cmake"}
    for layer, below in LAYERS.items():
        for path in sorted((ROOT / "cpp" / layer).rglob("*.[hc]*")):
            for include in re.findall(r'#\s*include\s*[<"]([^>"]+)[>"]', path.read_text()):
                own = include.startswith((f"{layer}/", *(f"{folder}/" for folder in below)))
                allowed = own or include.startswith(("Eigen/", "unsupported/Eigen/FFT"))
                allowed = allowed or re.fullmatch(r"[a-z_]+|immintrin\.h", include)
                assert allowed, f"{path.relative_to(ROOT)} includes {include}"


def test_torch_headers_stay_in_one_place():
    heavy = {
        path.name
        for path in (ROOT / "cpp/bindings").rglob("*.*")
        if re.search(r'#\s*include\s*[<"](ATen|torch|c10)/', path.read_text())
    }
    assert heavy <= {"batched.cpp", "tensors.cpp"}


@pytest.mark.parametrize(
    "module", ["transformers", "matplotlib", "pandas", "pyarrow", "pydantic", "typer", "scipy"]
)
def test_importing_the_package_loads_nothing_heavy(module):
    script = f"import sys, attnscope; sys.exit({module!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0, (
        f"attnscope imports {module}"
    )


def test_files_stay_small():
    for path in [*python_files(), *(ROOT / "cpp").rglob("*.cpp"), *(ROOT / "cpp").rglob("*.h")]:
        lines = len(path.read_text().splitlines())
        assert lines <= 520, f"{path.relative_to(ROOT)} has {lines} lines: a concept inside wants a name"


@pytest.mark.parametrize("room", ["plots", "report", "view", "published"])
def test_common_rooms_know_no_paper(room):
    papers = re.compile("ruscio|wavelet|sink_study|attention_sinks", re.IGNORECASE)
    for path in (PACKAGE / room).rglob("*.*"):
        if path.suffix in (".py", ".html", ".js", ".css"):
            assert not papers.search(path.read_text()), path


def test_no_room_is_called_utils():
    assert not [
        path
        for path in ROOT.rglob("*")
        if re.fullmatch(r"(utils?|helpers?|misc|common)(\.\w+)?", path.name)
        and ".venv" not in path.parts
        and "build" not in path.parts
    ]


@pytest.mark.parametrize("path", python_files(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_exception_is_swallowed(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ExceptHandler):
            empty = all(isinstance(child, ast.Pass) for child in node.body)
            assert not (
                empty and (node.type is None or ast.unparse(node.type) in ("Exception", "BaseException"))
            ), f"{path.name}:{node.lineno}"


PUBLIC = sorted(name for name in set(asc.__all__) - {"__version__"} if inspect.isfunction(getattr(asc, name)))


@pytest.mark.parametrize("name", PUBLIC)
def test_public_functions_document_themselves(name):
    document = inspect.getdoc(getattr(asc, name)) or ""
    wanted = ["Returns:", ">>>"] + (["Args:"] if inspect.signature(getattr(asc, name)).parameters else [])
    for part in wanted:
        assert part in document, f"{name} lacks {part}"


@pytest.mark.parametrize("name", sorted(asc.__all__))
def test_every_public_name_is_there(name):
    assert getattr(asc, name) is not None
    assert name in dir(asc)


def test_no_two_test_files_share_a_name():
    """pytest imports them by their bare names: of two, the second would be an error, or the first again."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert len(names) == len(set(names)), sorted({name for name in names if names.count(name) > 1})
