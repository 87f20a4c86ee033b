# SPDX-License-Identifier: MIT
"""The command line: every command, its example, its exit codes, its JSON; settings as YAML that it reads."""

import csv
import json
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

import attnscope
from attnscope.cli import application
from attnscope.cli.results_commands import comparison_text
from attnscope.cli.settings import _meanings, _name, written
from attnscope.config.packaged_configs import packaged_text
from attnscope.config.run_config import RunConfig, models_in
from attnscope.config.study_folders import studies
from attnscope.errors import ConfigError
from attnscope.metrics.discovery import registry
from attnscope.plots.style import font_settings
from attnscope.results.results import Results
from attnscope.study_api.study import study_class
from attnscope.study_api.tables import Column, Rows, Table
from folders import model_folder, sentences, series

pytestmark = pytest.mark.usefixtures("unarranged", "unpictured")

SMALL = ("--set", "metrics=[fiedler_value]", "-q", "--no-draw")
STUDIES = sorted({study.name for study in studies().values()})
COMMANDS = [command.name or command.callback.__name__ for command in application.app.registered_commands]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    return model_folder(folder / "tiny"), sentences(folder / "texts.txt", 6)


@pytest.fixture(scope="module")
def finished(inputs, tmp_path_factory):
    output = tmp_path_factory.mktemp("runs")
    arguments = ["run", "--model", str(inputs[0]), "--texts", str(inputs[1]), "--output", str(output)]
    arguments += ["--quiet", "--no-draw", "--set", "metrics=[fiedler_value, sink_share]"]
    for name, seed in (("a", 0), ("b", 1)):
        with pytest.raises(SystemExit) as end:
            application.main([*arguments, "--name", name, "--seed", str(seed)])
        assert not end.value.code
    return output


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_shows_an_example(call, name):
    code, out, _ = call(name, "--help")
    assert code == 0
    assert f"Example: attnscope {name}" in " ".join(out.split())


def test_help_names_the_exit_codes(call):
    code, out, _ = call("--help")
    assert code == 0
    assert "0 done, 1 failed, 2 usage, 3 finished with checkpoints skipped" in " ".join(out.split())
    assert "--install-completion" in out


