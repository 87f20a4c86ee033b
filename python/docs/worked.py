# SPDX-License-Identifier: MIT
"""A worked example and a picture for every section of the page of definitions, run when the site is built."""

from __future__ import annotations

import contextlib
import functools
import io
import textwrap
from dataclasses import dataclass
from typing import Any

#: What every example begins with; shown once, above the first.
START = """\
import torch
import attnscope as asc

n = 8
uniform = torch.ones(n, n, dtype=torch.float64).tril()
uniform /= uniform.sum(-1, keepdim=True)          # every query spreads over all it can see
star = torch.zeros(n, n, dtype=torch.float64)
star[:, 0] = 1                                    # every query attends to the first key
"""


@dataclass(frozen=True)
class Worked:
    """Code that prints, and code that draws on `figure` (inches 7 x 2.2) of matplotlib."""

    words: str
    code: str
    picture: str


WORKED: dict[str, Worked] = {
    "Sinks": Worked(
        "Eight tokens. The star gives the first key everything, uniform attention H₈/8 = 0.34 of its mass.",
        """
        found = asc.sink_share(torch.stack([star, uniform]))
        print(found.share)    # mean attention to the first key
        print(found.boost)    # over that of uniform attention
        """,
        """
        from attnscope.plots import attention_map
        left, middle, right = figure.subplots(1, 3)
        attention_map(star, ax=left, colorbar=False); left.set_title("star")
        attention_map(uniform, ax=middle, colorbar=False); middle.set_title("uniform")
        right.bar(["star", "uniform"], asc.sink_share(torch.stack([star, uniform])).share.tolist())
        right.set_title("attention to the first key")
        """,
    ),
    "Graph and Laplacian spectrum": Worked(
        "The mean of the star and its transpose is a star graph with weights 1/2: eigenvalues 0, 1/2 six "
        "times, and 8/2.",
        """
        print(asc.laplacian_eigenvalues(star, 8))
        print(asc.fiedler_value(star), asc.fiedler_value(uniform))
        print(asc.fiedler_value(uniform, normalized=True))    # has no cap under a causal mask
        """,
        """
        import numpy as np
        left, right = figure.subplots(1, 2)
        for map_, name, mark in ((star, "star", "o"), (uniform, "uniform", "s")):
            values = asc.laplacian_eigenvalues(map_, 8).tolist()
            left.plot(np.arange(1, 9), values, mark, label=name, markersize=4)
        left.set_title("eigenvalues of L"); left.set_xlabel("number"); left.legend()
        angle = 2 * np.pi * np.arange(7) / 7
        for x, y in zip(np.cos(angle), np.sin(angle)):
            right.plot([0, x], [0, y], "o-", color="#0072b2", markersize=5)
        right.set_aspect("equal"); right.set_axis_off(); right.set_title("the star's graph")
        """,
    ),
    "Spectra and random matrices": Worked(
        "The star has one direction, uniform attention few, and a map of random logits as many as it can.",
        """
        torch.manual_seed(0)
        random = torch.randn(64, 64, dtype=torch.float64).mul(3).softmax(-1)
        print(asc.participation_ratio(star), asc.participation_ratio(uniform))
        null = asc.marchenko_pastur(random)
        print(null.ks)    # distance from the law of independent entries
        """,
        """
        from attnscope.plots import attention_map, spectrum_against_null
        torch.manual_seed(0)
        random = torch.randn(64, 64, dtype=torch.float64).mul(3).softmax(-1)
        left, right = figure.subplots(1, 2)
        attention_map(random, ax=left, colorbar=False); left.set_title("random logits")
        spectrum_against_null(random, ax=right)
        """,
    ),
    "Persistent homology": Worked(
        "Four tokens in a ring: while the threshold falls, the pieces join at 0.5 and close a loop.",
        """
        ring = 0.5 * (torch.eye(4).roll(1, 1) + torch.eye(4).roll(-1, 1)).double()
        print(asc.betti_numbers(ring, [0.6, 0.4]))    # [threshold, pieces and loops]
        print(asc.persistence(ring)[()])              # (birth, death) of each bar, by dimension
        """,
        """
        from attnscope.plots import betti_curve, persistence_diagram
        ring = 0.5 * (torch.eye(4).roll(1, 1) + torch.eye(4).roll(-1, 1)).double()
        left, right = figure.subplots(1, 2)
        persistence_diagram(asc.persistence(ring), ax=left)
        betti_curve(asc.persistence(ring), ax=right)
        """,
    ),
    "Information": Worked(
        "A query that sees k keys evenly has entropy log k; the star's queries have none.",
        """
        print(asc.attention_entropy(uniform))                           # log 1, log 2, ... log 8
        print(asc.attention_entropy(uniform, normalized=True).nanmean())
        print(asc.attention_entropy(star))
        """,
        """
        (ax,) = figure.subplots(1, 1, squeeze=False)[0]
        ax.plot(range(1, 9), asc.attention_entropy(uniform).tolist(), "o-", label="uniform")
        ax.plot(range(1, 9), asc.attention_entropy(star).tolist(), "s-", label="star")
        ax.set_xlabel("keys that the query sees"); ax.set_ylabel("entropy (nats)"); ax.legend()
        """,
    ),
    "Value space": Worked(
        "Where tokens that attend to each other have states in the same direction, alignment is high.",
        """
        turned = torch.linspace(0, 3, n, dtype=torch.float64)
        states = torch.stack([turned.cos(), turned.sin()], -1)          # neighbours are alike
        near = torch.exp(-(torch.arange(n)[:, None] - torch.arange(n)).abs().double()).tril()
        near /= near.sum(-1, keepdim=True)
        print(asc.geometric_semantic_alignment(near, states))
        print(asc.geometric_semantic_alignment(uniform, states))
        """,
        """
        import math
        from attnscope.plots import attention_map
        turned = torch.linspace(0, 3, n, dtype=torch.float64)
        near = torch.exp(-(torch.arange(n)[:, None] - torch.arange(n)).abs().double()).tril()
        near /= near.sum(-1, keepdim=True)
        left, right = figure.subplots(1, 2)
        attention_map(near, ax=left, colorbar=False); left.set_title("attention")
        for k, angle in enumerate(turned.tolist()):
            right.annotate(str(k), (math.cos(angle), math.sin(angle)))
        right.set_xlim(-1.2, 1.2); right.set_ylim(-0.2, 1.2); right.set_title("states")
        """,
    ),
    "Signals": Worked(
        "A row of attention is a signal over keys: a constant one is slow, one key has all frequencies.",
        """
        one_key = torch.eye(64, dtype=torch.float64)
        even = torch.full((64, 64), 1 / 64, dtype=torch.float64)
        bands = asc.power_spectrum(torch.stack([even, one_key]), support="full")
        print(bands.low.nanmean(-1))    # share of slow waves
        """,
        """
        import numpy as np
        left, right = figure.subplots(1, 2)
        even = np.full(64, 1 / 64); one = np.zeros(64); one[32] = 1
        for row, name in ((even, "even"), (one, "one key")):
            left.plot(row, label=name)
            right.semilogy(np.abs(np.fft.rfft(row * np.hanning(64))) ** 2 + 1e-6, label=name)
        left.set_title("a row of attention"); left.set_xlabel("key"); left.legend()
        right.set_title("its power"); right.set_xlabel("frequency")
        """,
    ),
    "Position": Worked(
        "Scores that depend on the offset alone are a Toeplitz matrix, and their residual is 0.",
        """
        offset = torch.arange(n)[:, None] - torch.arange(n)
        scores = (-0.5 * offset).double().masked_fill(offset < 0, -torch.inf)
        print(asc.toeplitz_split(scores).residual.abs().nan_to_num().max())
        """,
        """
        from attnscope.plots import attention_map
        offset = torch.arange(n)[:, None] - torch.arange(n)
        scores = (-0.5 * offset).double().masked_fill(offset < 0, -torch.inf)
        left, right = figure.subplots(1, 2)
        attention_map(scores.softmax(-1), ax=left, colorbar=False); left.set_title("softmax of the scores")
        right.plot(range(n), [-0.5 * k for k in range(n)])
        right.set_title("profile"); right.set_xlabel("offset")
        """,
    ),
    "Words": Worked(
        "Tokens 3 and 4 of eight are a word; the head gives its two rows 0.6 of themselves to the word.",
        """
        inside = uniform.clone()
        inside[3, :4] = torch.tensor([0.2, 0.1, 0.1, 0.6])
        inside[4, :5] = torch.tensor([0.2, 0.1, 0.1, 0.3, 0.3])
        special = torch.arange(n) == 0                                  # the first token is BOS
        found = asc.span_attention(torch.stack([inside, uniform]), [3, 5], special=special)
        print(found.share)      # to the word itself; of the even head (1/4 + 2/5) / 2
        print(found.boost)      # over uniform attention
        print(found.special + found.context + found.share)    # all of it
        """,
        """
        from matplotlib.patches import Rectangle
        from attnscope.plots import attention_map
        inside = uniform.clone()
        inside[3, :4] = torch.tensor([0.2, 0.1, 0.1, 0.6])
        inside[4, :5] = torch.tensor([0.2, 0.1, 0.1, 0.3, 0.3])
        special = torch.arange(n) == 0
        found = asc.span_attention(torch.stack([inside, uniform]), [3, 5], special=special)
        left, right = figure.subplots(1, 2)
        attention_map(inside, ax=left, colorbar=False)
        left.add_patch(Rectangle((2.5, 2.5), 2, 2, fill=False, edgecolor="#d55e00", linewidth=1.5))
        left.set_title("the word's own square")
        below = torch.zeros(2, dtype=torch.float64)
        parts = (("word", found.share), ("BOS", found.special), ("the rest", found.context))
        for (name, part), color in zip(parts, ("#0072b2", "#d55e00", "#bbbbbb")):
            right.bar(["this head", "uniform"], part.tolist(), bottom=below.tolist(), label=name, width=0.6,
                      color=color)
            below = below + part
        right.set_title("where the word's rows go")
        right.legend(loc="center left", bbox_to_anchor=(1.02, 0.5))
        """,
    ),
    "Statistics": Worked(
        "Two layers with four heads on eight texts. The texts differ, the heads of one text hardly do: the "
        "eight texts are the sample, and not the 64 rows, whose interval would be far too narrow.",
        """
        import pandas as pd
        from attnscope.statistics import bootstrap, per_sample
        of_text = [0.31, 0.42, 0.55, 0.38, 0.47, 0.60, 0.29, 0.50]
        table = pd.DataFrame([
            {"sample": text, "layer": layer, "head": head, "sink_share": share + 0.01 * head}
            for text, share in enumerate(of_text) for layer in range(2) for head in range(4)
        ])
        means = per_sample(table, "sink_share")              # one number for each text
        found = bootstrap(means)
        print(f"{found.estimate:.3f}, 95 % from {found.low:.3f} to {found.high:.3f}, n = {found.n}")
        rows = bootstrap(table["sink_share"])                # wrong: heads as if they were texts
        print(f"{rows.estimate:.3f}, 95 % from {rows.low:.3f} to {rows.high:.3f}, n = {rows.n}")
        """,
        """
        import pandas as pd
        from attnscope.statistics import bootstrap
        means = [share + 0.015 for share in (0.31, 0.42, 0.55, 0.38, 0.47, 0.60, 0.29, 0.50)]
        (ax,) = figure.subplots(1, 1, squeeze=False)[0]
        ax.plot(range(8), means, "o", color="#0072b2", label="mean of a text")
        found = bootstrap(pd.Series(means))
        ax.axhline(found.estimate, color="#0072b2", linewidth=1)
        ax.axhspan(found.low, found.high, color="#0072b2", alpha=0.15, label="95 % over texts")
        both = [0.01 * (head - 1.5) for head in [0, 1, 2, 3] * 2]    # of two layers
        rows = bootstrap(pd.Series([mean + one for mean in means for one in both]))
        ax.axhspan(rows.low, rows.high, color="#d55e00", alpha=0.3, label="64 rows as if independent (wrong)")
        ax.set_xlabel("text"); ax.set_ylabel("attention to first key")
        ax.legend(loc="center left", bbox_to_anchor=(1.02, 0.5))
        """,
    ),
}


def run(code: str, names: dict[str, Any]) -> str:
    """Return the output of some code."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(textwrap.dedent(code), "worked.py", "exec"), names)
    return out.getvalue()


@functools.cache
def example(section: str) -> tuple[str, bytes]:
    """Return a section's example as Markdown, and its picture as SVG."""
    from matplotlib.figure import Figure

    from attnscope.plots import style

    worked, names = WORKED[section], {}
    run(START, names)
    printed = run(worked.code, names)
    with style():
        figure = Figure(figsize=(7, 2.2), layout="constrained")
        run(worked.picture, {**names, "figure": figure})
        drawn = io.BytesIO()
        figure.savefig(drawn, format="svg", metadata={"Date": None})
    code = textwrap.dedent(worked.code).strip()
    start = START + "\n" if section == next(iter(WORKED)) else ""
    shown = f"**Worked example.** {worked.words}\n\n```python\n{start}{code}\n```\n\n```text\n{printed}```\n"
    return shown, drawn.getvalue()
