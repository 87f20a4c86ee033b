# SPDX-License-Identifier: MIT
"""The page: data as JSON, script and style inside one file that fetches nothing."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from attnscope._nearest import nearest
from attnscope._warn import aggregate_warnings
from attnscope.analysis.named_models import open_model
from attnscope.arguments.caches import attention_of_cache, is_cache
from attnscope.arguments.scalars import flag
from attnscope.capture.recording import Recording
from attnscope.metrics.catalogue import MAIN_COLUMNS
from attnscope.results.files import write_bytes
from attnscope.results.results import Results
from attnscope.untrusted.safe_text import mark_controls
from attnscope.view.captured import texts_of_model
from attnscope.view.generated import stacks_of_recording
from attnscope.view.measured import contents_of_stacks, contents_of_tensors, contents_of_texts
from attnscope.view.still import still_of

#: Parts of the script of a page.
_SCRIPTS = ("lines.js", "view.js")
#: Pixels of a frame that its page has not spoken for yet.
_HEIGHT = 940
#: Sets a frame's height to the height that its page reports; 940 pixels until then.
#: Where no script runs, the picture stays.
_FRAME = """{still}<iframe id="{name}" srcdoc="{page}" sandbox="allow-scripts"
style="width:100%;height:{height}px;border:0" title="attnscope view"></iframe><script>
document.querySelectorAll("#{name}-still").forEach((still) => {{ still.style.display = "none"; }});
addEventListener("message", (event) => {{
  const frame = document.getElementById("{name}"), height = event.data && event.data.attnscopeHeight;
  const isOwn = {follows} && frame && event.source === frame.contentWindow;
  if (isOwn && height) frame.style.height = height + 2 + "px";
}});</script>"""


class View:
    """A page that shows itself in a notebook and is written by `save`.

    Attributes:
        title: the heading.
        contents: the data of the page.
        height: of its frame in a notebook, in pixels; None follows the page.
    """

    def __init__(self, title: str, contents: dict[str, Any], height: int | None = None) -> None:
        self.title, self.contents, self.height = title, contents, height

    def html(self) -> str:
        """Return the page as text: one HTML file with its data, script and style inside.

        Its security policy lets no script run but that of the package.
        """
        from jinja2 import StrictUndefined, Template
        from jinja2.utils import htmlsafe_json_dumps
        from markupsafe import Markup

        home = Path(__file__).parent
        template = (home / "template.html").read_text(encoding="utf-8")
        script = "\n".join((home / name).read_text(encoding="utf-8") for name in _SCRIPTS)
        # "<" can end a script element or open a comment in it
        plain = {"ensure_ascii": False, "separators": (",", ":"), "allow_nan": False}
        return Template(template, autoescape=True, undefined=StrictUndefined).render(
            title=mark_controls(self.title),
            script=Markup(script),  # noqa: S704
            script_digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii"),
            data=htmlsafe_json_dumps(printable_contents(self.contents), json.dumps, **plain),
        )

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page into a file, whose folder is made when missing."""
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(target, self.html().encode())
        return target

    def __repr__(self) -> str:
        """Summarise the contents of the page."""
        layers, heads = len(self.contents["layers"]), len(self.contents["heads"])
        return (
            f"View({self.title!r}: {layers} layers × {heads} heads, {len(self.contents['metrics'])} metrics, "
            f"{len(self.contents['maps'])} attention matrices)"
        )

    def still(self) -> bytes:
        """Return the head that the page opens on, among all heads, as PNG.

        Raises:
            ImportError: matplotlib is missing.
        """
        return still_of(self.contents, self.title)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        # A notebook keeps the picture next to the page, for readers that show no frame.
        bundle = {"text/plain": repr(self)}
        try:
            picture = base64.b64encode(self.still()).decode("ascii")
        except ImportError:
            return {**bundle, "text/html": self._framed("")}
        return {**bundle, "image/png": picture, "text/html": self._framed(picture)}

    def _repr_html_(self) -> str:
        html_of_page: str = self._repr_mimebundle_()["text/html"]
        return html_of_page

    def _framed(self, picture: str) -> str:
        """Return the page in a frame, with a picture that its script hides."""
        # A frame of its own keeps the page's names and style apart from the notebook's.
        name, follows = f"attnscope-{uuid.uuid4().hex[:12]}", "true" if self.height is None else "false"
        still = (
            f'<img id="{name}-still" src="data:image/png;base64,{picture}" alt="{html.escape(repr(self))}">'
        )
        return _FRAME.format(
            name=name,
            page=html.escape(self.html()),
            height=self.height or _HEIGHT,
            follows=follows,
            still=still if picture else "",
        )