def test_a_run_its_tables_and_json(call, inputs, tmp_path, monkeypatch):
    from attnscope.studies.attention_sinks import figures

    few = {name: figures.FIGURES[name] for name in ("depth", "emergence")}
    monkeypatch.setattr(figures, "FIGURES", few)
    model, texts = inputs
    arguments = ("--model", model, "--texts", texts, "--samples", 3, "--block", 2, "--output", tmp_path)
    code, out, err = call("run", *arguments, "--set", "metrics=[fiedler_value]", "--json")
    assert (code, err) == (0, "")
    answer = json.loads(out)
    assert answer == {
        "folder": str(tmp_path / "attention_sinks-tiny"),
        "skipped": [],
        "report": str(tmp_path / "attention_sinks-tiny/report.html"),
        "tables": {"samples": 3, "heads": 24, "head_means": 6, "baselines": 6},
        "figures_left_out": answer["figures_left_out"],
    }
    assert answer["figures_left_out"]["emergence"].startswith("the run has one checkpoint")
    assert "depth" not in answer["figures_left_out"]
    assert Path(answer["report"]).read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert list((tmp_path / "attention_sinks-tiny/figures").glob("*.pdf"))
    code, out, err = call("run", *arguments, "--set", "metrics=[fiedler_value]")
    assert code == 1
    assert f"attnscope resume {tmp_path}/attention_sinks-tiny" in err
    code, out, _ = call("resume", tmp_path / "attention_sinks-tiny", "--json", "--no-draw")
    assert code == 0
    assert json.loads(out) == {**answer, "report": None, "figures_left_out": {}}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--model", "/no/where"], "there is no model folder /no/where"),
        (["run", "nope"], "neither a file nor a study"),
        (["reprot", "runs/a"], "there is no command 'reprot'; did you mean 'report'?"),
        (["analyze", "gpt2"], "analyze is Python only (attnscope.analyze)"),
        (["run"], "models is missing (--model on the command line)"),
        (["run", "--model", "gpt2", "--set", "blok=1"], "unknown key 'blok'; did you mean 'block'?"),
        (["run", "--model", "gpt2", "--set", "block"], "expected key=value"),
        (["run", "--model", "gpt2", "--max-memory", "lots"], "expected an amount such as 4GB"),
        (["run", "--model", "gpt2", "--block", "0"], "block"),
        (["run", "--model", "gpt2", "--protocol", "exakt"], "exakt"),
        (["run", "--model", "gpt2", "--wrong"], "--wrong"),
        (["run", "--model", "gpt2", "--shard", "9/8"], "expected i/n with i from 1 to n"),
        (["run", "--model", "gpt2", "--shard", "1/2", "--ray", "auto"], "--shard or --ray, not both"),
        (
            ["metrics", "fiedler"],
            "there is no metric or column 'fiedler'; did you mean 'fiedler_value', 'fiedler_vector' or",
        ),
        (["tables"], "DIR"),
        (["compare", "a", "b", "--against", "gpt2"], "--against is of --published PAPER, got 'gpt2'"),
        (["compare", "a", "--published", "p", "--table", "graphs"], "--table is of two runs, got 'graphs'"),
        (["figures", "runs/a", "--label", "entropy"], "--label: expected OLD=NEW, got 'entropy'"),
    ],
)
def test_usage_errors_end_with_2(call, arguments, message):
    code, out, err = call(*arguments)
    assert code == 2
    assert out == ""
    assert message in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        (("run", "--samples"), "-1"),
        (("run", "--samples"), "many"),
        (("run", "--block"), "0"),
        (("run", "--seed"), "-3"),
        (("run", "--bos"), "kept"),
        (("run", "--precision"), "quick"),
        (("slurm", "study.yaml", "--array"), "0"),
        (("demo", "--samples"), "0"),
        (("view", "runs/a", "--sample"), "-1"),
        (("figures", "runs/a", "--dpi"), "high"),
        (("figures", "runs/a", "--font-size"), "8pt"),
    ],
)
def test_an_option_is_refused_with_its_value(call, arguments, value):
    code, _, err = call(*arguments, value)
    assert code == 2
    assert f"Invalid value for '{arguments[-1]}'" in err
    assert f"'{value}'" in err.replace("\n", " ")


@pytest.mark.parametrize("command", ["resume", "tables", "gather"])
def test_folders_that_hold_nothing_end_with_1(call, command, tmp_path):
    code, _, err = call(command, tmp_path / "none")
    assert code == 1
    assert "none" in err
    assert "Traceback" not in err


def test_bad_text_files_end_with_2_and_write_nothing(call, inputs, tmp_path):
    table = tmp_path / "a.csv"
    table.write_text("text,field\nthe cat,f\n", "utf-8")
    model = inputs[0]
    code, _, err = call("run", "-m", model, "-t", table, "--column", "txt", "--output", tmp_path / "runs")
    assert code == 2
    assert "no column 'txt'" in err
    assert "did you mean 'text'?" in err
    table.write_bytes("text\ncaf\xe9\n".encode("latin-1"))
    code, _, err = call("run", "-m", model, "-t", table, "--column", "text", "--output", tmp_path / "runs")
    assert code == 2
    assert "is not utf-8" in err
    assert not (tmp_path / "runs").exists()


def test_skipped_checkpoints_end_with_3_and_are_named(call, tmp_path):
    folder = series(tmp_path / "growing", (0, 1))
    (folder / "step1" / "model.safetensors").write_bytes(b"\x10")
    texts = sentences(tmp_path / "texts.txt", 2)
    code, _, err = call("run", "-m", folder, "-t", texts, "--output", tmp_path, *SMALL)
    assert code == 3
    assert "finished, 1 checkpoint skipped: growing step1" in err


def test_quiet_is_quiet(call, inputs, tmp_path):
    model, texts = inputs
    run = call("run", "-m", model, "-t", texts, "--samples", 1, "--output", tmp_path, *SMALL)
    assert run == (0, "", "")


