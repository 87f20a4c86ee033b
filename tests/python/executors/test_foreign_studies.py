# SPDX-License-Identifier: MIT
"""Studies of another package, found by entry point: from settings to stored tables, killed and resumed."""

import json
import random
import shutil
import signal
import subprocess
import sys
import time

import huggingface_hub
import numpy as np
import pytest
import torch
from foreign import NAMES, settings
from safetensors.numpy import load_file

import attnscope as asc
from attnscope.config.run_config import ModelSource
from attnscope.engine.run_study import resume, run
from attnscope.errors import ConfigError, OtherModel
from attnscope.models import checkpoints, loading
from attnscope.results.results import load
from attnscope.study_api.study import study_class
from folders import Launcher, table_bytes


@pytest.fixture(scope="module")
def finished(uninterrupted):
    """Uninterrupted runs, one of each study, when asked for."""
    return lambda name: load(uninterrupted(name))


def test_weights_that_are_read_from_the_hub_are_not_mixed_with_those_of_another_commit(
    inputs, tmp_path, monkeypatch
):
    """A stage that reads the files of a checkpoint, and loads no model, did not look at their commits."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    for module in (checkpoints, loading):
        monkeypatch.setattr(module, "hub_answers", lambda: False)
    place = tmp_path / "cache" / "models--me--growing"
    (place / "refs").mkdir(parents=True)
    steps = ("step0", "step2", "step10")
    for at, step in enumerate(steps):
        (place / "refs" / step).write_text(f"{at:040x}", "utf-8")
        (place / "snapshots" / f"{at:040x}").parent.mkdir(exist_ok=True)
        (place / "snapshots" / f"{at:040x}").symlink_to(inputs[0] / step)
    study = settings("weight_changes", ("unused",), tmp_path).model_copy(
        update={"models": [ModelSource(path="me/growing", revisions=[*steps])]}
    )
    first = run(study, progress=False)
    commits = {title: facts["commit"] for title, facts in first.provenance["models"].items()}
    assert commits == {f"me/growing {step}": f"{at:040x}" for at, step in enumerate(steps)}
    shutil.rmtree(max(first.path.glob("units/000001-*")))
    (place / "refs" / "step0").write_text(f"{2:040x}", "utf-8")
    with pytest.raises(OtherModel, match=rf"me/growing step0: the hub has commit {2:040x} now"):
        resume(first.path, progress=False)
    (place / "refs" / "step0").write_text(f"{0:040x}", "utf-8")
    assert resume(first.path, progress=False)["changes"].equals(first["changes"])


def test_a_list_of_names_imports_no_study(installed):
    code = (
        f"import sys; sys.path[:0] = {installed!r}\n"
        "from attnscope.config.study_folders import studies\n"
        f"assert set({NAMES!r}) <= set(studies()), studies()\n"
        "sys.exit(any(name.endswith('.study') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_weights_of_pairs_of_checkpoints(finished, inputs):
    results = finished("weight_changes")
    changes = results.table("changes")
    assert "samples" not in results.tables()
    assert set(changes["base_step"]) == {0}
    assert list(dict.fromkeys(changes["step"])) == [2, 10]
    first, last = (load_file(inputs[0] / f"step{step}" / "model.safetensors") for step in (0, 10))
    name = next(name for name in sorted(first) if "q_proj" in name)
    row = changes[(changes["step"] == 10) & (changes["matrix"] == name)].iloc[0]
    moved = np.linalg.norm(last[name] - first[name])
    assert row["relative_change"] == pytest.approx(moved / np.linalg.norm(first[name]))
    total = results.table("total").set_index("matrix")
    middle = load_file(inputs[0] / "step2" / "model.safetensors")
    assert total.loc[name, "mean_change"] == pytest.approx(
        (moved + np.linalg.norm(middle[name] - first[name])) / 2
    )
    assert (total["pairs"] == 2).all()


def test_the_base_of_a_pair_can_be_the_one_before_or_a_name(inputs, tmp_path):
    before = run(settings("weight_changes", inputs, tmp_path / "b", base="previous"), progress=False)
    pairs = before.table("changes")[["base_step", "step"]].drop_duplicates()
    assert pairs.to_numpy().tolist() == [[0, 2], [2, 10]]
    named = run(settings("weight_changes", inputs, tmp_path / "n", base="step10"), progress=False)
    assert set(named.table("changes")["base_revision"]) == {"step10"}
    with pytest.raises(ConfigError, match="has no checkpoint 'step11'; did you mean 'step10'"):
        run(settings("weight_changes", inputs, tmp_path / "w", base="step11"), progress=False)


def test_logits_and_a_stage_made_from_them(finished, inputs):
    from transformers import AutoModelForCausalLM

    results = finished("token_likelihood")
    samples, tokens = results.table("samples"), results.table("tokens")
    model = AutoModelForCausalLM.from_pretrained(inputs[0] / "step2").eval()
    ids = torch.tensor(
        samples[(samples["step"] == 2) & (samples["sample"] == 4)]["token_ids"].iloc[0].tolist()
    )
    with torch.no_grad():
        direct = model(ids[None]).logits[0].double().log_softmax(-1)[:-1].gather(-1, ids[1:, None])[:, 0]
    tokens_of_text = tokens[(tokens["step"] == 2) & (tokens["sample"] == 4)]
    assert tokens_of_text["log_likelihood"].isna().tolist() == [True] + [False] * len(direct)
    np.testing.assert_allclose(tokens_of_text["log_likelihood"].iloc[1:], direct, rtol=1e-5)
    ranks = results.table("ranks")
    assert len(ranks) == 3 * 5
    mean = ranks[(ranks["step"] == 2) & (ranks["sample"] == 4)]["mean"].item()
    assert mean == pytest.approx(tokens_of_text["log_likelihood"].mean(), rel=1e-12)
    best = ranks.loc[ranks[ranks["sample"] == 4]["mean"].idxmax(), "revision"]
    assert results.table("best").set_index("sample").loc[4, "revision_of_best"] == best


def test_scores_move_with_no_position_and_a_hidden_key_is_read_by_nobody(finished):
    scores = finished("moved_positions").table("scores")
    assert len(scores) == 3 * 5 * 2 * 4
    assert scores["moved_by"].max() < 1e-5 * scores["largest"].abs().max()
    assert (scores["on_hidden_key"] == 0).all()
    assert (scores["on_first_key"] > 0.01).all()


def test_states_of_a_cloud_its_axes_and_the_slopes_along_them(finished, inputs):
    from transformers import AutoModelForCausalLM

    results = finished("state_clouds")
    samples, clouds = results.table("samples"), results.table("clouds")
    model = AutoModelForCausalLM.from_pretrained(inputs[0] / "step10").eval()
    text = samples[(samples["step"] == 10) & (samples["sample"] == 3)]
    ids = torch.tensor(text["token_ids"].iloc[0].tolist())
    with torch.no_grad():
        points = model(ids[None], output_hidden_states=True).hidden_states[1][0].double()
    row = clouds[(clouds["step"] == 10) & (clouds["sample"] == 3) & (clouds["layer"] == 0)].iloc[0]
    assert row["points"] == len(points)
    assert row["radius"] == pytest.approx((points - points.mean(0)).norm(dim=-1).mean().item(), rel=1e-4)
    axes = results.table("axes")
    assert np.linalg.norm(axes["vector"].iloc[0]) == pytest.approx(1.0)
    assert axes.groupby(["step", "layer"])["share"].apply(lambda shares: (np.diff(shares) <= 0).all()).all()
    slopes = results.table("slopes")
    assert set(slopes["direction"]) == {"axis 0", "axis 1", "random"}
    np.testing.assert_allclose(slopes["gradient"], slopes["difference"], atol=5e-3)


def test_controls_stand_in_a_table_of_their_own(finished):
    results = finished("token_likelihood")
    tokens, controls = results.table("tokens"), results.table("tokens_variants")
    assert set(tokens["step"]) == {0, 2, 10}
    assert "variant" not in tokens
    assert set(controls["variant"]) == {"random_weights"}
    assert set(controls["seed"]) == {0, 1}
    assert set(controls["step"]) == {-1}
    first, second = (controls[controls["seed"] == seed]["log_likelihood"] for seed in (0, 1))
    assert (first.dropna().to_numpy() != second.dropna().to_numpy()).any()


def test_a_table_explains_itself_where_its_study_is_gone(finished):
    schema = finished("token_likelihood").schema("tokens")
    table_facts = json.loads(schema.metadata[b"attnscope_table"])
    assert table_facts == {
        "name": "tokens",
        "version": 1,
        "keys": ["model", "revision", "step", "sample", "position"],
    }
    assert schema.metadata[b"attnscope_study"] == b"token_likelihood"
    field = schema.field("log_likelihood").metadata
    assert (field[b"kind"], field[b"label"], field[b"high"]) == (b"value", b"log-likelihood", b"0.0")


@pytest.mark.parametrize("name", NAMES)
def test_any_units_lost_are_done_again_to_the_same_bytes(finished, tmp_path, name):
    run_folder = finished(name).path
    copy = tmp_path / "a"
    shutil.copytree(run_folder, copy)
    stored_units = sorted((copy / "units").iterdir())
    draw = random.Random(7)
    for lost in draw.sample(stored_units, len(stored_units) // 2):
        shutil.rmtree(lost)
    shutil.rmtree(copy / "tables")
    resume(copy, progress=False)
    assert table_bytes(copy) == table_bytes(run_folder)
    assert {path.name for path in (copy / "units").iterdir()} == {path.name for path in stored_units}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_killed_at_any_moment(finished, inputs, installed, tmp_path, monkeypatch, name):
    monkeypatch.setenv("PYTHONPATH", ":".join(installed))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    settings_of_run = settings(name, inputs, tmp_path)
    file = tmp_path / "study.yaml"
    file.write_text(settings_of_run.to_yaml(), "utf-8")
    threads = torch.get_num_threads()
    draw, folder = random.Random(11), tmp_path / "a"
    arguments, kills = ("run", "--no-draw", file), 0
    with Launcher(tmp_path) as launcher:
        while True:
            process = launcher.start(*arguments)
            end = time.monotonic() + draw.uniform(0.05, 1.5)
            while kills < 4 and process.poll() is None and time.monotonic() < end:
                time.sleep(0.005)
            if kills < 4:
                process.send(signal.SIGKILL)
            code = process.wait()
            if code == 0:
                break
            assert code == -signal.SIGKILL, process.output
            kills += 1
            if (folder / "study.yaml").exists():
                arguments = ("resume", "--no-draw", folder)
        uninterrupted = launcher.run("run", "--no-draw", file, "--name", "b")
        assert uninterrupted.code == 0, uninterrupted.output
    assert table_bytes(folder) == table_bytes(tmp_path / "b")
    assert not list(folder.rglob("*.tmp"))
    assert torch.get_num_threads() == threads


def test_what_a_stage_does_not_declare_it_may_not_touch(inputs, tmp_path, monkeypatch):
    study = study_class("weight_changes")

    def reads(self, unit, run):
        run.read("samples")

    def writes(self, unit, run):
        run.write("total", matrix="x")

    def column(self, unit, run):
        run.write("changes", matrix="x", rnak=1)

    for function, message in (
        (reads, "the stage 'compare' does not declare that it reads 'samples'"),
        (writes, "the stage 'compare' does not declare that it writes 'total'"),
        (column, "table 'changes' declares no column 'rnak'; did you mean 'rank'"),
    ):
        monkeypatch.setattr(study, "compare", function)
        with pytest.raises(ValueError, match=message):
            run(settings("weight_changes", inputs, tmp_path / function.__name__), progress=False)


def test_an_option_that_the_study_does_not_have(inputs, tmp_path):
    with pytest.raises(ConfigError, match="unknown key 'bse' in options; did you mean 'base'"):
        run(settings("weight_changes", inputs, tmp_path, bse="first"), progress=False)
    with pytest.raises(ConfigError, match=r"options\.draws: .*got 'many'"):
        run(settings("token_likelihood", inputs, tmp_path, draws="many"), progress=False)


def test_a_study_of_texts_needs_some(inputs, tmp_path):
    with pytest.raises(ConfigError, match="texts is missing"):
        run(asc.Study(study="token_likelihood", models=str(inputs[0]), output=str(tmp_path)), progress=False)


def test_a_checkpoint_that_came_back_is_read_by_what_was_made_without_it(inputs, tmp_path):
    """The run's last stage is done again when a checkpoint that was skipped can be loaded."""
    home = tmp_path / "growing"
    shutil.copytree(inputs[0], home)
    weights = home / "step2" / "model.safetensors"
    settings_of_run = settings("token_likelihood", (home, inputs[1]), tmp_path / "runs")
    plain = run(settings_of_run, progress=False)
    copy = tmp_path / "runs" / "b"
    first = run(settings_of_run, name="b", progress=False)
    assert table_bytes(copy) == table_bytes(plain.path)
    for unit in (copy / "units").iterdir():
        manifest = json.loads((unit / "unit.json").read_text("utf-8"))
        if manifest["read"]:
            manifest["read"] = "of other units"
            (unit / "unit.json").write_text(json.dumps(manifest), "utf-8")
    again = resume(copy, progress=False)
    assert again.provenance["units"]["done_by_this_process"] == 4
    assert table_bytes(copy) == table_bytes(plain.path)
    assert weights.is_file()
    assert first.path == copy
