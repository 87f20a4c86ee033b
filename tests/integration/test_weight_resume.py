# SPDX-License-Identifier: MIT
"""The weight study killed or without room for its files ends like one that nothing interrupted."""

import json
import random
import signal

import pytest
import torch

from folders import until
from weight_models import tiny

FAST = '{"random_weights": 1, "curve": 4, "rank_one": {"texts": 2, "directions": 2}}'


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    for name in ("base", "tuned"):
        model = tiny("llama")
        if name == "tuned":
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(1.01)
        model.save_pretrained(folder / name)
    drawn = random.Random(3)
    rows = [[drawn.randrange(3, 97) for _ in range(14 + n)] for n in range(8)]
    (folder / "texts.jsonl").write_text("\n".join(json.dumps({"token_ids": row}) for row in rows), "utf-8")
    return folder


def command(inputs, output):
    options = [f"options.{name}={json.dumps(value)}" for name, value in json.loads(FAST).items()]
    return (
        "run",
        "pretraining_writes",
        "--no-draw",
        "--model",
        inputs / "base",
        "--model",
        inputs / "tuned",
        "--texts",
        inputs / "texts.jsonl",
        "--block",
        4,
        "--output",
        output,
        "--name",
        "a",
        *(part for option in options for part in ("--set", option)),
    )


def tables(folder):
    return {path.name: path.read_bytes() for path in (folder / "tables").iterdir()}


def units(folder):
    return [path for path in (folder / "units").glob("[!.]*-*") if (path / "unit.json").is_file()]


@pytest.fixture(scope="module")
def uninterrupted(launcher, inputs, tmp_path_factory):
    output = tmp_path_factory.mktemp("uninterrupted")
    process = launcher.run(*command(inputs, output))
    assert process.code == 0, process.output
    assert {"deltas.parquet", "fractions.parquet", "claims.parquet", "rank_one.parquet"} <= set(
        tables(output / "a")
    )
    return output / "a"


@pytest.mark.slow
def test_killed_in_every_stage(launcher, inputs, uninterrupted, tmp_path):
    folder, kills = tmp_path / "a", 0
    process = launcher.start(*command(inputs, tmp_path))
    for index in range(1, len(units(uninterrupted)), 2):
        until(
            lambda expected=index, running=process: (
                len(units(folder)) >= expected or running.poll() is not None
            )
        )
        process.send(signal.SIGKILL)
        if process.wait() == 0:
            break
        kills += 1
        assert process.code == -signal.SIGKILL, process.output
        process = launcher.start("resume", "--no-draw", folder)
    assert process.wait() == 0, process.output
    assert kills >= 3
    assert tables(folder) == tables(uninterrupted)
    assert not list(folder.rglob("*.tmp"))


@pytest.mark.slow
def test_without_room_for_a_file_everything_before_it_is_intact(launcher, inputs, uninterrupted, tmp_path):
    sizes = sorted(max(file.stat().st_size for file in unit.iterdir()) for unit in units(uninterrupted))
    process = launcher.run(*command(inputs, tmp_path), file_size=sizes[-1] - 1)
    assert process.code == 1, process.output
    assert "no room for" in process.output
    stored_units = {unit.name for unit in units(tmp_path / "a")}
    assert len(stored_units) < len(sizes)
    again = launcher.run("resume", "--no-draw", tmp_path / "a")
    assert again.code == 0, again.output
    assert stored_units <= {unit.name for unit in units(tmp_path / "a")}
    assert tables(tmp_path / "a") == tables(uninterrupted)
