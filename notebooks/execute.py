# SPDX-License-Identifier: MIT
"""Executes notebooks and stores their outputs: `python notebooks/execute.py 01 06`, all without numbers.

What is stored is what a reader sees: figures with few colours, no progress bars, and no path of this machine.
The digest of the code that was run is kept, so that a test can tell outputs that belong to other code.
"""

from __future__ import annotations

import base64
import hashlib
import io
import re
import sys
import tempfile
from pathlib import Path

import nbformat
from PIL import Image

FOLDER = Path(__file__).resolve().parent
COLOURS = 256
#: Letters of HTML that are stored; of a whole page of heads its one line of text is.
LARGEST_HTML = 100_000


def digest(notebook: nbformat.NotebookNode) -> str:
    """Of the code cells, in their order."""
    code = "\0".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    return hashlib.sha256(code.encode()).hexdigest()[:16]


def execute(path: Path, timeout: int = 1800) -> None:
    """Runs a notebook in its folder and stores it with its outputs."""
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(FOLDER)}}
    with tempfile.TemporaryDirectory() as temporary:
        NotebookClient(notebook, timeout=timeout, kernel_name="python3", resources=resources).execute()
    homes = {str(FOLDER.parent): ".", temporary: "TMP", tempfile.gettempdir(): "TMP", str(Path.home()): "~"}
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = [kept for output in cell.outputs if (kept := stored(output, homes))]
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
        "attnscope": {"code": digest(notebook)},
    }
    nbformat.write(notebook, path)


def stored(output: nbformat.NotebookNode, homes: dict[str, str]) -> nbformat.NotebookNode | None:
    """An output without paths, with small figures; None where it is a warning or a progress bar."""
    if output.output_type == "stream":
        if output.name == "stderr":
            return None
        output.text = without_paths(output.text, homes)
        return output
    data = output.data
    if "application/vnd.jupyter.widget-view+json" in data:
        return None
    if len(data.get("text/html", "")) > LARGEST_HTML:
        del data["text/html"]
    if "image/png" in data:
        data["image/png"] = few_colours(data["image/png"])
    for kind in ("text/plain", "text/html"):
        if kind in data:
            data[kind] = without_paths(data[kind], homes)
    output.metadata = {}
    return output


def without_paths(text: str, homes: dict[str, str]) -> str:
    """Folders of this machine by short names, and frames without a name of their own."""
    for folder in sorted(homes, key=len, reverse=True):
        text = re.sub(re.escape(folder) + r"(?=[/\s'\"<:,)]|$)", homes[folder], text)
    return re.sub(r"TMP/tmp\w+", "TMP", text)


def few_colours(image: str) -> str:
    """A figure as PNG with a palette: a third of its size."""
    whole = Image.open(io.BytesIO(base64.b64decode(image))).convert("RGB")
    buffer = io.BytesIO()
    whole.quantize(COLOURS, dither=Image.Dither.NONE).save(buffer, "PNG", optimize=True)
    return base64.b64encode(buffer.getvalue()).decode() + "\n"


if __name__ == "__main__":
    wanted = sys.argv[1:]
    for file in sorted(FOLDER.glob("*.ipynb")):
        if not wanted or file.stem[:2] in wanted:
            print(file.name, flush=True)
            execute(file)
