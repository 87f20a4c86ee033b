# SPDX-License-Identifier: MIT
"""Without a terminal, set-up, training and study say in lines how far they are, also while a step goes on."""

import re
import subprocess
import time
from pathlib import Path

import pytest

import attnscope as asc
from attnscope import _progress as progress
from attnscope._progress import Lines, progress_bar
from attnscope.demo import Recipe, train
from folders import sentences

REPOSITORY = Path(__file__).parents[3]


def test_lines_come_while_nothing_is_counted(monkeypatch, capsys) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.02)
    with progress_bar(4, "units", 1) as lines:
        assert isinstance(lines, Lines)
        time.sleep(0.2)
        lines.update()
        lines.set_postfix_str("step2")
        time.sleep(0.2)
    printed = capsys.readouterr().err.splitlines()
    assert printed[0] == "attnscope: units 1/4"
    assert re.fullmatch(r"attnscope: units 2/4(, about \d+ s left)?, step2", printed[-1])
    time.sleep(0.1)
    assert capsys.readouterr().err == ""


def test_what_is_left_is_extrapolated_from_what_was_done_here(monkeypatch) -> None:
    clock = iter([100.0, 130.0, 130.0, 150.0, 400.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    lines = Lines(10, "training", 4)
    lines.update(2)
    assert str(lines) == "training 6/10, about 60 s left"
    assert str(lines) == "training 6/10, about 40 s left"
    # one that takes longer than all that were left is no step like those before
    assert str(lines) == "training 6/10"


@pytest.mark.parametrize("options", [{"show": False}, {"inner": True}])
def test_what_is_hidden_says_nothing(options, monkeypatch, capsys) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.02)
    with progress_bar(3, "units", **options) as bar:
        bar.update()
        time.sleep(0.1)
    assert capsys.readouterr() == ("", "")


def test_training_and_a_study_say_in_a_pipe_how_far_they_are(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.02)
    recipe = Recipe(steps=4, layers=1, heads=2, width=16, inner_width=24, batch=4)
    trained = train(tmp_path / "trained", recipe, label="[4/6] training")
    texts = sentences(tmp_path / "texts.txt", 1)
    asc.run(
        asc.Study(
            study="attention_sinks",
            models=str(trained / "step4"),
            texts=str(texts),
            output=str(tmp_path),
            name="a",
            options={"metrics": ["fiedler_value"]},
        )
    )
    output = capsys.readouterr().err
    assert re.search(r"^attnscope: \[4/6\] training [1-4]/4, about \d+ s left", output, re.M)
    assert re.search(r"^attnscope: units \d/\d, ", output, re.M)


def test_a_build_says_in_a_pipe_how_far_it_is(tmp_path) -> None:
    log = tmp_path / "log"
    teller = subprocess.Popen(
        [str(REPOSITORY / ".ci/progress"), "[3/6]", str(log), "0.1"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    )
    assert teller.stdin is not None
    assert teller.stdout is not None
    teller.stdin.write("Collecting torch\n")
    assert re.fullmatch(r"\[3/6\] collecting \d packages, \d+ s so far\n", teller.stdout.readline())
    teller.stdin.write("  [41/126] Building CXX object\n")
    lines = [teller.stdout.readline() for _ in range(4)]
    assert re.fullmatch(r"\[3/6\] compiling 41/126, about \d+ s left\n", lines[-1])
    teller.stdin.write("Installing collected packages: a, b\n")
    rest = teller.communicate(timeout=60)[0]
    assert re.fullmatch(r"(\[3/6\] (compiling|installing) .*\n)*", rest)
    assert log.read_text().splitlines()[1].strip() == "[41/126] Building CXX object"
