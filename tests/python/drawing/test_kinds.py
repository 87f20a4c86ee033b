# SPDX-License-Identifier: MIT
"""What is drawn of a column follows its kind: positions have no mean, and no figure or table shows one."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

import attnscope as asc
from attnscope.metrics.discovery import quantity
from attnscope.plots import draw_all, emergence_curve, layer_head_map
from attnscope.plots.selection import estimate
from attnscope.report.any_run import SECTIONS
from attnscope.report.numbers import all_means, number_rows
from attnscope.report.section import Page

#: Two samples and two steps; head 1 of each layer has its strongest sink at 0, 0 and 7.
PLACES = np.array([0, 0, 7])


@pytest.fixture
def heads() -> pd.DataFrame:
    index = pd.MultiIndex.from_product(
        [(0, 8), range(3), (0, 1), (0, 1)], names=["step", "sample", "layer", "head"]
    )
    table = index.to_frame(index=False).assign(model="m", revision="", protocol="exact", sink_share=0.5)
    return table.assign(sink_position=np.where(table["head"] == 1, PLACES[table["sample"]], 3))


def test_a_mean_of_positions_is_refused(heads) -> None:
    refusal = r"sink_position \(strongest sink\).*mean of positions is no position; a share .* or a count"
    with pytest.raises(ValueError, match=refusal):
        estimate(heads, "sink_position", ["layer"])
    for draw in (emergence_curve, layer_head_map):
        with pytest.raises(ValueError, match=refusal):
            draw(asc.Results({"heads": heads}), "sink_position", ax=Figure().subplots())


def test_positions_of_one_map_per_head_are_drawn_as_they_are() -> None:
    ax = layer_head_map(np.array([[0.0, 5.0], [2.0, 0.0]]), "sink_position", ax=Figure().subplots())
    assert ax.collections[0].get_array().ravel().tolist() == [0, 5, 2, 0]


def test_figures_and_sections_of_any_run_leave_positions_out(heads) -> None:
    results, left_out = asc.Results({"heads": heads}), []
    drawn = draw_all(results, left_out=left_out)
    assert not [omission for omission in left_out if omission.failed]
    assert {"emergence", "depth", "metric_maps"} <= set(drawn)
    titles = {
        " ".join(ax.get_title(loc="left").split()) for drawing in drawn.values() for ax in drawing.figure.axes
    }
    assert titles == {"", quantity("sink_share").axis}
    page = Page(results, {})
    shown = [block for section in SECTIONS for block in page.written(section) if block.kind == "table"]
    labels = [label for block in shown for label in block.content.frame.iloc[:, 0]]
    assert labels == [quantity("sink_share").label]
    means = all_means({"heads": heads.assign(protocol="ruscio2025")}, "ruscio2025")
    assert means["quantity"].tolist() == ["sink_share"]
    with pytest.raises(ValueError, match="no position"):
        number_rows(page.heads(), None, ["sink_position"])


def test_the_page_of_a_run_shows_the_most_frequent_position(heads) -> None:
    contents = asc.view(asc.Results({"heads": heads})).contents
    place = [metric["name"] for metric in contents["metrics"]].index("sink_position")
    assert [grid[0][place] for grid in contents["values"]] == [[[3, 0], [3, 0]]] * 2


def test_texts_of_several_models_are_counted_as_the_interval_counts_them() -> None:
    """Two models of three texts have six, of which the mean is; the column n said three."""
    rows = pd.DataFrame({"model": ["a"] * 3 + ["b"] * 3, "step": -1, "sample": [0, 1, 2] * 2})
    rows = rows.assign(layer=0, protocol="ruscio2025", sink_share=[0.1, 0.2, 0.3, 0.4, 0.5, np.inf])
    (row,) = all_means({"head_means": rows}, "ruscio2025").to_dict("records")
    assert (row["mean"], row["n"]) == ("0.300", "5")
    assert row["95 % interval"]


def test_controls_are_no_numbers_of_the_published_protocol() -> None:
    """Shuffled rows and random weights were averaged, and so were their seeds."""
    rows = pd.DataFrame({"model": "a", "step": -1, "sample": [0, 1], "protocol": "ruscio2025"})
    rows = rows.assign(density=[0.1, 0.3])
    controls = rows.assign(variant=["row_permutation", "random_weights"], seed=[0, 7], scope="heads")
    means = all_means({"head_mean_graphs": rows, "graphs_variants": controls}, "ruscio2025")
    assert means[["table", "quantity", "mean"]].values.tolist() == [["head_mean_graphs", "density", "0.200"]]
