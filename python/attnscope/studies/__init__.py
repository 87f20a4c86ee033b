# SPDX-License-Identifier: MIT
"""Studies: a config in, stored results out."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from attnscope._nearest import nearest
from attnscope.engine.config import ConfigError, ModelSource, Study, TextSource
from attnscope.engine.packaged import packaged

if TYPE_CHECKING:
    from attnscope.engine.recipe import Recipe

#: The registry: name of a study -> module that holds its `RECIPE`. A new study adds a file and a line here.
RECIPES: dict[str, str] = {
    "sink_study": "attnscope.studies.sink_study",
    "wavelet_study": "attnscope.studies.wavelet_study",
}

__all__ = ["RECIPES", "ConfigError", "ModelSource", "Study", "TextSource", "packaged", "recipe_of"]


def recipe_of(study: Study) -> Recipe:
    """The recipe that a study names, ready for its configuration.

    Args:
        study: the configuration.

    Raises:
        ConfigError: no such recipe, or it does not know one of the metrics.
    """
    if study.study not in RECIPES:
        raise ConfigError(f"study: there is no study {study.study!r}{nearest(study.study, RECIPES)}")
    recipe: type[Recipe] = importlib.import_module(RECIPES[study.study]).RECIPE
    known = recipe.metrics()
    for metric in study.metrics:
        if metric not in known:
            raise ConfigError(f"metrics: {study.study} has no metric {metric!r}{nearest(metric, known)}")
    for protocol in study.protocols:
        if protocol not in recipe.protocols:
            raise ConfigError(
                f"protocols: {study.study} follows {', '.join(recipe.protocols)}, not {protocol}"
                f"{'' if protocol == 'exact' else f'; its functions are in attnscope.protocols.{protocol}'}"
            )
    if study.options and not recipe.takes_options:
        raise ConfigError(f"options: {study.study} has none, got {', '.join(study.options)}")
    return recipe(study)