def test_dry_run_prints_the_plan_and_writes_nothing(call, inputs, tmp_path):
    model, texts = inputs
    arguments = ("run", "-m", model, "-t", texts, "--block", 4, "--output", tmp_path / "runs", "--dry-run")
    arguments += ("--set", "metrics=[fiedler_value]")
    code, out, _ = call(*arguments)
    assert code == 0
    assert "units         2 (1 checkpoint x 6 texts)" in out
    assert "tokens        39, longest text 9" in out
    code, out, _ = call(*arguments, "--json")
    plan = json.loads(out)
    assert (plan["units"], plan["tokens"], plan["longest"]) == (2, 39, 9)
    assert 0 < plan["seconds"] < 3600
    assert plan["peak_bytes"] > plan["layer_bytes"] > 0
    assert not (tmp_path / "runs").exists()


def test_tables_as_text_latex_csv_and_json(call, finished, tmp_path):
    code, out, _ = call("tables", finished / "a", "--by", "layer,head", "--json")
    rows = json.loads(out)
    assert code == 0
    assert [(row["layer"], row["head"]) for row in rows] == [(a, b) for a in range(2) for b in range(4)]
    code, out, _ = call("tables", finished / "a", "--latex", "--by", "layer")
    assert r"layer & n\_tokens (median) & fiedler\_value &" in out
    assert out.startswith("% no room for: ")
    code, out, _ = call("tables", finished / "a", "--latex", "--by", "layer", "--columns", "fiedler_value")
    assert r"layer & fiedler\_value \\" in out
    code, _, err = call("tables", finished / "a", "--latex", "--width", "triple")
    assert (code, "width must be single or double, got 'triple'" in err) == (2, True)
    code, out, _ = call("tables", finished / "a", "--csv", tmp_path / "csv")
    assert code == 0
    with open(tmp_path / "csv" / "heads.csv", encoding="utf-8", newline="") as file:
        assert len(list(csv.DictReader(file))) == 48
    code, out, _ = call("tables", finished / "a", "--csv", tmp_path / "csv", "--json")
    assert (code, str(tmp_path / "csv" / "heads.csv") in json.loads(out)) == (0, True)
    for choice in ("--latex", "--table=heads", "--by=layer", "--columns=all"):
        code, out, err = call("tables", finished / "a", "--csv", tmp_path / "none", choice)
        assert (code, out) == (2, "")
        assert (
            f"--csv writes every table as it is stored, without '{choice.partition('=')[2] or choice}'" in err
        )
    code, out, err = call("tables", finished / "a", "--latex", "--json")
    assert (code, out, "give --latex or --json, not both" in err) == (2, "", True)
    _, once, _ = call("tables", finished / "a", "--by", "layer", "--json")
    assert call("tables", finished / "a", "--by", "layer,layer", "--json")[:2] == (0, once)
    code, _, err = call("tables", finished / "a", "--by", "laier")
    assert (code, "did you mean 'layer'" in err) == (2, True)
    code, _, err = call("tables", finished / "a", "--table", "head")
    assert (code, "did you mean 'heads'" in err) == (2, True)


def test_metrics_that_neither_run_measured_are_one_line_of_a_comparison(call, finished):
    code, out, _ = call("compare", finished / "a", finished / "b")
    lines = out.strip().splitlines()
    assert code == 0
    assert "fiedler_value" in out
    assert "NaN   True" not in out
    number = int(lines[-1].removesuffix(" more metrics have no value in either run"))
    _, answer, _ = call("compare", finished / "a", finished / "b", "--json")
    assert len(json.loads(answer)) == number + len(lines) - 2  # without the heading and the last line


@pytest.mark.parametrize(("count", "words"), [(1, "1 more metric has no"), (2, "2 more metrics have no")])
def test_one_metric_without_a_value_is_one(count, words):
    frame = pd.DataFrame({"metric": ["entropy"] * count, "finite": 0, "equal": True})
    assert comparison_text(frame) == f"{words} value in either run"


