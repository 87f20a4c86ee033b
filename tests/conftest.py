# SPDX-License-Identifier: MIT
"""Lets every test folder import the builders in tests/, and gives slow tests the time they need."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

#: Seconds after which a slow test hangs, where it says none itself: on a busy machine some take minutes.
SLOW = 1800


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW))
