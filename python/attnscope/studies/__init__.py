# SPDX-License-Identifier: MIT
"""Studies: a config in, stored results out."""

from __future__ import annotations

from attnscope.config.packaged_configs import packaged
from attnscope.config.run_config import ModelSource, Study, TextSource
from attnscope.errors import ConfigError

#: The study of settings that name none.
DEFAULT = "attention_sinks"

__all__ = ["DEFAULT", "ConfigError", "ModelSource", "Study", "TextSource", "packaged"]
