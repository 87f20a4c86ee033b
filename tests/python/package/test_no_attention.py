# SPDX-License-Identifier: MIT
"""Studies of states and of weights ask for no map, so that no mask or learned sink can be misread there."""

import ast
from pathlib import Path

import pytest

import attnscope.studies
from attnscope.capture.sites import TABLE

MAPS = {"attention", "scores", "lse"}


@pytest.mark.parametrize("name", ["hallucination_geometry", "pretraining_writes"])
def test_no_site_of_attention_is_captured(name):
    assert set(TABLE) >= MAPS
    folder = Path(attnscope.studies.__path__[0]) / name
    for file in folder.rglob("*.py"):
        tree = ast.parse(file.read_text("utf-8"))
        calls = [one for one in ast.walk(tree) if isinstance(one, ast.Call)]
        for call in calls:
            called = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            words = {one.value for one in ast.walk(call) if isinstance(one, ast.Constant)}
            if called in ("Forward", "forward", "capture", "step"):
                assert not words & MAPS, f"{file.name}:{call.lineno}"
            assert (
                called not in ("matrices", "layers")
                or not isinstance(call.func, ast.Attribute)
                or (getattr(call.func.value, "id", "") != "run")
            ), f"{file.name}:{call.lineno}"
