# SPDX-License-Identifier: MIT
"""Settings of the small runs that tests of the engine do."""

from attnscope.engine.config import Study

METRICS = ["fiedler_value", "laplacian_gap", "graph_statistics"]


def study(tmp_path, model, texts, **options):
    options = {"metrics": METRICS, "thresholds": [0.05, "2/n"], "block": 3, **options}
    return Study(models=model, texts=texts, output=str(tmp_path / "runs"), name="a", **options)
