# SPDX-License-Identifier: MIT
"""Capture, pages, tables and runs do not depend on torch's default device and dtype."""

import ast
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import attnscope as asc
from attnscope._checks import as_tensor
from attnscope.capture import Forward, forward
from attnscope.capture.edits import AddDirection, HideKeys
from attnscope.plots.maps import attention_map, betti_curve
from folders import model_folder, sentences, sink_study
from models import text, tiny

PACKAGE = Path(asc.__file__).parent
#: Functions of torch that make a tensor on the default device.
CONSTRUCTORS = frozenset(
    {
        *("arange", "asarray", "as_tensor", "empty", "eye", "full", "linspace", "logspace", "ones", "rand"),
        *("randint", "randn", "randperm", "scalar_tensor", "tensor", "tril_indices", "triu_indices", "zeros"),
    }
)
#: Modules of the demo's models, whose parameters follow torch's defaults as those of any module do; and the
#: module that asks for the default device.
MODULES = {"demo/encodings.py", "_evaluation.py"}
DEFAULTS = [("meta", torch.float64), ("cpu", torch.bfloat16)]


@contextmanager
def defaults(device, dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            yield
    finally:
        torch.set_default_dtype(before)


def under_all(function):
    """Return a result under plain defaults, and under each of the others."""
    results = []
    for device, dtype in DEFAULTS:
        with defaults(device, dtype):
            results.append(function())
            assert torch.get_default_dtype() == dtype
            assert torch.empty(0).device.type == device
    return function(), results


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "mpt", "t5"])
def test_capture_gives_the_same_maps(name):
    inputs = text(tiny(name), padding="left")

    def maps():
        with asc.capture(models.pop()) as recording:
            return [(layer.attention.clone(), layer.visibility.name) for layer in recording.run(**inputs)]

    models = [tiny(name) for _ in range(len(DEFAULTS) + 1)]  # a model's trial is remembered
    expected, results = under_all(maps)
    assert expected
    for result in results:
        for (attention, visible), (right, seen) in zip(result, expected, strict=True):
            assert torch.equal(attention, right)
            assert visible == seen


def test_a_pass_with_edits_gives_the_same_states():
    model = tiny("llama")
    inputs = text(model, padding="left")
    moved = AddDirection(0, torch.ones(96, device="cpu"))
    specification = Forward(sites=("block_output", "logits"), edits=(moved, HideKeys(keys=[3])))

    def states():
        with forward(model, inputs, specification) as run:
            return [*(layer.block_output for layer in run), run.outputs.logits]

    expected, results = under_all(states)
    for result in results:
        assert all(torch.equal(a, b) for a, b in zip(result, expected, strict=True))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return model_folder(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    return sentences(tmp_path_factory.mktemp("texts") / "texts.txt", 3, shortest=6)


def test_analyze_gives_the_same_tables(folder, texts):
    def table():
        lines = texts.read_text().splitlines()
        names = ["fiedler_value", "attention_entropy", "sink_test"]
        return asc.analyze(str(folder), lines, names).table("heads")

    expected, results = under_all(table)
    for result in results:
        pd.testing.assert_frame_equal(result, expected)


def test_view_gives_the_same_page():
    model = tiny("llama")

    expected, results = under_all(lambda: asc.view(model, list(range(5, 25))).contents)
    for result in results:
        assert result == expected


def test_likelihoods_are_the_same():
    model, ids = tiny("llama"), [list(range(5, 25)), list(range(7, 19))]

    expected, results = under_all(lambda: asc.token_likelihood(model, ids))
    for result in results:
        assert str(result) == str(expected)


def test_a_study_gives_the_same_tables(folder, texts, tmp_path):
    study = sink_study(tmp_path / "plain", folder, texts, protocols="exact")

    def tables():
        results = asc.run(study, output=str(tmp_path / str(torch.get_default_dtype())), progress=False)
        return {name: results.table(name) for name in ("heads", "layers")}

    expected, results = under_all(tables)
    assert "heads" in expected
    for result in results:
        for name, table in expected.items():
            pd.testing.assert_frame_equal(result[name], table)


def test_lists_of_numbers_are_read_alike():
    expected, results = under_all(lambda: as_tensor("f", "x", [0.1, 0.7]))
    assert expected.dtype == torch.float32
    assert all(torch.equal(result, expected) and result.dtype == expected.dtype for result in results)
    doubles, results = under_all(lambda: as_tensor("f", "x", [np.float64(0.1)]))
    assert doubles.dtype == torch.float64
    assert all(torch.equal(result, doubles) for result in results)


def test_drawings_are_the_same():
    attention = torch.eye(6).softmax(-1).tril()
    attention /= attention.sum(-1, keepdim=True)

    def drawn():
        axes = attention_map(attention)
        return np.asarray(axes.images[0].get_array()).tolist(), betti_curve(asc.persistence(attention)).lines[
            0
        ].get_ydata().tolist()

    expected, results = under_all(drawn)
    assert all(result == expected for result in results)


def test_every_tensor_that_is_made_names_its_device():
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.relative_to(PACKAGE).as_posix() in MODULES:
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if ast.unparse(node.func.value) == "torch" and node.func.attr in CONSTRUCTORS:
                names = [keyword.arg for keyword in node.keywords]
                assert "device" in names or None in names, f"{path}:{node.lineno}: {ast.unparse(node)}"
