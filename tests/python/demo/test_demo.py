# SPDX-License-Identifier: MIT
"""The demo's model: what it reads, that it trains, stops, goes on, and loads as any Hugging Face folder.

At once it is the finished run's when there is one, else one training into the cache.
"""

import json
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from attnscope.demo import demo_checkpoints
from attnscope.demo.encoder import train_encoder
from attnscope.demo.encodings import compare_encodings
from attnscope.demo.run import run_demo
from attnscope.demo.texts import (
    byte_tokenizer,
    copying_sequences,
    documentation,
    text_windows,
    training_batch,
)
from attnscope.demo.training import Recipe, build_model, checkpoint_steps, train
from attnscope.demo.tuning import tune
from attnscope.errors import FolderLocked
from attnscope.results.folder_lock import FolderLock
from attnscope.results.results import Results

pytestmark = pytest.mark.usefixtures("unarranged", "unpictured")

TINY = Recipe(steps=6, layers=1, heads=2, width=16, inner_width=24, batch=4, seed=3)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("trained")
    train(root, TINY, progress=False)
    return root


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        (1, [0, 1]),
        (6, [0, 1, 2, 4, 6]),
        (512, [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512]),
        (768, [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 640, 768]),
    ],
)
def test_checkpoint_steps_are_pythias(last: int, expected: list[int]) -> None:
    assert checkpoint_steps(last) == expected


def test_tokens_are_bytes_after_bos() -> None:
    tokenizer = byte_tokenizer()
    text = "def f(x):\n\treturn  'ß…' \x00"
    ids = tokenizer(text)["input_ids"]
    assert ids == [0] + [byte + 1 for byte in text.encode()]
    assert tokenizer.decode(ids, skip_special_tokens=True) == text
    assert len(tokenizer) == 257


def test_inputs_are_seeded_disjoint_and_of_one_length() -> None:
    windows, copies = text_windows(8, seed=1), copying_sequences(8, seed=1)
    assert windows == text_windows(8, seed=1) != text_windows(8, seed=2)
    assert copies == copying_sequences(8, seed=1) != copying_sequences(8, seed=2)
    assert {len(line) for line in windows + copies} == {126}
    assert all(line[:63] == line[63:] and " " not in line for line in copies)
    train_part, held_out = documentation()
    assert all(window in held_out and window not in train_part for window in windows)
    assert len({line[:63] for line in copies}) == 8


def test_training_batch_depends_on_seed_and_step_only() -> None:
    batch = training_batch(6, seed=5, step=9)
    assert batch.shape == (6, 127)
    assert torch.equal(batch, training_batch(6, seed=5, step=9))
    assert not torch.equal(batch, training_batch(6, seed=5, step=10))
    assert not torch.equal(batch, training_batch(6, seed=6, step=9))
    assert (batch[:, 0] == 0).all()
    assert (batch[:, 1:] >= 1).all()
    assert (batch < 257).all()
    repeats = (batch[:, 1:64] == batch[:, 64:]).all(dim=1)
    assert repeats.tolist() == [False] * 3 + [True] * 3
    assert bytes((batch[0, 1:] - 1).tolist()) in documentation()[0].encode()


