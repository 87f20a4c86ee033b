# SPDX-License-Identifier: MIT
"""A study from end to end: one configuration run in three ways, its results, and its commands."""

import csv
import json
import types

import numpy as np
import pytest
import torch

import attnscope as asc
from attnscope import _core
from attnscope.cli import doctor
from attnscope.cli.dry_run import dry_run
from folders import model_folder, sentences, series

METRICS = ["fiedler_value", "sink_share", "betti_numbers"]
FISH = {"_TYPER_COMPLETE_ARGS": "attnscope comp", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs with ünicode")
    return series(folder / "growing"), sentences(folder / "texts.txt", 6)


@pytest.fixture(scope="module")
def folders(launcher, inputs, tmp_path_factory):
    """The same study by a YAML file, by options, and by Python; the three run folders."""
    model, texts = inputs
    output = tmp_path_factory.mktemp("runs")
    file = output / "study.yaml"
    file.write_text(
        f"models: '{model}'\ntexts: {{path: '{texts}', samples: 5}}\nmetrics: {json.dumps(METRICS)}\n"
        f"block: 2\noutput: '{output}'\n",
        "utf-8",
    )
    by_file = launcher.run("run", file, "--name", "yaml", "--no-draw")
    assert by_file.code == 0, by_file.output
    by_line = launcher.run(
        "run",
        "--model",
        model,
        "--texts",
        texts,
        "--samples",
        5,
        "--block",
        2,
        "--output",
        output,
        "--name",
        "line",
        "--no-draw",
        "--json",
        "--set",
        f"metrics={json.dumps(METRICS)}",
    )
    assert by_line.code == 0, by_line.output
    answer = json.loads(by_line.output.splitlines()[-1])
    assert answer["tables"]["heads"] == 3 * 5 * 2 * 4
    # a forward pass in float32 rounds otherwise on more threads; the launcher's processes have one
    torch.set_num_threads(1)
    asc.run(
        asc.Study(
            models=str(model),
            texts={"path": str(texts), "samples": 5},
            metrics=METRICS,
            block=2,
            output=str(output),
            name="python",
        ),
        progress=False,
    )
    return [output / name for name in ("yaml", "line", "python")]


def test_three_ways_give_the_same_bytes(folders):
    first, *others = [
        {path.name: path.read_bytes() for path in sorted((folder / "tables").glob("*"))} for folder in folders
    ]
    names = ("baselines", "graphs", "head_mean_graphs", "head_means", "heads", "samples")
    assert sorted(first) == [f"{name}.parquet" for name in names]
    for other in others:
        assert other == first


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--set", "blok=3"), "unknown key 'blok'; did you mean 'block'?"),
        (("--set", "models.revision=x"), "did you mean 'revisions'"),
        (("--set", "metrics=[fidler_value]"), "did you mean 'fiedler_value'"),
        (("--set", "block=ten"), "integer"),
    ],
)
def test_mistakes_are_answered_with_the_right_name(launcher, inputs, tmp_path, arguments, words):
    model, texts = inputs
    process = launcher.run("run", "--model", model, "--texts", texts, "--output", tmp_path, *arguments)
    assert process.code == 2
    assert words in process.output
    assert not list(tmp_path.iterdir())


def test_results_as_pandas_xarray_parquet_and_csv(folders, tmp_path):
    results = asc.load(folders[0])
    heads = results.table("heads")
    cube = results.to_xarray()
    assert set(cube.dims) >= {"revision", "sample", "layer", "head"}
    assert {"model", "step"} <= set(cube.coords)
    row = heads.iloc[17]
    cell = cube["fiedler_value"].sel(
        **{name: row[name] for name in ("model", "revision", "sample", "layer", "head")}
    )
    assert cell.item() == row["fiedler_value"]
    results.to_csv(tmp_path / "csv")
    with open(tmp_path / "csv" / "heads.csv", encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    assert [float(line["fiedler_value"]) for line in lines] == heads["fiedler_value"].tolist()
    results.to_parquet(tmp_path / "parquet")
    assert asc.Results.__name__ == type(results).__name__
    unchanged = results.compare(asc.load(folders[2]))
    assert len(unchanged) > 3
    assert (unchanged["max_difference"].fillna(0) == 0).all()


def test_a_plan_tells_units_tokens_memory_and_time(inputs, tmp_path):
    model, texts = inputs
    study = asc.Study(models=str(model), texts=str(texts), metrics=METRICS, output=str(tmp_path), name="a")
    plan = dry_run(study)
    assert (plan.units, plan.checkpoints, plan.sentences) == (3, 3, 6)
    assert not list(tmp_path.iterdir())
    results = asc.run(study, progress=False)
    assert plan.tokens == results.table("samples")["n_tokens"].sum()
    took = results.provenance["seconds"]
    # a calibration of three sentences, on a machine that others use
    assert took / 20 < plan.seconds < 20 * took + 5
    assert 0 < plan.layer_bytes < plan.peak_bytes


def test_the_doctor_runs_every_function_of_the_core(monkeypatch):
    called = set()

    def watched(name, function):
        def call(*arguments, **options):
            called.add(name)
            return function(*arguments, **options)

        return call

    functions = {name: var for name, var in vars(_core).items() if isinstance(var, types.BuiltinFunctionType)}
    assert len(functions) > 15
    for name, function in functions.items():
        monkeypatch.setattr(_core, name, watched(name, function))
    checks = doctor.examine()
    assert all(check.ok for check in checks), [check for check in checks if not check.ok]
    # the check of arguments is no kernel
    assert set(functions) - called == {"first_invalid"}


@pytest.mark.parametrize(
    ("shell", "words", "expected"),
    [
        ("bash", {"COMP_WORDS": "attnscope re", "COMP_CWORD": "1"}, ["report", "resume"]),
        ("zsh", {"_TYPER_COMPLETE_ARGS": "attnscope do"}, ["doctor"]),
        ("fish", FISH, ["compare"]),
    ],
)
def test_shells_complete_commands(launcher, shell, words, expected):
    completion = {"_ATTNSCOPE_COMPLETE": f"complete_{shell}", **words}
    done = launcher.script("from attnscope.cli.application import main; main()", **completion)
    assert done.returncode == 0, done.stderr
    for word in expected:
        assert word in done.stdout
    assert "figures" not in done.stdout


def test_a_run_without_eyes_draws_no_bars_and_quiet_says_nothing(launcher, tmp_path):
    model = model_folder(tmp_path / "tiny")
    texts = sentences(tmp_path / "texts.txt", 3)
    arguments = ("run", "--model", model, "--texts", texts, "--output", tmp_path, "--no-draw")
    loud = launcher.run(*arguments, "--name", "loud", "--set", "metrics=[fiedler_value]")
    assert loud.code == 0
    assert "\r" not in loud.output.split("Loading weights")[0]
    quiet = launcher.run(*arguments, "--name", "quiet", "--quiet", "--set", "metrics=[fiedler_value]")
    assert quiet.code == 0
    assert "attnscope" not in quiet.output
    a, b = (asc.load(tmp_path / name).table("heads")["fiedler_value"] for name in ("loud", "quiet"))
    np.testing.assert_array_equal(a, b)
