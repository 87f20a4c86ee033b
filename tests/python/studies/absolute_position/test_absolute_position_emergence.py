# SPDX-License-Identifier: MIT
"""The step at which the residual changes during training, beside that of the preference for key 0."""

from types import SimpleNamespace

import numpy as np
import pandas as pd

from attnscope.studies.absolute_position import emergence

STEPS = [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 640, 768]


class Run:
    """A run whose table is given, and what was written."""

    settings = SimpleNamespace(seed=0)

    def __init__(self, means):
        self.means, self.rows = means, []
        self.stored = SimpleNamespace(tables=lambda: [] if means is None else ["layer_means"])

    def read(self, name):
        assert name == "layer_means"
        return self.means

    def write(self, name, **columns):
        assert name == "emergence"
        self.rows.append(columns)


def means(steps, **others):
    """Two layers: the residual of layer 1 rises at step 64, key 0 is preferred from step 16 on."""
    noise = np.random.default_rng(0).normal(0, 0.01, (len(steps), 2, 2))
    rows = [
        {
            "model": "a",
            "step": step,
            "queries": "early",
            "arm": "base",
            "input": "windows",
            "layer": layer,
            "residual": noise[at, layer, 0] + (step >= 64 and layer == 1),
            "sink_advantage": noise[at, layer, 1] + 3.0 * (step >= 16),
            **others,
        }
        for at, step in enumerate(steps)
        for layer in range(2)
    ]
    return pd.DataFrame(rows)


def test_each_quantity_has_its_own_step():
    run = Run(pd.concat([means(STEPS), means(STEPS, arm="no_bos", residual=9.0)]))
    emergence.write(run)
    rows = pd.DataFrame(run.rows).set_index(["metric", "scope", "layer"])
    assert len(rows) == 6
    assert rows.loc[("residual", "from_1", 1), "verdict"] == "step"
    assert rows.loc[("residual", "from_1", 1), "step"] == 64
    assert rows.loc[("residual", "layer", 0), "verdict"] == "no change"
    assert (rows.loc["sink_advantage"]["step"] == 16).all()
    assert rows.loc[("residual", "layer", 1), "end"] > 0.9


def test_few_checkpoints_are_too_few_to_tell_and_one_has_no_row():
    run = Run(means(STEPS[:4]))
    emergence.write(run)
    assert {row["verdict"] for row in run.rows} == {"too few to tell"}
    for table in (means([64]), means([-1]), None):
        run = Run(table)
        emergence.write(run)
        assert run.rows == []
