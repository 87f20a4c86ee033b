# SPDX-License-Identifier: MIT
"""Ordinary runs that nobody arranged: every study over drawn lengths, cuts, BOS, heads, to its report.

What is drawn is printed, so that a failure can be repeated.
"""

import random

import pytest

import knowing_study
import likelihood_study
import position_study
from attnscope.config.run_config import RunConfig
from attnscope.engine.run_study import run
from attnscope.results.check import check_folder
from folders import WORDS, model_folder

pytestmark = pytest.mark.usefixtures("unarranged", "unpictured")

#: Numbers of texts and words, cuts and heads that belong together in no particular way.
STUDIES = (
    *("attention_sinks", "wavelet_heads", "attention_likelihood", "absolute_position"),
    *("hallucination_geometry", "pretraining_writes"),
)


def drawn_texts(path, draw, shortest=1, longest=60, fewest=3, most=14):
    """Lines of any length, among them one of a word and one that is longer than most cuts."""
    amount = draw.randint(fewest, most)
    counts = [*(draw.randint(shortest, longest) for _ in range(amount)), shortest, longest]
    draw.shuffle(counts)
    lines = [" ".join(draw.choice(WORDS) for _ in range(count)) for count in counts]
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


def drawn_model(path, draw, **changes):
    """A tiny Llama with any number of heads and layers."""
    heads = draw.choice([1, 2, 4])
    shape = {
        "num_attention_heads": heads,
        "num_key_value_heads": draw.choice(
            [count for count in (1, 2, 4) if heads % count == 0 and count <= heads]
        ),
        "num_hidden_layers": draw.choice([1, 2, 3]),
    }
    return model_folder(path, seed=draw.randrange(1000), bos=draw.random() < 0.7, **{**shape, **changes})


def common(draw, **values):
    """Settings that every study over texts has."""
    return {
        "max_tokens": draw.choice([None, 20, 40, 64]),
        "bos": draw.choice(["keep", "drop", "replace"]),
        "block": draw.choice([1, 3, 16]),
        "seed": draw.randrange(100),
        "protocols": draw.choice([["exact"], "both"]),
        **values,
    }


def drawn_study(name, home, draw):
    """Settings of one run of a study."""
    home.mkdir(parents=True)
    if name == "hallucination_geometry":
        model = knowing_study.model_folder(home / "m", num_hidden_layers=draw.choice([1, 2]))
        texts = knowing_study.questions(home / "q.csv", pairs=draw.choice([3, 4]), slots=draw.choice([5, 7]))
        return knowing_study.settings(model, texts, home, block=draw.choice([5, 32]), seed=draw.randrange(9))
    if name == "pretraining_writes":
        shape = {"num_hidden_layers": draw.choice([1, 2])}
        models = [str(model_folder(home / f"m{seed}", seed=seed, **shape)) for seed in (1, 2)]
        options = {"random_weights": 1, "curve": 4, "rank_one": {"texts": 2, "directions": 2}}
        texts = drawn_texts(home / "texts.txt", draw, shortest=2)
        values = {"block": draw.choice([2, 5]), "max_tokens": draw.choice([None, 20])}
        return RunConfig(
            study=name, models=models, texts=str(texts), output=str(home), name="a", options=options, **values
        )
    model = drawn_model(home / "m", draw)
    if name == "absolute_position":
        # its groups of texts need a window of each of 16 texts
        texts = drawn_texts(home / "texts.txt", draw, shortest=20, fewest=14, most=40)
        run_settings = position_study.settings(
            model, texts, home, block=draw.choice([3, 8]), samples=draw.choice([16, 24])
        )
        return RunConfig(**{**run_settings.to_dict(), "seed": draw.randrange(100)})
    if name == "attention_likelihood":
        texts = drawn_texts(home / "texts.txt", draw, shortest=6, longest=40)
        return likelihood_study.settings(
            model, texts, home, max_tokens=draw.choice([20, 32]), block=draw.choice([2, 8])
        )
    options = {"extra": draw.choice([[], "all"]), "controls": 1} if name == "attention_sinks" else {}
    texts = drawn_texts(home / "texts.txt", draw)
    return RunConfig(
        study=name,
        models=str(model),
        texts=str(texts),
        output=str(home),
        name="a",
        options=options,
        **common(draw),
    )


def to_its_report(run_settings):
    """Run a study and write its report; every figure is drawn or has a reason."""
    print(run_settings.to_yaml())
    results = run(run_settings, progress=False, say=lambda text: None)
    left_out = []
    results.figures(results.path / "figures", formats=["svg"], left_out=left_out)
    assert [str(omission) for omission in left_out if omission.failed] == []
    assert results.report().stat().st_size > 10_000
    result = check_folder(results.path)
    assert result.is_whole
    assert result.is_complete


def test_texts_of_several_lengths_and_one_cut_come_to_their_tables(tmp_path):
    """Heads whose sink is pooled at a place from the end, and texts that are shorter than that."""
    draw = random.Random(4)
    model = model_folder(tmp_path / "m", num_hidden_layers=1)
    texts = drawn_texts(tmp_path / "texts.txt", draw, longest=45, most=3)
    options = {"thresholds": [0.05]}
    run_settings = RunConfig(
        models=str(model), texts=str(texts), max_tokens=40, output=str(tmp_path), name="a", options=options
    )
    results = run(run_settings, progress=False, say=lambda text: None)
    assert set(results.table("samples")["n_tokens"]) > {40}
    assert len(results.table("frames")) == 1


@pytest.mark.slow
@pytest.mark.parametrize("number", range(6))
@pytest.mark.parametrize("name", STUDIES)
def test_every_study_comes_to_its_report_whatever_is_drawn(tmp_path, name, number):
    to_its_report(drawn_study(name, tmp_path / "home", random.Random(1000 * number + STUDIES.index(name))))
