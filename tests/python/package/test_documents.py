# SPDX-License-Identifier: MIT
"""What the pages and docstrings show is what happens: examples are run, tables are made again."""

import argparse
import contextlib
import doctest
import importlib.util
import json
import re
import shutil
import sys
import types
from pathlib import Path

import pytest
import torch
import transformers

import attnscope
from attnscope.metrics.request import metric_names

ROOT = Path(__file__).resolve().parents[3]
PAGES = ["README.md", "CONTRIBUTING.md"]


DOCUMENTS = ROOT / "python" / "docs" / "pages"
EXAMPLES = [
    ROOT / "README.md",
    *(page for page in sorted(DOCUMENTS.glob("*.md")) if ">>>" in page.read_text("utf-8")),
]


@pytest.mark.parametrize("page", EXAMPLES, ids=lambda page: page.stem)
def test_pages_print_what_they_show(page, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    failed, attempted = doctest.testfile(
        str(page), module_relative=False, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    )
    assert failed == 0
    assert attempted > 0


def first_blocks():
    """Code and shown output of README's first examples: the reader's model and texts, then the demo's."""
    text = (ROOT / "README.md").read_text("utf-8").partition("[start:first] -->")[2].partition("<!--")[0]
    return re.findall(r"```(?:python)?\n(.*?)```", text, re.DOTALL)


def test_readme_begins_with_the_readers_model_and_texts(monkeypatch, tmp_path, capsys):
    """Typed as it stands, with a folder called gpt2 and a table of reviews where the reader has theirs."""
    from attnscope.demo import demo_model, training

    def refuse(*arguments, **options):
        raise AssertionError("trained")

    monkeypatch.setattr(training, "train", refuse)
    monkeypatch.chdir(tmp_path)
    shutil.copytree(demo_model(), "gpt2")
    Path("reviews.csv").write_text("stars,text\n5,It worked at once.\n1,It broke on the second day.\n")
    first, shipped, shown = first_blocks()
    assert len(first.splitlines()) <= 10
    names = {}
    exec(first, names)
    heads = capsys.readouterr().out.splitlines()
    assert heads[0].split() == ["layer", "head"]
    assert len(heads) == 6
    page = Path("heads.html").read_text("utf-8")
    assert "attnscope" in page
    assert names["results"]["samples"]["text"].tolist() == [
        "It worked at once.",
        "It broke on the second day.",
    ]
    exec(shipped, names)
    printed = capsys.readouterr().out.split()
    assert printed == shown.split()


def test_every_error_and_warning_has_its_cause_and_what_to_do():
    from attnscope import errors

    text = (DOCUMENTS / "errors.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| `(\w+)`[^|]*\| (\S[^|]*\| \S[^|]*)\|$", text, re.MULTILINE))
    classes = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, BaseException)
    }
    assert set(rows) == classes - {"CountedWarning"}
    raised = {
        path
        for path in PACKAGE.rglob("*.py")
        if re.search(r"^class \w*(Error|Warning)\(", path.read_text("utf-8"), re.MULTILINE)
    }
    assert raised == {PACKAGE / "errors.py"}


