# SPDX-License-Identifier: MIT
"""Pages that the site makes from the package: commands, settings, glossary, notebooks, worked examples."""

from __future__ import annotations

import base64
import importlib
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DOCS = str(Path(__file__).resolve().parent)
#: What the site tells a formula's browser to draw it with, and the image of the examples.
_PICTURE = "assets/worked-{}.svg"


def _worked() -> Any:
    """Return the module of the examples, which is next to this one and in no package."""
    if DOCS not in sys.path:
        sys.path.insert(0, DOCS)
    return importlib.import_module("worked")


def on_files(files: Any, config: Any) -> Any:
    """Add the pages."""
    from mkdocs.structure.files import File

    for address, content in {**pages(), **notebooks(ROOT / "notebooks"), **pictures()}.items():
        files.append(File.generated(config, address, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **rest: Any) -> str:
    """Put the worked examples under the headings of the definitions."""
    return with_examples(markdown) if page.file.src_uri == "definitions.md" else markdown


def pages() -> dict[str, str]:
    """Pages that are made of the package and of the repository's own pages, by address."""
    files_by_address = {"contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}
    generated = {"commands.md": commands(), "settings.md": settings(), "glossary.md": glossary()}
    generated["models.md"] = models()
    return generated | {
        address: (ROOT / name).read_text("utf-8") for address, name in files_by_address.items()
    }


def commands() -> str:
    """Every command with its help."""
    import typer

    from attnscope.cli.application import app

    os.environ["COLUMNS"] = "100"
    command_line: Any = typer.main.get_command(app)
    parts = [
        "# Command line\n",
        "`attnscope COMMAND --help` prints what stands here. Help and version come without torch.\n",
        f"{command_line.epilog}\n",
    ]
    for name, command in command_line.commands.items():
        with command.make_context(name, [], resilient_parsing=True) as context:
            context.info_name = f"attnscope {name}"
            text = command.get_help(context)
        parts.append(f"## {name}\n\n```text\n{text}\n```\n")
    return "\n".join(parts)


def settings() -> str:
    """Every key of every study with its type and default, as `attnscope init` writes it."""
    from attnscope.cli.settings import written
    from attnscope.config.study_folders import studies

    parts = [
        "# Settings\n",
        "Every key of a study, with its meaning, type and default, as `attnscope init STUDY` writes it.\n",
    ]
    parts += [f"## {name}\n\n```yaml\n{written(name)}```\n" for name in studies()]
    return "\n".join(parts)


def glossary() -> str:
    """Return the words, and every quantity with its one name in tables, figures, report and view."""
    from attnscope.metrics.discovery import metric_of, registry

    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    words = text.partition("### Glossary")[2].partition("\n## ")[0]
    lines = [f"---\nhide: [toc]\n---\n\n# Glossary\n{words}\n## Quantities\n"]
    lines.append(
        "One number, one name: the column of the tables; the label is what figures, the report and the view "
        "call it.\n\n"
        "How a column is called follows from the function that gives it. A function with one number for each "
        "map gives the column of its own name (`stable_rank`). An option, an entry of a vector or a field "
        "stands behind the name (`fiedler_value_normalized`, `bar_count_1`). A function with several fields "
        "gives each a column with the field's name, and a word before it where the field alone says too "
        "little (`marchenko_pastur(...).ks` is `mp_ks`). Of a vector over queries the column is the mean "
        "(`attention_entropy` gives `entropy`). Each function's entry under *API* lists its columns, "
        "`attnscope metrics` describes a function or a column, and `analyze` takes the name of either. "
        "Another protocol's number has the column of the exact one in rows of that protocol.\n"
    )
    lines += ["| column | label, and what it is | function |", "|---|---|---|"]
    quantities = {
        quantity.name: quantity for quantity in registry().quantities if quantity.protocol == "exact"
    }
    for name, quantity in sorted(quantities.items()):
        label = quantity.label.replace("|", r"\|")
        meaning = quantity.meaning.replace("|", r"\|")
        functions = [
            function for function in (metric_of(quantity), *quantity.also) if not function.startswith("_")
        ]
        functions_in_code = ", ".join(f"`{function}`" for function in functions) or "of a layer's sinks"
        lines.append(f"| `{name}` | **{label}**: {meaning} | {functions_in_code} |")
    return "\n".join(lines) + "\n"


#: What each kind of the support matrix is called on its page.
_KINDS = {
    "causal": "Decoders of text",
    "masked": "Encoders of text",
    "seq2seq": "Encoder-decoders",
    "image": "Pictures",
    "image-text": "Pictures and text, on text alone",
    "audio": "Sounds",
    "speech": "Speech to text",
}
#: Outcomes of the sweep in the order of the page, in words.
_OUTCOMES = {
    "equal": "equal to eager attention",
    "incomplete": "equal, some modules' maps are missing and named",
    "refused": "refused by name",
    "not built": "not built from a small configuration, not tried",
}


#: Outcomes of sweeps of their own, and the heads of their columns.
_EXTRAS = {"generation": "while it generates", "picture": "with a picture"}
_GENERATION = (
    "**While it generates**: four tokens are generated greedily under capture, `recording.assembled()` puts "
    "the rows of all steps together, and one forward pass over the same tokens must give the same maps "
    "(1e-4). *steps differ*: so do the model's own logits, without any capture. *not generated*: "
    "transformers' own `generate` fails, or is not there. **With a picture**: one that the model reads, "
    "since other pixels change its output; *not read*: no shape of pixels that was tried."
)


def support_totals(matrix: dict[str, Any]) -> dict[str, dict[str, int]]:
    """Count the outcomes of each kind."""
    return {
        kind: dict(Counter(row["result"] for row in rows.values()))
        for kind, rows in sorted(matrix["rows"].items(), key=lambda item: [*_KINDS].index(item[0]))
    }


def models() -> str:
    """Return the page of the types of models that capture was tried on, from the support matrix."""
    matrix = json.loads((ROOT / "tests" / "integration" / "support.json").read_text("utf-8"))
    versions = sorted({row["transformers"] for rows in matrix["rows"].values() for row in rows.values()})
    text = (ROOT / "python" / "docs" / "models.md").read_text("utf-8")
    totals = support_totals(matrix)
    head = "| kind | " + " | ".join(_OUTCOMES) + " |\n|---|" + "---:|" * len(_OUTCOMES)
    rows = [
        f"| {_KINDS[kind]} | " + " | ".join(str(counts.get(outcome, 0)) for outcome in _OUTCOMES) + " |"
        for kind, counts in totals.items()
    ]
    parts = [text, f"With transformers {', '.join(versions)}:\n", head, *rows, ""]
    parts += [f"* **{outcome}**: {words}" for outcome, words in _OUTCOMES.items()]
    parts += ["", _GENERATION]
    for kind in totals:
        rows_of_kind = sorted(matrix["rows"][kind].items())
        extras = [key for key in _EXTRAS if any(key in row for _, row in rows_of_kind)]
        names = ["type", "outcome", *(_EXTRAS[key] for key in extras), "tier", "largest difference", "layers"]
        parts += ["", f"## {_KINDS[kind]}", "", f"| {' | '.join(names)} |"]
        parts += ["|---" * len(names) + "|", *(_support_row(item, extras) for item in rows_of_kind)]
    return "\n".join(parts) + "\n"


def _outcome_in_words(row: dict[str, Any]) -> str:
    """Return an outcome with its reason, where it is not that maps are equal."""
    words = row.get("words", "").replace("|", r"\|").strip()
    return f"{row['result']}: {words}" if words and row["result"] != "equal" else row["result"]


def _support_row(item: tuple[str, dict[str, Any]], extras: Sequence[str]) -> str:
    """Return a type's line of the page of models."""
    name, row = item
    gaps = [gap for gap in row["difference"].values() if gap is not None]
    largest = f"{max(gaps):.0e}" if gaps and max(gaps) else "0" if gaps else ""
    layers = ", ".join(f"{count} × `{stack}`" for stack, count in row["layers"].items())
    outcomes = [row, *(row.get(key, {"result": ""}) for key in extras)]
    cells = [f"`{name}`", *map(_outcome_in_words, outcomes), str(row["tier"] or ""), largest, layers]
    return f"| {' | '.join(cells)} |"


def pictures() -> dict[str, bytes]:
    """Return the pictures of the worked examples, and that of the page of heads."""
    worked = _worked()
    view = {"images/view.png": (ROOT / "python" / "docs" / "images" / "view.png").read_bytes()}
    return view | {
        _PICTURE.format(number): worked.example(name)[1] for number, name in enumerate(worked.WORKED)
    }


def with_examples(markdown: str) -> str:
    """Return the definitions, each section beginning with its worked example."""
    worked = _worked()
    for number, section in enumerate(worked.WORKED):
        heading = f"## {section}\n"
        if heading not in markdown:
            raise ValueError(f"the definitions have no section {section!r}")
        picture = f"![{section}]({_PICTURE.format(number)})"
        markdown = markdown.replace(heading, f"{heading}\n{worked.example(section)[0]}\n{picture}\n", 1)
    return markdown


def notebooks(folder: Path) -> dict[str, str | bytes]:
    """Return a page for every notebook with its stored outputs, and a gallery of their first figures."""
    files_by_address: dict[str, str | bytes] = {}
    gallery = ["# Gallery\n", "Notebooks with what they print and draw; `notebooks/` holds them to be run.\n"]
    for file in sorted(folder.glob("*.ipynb")):
        cells = json.loads(file.read_text("utf-8"))["cells"]
        images: dict[str, bytes] = {}
        page = "\n\n".join(_cell(cell, file.stem, images) for cell in cells)
        files_by_address[f"notebooks/{file.stem}.md"] = (
            re.sub(r"\((\d\d_\w+)\.ipynb\)", r"(\1.md)", page) + "\n"
        )
        files_by_address |= {f"notebooks/{name}": image for name, image in images.items()}
        first = "".join(cells[0]["source"])
        title = first.partition("\n")[0].lstrip("# ")
        question = first.split("**")[1]
        gallery.append(f"## [{title}](notebooks/{file.stem}.md)\n\n{' '.join(question.split())}\n")
        if images:
            gallery.append(f"[![{title}](notebooks/{next(iter(images))})](notebooks/{file.stem}.md)\n")
    return {**files_by_address, "gallery.md": "\n".join(gallery)}


def _cell(cell: dict[str, Any], stem: str, images: dict[str, bytes]) -> str:
    """Return a cell as Markdown; its figures go into `images`."""
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return source
    parts = [f"```python\n{source}\n```"]
    for output in cell["outputs"]:
        data = output.get("data", {})
        if "image/png" in data:
            name = f"{stem}-{len(images)}.png"
            images[name] = base64.b64decode("".join(data["image/png"]))
            parts.append(f"![figure {len(images)}]({name})")
        elif "text/html" in data:
            html = re.sub(r"\n\s*", " ", "".join(data["text/html"]))
            parts.append(f'<div class="output">{html}</div>')
        else:
            text = "".join(data.get("text/plain", output.get("text", "")))
            parts.append(f"```text\n{text.rstrip()}\n```")
    return "\n\n".join(parts)
