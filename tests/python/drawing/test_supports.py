# SPDX-License-Identifier: MIT
"""What figures and tables show of layers whose queries do not see all earlier keys, and of few texts."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from attnscope import inference
from attnscope.engine.results import Results
from attnscope.plots.figure import Options
from attnscope.plots.standard import examples
from attnscope.report.numbers import number_rows

KEYS = {"model": "m", "revision": "", "step": -1, "sample": 0, "layer": 0, "protocol": "exact"}
N = 16


def maps(window):
    """A random map whose queries see so many keys, flattened."""
    draw = np.random.default_rng(0).uniform(0.1, 1.0, (N, N))
    seen = np.array([[0 <= i - j < window for j in range(N)] for i in range(N)])
    held = np.where(seen, draw, 0.0)
    return (held / held.sum(1, keepdims=True)).ravel().tolist()


def test_no_law_is_drawn_where_none_was_used():
    stored = [{**KEYS, "head": head, "n_tokens": N, "attention": maps(w)} for head, w in enumerate((N, 5))]
    heads = [{**KEYS, "head": head, "support": name} for head, name in enumerate(("causal", "window 5"))]
    results = Results({"examples": pd.DataFrame(stored), "heads": pd.DataFrame(heads)})
    drawn = examples().draw(results, Options())
    spectra = [ax for ax in drawn.figure.axes if ax.get_xlabel() == "eigenvalue"]
    assert [ax.get_lines()[1].get_label() for ax in spectra] == ["triangular law"]
    said = [text.get_text() for ax in drawn.figure.axes for text in ax.texts]
    assert any("where queries see a window 5" in text for text in said)
    plt.close(drawn.figure)


@pytest.mark.parametrize(("texts", "beside"), [(4, False), (5, True), (12, True), (30, False)])
def test_the_median_stands_beside_the_mean_of_few_texts(texts, beside):
    values = np.random.default_rng(texts).normal(size=texts)
    heads = pd.DataFrame(
        [{**KEYS, "sample": text, "head": 0, "entropy": value, "series": "a", "n_tokens": N}
         for text, value in enumerate(values)]
    )  # fmt: skip
    (row,) = number_rows(heads, None, ["entropy"])
    assert (row["interval"] == "") == (texts < 5)
    assert bool(row["median"]) == beside
    if beside:
        found = inference.median_interval(values)
        assert row["coverage"] == f"{100 * found.coverage:.1f} %"
        assert f"[{found.low:.2f}"[:4] in row["median"].replace("−", "-")