@pytest.mark.parametrize("page", PAGES)
def test_links_and_make_targets_exist(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (ROOT / target).exists(), f"{page} links to {target}"
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for name in re.findall(r"`make ([a-z-]+)", text):
        assert re.search(rf"^{name}:", makefile, re.MULTILINE), f"{page} names make {name}"


def test_a_benchmark_gets_the_options_that_it_takes(monkeypatch):
    folder = ROOT / "benchmarks"
    monkeypatch.syspath_prepend(str(folder))
    specification = importlib.util.spec_from_file_location("benchmarks_run", folder / "run.py")
    run = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(run)
    options = argparse.Namespace(
        names=["sweep"], quick=True, seconds=0.5, only="n=64", threads=None, json="x.json", busy=True
    )
    words = ["--quick", "--seconds", "0.5", "--only", "n=64", "--json", "x.json", "--busy"]
    for name in run.names():
        script = next(folder.rglob(f"{name}.py")).read_text("utf-8")
        if name in run.STUDIES:
            assert run.options_for(name, options) == ["--quick", "--json", "x.json"]
            assert all(f'"{option}"' in script for option in run.OPTIONS_OF_STUDIES), name
        else:
            assert run.options_for(name, options) == words
            assert "Benchmark(" in script, f"{name} has another parser"


@pytest.fixture
def harness(monkeypatch):
    folder = ROOT / "benchmarks"
    monkeypatch.syspath_prepend(str(folder))
    spec = importlib.util.spec_from_file_location("benchmark_harness", folder / "harness.py")
    harness = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(harness)
    monkeypatch.setattr(harness, "machine_facts", dict)
    monkeypatch.setattr(harness, "multiply_adds_per_second", lambda threads: 1.0)
    return harness


@pytest.mark.parametrize(
    ("machine", "options", "words"),
    [
        ({"cpu": "B", "threads": 1}, [], "cpu A, here B"),
        ({"cpu": "A", "threads": 2}, [], "threads 1, here 2"),
        ({"cpu": "A", "threads": 1}, ["--quick"], "quick False, here True"),
        ({"cpu": "A", "threads": 1, "load": [2.0]}, [], ""),
    ],
)
def test_rows_of_another_machine_do_not_stand_beside_stored_ones(
    harness, monkeypatch, tmp_path, capsys, machine, options, words
):
    file = tmp_path / "law.json"
    stored = {"machine": {"cpu": "A", "threads": 1}, "quick": False, "refused": [], "rows": [{"name": "old"}]}
    file.write_text(json.dumps(stored), "utf-8")
    monkeypatch.setattr(harness, "machine_facts", lambda: machine)
    monkeypatch.setattr(sys, "argv", ["law.py", "--json", str(file), "--only", "new", *options])
    if not words:
        harness.Benchmark("law", "A law.").finish()
        assert json.loads(file.read_text("utf-8"))["machine"] == machine
        return
    with pytest.raises(SystemExit):
        harness.Benchmark("law", "A law.")
    assert words in capsys.readouterr().err
    assert json.loads(file.read_text("utf-8")) == stored


def test_a_benchmark_of_some_rows_keeps_the_others_that_are_stored(harness, monkeypatch, tmp_path):
    file = tmp_path / "law.json"

    def run(rows, *options, refused=()):
        monkeypatch.setattr(sys, "argv", ["law.py", "--json", str(file), *options])
        benchmark = harness.Benchmark("law", "A law.")
        benchmark.rows = [{"name": name, "best_ms": best} for name, best in rows.items()]
        benchmark.refused = list(refused)
        with contextlib.suppress(SystemExit):
            benchmark.finish()
        report = json.loads(file.read_text("utf-8"))
        return {row["name"]: row["best_ms"] for row in report["rows"]}, report["refused"]

    busy = "n=96 causal: load 2.1"
    assert run({"n=32 causal": 1.0, "n=64 causal": 2.0}, refused=[busy])[1] == [busy]
    rows, refused = run({"n=64 causal": 3.0, "n=64 full": 4.0}, "--only", "n=64")
    assert list(rows.items()) == [("n=32 causal", 1.0), ("n=64 causal", 3.0), ("n=64 full", 4.0)]
    assert refused == [busy]
    rows, refused = run({"n=96 causal": 5.0}, "--only", "n=96")
    assert rows["n=96 causal"] == 5.0
    assert len(rows) == 4
    assert refused == []
    # a run of all rows forgets those that are no more
    assert run({"n=32 causal": 6.0})[0] == {"n=32 causal": 6.0}


def test_a_row_counts_as_slower_once_it_was_measured_twice_and_never_beside_our_own_ways(
    harness, monkeypatch, tmp_path
):
    monkeypatch.setattr(sys, "argv", ["law.py", "--json", str(tmp_path / "law.json"), "--busy"])
    monkeypatch.setattr(harness, "load_of_others", lambda: 0.0)
    monkeypatch.setattr(harness, "share_in_core", lambda call, clock: 1.0)
    monkeypatch.setattr(harness, "limit_in_words", lambda *shares: "nothing")
    rounds = []

    def timed(calls, seconds, clock):
        rounds.append(seconds)
        return dict(seconds_of_rounds[len(rounds) - 1])

    monkeypatch.setattr(harness, "round_robin", timed)

    def compare(*seconds_of_each_round, peer="torch"):
        seconds_of_rounds[:] = [
            {"attnscope": [ours], peer: [theirs]} for ours, theirs in seconds_of_each_round
        ]
        rounds.clear()
        benchmark = harness.Benchmark("law", "A law.")
        benchmark.seconds = 1.0
        peers = {peer: lambda: None}
        benchmark.compare("row", 1, lambda: None, peers, agree=lambda *_: None)
        return len(benchmark.slower), benchmark.rows[0]["ratio"][peer], rounds

    seconds_of_rounds = []
    assert compare((1.0, 2.0)) == (0, 2.0, [1.0])
    assert compare((2.0, 1.0), (0.5, 1.0)) == (0, 2.0, [1.0, 4.0])  # ours was disturbed in the first round
    assert compare((2.0, 1.0), (2.0, 1.5)) == (1, 0.5, [1.0, 4.0])
    assert compare((2.0, 1.0), peer="ours exact") == (0, 0.5, [1.0])


def test_the_table_of_benchmarks_is_that_of_the_stored_measurements():
    folder = ROOT / "benchmarks"
    spec = importlib.util.spec_from_file_location("benchmark_tables", folder / "tables.py")
    tables = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tables)
    page = (folder / "README.md").read_text("utf-8")
    measured = json.loads((folder / "measured" / "rows.json").read_text("utf-8"))
    built = tables.summary(measured)
    assert tables.written(page, built) == page
    assert built.count("\n| ") > 20
    assert tables.written(page, "other\n") != page
    for name, expected in tables.pages(measured).items():
        stored = (folder / "measured" / f"{name}.md").read_text("utf-8")
        assert stored == expected, name
        for linked, concept in re.findall(r"\]\(measured/(\w+)\.md#(\w+)\)", built):
            assert linked != name or f"\n## {concept}\n" in stored, concept


