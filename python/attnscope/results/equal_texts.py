# SPDX-License-Identifier: MIT
"""Equal texts are one sample of every exact test, interval and mean over texts.

A text that is given twice is no second sample: its numbers are those of the first one, and a test that counts
both is surer than the texts allow. The column `text_unit` of the table `samples` names the first text that a
model reads alike. Tables hold the rows of every text; a protocol of a paper counts every text, as its authors
do.

    >>> import pandas as pd
    >>> samples = pd.DataFrame({"model": "m", "sample": [0, 1, 2], "text_unit": [0, 0, 2]})
    >>> heads = pd.DataFrame({"model": "m", "sample": [0, 1, 2], "protocol": "exact", "entropy": 1.0})
    >>> of_distinct_texts(Results({"samples": samples, "heads": heads})).table("heads")["sample"].tolist()
    [0, 2]
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from attnscope.results.results import Results
from attnscope.results.schema import column_list
from attnscope.results.summaries import repeated_texts

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

#: Columns that tell the rows of a text that is read again.
_KEYS = ("model", "sample", "protocol")


class DistinctTexts(Results):
    """Results of a run whose tables lack the exact rows of texts that repeat an earlier one."""

    def __init__(self, results: Results) -> None:
        self.__dict__.update(vars(results))
        self._all_results = results

    def table(self, name: str, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """Return a table as the results give it, each text once; `samples` names every text."""
        import pandas as pd

        columns = column_list("table", "columns", columns)
        names = () if name == "samples" else self._all_results.column_names(name)
        if not {"model", "sample"} <= set(names) or self._repeats.empty:
            return self._all_results.table(name, columns)
        further = [key for key in _KEYS if key in names and columns is not None and key not in columns]
        frame = self._all_results.table(name, None if columns is None else [*columns, *further])
        is_repeated = pd.MultiIndex.from_frame(frame[["model", "sample"]]).isin(self._repeats)
        if "protocol" in frame:
            is_repeated &= (frame["protocol"] == "exact").to_numpy()
        return frame[~is_repeated].drop(columns=further).reset_index(drop=True)

    @cached_property
    def _repeats(self) -> pd.MultiIndex:
        return repeated_texts(self._all_results)


def of_distinct_texts(results: Any) -> Any:
    """Return results with each text once; what are no results, as they are."""
    is_distinct = isinstance(results, DistinctTexts) or not isinstance(results, Results)
    return results if is_distinct else DistinctTexts(results)
