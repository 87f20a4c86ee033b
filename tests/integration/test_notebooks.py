# SPDX-License-Identifier: MIT
"""The stories are executed as they stand, ask their question first, and carry the outputs of their code."""

import ast
import importlib.util
import re
import tempfile
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
SUBJECTS = {
    0: "five_minutes",
    1: "one_head",
    2: "layers_and_heads",
    3: "topology",
    4: "spectra_and_random_matrices",
    5: "value_space_and_frames",
    6: "emergence",
    7: "bring_your_own_tensors",
    8: "wavelet_like_heads",
    9: "absolute_position",
    10: "attention_and_likelihood",
    11: "knowing_and_saying",
    12: "weights",
    13: "a_picture_s_attention",
    14: "while_it_writes",
    15: "features_for_classifiers",
    16: "long_context",
    17: "training_attention",
}
METADATA = {"kernelspec", "language_info", "attnscope"}
#: Bytes of a notebook with its outputs.
LARGEST = 600_000
#: Stories that run whole studies for minutes: they may be stored bare, never with outputs of other code.
LONG = {"09", "10", "11", "12"}

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def read(path):
    return nbformat.read(path, as_version=4)


def source(cell):
    """A cell's Python, without IPython's own lines."""
    return "\n".join(line for line in cell.source.splitlines() if not line.startswith("%"))


def test_the_series_is_complete():
    assert [path.stem for path in NOTEBOOKS] == [f"{number:02d}_{name}" for number, name in SUBJECTS.items()]