SKIPPED = ("attnscope._core", "attnscope.cli.application", "attnscope.__main__")
PACKAGE = Path(attnscope.__file__).parent
MODULES = [
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    for path in sorted(PACKAGE.rglob("*.py"))
    if ">>>" in path.read_text("utf-8")
]


@pytest.mark.parametrize("name", [name for name in MODULES if not name.startswith(SKIPPED)])
def test_examples(name, monkeypatch):
    module = importlib.import_module(name)
    # for every docstring a debugger is prepared that looks at all files that are imported
    monkeypatch.setattr("linecache.checkcache", lambda filename=None: None)
    failed, _ = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert failed == 0


def made_pages():
    """The module that makes pages of the site."""
    spec = importlib.util.spec_from_file_location("made", ROOT / "python" / "docs" / "made.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_site_has_every_command_every_setting_and_one_name_for_each_number():
    from attnscope.cli.application import app
    from attnscope.config.run_config import RunConfig
    from attnscope.metrics.discovery import registry

    pages = made_pages().pages()
    for command in app.registered_commands:
        name = command.callback.__name__
        assert f"## {name}\n" in pages["commands.md"]
        assert f"Usage: attnscope {name}" in pages["commands.md"]
    assert all(f"\n{key}:" in pages["settings.md"] for key in RunConfig.model_fields)
    rows = re.findall(r"^\| `(\w+)` \|", pages["glossary.md"], re.MULTILINE)
    assert rows == sorted(
        {quantity.name for quantity in registry().quantities if quantity.protocol == "exact"}
    )


def test_the_definitions_have_a_worked_example_with_a_picture_in_every_section():
    pages = made_pages()
    text = (ROOT / "python" / "docs" / "pages" / "definitions.md").read_text("utf-8")
    page = pages.with_examples(text)
    sections = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert list(pages._worked().WORKED) == [title for title in sections if title != "Notation"]
    for number, section in enumerate(pages._worked().WORKED):
        section_text = page.partition(f"## {section}\n")[2].partition("\n## ")[0]
        assert f"worked-{number}.svg" in section_text, section
    assert "tensor([1.0000, 0.3397], dtype=torch.float64)" in page
    pictures = pages.pictures()
    assert all(pictures[f"assets/worked-{at}.svg"].startswith(b"<?xml") for at in range(10))


def test_a_notebook_becomes_a_page_with_its_figures(tmp_path):
    cells = [
        {"cell_type": "markdown", "source": ["# 01 · One\n", "\n", "**What?**\n", "[next](02_two.ipynb)"]},
        {"cell_type": "code", "source": ["draw()"], "outputs": [{"data": {"image/png": "aGk="}}]},
        {"cell_type": "code", "source": ["1"], "outputs": [{"data": {"text/plain": ["1"]}}]},
    ]
    (tmp_path / "01_one.ipynb").write_text(json.dumps({"cells": cells}))
    pages = made_pages().notebooks(tmp_path)
    assert pages["notebooks/01_one-0.png"] == b"hi"
    assert "[next](02_two.md)" in pages["notebooks/01_one.md"]
    assert "```text\n1\n```" in pages["notebooks/01_one.md"]
    assert "[![01 · One](notebooks/01_one-0.png)](notebooks/01_one.md)" in pages["gallery.md"]


def cheatsheet():
    """The lines of README's cheatsheet: Python as it stands, and commands."""
    table = (ROOT / "README.md").read_text("utf-8").partition("## Cheatsheet")[2].partition("\n## ")[0]
    lines = re.findall(r"^\| .* \| `(.*)` \|$", table, re.MULTILINE)
    assert len(lines) > 15
    return [line for line in lines if not line.startswith("attnscope")], [
        line for line in lines if line.startswith("attnscope")
    ]


@pytest.fixture
def cheatsheet_run(monkeypatch, tmp_path):
    """Run the Python lines of the cheatsheet, and return what they leave behind as names."""
    from attnscope.demo import demo_model

    monkeypatch.chdir(tmp_path)
    animals = ("dog", "fox", "goose", "old cat", "owl")
    texts = [f"The {animal} ran home before the rain came." for animal in animals]
    Path("lines.txt").write_text("".join(f"{text}\n" for text in texts), "utf-8")
    shutil.copytree(demo_model(), "MODEL")
    noise = torch.Generator().manual_seed(0)
    names = {
        "asc": attnscope,
        "model": demo_model(),
        "loaded": transformers.AutoModelForCausalLM.from_pretrained(demo_model()).eval(),
        "texts": texts,
        "maps": torch.rand(2, 12, 12, generator=noise).tril().softmax(-1),
        "values": torch.rand(20, generator=noise).numpy(),
        "others": torch.rand(20, generator=noise).numpy(),
    }
    for line in cheatsheet()[0]:
        exec(f"result = {line}" if "=" not in line.partition("(")[0] else line, names)
        assert names["result"] is not False, line
    return names


def test_every_python_line_of_the_cheatsheet_runs(cheatsheet_run):
    assert not cheatsheet_run["results"]["heads"].empty


@pytest.mark.slow
def test_every_command_of_the_cheatsheet_runs(cheatsheet_run, call):
    for line in cheatsheet()[1]:
        code, out, error = call(*line.split()[1:])
        assert code == 0, f"{line}: {error}"
        assert out, line


def test_every_function_of_readme_s_table_leads_to_its_definition():
    table = (ROOT / "README.md").read_text("utf-8").partition("## What it measures")[2].partition("\n\n")[2]
    table = table.partition("\n\n")[0]
    links = re.findall(r"\[`(\w+)`\]\(([\w/.]+)\)", table)
    assert len(links) > 100
    assert not re.findall(r"(?<!\[)`\w+`", table), "names without a link"
    for name, path in links:
        assert name in attnscope.__all__, name
        assert re.search(rf"^(def|class) {name}\b", (ROOT / path).read_text("utf-8"), re.MULTILINE), path


def test_every_metric_is_defined_on_the_page_of_definitions():
    text = (DOCUMENTS / "definitions.md").read_text("utf-8")
    missing = [name for name in metric_names() if not re.search(rf"\b{name}\b", text)]
    assert missing == ["marchenko_pastur_deviation"]  # the ks of marchenko_pastur


def test_every_public_name_is_on_a_page_of_the_api():
    pages = "".join(path.read_text("utf-8") for path in sorted((DOCUMENTS / "api").glob("*.md")))
    shown = set(re.findall(r"(?m)^::: (\S+)", pages))
    names = {name: getattr(attnscope, name) for name in attnscope.__all__ if not name.startswith("_")}
    missing = [
        name
        for name, value in names.items()
        if not isinstance(value, types.ModuleType)
        and not shown & {value.__module__, f"{value.__module__}.{value.__qualname__}"}
    ]
    assert len(names) > 150
    assert missing == []