def test_a_page_of_maps_that_are_not_finite_says_so_in_lines(call, inputs, tmp_path):
    from safetensors.torch import load_file, save_file

    model = shutil.copytree(inputs[0], tmp_path / "nan")
    weights = load_file(model / "model.safetensors")
    name = next(name for name in weights if "q_proj" in name)
    save_file({**weights, name: weights[name] * float("nan")}, model / "model.safetensors", {"format": "pt"})
    run = ("run", "--model", model, "--texts", inputs[1], "--output", tmp_path, "--name", "a")
    code, _, _ = call(*run, "--samples", "2", *SMALL)
    assert code == 0
    code, out, err = call("view", tmp_path / "a")
    assert (code, out.strip()) == (0, str(tmp_path / "a" / "view.html"))
    assert "met NaN or infinite entries in" in err
    assert all(line.startswith("attnscope: ") for line in err.splitlines()), err


@pytest.mark.parametrize("to", ["file", "pipe"])
def test_standard_output_holds_nothing_but_the_page(finished, tmp_path, to):
    """The page was overwritten by its name where standard output is a file, and followed by it in a pipe."""
    command = [sys.executable, "-m", "attnscope", "compare", str(finished / "a"), str(finished / "b")]
    command += ["--csv", "/dev/fd/1"]
    if to == "pipe":
        page = subprocess.run(command, capture_output=True, check=True).stdout
    else:
        with open(tmp_path / "page", "wb") as file:
            subprocess.run(command, stdout=file, check=True)
        page = (tmp_path / "page").read_bytes()
    in_place = subprocess.run([*command[:-1], str(tmp_path / "table.csv")], capture_output=True, check=True)
    assert page == (tmp_path / "table.csv").read_bytes()
    assert in_place.stdout


@pytest.mark.parametrize("command", ["report", "view", "compare", "init"])
def test_a_dash_is_standard_output(tmp_path, tmp_path_factory, command):
    """A file called - was written, and its name was the answer."""
    keys = {"model": "m", "revision": "", "step": -1, "sample": 0, "layer": [0, 1], "head": 0}
    heads = pd.DataFrame({**keys, "protocol": "exact", "fiedler_value": [0.25, 0.5]})
    samples = pd.DataFrame({**keys, "group": "text", "text": "a b", "n_tokens": 2})
    samples = samples.drop(columns=["layer", "head"]).head(1)
    run = [
        str(Results({"heads": heads, "samples": samples}).save(tmp_path_factory.mktemp("runs") / "a").path)
    ]
    arguments = {"init": ["-o", "-"], "compare": [*run, *run, "--csv", "-"]}
    call = [sys.executable, "-m", "attnscope", command, *arguments.get(command, [*run, "-o", "-"])]
    done = subprocess.run(call, capture_output=True, check=True, cwd=tmp_path)
    in_place = [argument if argument != "-" else "file" for argument in call]
    subprocess.run(in_place, capture_output=True, check=True, cwd=tmp_path)
    stamp = re.compile(rb"attnscope, \S+ \S+ UTC")
    assert stamp.sub(b"", done.stdout) == stamp.sub(b"", (tmp_path / "file").read_bytes())
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("arguments", [["figures", "-o"], ["tables", "--csv"], ["gather", "--into"]])
def test_a_dash_is_no_folder(call, finished, tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    code, out, err = call(arguments[0], finished / "a", arguments[1], "-")
    assert (code, out, "a folder is needed, got '-'" in err) == (2, "", True)
    assert call("new", "metric", "made", "-o", "-")[0] == 2
    assert not list(tmp_path.iterdir())


def test_headings_of_a_latex_table_name_the_statistic(call, tmp_path):
    """Medians stood under "Means", and a missing number as "nan"."""
    table = Table("heads", ("model", "layer"), (Column("share"), Column("bars", kind="count")))
    rows = Rows(table, "")
    rows.add(model="m", layer=[0, 0, 0, 1], share=[-0.5, -0.5, -0.5, np.nan], bars=[1, 2, 9, 4])
    Results({"heads": rows.arrow()}).save(tmp_path / "a")
    code, out, _ = call("tables", tmp_path / "a", "--latex", "--by", "layer")
    assert (code, "bars (median)" in out, "nan" in out) == (0, True, False)
    assert "Means of heads by layer, and the statistics that headings name" in out
    _, out, _ = call("tables", tmp_path / "a", "--latex", "--by", "layer", "--columns", "bars")
    assert ("bars (median)" in out, "share" in out) == (True, False)


@pytest.mark.parametrize("place", [".", "..", "", "/"])
def test_a_folder_in_the_place_of_a_file_is_an_error_of_one_line(call, finished, place):
    """A path without a name ended in "PosixPath('.') has an empty name"."""
    code, _, err = call("compare", finished / "a", finished / "b", "--csv", place)
    assert code == 1
    assert err.splitlines()[-1] == f"attnscope: error: {place or '.'}: Is a directory"


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["tables", "--help"], ["metrics"]])
def test_answers_that_a_full_disk_takes_not_are_an_error_of_one_line(arguments):
    with open("/dev/full", "w", encoding="utf-8") as full:
        command = [sys.executable, "-m", "attnscope", *arguments]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[0].startswith("attnscope: error: [Errno 28] No space left")


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["metrics", "--json"]])
def test_answers_to_a_closed_output_are_an_error_of_one_line(arguments):
    """Answers were lost where standard output is closed, and the command ended with 0."""
    command = shlex.join([sys.executable, "-m", "attnscope", *arguments])
    done = subprocess.run(f"{command} >&-", shell=True, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "attnscope: error: standard output: is closed\n")


