# SPDX-License-Identifier: MIT
"""Lets every test folder import the builders in tests/."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
