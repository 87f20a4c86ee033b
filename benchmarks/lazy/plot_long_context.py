# SPDX-License-Identifier: MIT
"""Draws time and memory over the number of tokens from the stored rows of `long_context.py`.

python benchmarks/lazy/plot_long_context.py long_context.json --out long_context.png
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from attnscope import plots

#: Rows of the chart: the start of their names, and a colour.
SHOWN = {
    "row measures": "#56b4e9",
    "rows and incoming attention": "#009e73",
    "bfloat16, rows and incoming attention": "#d55e00",
    "exact, rows and incoming attention": "#cc79a7",
}
WIDTH = 64


def draw_times(ax: Axes, rows: list[dict[str, Any]]) -> None:
    """Draw milliseconds a head over tokens, and those of torch's attention."""
    sizes: set[int] = set()
    for name, color in SHOWN.items():
        chosen = [row for row in rows if row["name"] == f"{name} n={row.get('n')} d={WIDTH}"]
        tokens = [row["n"] for row in chosen]
        sizes.update(tokens)
        ax.plot(
            tokens,
            [row["best_ms"]["attnscope"] / row["heads"] for row in chosen],
            color=color,
            label=name,
            marker="o",
        )
        if name == "row measures":
            times = [row["best_ms"]["sdpa"] / row["heads"] for row in chosen]
            ax.plot(tokens, times, color="0.4", linestyle="--", label="torch's attention")
    ax.set(xscale="log", yscale="log", xlabel="tokens", ylabel="ms a head", ylim=(None, 1e4))
    label_sizes(ax, sorted(sizes))
    ax.legend(loc="upper left", frameon=False, fontsize=6.5)


def draw_memory(ax: Axes, rows: list[dict[str, Any]]) -> None:
    """Draw megabytes above queries and keys over tokens, and those of a map."""
    chosen = [row for row in rows if "megabytes" in row]
    tokens = [row["n"] for row in chosen]
    ax.plot(tokens, [row["megabytes"] for row in chosen], "o-", color="#56b4e9", label="one pass")
    ax.plot(tokens, [row["megabytes_of_map"] for row in chosen], color="#d55e00", label="one map in float32")
    ax.axhline(16, color="0.6", linewidth=0.8, linestyle=":", label="target")
    ax.set(xscale="log", yscale="log", xlabel="tokens", ylabel="MB", ylim=(0.3, None))
    label_sizes(ax, tokens)
    ax.legend(loc="upper left", frameon=False, fontsize=6.5)


def label_sizes(ax: Axes, tokens: list[int]) -> None:
    """Label the numbers of tokens that were measured, and no others."""
    ax.set_xticks(tokens, [f"{n:,}" for n in tokens])
    ax.minorticks_off()


def main() -> None:
    """Read the rows and write the chart."""
    import matplotlib.pyplot as plt

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--out", type=Path, default=Path("long_context.png"))
    options = parser.parse_args()
    rows = json.loads(options.results.read_text("utf-8"))["rows"]
    with plots.style():
        figure, axes = plt.subplots(1, 2, figsize=(7.0, 2.8), layout="constrained")
        draw_times(axes[0], rows)
        draw_memory(axes[1], rows)
        figure.savefig(options.out, dpi=150)


if __name__ == "__main__":
    main()
