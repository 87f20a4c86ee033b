# SPDX-License-Identifier: MIT
"""Versions of stored tables: a column whose meaning has changed since is not read as if it had not.

Example:
    >>> import pandas as pd
    >>> from attnscope.results.results import Results
    >>> from attnscope.study_api.table_versions import refuse_newer_tables
    >>> refuse_newer_tables(Results({"heads": pd.DataFrame({"head": [0]})}))
"""

from __future__ import annotations

from typing import Any

from attnscope.config.study_folders import study_of
from attnscope.errors import ResultsError
from attnscope.results.schema import table_metadata
from attnscope.study_api.study import study_class


def refuse_newer_tables(results: Any) -> None:
    """Raise ResultsError where a stored table has a later version than its study, as it is installed, knows.

    Tables in memory have no version.

    Args:
        results: of a run folder; others are not looked at.
    """
    study = study_of(results)
    if study is None or getattr(results, "path", None) is None:
        return
    for table in study_class(study.name).tables:
        if table.name not in results.tables():
            continue
        stored = table_metadata(results.schema(table.name)).get("version")
        if type(stored) is int and stored > table.version:
            raise ResultsError(
                f"{results.path}: table {table.name!r} is of version {stored}, and the study {study.name!r} "
                f"that is installed knows version {table.version}: a column means something else since; "
                "install what has written it"
            )
