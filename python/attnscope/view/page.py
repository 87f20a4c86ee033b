# SPDX-License-Identifier: MIT
"""Writes the page: data as JSON, script and style inside one file that fetches nothing."""

from __future__ import annotations

import html
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from attnscope.engine.disk.files import write_bytes

if TYPE_CHECKING:
    from attnscope.engine.results import Results

_HOME = Path(__file__).parent


class View:
    """A page that shows itself in a notebook and is written by `save`.

    Attributes:
        title: the heading.
        contents: what the page shows, as plain data.
    """

    def __init__(self, title: str, contents: dict[str, Any]) -> None:
        self.title = title
        self.contents = contents

    def html(self) -> str:
        """The page as text: one HTML file with its data, script and style inside."""
        from jinja2 import Environment, PackageLoader, StrictUndefined
        from markupsafe import Markup

        # "<" can end a script element or open a comment in it; the two separators end a line in old scripts.
        data = json.dumps(self.contents, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        for letter in "<>&\u2028\u2029":
            data = data.replace(letter, f"\\u{ord(letter):04x}")
        environment = Environment(
            loader=PackageLoader("attnscope.view", "."), autoescape=True, undefined=StrictUndefined
        )
        page: str = environment.get_template("template.html").render(
            title=self.title,
            style=Markup((_HOME / "view.css").read_text(encoding="utf-8")),
            script=Markup((_HOME / "view.js").read_text(encoding="utf-8")),
            data=Markup(data),
        )
        return page

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes the page.

        Args:
            path: the file; its folder is made when missing.

        Returns:
            the file written.
        """
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(target, self.html().encode())
        return target

    def __repr__(self) -> str:
        """What the page holds."""
        layers, heads = len(self.contents["layers"]), len(self.contents["heads"])
        return (
            f"View({self.title!r}: {layers} layers × {heads} heads, {len(self.contents['metrics'])} metrics, "
            f"{len(self.contents['maps'])} attention matrices)"
        )

    def _repr_html_(self) -> str:
        # A frame of its own keeps the page's names and style apart from the notebook's.
        return (
            f'<iframe srcdoc="{html.escape(self.html(), quote=True)}" sandbox="allow-scripts" '
            'style="width:100%;height:940px;border:0" title="attnscope view"></iframe>'
        )


def view(
    results_or_tensors: Results | torch.Tensor | Sequence[torch.Tensor],
    *,
    tokens: Sequence[str] | None = None,
    title: str | None = None,
    sample: int | None = None,
    max_bytes: int = 48_000_000,
) -> View:
    """A page to look at heads with: maps of every metric, and behind a head its attention matrix.

    Click a head of the layer × head map: its matrix with tokens, its graph at a threshold of your choice, its
    persistence diagram and its spectrum against the null law. The page is one file, works without a network,
    and shows itself in a notebook.

    Args:
        results_or_tensors: stored results (maps of the measured columns; matrices where the run kept some),
            or attention [layers, heads, n, n], [heads, n, n] or [n, n], or one tensor per layer, as
            `outputs.attentions` of a Hugging Face model with a batch of one.
        tokens: the n tokens as text, for tensors; None numbers them.
        title: the heading; None names the run.
        sample: of results, a sentence whose attention is captured again with the run's model, at the last
            checkpoint that read it: its matrices are shown for every head.
        max_bytes: how much room the matrices may take in the page; those of the first layers are kept.

    Returns:
        View: `.save(path)` writes it.

    Raises:
        ValueError: tensors that are not attention of one sentence, tokens that do not match n, tokens given
            with results, or a sample with tensors.
        ResultsError: no such sample, or the run's model cannot be loaded again.

    Example:
        >>> import torch, attnscope as asc
        >>> asc.view(torch.full((2, 3, 4, 4), 0.25), tokens=["the", "cat", "sat", "."], title="uniform")
        View('uniform': 2 layers × 3 heads, ... metrics, 6 attention matrices)
    """
    from attnscope.engine.results import Results

    if isinstance(results_or_tensors, Results):
        if tokens is not None:
            raise ValueError("view: stored results bring their own tokens; leave tokens out")
        from attnscope.view.stored import contents_of_results

        path = results_or_tensors.path
        name = title or (path.resolve().name if path else "results in memory")
        return View(name, contents_of_results(results_or_tensors, max_bytes, sample))
    if sample is not None:
        raise ValueError("view: sample chooses among stored results; tensors are one sentence already")
    from attnscope.view.measured import contents_of_tensors

    return View(title or "attention", contents_of_tensors(results_or_tensors, tokens, max_bytes))
