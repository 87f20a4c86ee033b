# SPDX-License-Identifier: MIT
"""Results do not depend on torch's default device: every tensor that is made names its own."""

import subprocess
import sys

import pytest
import torch

import attnscope
from every_call import OF_RESULTS, answer, equal_results, every_call

CALLS = {name: (function, arguments) for name, function, arguments in every_call()}


@pytest.mark.parametrize("name", CALLS)
def test_the_default_device_changes_no_result(name):
    function, arguments = CALLS[name]
    expected = answer(function, arguments)
    with torch.device("meta"):
        result = answer(function, arguments)
    assert equal_results(result, expected)


@pytest.mark.parametrize("name", OF_RESULTS)
def test_the_default_device_changes_nothing_that_is_read_off_results(name):
    expected = OF_RESULTS[name]()
    with torch.device("meta"):
        assert equal_results(OF_RESULTS[name](), expected)


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
        "from attnscope.metrics.discovery import registry\n"
        "registry()\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
