# SPDX-License-Identifier: MIT
"""Results do not depend on torch's default device: every tensor that is made names its own."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import attnscope
from every_call import OF_RESULTS, answer, every_call, same

CALLS = {name: (function, arguments) for name, function, arguments in every_call()}
PACKAGE = Path(attnscope.__file__).parent
#: Functions of torch that make a tensor on the default device.
CONSTRUCTORS = frozenset(
    {
        *("arange", "asarray", "as_tensor", "empty", "eye", "full", "linspace", "logspace", "ones", "rand"),
        *("randint", "randn", "randperm", "scalar_tensor", "tensor", "tril_indices", "triu_indices", "zeros"),
    }
)


@pytest.mark.parametrize("name", CALLS)
def test_the_default_device_changes_no_result(name):
    function, arguments = CALLS[name]
    expected = answer(function, arguments)
    with torch.device("meta"):
        found = answer(function, arguments)
    assert same(found, expected)


@pytest.mark.parametrize("name", OF_RESULTS)
def test_the_default_device_changes_nothing_that_is_read_off_results(name):
    expected = OF_RESULTS[name]()
    with torch.device("meta"):
        assert same(OF_RESULTS[name](), expected)


def test_numbers_and_arrays_come_to_the_cpu():
    maps = torch.eye(4).expand(2, 4, 4)
    with torch.device("meta"):
        assert attnscope.fiedler_value(maps.numpy(), lengths=[3, 4]).tolist() == [0.0, 0.0]
        support = torch.ones(4, 4, device="cpu").bool().numpy()
        assert attnscope.attention_entropy(maps.numpy(), support=support).tolist() == [[0.0] * 4] * 2


def test_the_package_can_be_imported_under_another_default_device():
    script = (
        "import torch; torch.set_default_device('meta')\n"
        "import attnscope as asc\n"
        "star = torch.zeros(32, 32, device='cpu'); star[:, 0] = 1\n"
        "print(asc.measure(star, ['fiedler_value', 'sink_test']), asc.sink_test(star).position.item())\n"
        "from attnscope.metrics.discovery import found\n"
        "found()\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("folder", ["_checks.py", "_row_sums.py", "inference", "metrics", "protocols"])
def test_every_tensor_that_is_made_names_its_device(folder):
    files = [PACKAGE / folder] if folder.endswith(".py") else sorted((PACKAGE / folder).rglob("*.py"))
    assert files
    for path in files:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if ast.unparse(node.func.value) == "torch" and node.func.attr in CONSTRUCTORS:
                names = [keyword.arg for keyword in node.keywords]
                assert "device" in names or None in names, f"{path}:{node.lineno}: {ast.unparse(node)}"