def test_messages_to_a_closed_output_do_not_go_into_the_answer(tmp_path):
    """They went to standard output, in front of the JSON."""
    command = shlex.join([sys.executable, "-m", "attnscope", "tables", str(tmp_path / "no"), "--json"])
    done = subprocess.run(f"{command} 2>&-", shell=True, stdout=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")


@pytest.mark.parametrize("column", ["no", "7", "a: b"])
def test_a_column_of_a_file_s_texts_is_taken_by_the_letter(call, inputs, tmp_path, column):
    (tmp_path / "texts.csv").write_text("other,no,7,a: b\nx,the cat sat,the cat sat,the cat sat\n", "utf-8")
    settings = {"models": str(inputs[0]), "texts": str(tmp_path / "texts.csv")}
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(settings), "utf-8")
    code, out, err = call("run", tmp_path / "study.yaml", "--column", column, "--dry-run", "--no-draw")
    assert (code, err, "x 1 text)" in out) == (0, "", True)


def test_figures_and_report(call, finished, tmp_path):
    code, out, err = call("figures", finished / "a", "depth", "--output", tmp_path)
    assert (code, err) == (0, "")
    assert sorted(line.rpartition("/")[2] for line in out.splitlines()) == [
        "captions.tex",
        "depth.pdf",
        "depth.png",
    ]
    assert (tmp_path / "depth.pdf").read_bytes()[:4] == b"%PDF"
    code, _, err = call("figures", finished / "a", "dept")
    assert (code, "figures: no figure 'dept'; did you mean 'depth'?" in err) == (2, True)
    code, out, _ = call("report", finished / "a", "--output", tmp_path / "r.html")
    assert code == 0
    assert "sink_share" in (tmp_path / "r.html").read_text("utf-8")


def test_a_figure_that_fails_is_named_and_costs_nothing_else(call, inputs, tmp_path, monkeypatch):
    from attnscope.studies.attention_sinks import figures

    def broken(*_):
        raise ZeroDivisionError("nothing to divide by")

    monkeypatch.setitem(figures.FIGURES, "depth", broken)
    model, texts = inputs
    message = "attnscope: figure depth is left out: ZeroDivisionError: nothing to divide by"
    arguments = ("--model", model, "--texts", texts, "--samples", 2, "--output", tmp_path, "--name", "a")
    code, _, err = call("run", *arguments, "--set", "metrics=[fiedler_value]", "-q")
    assert (code, err.strip()) == (3, message)
    assert "ZeroDivisionError: nothing to divide by" in (tmp_path / "a/report.html").read_text("utf-8")
    assert [file.name for file in (tmp_path / "a/figures").glob("*.pdf")] == ["metric_maps.pdf"]
    code, out, err = call("figures", tmp_path / "a")
    assert code == 3
    assert message in err.splitlines()
    assert "attnscope: figure emergence is left out: the run has one checkpoint" in err
    assert "metric_maps.pdf" in out
    code, _, err = call("figures", tmp_path / "a", "depth")
    assert (code, err.strip()) == (3, message)