def view(
    shown: Any,
    text: Any = None,
    *,
    tokenizer: Any = None,
    processor: Any = None,
    model: Any = None,
    tokens: Sequence[str] | None = None,
    title: str | None = None,
    sample: int | None = None,
    head: tuple[int, int] | None = None,
    metrics: Sequence[str] | None = None,
    height: int | None = None,
    max_bytes: int = 48_000_000,
    trust_remote_code: bool = False,
    generate: Mapping[str, Any] | None = None,
    answer: int | tuple[int, int] | None = None,
) -> View:
    """Return a page to look at heads with: maps of every metric, and behind a head its attention matrix.

    Click a head of the layer × head map: its matrix with tokens, lines from its queries to their keys, its
    graph at a threshold of your choice, its persistence diagram and its spectrum against the null law. The
    page is one file, works without a network, and opens on the strongest head of its first metric. It shows
    itself in a notebook, which keeps a picture of that head next to it.

    Args:
        shown: a transformers model, a folder or a hub id, with a `text` for it; stored results (maps of the
            measured columns; matrices where the run kept some); a recording after its `generate`, whose steps
            are put together; attention [layers, heads, n, n], [heads, n, n] or [n, n], or one tensor per
            layer, as `outputs.attentions` of a Hugging Face model with a batch of one; or a cache of
            TransformerLens or nnsight.
        text: for a model: a sentence, a list of token ids, or what a tokenizer gives; or several, as
            `analyze` takes them, of which the page has a menu (`#text=2` in its address opens the third). Of
            an encoder-decoder a pair, for the encoder and for the decoder: the page then holds the encoder's
            attention, the decoder's, and that of the decoder to the encoder.
        tokenizer: of the model, for sentences and readable tokens.
        processor: of the model, for a picture, a sound, or either with a text as the `text`: the attention of
            a query to a picture is then shown on the picture itself, as the model read it.
        model: of results whose attention is captured again, where it is not the run's own or not on disk.
        tokens: the n tokens as text, for tensors; None numbers them.
        title: the heading; None names the run or the model.
        sample: of results, a sentence whose attention is captured again with the run's model, at the last
            checkpoint that read it: its matrices are shown for every head. Of a recording of several
            sequences, the one to show.
        head: (layer, head) that the page opens on.
        metrics: names of columns that are shown, in their order; None shows all, `MAIN_COLUMNS` first.
        height: of the page in a notebook, in pixels; None follows what is shown.
        max_bytes: how much room the matrices may take in the page; those of the first layers are kept. Each
            of several texts has an equal part of it.
        trust_remote_code: with `sample`, consent to run the Python code of a model for which the stored study
            asks it; what is stored is no consent.
        generate: options of the model's `generate`, such as {"max_new_tokens": 16}: the text is a prompt, the
            model writes its answer, and the page marks where it begins and whose queries are the answer's.
        answer: the first token of an answer in the text or among the tokens, or that and one past its last,
            to be marked so. Recordings and results of `analyze` with answers know theirs.

    Returns:
        View: `.save(path)` writes it.

    Raises:
        ValueError: tensors that are not attention of one sentence, tokens that do not match n, a head that
            is not there, or an argument that belongs to another kind of input.
        TypeError: an object that is no tokenizer.
        LoadError: the model or its tokenizer cannot be loaded.
        ResultsError: no such sample, or the run's model cannot be loaded again.

    Example:
        >>> import torch, attnscope as asc
        >>> asc.view(torch.full((2, 3, 4, 4), 0.25), tokens=["the", "cat", "sat", "."], title="uniform")
        View('uniform': 2 layers × 3 heads, ... metrics, 6 attention matrices)
    """
    if isinstance(shown, (str, os.PathLike)):
        shown, tokenizer, label = open_model("view", shown, tokenizer)
        title = title or label
    kind = _kind_of(shown)
    options = {"text": text, "tokens": tokens, "tokenizer": tokenizer, "sample": sample, "model": model}
    options |= {"processor": processor, "generate": generate, "answer": answer}
    trust_remote_code = flag("view", "trust_remote_code", trust_remote_code)
    options["trust_remote_code"] = trust_remote_code or None
    for option, (takers, instead_of_it) in _OPTION_KINDS.items():
        if options[option] is not None and kind not in takers:
            raise ValueError(f"view: {option} does not go with {kind}, {instead_of_it}")
    if generate is not None and answer is not None:
        raise ValueError("view: answer says where an answer is, generate writes one; give one of them")
    with aggregate_warnings(rows=kind == "tensors"):
        if kind == "stored results":
            from attnscope.view.stored import contents_of_results

            name = shown.path.resolve().name if shown.path else "results in memory"
            contents = contents_of_results(shown, max_bytes, sample, model, trust_remote_code)
        elif kind == "a recording":
            name = "a generation"
            stacks = stacks_of_recording(shown, tokens, tokenizer, sample)
            contents = contents_of_stacks(stacks, max_bytes)
        elif kind == "a model":
            shown, tokenizer, name = open_model("view", shown, tokenizer)
            count, texts = texts_of_model(shown, text, tokenizer, processor, generate=generate, answer=answer)
            contents = contents_of_texts(texts, count, max_bytes)
        else:
            name = "attention"
            attention = attention_of_cache("view", shown) if is_cache(shown) else shown
            contents = contents_of_tensors(attention, tokens, max_bytes, answer)
    if head is not None:
        layer, number = (int(index) for index in head)
        if layer not in contents["layers"] or number not in contents["heads"]:
            raise ValueError(
                f"view: there is no head {number} in layer {layer}; layers {contents['layers'][0]} to "
                f"{contents['layers'][-1]}, heads {contents['heads'][0]} to {contents['heads'][-1]}"
            )
        contents["open"] = [layer, number]
    return View(title or name, _with_metrics(contents, metrics), height)


