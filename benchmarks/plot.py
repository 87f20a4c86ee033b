# SPDX-License-Identifier: MIT
"""Draws the README's charts from stored results only: python benchmarks/plot.py [--results DIR] [--out DIR]

speedup.png: how many times faster than its peer every kernel is at every size, on trained models' maps and
over the synthetic ones, with the target. scaling.png: our time per map against n with the fitted exponent.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
# A chart's panel: file, title, peer, and what the names of its rows hold or lack.
PANELS: tuple[tuple[str, str, str, str, str], ...] = (
    ("fiedler", "λ2, exact", "torch", "", "fast"),
    ("singular_values", "all singular values", "torch", "", ""),
    ("marchenko_pastur", "Marchenko–Pastur ks, against svdvals", "torch svdvals", "", ""),
    ("persistence", "H0 and H1 bars", "gudhi", "", " H0"),
    ("persistence", "H0 bars", "gudhi", " H0", ""),
    ("participation_ratio", "participation ratio", "torch float32", "", ""),
    ("measure", "seven row and column metrics", "torch float32", "", ""),
    ("entropy", "attention entropy", "torch entr float64", "", ""),
)


def rows_of(results: Path, concept: str, peer: str, holds: str, lacks: str) -> list[dict[str, Any]]:
    """Rows of one stored benchmark that compare with `peer`, in the order in which they ran."""
    file = results / f"{concept}.json"
    if not file.is_file():
        return []
    rows = json.loads(file.read_text("utf-8"))["rows"]
    return [
        row
        for row in rows
        if peer in row["ratio"]
        and "n" in row
        and holds in row["name"]
        and not (lacks and lacks in row["name"])
    ]


def by_size(rows: list[dict[str, Any]], value: Any, *, model: bool) -> dict[int, list[float]]:
    """n -> values, of trained models' maps or of synthetic ones."""
    result: dict[int, list[float]] = {}
    for row in rows:
        trained = row["name"].startswith(("stories260K", "llama2xs", "gpt2"))
        if trained == model:
            result.setdefault(int(row["n"]), []).append(float(value(row)))
    return dict(sorted(result.items()))


def exponent(times: dict[int, float], smallest: int = 64) -> float:
    """Slope of log time over log n by least squares, from n = `smallest` on; NaN for fewer than two sizes."""
    points = [(math.log(n), math.log(t)) for n, t in times.items() if n >= smallest]
    if len(points) < 2:
        return math.nan
    x, y = (statistics.fmean(values) for values in zip(*points, strict=True))
    return sum((a - x) * (b - y) for a, b in points) / sum((a - x) ** 2 for a, _ in points)


def draw(results: Path, out: Path) -> list[Path]:
    """Write the figures of ratios and of times; return their files."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    panels = [(panel, rows) for panel in PANELS if (rows := rows_of(results, *panel[:1], *panel[2:]))]
    out.mkdir(parents=True, exist_ok=True)
    files = {out / "speedup.png": _ratios(panels), out / "scaling.png": _times(panels)}
    for file, figure in files.items():
        figure.savefig(file, dpi=150)
        plt.close(figure)
    return list(files)


def _ratios(panels: list[Any]) -> Any:
    """Return a figure with a panel for each kernel: how many times faster than a peer it is, by size."""
    import matplotlib.pyplot as plt

    columns = 4
    lines = max(1, math.ceil(len(panels) / columns))
    figure, grid = plt.subplots(lines, columns, figsize=(3.1 * columns, 2.5 * lines), squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.axis("off")
    for axes, ((_, title, peer, _, _), rows) in zip(grid.flat, panels, strict=False):
        _draw_ratios(axes, rows, peer)
        axes.set_title(title, fontsize=9)
    if panels:
        grid.flat[0].legend(frameon=False, fontsize=7, loc="best")
    figure.tight_layout()
    return figure


def _draw_ratios(axes: Any, rows: list[Any], peer: str) -> None:
    """Draw a kernel's ratios to one peer: the range of synthetic maps, each trained one, the targets."""
    synthetic = by_size(rows, lambda row: row["ratio"][peer], model=False)
    trained = by_size(rows, lambda row: row["ratio"][peer], model=True)
    sizes = sorted({*synthetic, *trained})
    place = {n: k for k, n in enumerate(sizes)}
    bar: dict[str, Any] = {"color": "#9db8d2", "lw": 7}
    for n, values in synthetic.items():
        axes.plot([place[n]] * 2, [min(values), max(values)], solid_capstyle="butt", **bar)
    for k, (n, ratios) in enumerate(trained.items()):
        label_once = None if k else "trained"
        axes.plot([place[n]] * len(ratios), ratios, "o", ms=5, color="#c2410c", label=label_once)
    targets = {int(row["n"]): row["target"] for row in rows if row["target"] is not None}
    for k, (n, target) in enumerate(sorted(targets.items())):
        ends = [place[n] - 0.35, place[n] + 0.35]
        axes.plot(ends, [target] * 2, color="black", lw=1, label=None if k else "target")
    axes.plot([], [], label="synthetic, range", **bar)
    axes.axhline(1.0, color="grey", lw=0.7, ls=":")
    axes.set_yscale("log")
    axes.set_xticks(range(len(sizes)), [str(n) for n in sizes])
    axes.set_xlabel("tokens n")
    axes.set_ylabel(f"times faster than\n{peer}")
    axes.set_yticks(ticks := ticks_of(axes.get_ylim()), [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()


def _times(panels: list[Any]) -> Any:
    """Return a figure of our times by size, a line for each kernel."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6.2, 4.2))
    for (_, title, _, _, _), rows in panels:
        times = {
            n: statistics.median(values)
            for n, values in by_size(rows, lambda row: row["best_ms"]["attnscope"], model=False).items()
        }
        axes.plot(list(times), list(times.values()), "o-", ms=3, lw=1.2, label=label(title, exponent(times)))
    axes.set(xscale="log", yscale="log", xlabel="tokens n", ylabel="ms per map, one thread, synthetic maps")
    sizes = sorted({int(row["n"]) for _, rows in panels for row in rows})
    axes.set_xticks(sizes, [str(n) for n in sizes])
    axes.minorticks_off()
    axes.legend(frameon=False, fontsize=7)
    figure.tight_layout()
    return figure


def ticks_of(limits: tuple[float, float]) -> list[float]:
    """1, 2 and 5 times powers of ten within the limits of a logarithmic axis."""
    decades = range(math.floor(math.log10(limits[0])), math.ceil(math.log10(limits[1])) + 1)
    return [m * 10.0**d for d in decades for m in (1, 2, 5) if limits[0] <= m * 10.0**d <= limits[1]]


def label(title: str, slope: float) -> str:
    return title if math.isnan(slope) else f"{title}: n^{slope:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=FOLDER / "results")
    parser.add_argument("--out", type=Path, default=FOLDER / "results")
    options = parser.parse_args()
    for file in draw(options.results, options.out):
        print(f"wrote {file}")


if __name__ == "__main__":
    main()
