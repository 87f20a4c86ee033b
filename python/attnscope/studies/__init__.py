# SPDX-License-Identifier: MIT
"""Studies: a config in, stored results out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnscope.engine.config import ConfigError, ModelSource, Study, TextSource
from attnscope.engine.discovery import study_class
from attnscope.engine.packaged import packaged

if TYPE_CHECKING:
    from attnscope.engine.recipe import Recipe

#: The study of settings that name none.
DEFAULT = "attention_sinks"

__all__ = ["DEFAULT", "ConfigError", "ModelSource", "Study", "TextSource", "packaged", "recipe_of"]


def recipe_of(study: Study) -> Recipe:
    """The study that settings name, ready for them.

    Args:
        study: the settings.

    Raises:
        ConfigError: no such study, or it does not know an option, a metric or a protocol.
    """
    found = study_class(study.study)(study)
    return found  # type: ignore[return-value]
