# SPDX-License-Identifier: MIT
"""Studies: a config in, stored results out."""

from __future__ import annotations

from attnscope.engine.config import ConfigError, ModelSource, Study, TextSource
from attnscope.engine.packaged import packaged

#: The study of settings that name none.
DEFAULT = "attention_sinks"

__all__ = ["DEFAULT", "ConfigError", "ModelSource", "Study", "TextSource", "packaged"]
