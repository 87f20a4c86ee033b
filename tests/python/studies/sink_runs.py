# SPDX-License-Identifier: MIT
"""Settings of small runs of the sink study, and its tables read together."""

import pandas as pd

from attnscope.engine.config import Study

THRESHOLDS = [0.05, "2/n"]


def study(output, model, texts, **options):
    """Settings of a run in a folder."""
    options = {"thresholds": THRESHOLDS, "block": 4, "protocols": "both", **options}
    return Study(models=str(model), texts=str(texts), output=str(output), name="a", **options)


def with_means(results, table="heads"):
    """The rows of single heads, and behind them those of each layer's head mean as head −1."""
    means = "head_means" if table == "heads" else f"head_mean_{table}"
    return pd.concat([results.table(means).assign(head=-1), results.table(table)], ignore_index=True)
