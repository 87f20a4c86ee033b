# SPDX-License-Identifier: MIT
"""Studies: a config in, stored results out."""

from __future__ import annotations

#: The study of settings that name none.
DEFAULT = "attention_sinks"