def test_checkpoints_load_offline_as_hugging_face_folders(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folders = sorted(path.name for path in (trained / "checkpoints").iterdir())
    assert folders == sorted(f"step{step}" for step in (0, 1, 2, 4, 6))
    last = trained / "checkpoints" / "step6"
    tokenizer = AutoTokenizer.from_pretrained(last)
    ids = tokenizer("ab", return_tensors="pt")["input_ids"]
    assert ids.tolist() == [[0, 98, 99]]
    model = AutoModelForCausalLM.from_pretrained(last, attn_implementation="eager")
    attention = model(ids, output_attentions=True).attentions
    assert len(attention) == 1
    assert attention[0].shape == (1, 2, 3, 3)
    assert not list(last.glob("*.bin"))


def test_training_learns_and_says_what_it_measured(trained: Path) -> None:
    lines = [json.loads(line) for line in (trained / "training.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1, 2, 4, 6]
    assert lines[0]["loss_text"] == pytest.approx(torch.log(torch.tensor(257.0)).item(), abs=0.2)
    assert lines[-1]["loss_text"] < lines[0]["loss_text"]
    first, last = (weights(trained / "checkpoints" / f"step{step}") for step in (0, 6))
    assert all(not torch.equal(first[name], last[name]) for name in first)


def test_step_zero_is_the_untrained_model_and_the_global_seed_is_left_alone(trained: Path) -> None:
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    model = build_model(TINY)
    assert torch.equal(torch.rand(3), expected)
    stored = weights(trained / "checkpoints" / "step0")
    assert all(torch.equal(stored[name], value) for name, value in model.state_dict().items())


def test_a_killed_training_resumes_bit_for_bit(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import attnscope.demo.training as training

    def killed(batch: int, seed: int, step: int) -> torch.Tensor:
        if step == 3:
            raise KeyboardInterrupt
        return training_batch(batch, seed, step)

    monkeypatch.setattr(training, "training_batch", killed)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, TINY, progress=False)
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"step0", "step1", "step2"}
    seen: list[int] = []

    def watched(batch: int, seed: int, step: int) -> torch.Tensor:
        seen.append(step)
        return training_batch(batch, seed, step)

    monkeypatch.setattr(training, "training_batch", watched)
    train(tmp_path, TINY, progress=False)
    assert seen == [2, 3, 4, 5]
    assert (tmp_path / "training.jsonl").read_text() == (trained / "training.jsonl").read_text()
    for step in (2, 4, 6):
        ours, theirs = (weights(root / "checkpoints" / f"step{step}") for root in (tmp_path, trained))
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_finished_training_is_skipped_and_a_missing_checkpoint_made_again(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import attnscope.demo.training as training

    root = tmp_path / "copy"
    shutil.copytree(trained, root)
    monkeypatch.setattr(training, "build_model", lambda recipe: pytest.fail("trained again"))
    assert train(root, TINY, progress=False) == root / "checkpoints"
    monkeypatch.undo()
    shutil.rmtree(root / "checkpoints" / "step4")
    train(root, TINY, progress=False)
    ours, theirs = (weights(folder / "checkpoints" / "step4") for folder in (root, trained))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_two_processes_do_not_train_in_one_folder(trained: Path, tmp_path: Path) -> None:
    """They wrote their checkpoints under the same unfinished names, and ended in errors of Python."""
    root = tmp_path / "copy"
    shutil.copytree(trained, root)
    shutil.rmtree(root / "checkpoints" / "step4")
    with FolderLock(root), pytest.raises(FolderLocked, match="is in use by process"):
        train(root, TINY, progress=False)
    assert not (root / "checkpoints" / "step4").exists()


def test_another_recipe_is_refused_with_its_differences(trained: Path) -> None:
    with pytest.raises(ValueError, match=r"another recipe \(steps: 6 there, 7 wanted\)"):
        train(trained, Recipe(**(TINY.__dict__ | {"steps": 7})), progress=False)
    with pytest.raises(ValueError, match="steps must be at least 1, got 0"):
        train(trained, Recipe(steps=0), progress=False)
    with pytest.raises(ValueError, match="twice the heads, got 18 and 4"):
        build_model(Recipe(width=18))


#: Of the whole demo.
ONE_STEP = Recipe(steps=1, layers=1, heads=2, width=16, inner_width=24, batch=4)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Results, list[str]]:
    """The run of the whole demo with two of its figures and a section of its report, and what it said."""
    from attnscope.demo import run_demo
    from attnscope.studies.attention_sinks.figures import FIGURES
    from attnscope.studies.attention_sinks.sections import SECTIONS

    few = {name: FIGURES[name] for name in ("sink_maps", "examples")}
    lines: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("attnscope.studies.attention_sinks.figures.FIGURES", few)
        patch.setattr("attnscope.studies.attention_sinks.sections.SECTIONS", SECTIONS[-1:])
        root = tmp_path_factory.mktemp("runs") / "demo"
        return run_demo(root, samples=2, recipe=ONE_STEP, progress=False, say=lines.append), lines


def test_the_whole_demo_writes_a_run_and_says_what_it_measured(demo: tuple[Results, list[str]]) -> None:
    results, lines = demo
    root = results.path
    heads, samples = results.table("heads"), results.table("samples")
    assert sorted(samples["step"].unique()) == [0, 1]
    assert set(samples["group"]) == {"text", "copying"}
    assert set(samples["n_tokens"]) == {127}
    assert len(heads) == 2 * 4 * 1 * 2
    assert len(results.table("head_means")) == 2 * 4 * 1
    assert {"examples", "bars"} <= set(results.tables())
    frames = results.table("frames")
    untrained = frames[(frames["step"] == 0) & (frames["protocol"] == "exact")]
    assert len(untrained) == 3  # either input, and both
    assert set(untrained["frame"]) == {"none"}
    assert set(untrained["heads_with_sink"]) == {0}
    examples = results.table("examples")
    attention = torch.tensor(examples["attention"][0]).reshape(127, 127)
    torch.testing.assert_close(attention.sum(-1), torch.ones(127, dtype=attention.dtype), rtol=0, atol=1e-5)
    row = heads.merge(examples[["step", "sample", "layer", "head"]].head(1))
    assert row["sink_share"].item() == pytest.approx(attention[:, 0].mean().item(), abs=1e-6)
    for name in ("report.html", "figures/sink_maps.png", "figures/examples.pdf"):
        assert (root / name).stat().st_size > 1000
    text = "\n".join(lines)
    assert lines[:2] == [
        "[1/3] training a small model, 1 steps",
        "[2/3] the sink study over its 2 checkpoints",
    ]
    assert "uniform attention gives 0.043" in text
    assert "copying: no head gives BOS more than 0.3" in text
    copying = heads[(heads["sample"] >= 2) & (heads["step"] == 1) & (heads["head"] >= 0)]
    strongest = copying.groupby("head")["sink_share"].mean().max()
    assert f"{strongest:.3f}" in text


def test_a_finished_demo_keeps_its_tables(
    demo: tuple[Results, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from attnscope.demo import run_demo
    from attnscope.demo.run import _store_examples

    root = demo[0].path
    monkeypatch.setattr("attnscope.studies.attention_sinks.figures.FIGURES", {})
    monkeypatch.setattr("attnscope.studies.attention_sinks.sections.SECTIONS", ())
    tables = {file.name: file.read_bytes() for file in (root / "tables").iterdir()}
    run_demo(root, samples=2, recipe=ONE_STEP, progress=False)
    assert {file.name: file.read_bytes() for file in (root / "tables").iterdir()} == tables

    def half(table: object, where: Any) -> None:
        with open(where, "wb") if isinstance(where, Path) else nullcontext(where) as file:
            file.write(b"PAR1")
        raise KeyboardInterrupt

    monkeypatch.setattr("pyarrow.parquet.write_table", half)
    with pytest.raises(KeyboardInterrupt):
        _store_examples(demo[0])
    assert {file.name: file.read_bytes() for file in (root / "tables").iterdir()} == tables


def test_a_demo_leaves_a_folder_alone_that_holds_something_else(
    demo: tuple[Results, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from attnscope.demo import run_demo, training

    monkeypatch.setattr(training, "_last_saved", lambda *arguments: pytest.fail("trains"))
    other = tmp_path / "other"
    (other / "units").mkdir(parents=True)
    (other / "study.yaml").write_text("study: wavelet_heads\n", "utf-8")
    with pytest.raises(FileExistsError, match=r"other exists, holds 'study.yaml' and is no demo's folder"):
        run_demo(other, recipe=ONE_STEP, progress=False, say=lambda line: None)
    assert sorted(path.name for path in other.iterdir()) == ["study.yaml", "units"]

    copy = tmp_path / "copy"
    shutil.copytree(demo[0].path, copy)
    before = {file.name: file.read_bytes() for file in (copy / "inputs").iterdir()}
    with pytest.raises(FileExistsError, match=r"study of other texts, 2 in .*text.jsonl, and 3 were asked"):
        run_demo(copy, samples=3, recipe=ONE_STEP, progress=False, say=lambda line: None)
    assert {file.name: file.read_bytes() for file in (copy / "inputs").iterdir()} == before


@pytest.mark.parametrize("content", ["{", "[1]"])
def test_a_damaged_recipe_is_an_error_of_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    from attnscope.cli import application

    (tmp_path / "recipe.json").write_text(content, "utf-8")
    with pytest.raises(SystemExit) as ended:
        application.main(["demo", str(tmp_path), "-q"])
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "recipe.json is damaged: " in line


SMALL = Recipe(steps=2, layers=1, heads=2, width=8, inner_width=8, batch=2)


@pytest.fixture
def away(tmp_path, monkeypatch):
    """A working directory and a cache of their own."""
    home = tmp_path / "home" / "deep" / "inside"
    home.mkdir(parents=True)
    monkeypatch.chdir(home)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def test_without_a_run_it_trains_once_into_the_cache(away):
    first = demo_checkpoints(recipe=SMALL, progress=False)
    assert first.is_relative_to(away / "cache" / "attnscope")
    assert {path.name for path in first.iterdir()} == {"step0", "step1", "step2"}
    weights = first / "step2" / "model.safetensors"
    written = weights.stat().st_mtime_ns
    assert demo_checkpoints(recipe=SMALL, progress=False) == first
    assert weights.stat().st_mtime_ns == written


def test_another_recipe_is_another_folder(away):
    checkpoints = demo_checkpoints(recipe=SMALL, progress=False)
    other = demo_checkpoints(recipe=Recipe(**(vars(SMALL) | {"seed": 1})), progress=False)
    assert checkpoints != other


@pytest.mark.parametrize("finished", [True, False])
def test_a_finished_demo_run_above_is_taken_and_a_half_done_one_is_not(away, finished):
    run = away / "home" / "runs" / "demo"
    for step in (0, 1, 2) if finished else (0, 1):
        (run / "checkpoints" / f"step{step}").mkdir(parents=True)
    (run / "recipe.json").write_text(json.dumps({"steps": 2}), encoding="utf-8")
    result = demo_checkpoints(recipe=SMALL, progress=False)
    assert (result == run / "checkpoints") is finished


@pytest.mark.parametrize(
    "demo",
    [run_demo, train, demo_checkpoints, train_encoder, compare_encodings, tune],
    ids=lambda demo: demo.__name__,
)
def test_progress_is_true_or_false(demo, tmp_path):
    """The word "false" counted as true, after nothing had been said."""
    with pytest.raises(TypeError, match=f"{demo.__name__}: progress must be True or False, got 'false'"):
        demo(tmp_path / "runs", progress="false")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("demo", "name", "value"),
    [
        (run_demo, "samples", 0),
        (compare_encodings, "samples", 0),
        (compare_encodings, "seeds", 0),
        (tune, "seeds", 0),
        (tune, "samples", -1),
        (tune, "processes", 0),
    ],
)
def test_numbers_are_refused_before_anything_is_trained(demo, name, value, tmp_path):
    """No text ended the demo when its model was trained, and was taken for "as many as usual" elsewhere."""
    message = f"{demo.__name__}: {name} must be at least 1, got {value}"
    with pytest.raises(ValueError, match=message):
        demo(tmp_path / "runs", progress=False, **{name: value})
    assert not (tmp_path / "runs").exists()


def test_sizes_of_a_recipe_are_whole_numbers(tmp_path):
    with pytest.raises(ValueError, match="train: batch must be at least 1, got 0"):
        train(tmp_path / "runs", Recipe(batch=0))
    with pytest.raises(TypeError, match="train: steps must be a whole number"):
        train(tmp_path / "runs", Recipe(steps=2.5))
    assert not (tmp_path / "runs").exists()
