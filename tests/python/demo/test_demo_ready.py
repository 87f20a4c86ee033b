# SPDX-License-Identifier: MIT
"""A demo model at once: the finished run's when there is one, else one training into the cache."""

import json

import pytest

from attnscope.demo import Recipe, demo_checkpoints

TINY = Recipe(steps=2, layers=1, heads=2, width=8, inner_width=8, batch=2)


@pytest.fixture
def away(tmp_path, monkeypatch):
    """A working directory and a cache of their own."""
    home = tmp_path / "home" / "deep" / "inside"
    home.mkdir(parents=True)
    monkeypatch.chdir(home)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def test_without_a_run_it_trains_once_into_the_cache(away):
    first = demo_checkpoints(recipe=TINY, progress=False)
    assert first.is_relative_to(away / "cache" / "attnscope")
    assert {path.name for path in first.iterdir()} == {"step0", "step1", "step2"}
    weights = first / "step2" / "model.safetensors"
    written = weights.stat().st_mtime_ns
    assert demo_checkpoints(recipe=TINY, progress=False) == first
    assert weights.stat().st_mtime_ns == written


def test_another_recipe_is_another_folder(away):
    one = demo_checkpoints(recipe=TINY, progress=False)
    other = demo_checkpoints(recipe=Recipe(**(vars(TINY) | {"seed": 1})), progress=False)
    assert one != other


@pytest.mark.parametrize("finished", [True, False])
def test_a_finished_demo_run_above_is_taken_and_a_half_done_one_is_not(away, finished):
    run = away / "home" / "runs" / "demo"
    for step in (0, 1, 2) if finished else (0, 1):
        (run / "checkpoints" / f"step{step}").mkdir(parents=True)
    (run / "recipe.json").write_text(json.dumps({"steps": 2}), encoding="utf-8")
    found = demo_checkpoints(recipe=TINY, progress=False)
    assert (found == run / "checkpoints") is finished