def test_a_font_that_is_missing_is_a_message_of_one_line(call, finished, tmp_path):
    """Python's own warning named a file and a line of typer."""
    font_settings.cache_clear()  # which warns once
    code, _, err = call("figures", finished / "a", "depth", "-o", tmp_path, "--font", "Quatsch")
    assert (code, len(err.splitlines())) == (0, 1)
    assert err.startswith("attnscope: warning: figures: there is no font 'Quatsch'")


def test_published_numbers_of_another_study_are_refused_in_a_line(call, finished, tmp_path):
    code, out, err = call("compare", finished / "a", "--published", "ruscio2024")
    assert (code, out) == (1, "")
    assert err == (
        "attnscope: error: compare: ruscio2024 publishes numbers of wavelet_heads; "
        "this run is of attention_sinks\n"
    )
    model, texts = model_folder(tmp_path / "tiny"), sentences(tmp_path / "texts.txt", 2, shortest=20)
    call("run", "wavelet_heads", "-m", model, "-t", texts, "--output", tmp_path, "--name", "w", *SMALL[-2:])
    code, out, err = call("compare", tmp_path / "w", "--published", "ruscio2025")
    assert (code, out) == (1, "")
    assert "ruscio2025 publishes numbers of attention_sinks; this run is of wavelet_heads" in err
    code, out, err = call("compare", tmp_path / "w", "--published", "ruscio2024")
    assert (code, err) == (0, "")
    assert "none of the run's models was published; --against MODEL chooses one of " in out
    code, out, err = call("compare", tmp_path / "w", "--published", "ruscio2024", "--against", "Pythia-2.8B")
    assert "tiny beside Pythia-2.8B" in out
    for paper, folder in (("ruscio2025", finished / "a"), ("ruscio2024", tmp_path / "w")):
        code, out, _ = call("compare", folder, "--published", paper, "--json")
        assert (code, len(json.loads(out)["rows"]) > 10) == (0, True)


def test_compare(call, finished):
    code, out, _ = call("compare", finished / "a", finished / "b", "--json")
    assert code == 0
    assert {row["metric"]: row["equal"] for row in json.loads(out)}["fiedler_value"]
    code, out, _ = call("compare", finished / "a", finished / "b")
    assert "sink_share" in out


def test_json_holds_every_digit(call, tmp_path):
    """Ten digits behind the point made 0 of small differences."""
    keys = {"model": "m", "revision": "", "step": -1, "sample": [0, 1], "layer": 0, "head": 0}
    for name, value in (("a", 1.25e-13), ("b", 3.5e-13)):
        heads = pd.DataFrame({**keys, "protocol": "exact", "share": value, "odd": [np.inf, np.nan]})
        Results({"heads": heads}).save(tmp_path / name)
    _, out, _ = call("tables", tmp_path / "a", "--json")
    assert json.loads(out) == [{"model": "m", "layer": 0, "share": 1.25e-13, "odd": None}]
    _, out, _ = call("compare", tmp_path / "a", tmp_path / "b", "--json")
    row = json.loads(out)[0]
    assert (row["metric"], row["mean_difference"], row["correlation"]) == (
        "share",
        3.5e-13 - 1.25e-13,
        None,
    )


def test_metrics_prints_definition_and_reference(call):
    code, out, _ = call("metrics", "fiedler_value")
    assert code == 0
    assert out.startswith("attnscope.fiedler_value(attention, *, symmetrize='mean'")
    assert "Fiedler, Algebraic connectivity of graphs, 1973" in out
    code, out, _ = call("metrics", "--json")
    names = json.loads(out)
    assert set(names) <= set(registry().names())
    assert {"fiedler_value", "delta_statistics", "cloud_persistence", "boundary"} <= set(names)
    assert all(names.values())
    code, out, _ = call("metrics", "subspace_fraction")
    assert code == 0
    assert out.startswith("attnscope.subspace_fraction(matrix, basis, *, side='in', k=None)")
    assert "([1.0, 1.0], [4.0, 2.0], [1.0, 1.0])" in out
    code, out, _ = call("metrics", "cloud_persistence")
    assert code == 0
    assert out.startswith("attnscope.cloud_persistence(points, *, metric='cosine', max_dimension=1")