def executing():
    """The script that stores outputs, `make notebooks`."""
    spec = importlib.util.spec_from_file_location("execute_notebooks", FOLDER / "execute.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def faults(notebook, size):
    """What is wrong with the outputs that a notebook is stored with."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    outputs = [output for cell in code for output in cell.outputs]
    texts = [str(output.get("text", "")) + str(dict(output.get("data", {}))) for output in outputs]
    result = []
    if [cell.execution_count for cell in code] != list(range(1, len(code) + 1)):
        result.append("its cells were not run once, in their order")
    if notebook.metadata.get("attnscope", {}).get("code") != executing().digest(notebook):
        result.append("its outputs are of other code")
    if any(output.output_type == "error" or output.get("name") == "stderr" for output in outputs):
        result.append("it holds an error, or what went to stderr")
    if any(re.search(r"(?<![\w.~])/(home|root|tmp|work|Users|usr)/", text) for text in texts):
        result.append("it names a folder of the machine that ran it")
    if sum("image/png" in output.get("data", {}) for output in outputs) < 2:
        result.append("it shows fewer than two figures")
    if size > LARGEST:
        result.append(f"it has {size:,} bytes")
    return result


@each_notebook
def test_outputs_are_of_the_code_and_metadata_is_bare(path):
    notebook = read(path)
    nbformat.validate(notebook)
    assert {"kernelspec", "language_info"} <= set(notebook.metadata) <= METADATA
    assert notebook.metadata.kernelspec.name == "python3"
    assert set(notebook.metadata.language_info) == {"name"}
    for cell in notebook.cells:
        assert not cell.metadata, f"cell {cell.id} carries metadata: {dict(cell.metadata)}"
    bare = all(
        not cell.outputs and cell.execution_count is None for cell in notebook.cells if "outputs" in cell
    )
    if not (bare and path.stem[:2] in LONG):
        assert not faults(notebook, path.stat().st_size), "make notebooks stores what is to be stored"


def test_outputs_of_other_code_are_found_out():
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1 + 1", execution_count=1)])
    notebook.metadata["attnscope"] = {"code": executing().digest(notebook)}
    assert faults(notebook, 0) == ["it shows fewer than two figures"]
    notebook.cells[0].source = "1 + 2"
    notebook.cells[0].outputs = [
        nbformat.v4.new_output("stream", name="stderr", text="at /home/me/notebook: a warning")
    ]
    assert [words[:25] for words in faults(notebook, 10**9)] == [
        "its outputs are of other ",
        "it holds an error, or wha",
        "it names a folder of the ",
        "it shows fewer than two f",
        "it has 1,000,000,000 byte",
    ]


def test_what_is_stored_names_no_folder_of_this_machine():
    homes = {"/somewhere/attnscope": ".", "/tmp/tmp12": "TMP", "/tmp": "TMP"}
    text = "/somewhere/attnscope/runs, '/tmp/tmp12/a', /tmp/tmpab_9/b, /tmpfs"
    assert executing().without_paths(text, homes) == "./runs, 'TMP/a', TMP/b, /tmpfs"


@each_notebook
def test_a_story_opens_with_its_number_and_its_question(path):
    first = read(path).cells[0]
    assert first.cell_type == "markdown"
    lines = [line for line in first.source.splitlines() if line.strip()]
    assert lines[0].startswith(f"# {path.stem[:2]} · "), lines[0]
    assert re.fullmatch(r"\*\*[A-Z].*\?.*\*\*", lines[1]), f"no question in bold under the title: {lines[1]}"


@each_notebook
def test_a_story_draws_and_defines_nothing_reusable(path):
    cells = [cell for cell in read(path).cells if cell.cell_type == "code"]
    trees = [ast.parse(source(cell)) for cell in cells]
    defined = [
        node.name
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
    ]
    assert not defined, f"{defined} belongs in the package"
    assert any("plots." in cell.source for cell in cells)


@each_notebook
def test_links_between_stories_lead_somewhere(path):
    text = "\n".join(cell.source for cell in read(path).cells if cell.cell_type == "markdown")
    targets = re.findall(r"\]\(([^)#:]+)\)", text)
    assert targets
    for target in targets:
        assert (FOLDER / target).exists(), f"{path.name} links to {target}"


#: A number as Python and pandas print it.
NUMBER = re.compile(r"(?<![\w.])[-+−]?(?:\d[\d,]*\.?\d*|\.\d+)(?:e[-+]?\d+)?")
#: What says how long something took, or what it weighed, says something else each time.
MEASURES_TIME = re.compile(r"perf_counter|process_time|%time|seconds|memory|rss|\bM?B\b", re.IGNORECASE)
#: By how much a stored number may differ from today's: other processors round and add up in another order.
RELATIVE, ABSOLUTE = 0.02, 0.01


def printed(cell, homes):
    """The words that a cell shows, as they are stored."""
    stored = (executing().stored(output, homes) for output in cell.outputs)
    outputs = [output for output in stored if output is not None]
    parts = [output.get("text") or output.get("data", {}).get("text/plain", "") for output in outputs]
    return "\n".join(part for part in parts if "<Figure" not in part and "<IPython" not in part)


def differs(stored, today):
    """Return what is new in a text, apart from small differences of its numbers; "" if nothing is."""
    before, after = (
        " ".join(re.sub(r"[-─]{3,}", " ", NUMBER.sub(" # ", text)).split()) for text in (stored, today)
    )
    if before != after:
        return f"{stored}\nis now\n{today}"
    numbers = (
        [float(number.replace(",", "").replace("−", "-")) for number in NUMBER.findall(text)]
        for text in (stored, today)
    )
    for old, new in zip(*numbers, strict=True):
        if abs(old - new) > max(ABSOLUTE, RELATIVE * abs(old)):
            return f"{old} is now {new} in\n{today}"
    return ""


def test_what_a_stored_output_says_otherwise_is_seen():
    table = "      step  share\n0        1  0.250\n1     1000  -.5"
    assert not differs(table, table)
    assert not differs(table, "    step  share\n0      1  0.251\n1  1,000 −0.50")
    assert "0.25 is now 0.35" in differs(table, table.replace("0.250", "0.350"))
    assert "is now" in differs("C1 undecided at .64", "C1 contradicted at .64")
    assert "is now" in differs("3 heads", "3 heads, 1 sink")


@pytest.mark.slow
@each_notebook
def test_a_story_runs_and_says_what_is_stored(path):
    """Every cell runs, from the notebook's own folder; what comes out is what is stored, figures as well.

    The first story on a machine without `runs/demo` trains the demo's model into the cache.
    """
    nbclient = pytest.importorskip("nbclient")
    notebook, stored = read(path), read(path)
    client = nbclient.NotebookClient(
        notebook, timeout=800, kernel_name="python3", resources={"metadata": {"path": str(FOLDER)}}
    )
    client.execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    shown = [output for output in outputs if "image/png" in output.get("data", {})]
    assert len(shown) >= 2, f"{path.name} shows {len(shown)} figures"
    warned = [
        output.text for output in outputs if output.output_type == "stream" and "Warning" in output.text
    ]
    assert not warned, f"{path.name} warns: {warned[0]}"
    homes = {str(ROOT): ".", tempfile.gettempdir(): "TMP", str(Path.home()): "~"}
    for before, after in zip(stored.cells, notebook.cells, strict=True):
        if before.get("outputs"):
            words = [printed(cell, homes) for cell in (before, after)]
            if not MEASURES_TIME.search(before.source + words[0]):
                assert not (news := differs(*words)), f"{path.name}: {news}"