def _with_metrics(contents: dict[str, Any], metrics: Sequence[str] | None) -> dict[str, Any]:
    """Return the contents with these metrics, or all in the order of a page.

    Raises:
        ValueError: a metric that the page has not.
    """
    names = [metric["name"] for metric in contents["metrics"]]
    chosen = [metrics] if isinstance(metrics, str) else metrics
    if chosen is None:
        chosen = [name for name in MAIN_COLUMNS if name in names]
        chosen += [name for name in names if name not in chosen]
    for name in chosen:
        if name not in names:
            raise ValueError(f"view: the page has no metric {name!r}{nearest(name, names)}")
    places = [place for name in dict.fromkeys(chosen) for place, other in enumerate(names) if other == name]
    return {
        **contents,
        "metrics": [contents["metrics"][place] for place in places],
        "values": [[[rows[place] for place in places] for rows in inputs] for inputs in contents["values"]],
        "uniform": [[rows[place] for place in places] for rows in contents["uniform"]],
    }


def _kind_of(shown: Any) -> str:
    """Return in words what a page is made of."""
    if isinstance(shown, Results):
        return "stored results"
    if isinstance(shown, Recording):
        return "a recording"
    return "a model" if isinstance(shown, torch.nn.Module) else "tensors"


def printable_contents(contents: dict[str, Any]) -> dict[str, Any]:
    r"""Return what a page shows, its texts without control characters; numbers are not looked at.

    >>> printable_contents({"inputs": ["a\x1bb"], "values": [0.5], "maps": [{"tokens": ["\x00"], "n": 1}]})
    {'inputs': ['a·b'], 'values': [0.5], 'maps': [{'tokens': ['·'], 'n': 1}]}
    """

    def clean(value: Any) -> Any:
        if isinstance(value, str):
            return mark_controls(value)
        if isinstance(value, dict):
            return {key: clean(inner) for key, inner in value.items()}
        return [clean(inner) for inner in value] if isinstance(value, list) else value

    texts = ("notes", "without", "checkpoints", "texts", "inputs", "metrics")
    shown = {key: clean(value) if key in texts else value for key, value in contents.items()}
    tokens = ("tokens", "queries")
    shown["maps"] = [
        {key: clean(value) if key in tokens else value for key, value in stored.items()}
        for stored in contents["maps"]
    ]
    return shown


#: The kinds of input that take each argument, and the words of the error for any other.
_OPTION_KINDS = {
    "text": (("a model",), "only with a model"),
    "tokens": (("tensors", "a recording"), "which bring their own tokens"),
    "tokenizer": (("a model", "a recording"), "only with a model and a text"),
    "processor": (("a model",), "only with a model and a picture or a sound"),
    "sample": (("stored results", "a recording"), "it chooses among stored results"),
    "model": (("stored results",), "only with results whose attention is captured again"),
    "trust_remote_code": (("stored results",), "only with results whose attention is captured again"),
    "generate": (("a model",), "only with a model and a text"),
    "answer": (("tensors", "a model"), "which say where their answers are"),
}