def test_a_bug_keeps_its_traceback(monkeypatch, inputs, tmp_path):
    monkeypatch.setattr("attnscope.cli.doctor.examine", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        application.main(["doctor"])


@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
def test_as_a_module(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["attnscope", "run", "--model", "/none"])
    with pytest.raises(SystemExit) as end:
        runpy.run_module("attnscope.cli.application", run_name="__main__")
    assert end.value.code == 2
    assert capsys.readouterr().err.strip() == "attnscope: error: models[0]: there is no model folder /none"


def test_resume_says_when_the_study_is_gone(call, finished, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(finished / "a", copy)
    (copy / "study.yaml").write_text("models: [", "utf-8")
    code, _, err = call("resume", copy)
    assert code == 2
    assert "cannot be read: not valid YAML" in err


def test_the_module_runs_and_says_its_version():
    command = [sys.executable, "-m", "attnscope", "--version"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, f"attnscope {attnscope.__version__}\n"), ran.stderr


def test_a_reader_that_has_enough_is_no_error(fresh):
    script = (
        "import os\nreader, writer = os.pipe()\nos.close(reader), os.dup2(writer, 1)\n"
        "from attnscope.cli import application\napplication.main(['metrics', 'attention_entropy'])"
    )
    ran = fresh(script)
    assert (ran.returncode, ran.stderr) == (141, "")


def test_a_packaged_study_is_printed_as_it_is(call):
    code, out, _ = call("configs", "phi-2")
    assert (code, out.strip()) == (0, packaged_text("phi-2").strip())
    code, _, err = call("configs", "phi-3")
    assert (code, "there is no packaged study 'phi-3'; did you mean 'phi-2'?" in err) == (2, True)


@pytest.mark.parametrize("name", STUDIES)
def test_what_init_writes_is_every_setting_with_its_default(name, tmp_path):
    file = tmp_path / "study.yaml"
    file.write_text(written(name), encoding="utf-8")
    read = RunConfig.from_yaml(file)
    plain = RunConfig(study=name, models="MODEL_FOLDER_OR_HUB_NAME", texts="sentences.txt")
    assert read.to_dict() == plain.to_dict()
    keys = yaml.safe_load(file.read_text(encoding="utf-8"))
    assert set(keys) == set(RunConfig.model_fields)


def test_every_key_is_explained():
    text = written("absolute_position")
    for line in ("(bool, default false)", "#     dtype: of the weights in memory", "bos: keep"):
        assert line in text
    assert "# sentences per unit of work" in text


def keys_of(model):
    """Every key of a model and of the models below it."""
    for key, field in model.model_fields.items():
        yield model, key, field
        for inner in models_in(field.annotation):
            yield from keys_of(inner)


@pytest.mark.parametrize("name", STUDIES)
def test_every_key_has_its_meaning_its_type_and_its_default(name):
    text = " ".join(written(name).replace("#", " ").split())
    for model in (RunConfig, study_class(name).Options):
        for owner, key, field in keys_of(model):
            if (owner, key) == (RunConfig, "options"):
                continue
            meaning = _meanings(owner).get(key, "")
            assert meaning, f"{owner.__name__}.{key}"
            comment = f"{meaning} ({_name(field.annotation)}"
            assert comment in text if owner is model else f"{key}: {comment}, " in text, key


def test_init_writes_a_file_once(call, tmp_path):
    file = tmp_path / "mine.yaml"
    code, out, _ = call("init", "wavelet_heads", "-o", file)
    assert (code, f"attnscope run {file}" in out) == (0, True)
    before = file.read_bytes()
    code, _, err = call("init", "-o", file)
    assert (code, "is there already" in " ".join(err.split())) == (2, True)
    assert file.read_bytes() == before


def test_an_unknown_study_is_refused():
    with pytest.raises((ConfigError, KeyError), match="wavelet"):
        written("wavelet_head")
