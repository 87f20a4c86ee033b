# SPDX-License-Identifier: MIT
"""Windows: disjoint pieces of joined texts at a drawn place, the same text with and without BOS."""

import json

import pytest
from transformers import AutoTokenizer

import attnscope as asc
from attnscope.engine.planning import make_plan
from attnscope.errors import ConfigError
from attnscope.models import Encoder
from folders import id_lines, model_folder, sentences

LENGTH = 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return model_folder(tmp_path_factory.mktemp("m") / "m")


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    return sentences(tmp_path_factory.mktemp("t") / "texts.txt", 20)


def inputs(folder, texts, seed=0, bos="keep", **source):
    settings = asc.Study(
        models=str(folder),
        texts={"path": str(texts), "per": "window", **source},
        max_tokens=source.pop("length", LENGTH),
        seed=seed,
        bos=bos,
        block=4,
    )
    plan = make_plan(settings)
    return [window for unit in plan.units for window in unit.inputs if not unit.variant]


def ids_of_file(folder, texts):
    """All words of the file as ids, by the tokenizer itself, line after line."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    lines = texts.read_text("utf-8").splitlines()
    return [token for line in lines for token in tokenizer(line, add_special_tokens=False)["input_ids"]]


def test_windows_follow_one_another_from_a_place_among_the_first_tokens(folder, texts):
    ids = ids_of_file(folder, texts)
    windows = inputs(folder, texts)
    first = [*windows[0].sentence.token_ids]
    places = [at for at in range(LENGTH) if ids[at : at + LENGTH] == first]
    assert places
    joined = [token for window in windows for token in window.sentence.token_ids]
    assert any(ids[at : at + len(joined)] == joined for at in places)
    assert len(ids) - len(joined) < 2 * LENGTH
    assert [window.sentence.sample for window in windows] == [*range(len(windows))]


def test_the_place_is_drawn_with_the_seed(folder, texts):
    starts = {inputs(folder, texts, seed=seed)[0].sentence.token_ids for seed in range(12)}
    assert len(starts) > 3
    assert inputs(folder, texts, seed=5)[0].sentence == inputs(folder, texts, seed=5)[0].sentence


def test_with_and_without_bos_the_text_is_the_same(folder, texts):
    for with_bos, without_bos in zip(inputs(folder, texts), inputs(folder, texts, bos="drop"), strict=True):
        assert with_bos.encoded.ids.tolist() == [1, *without_bos.encoded.ids.tolist()[:-1]]
        assert with_bos.encoded.starts_with_bos
        assert not without_bos.encoded.starts_with_bos
        assert with_bos.n_tokens == without_bos.n_tokens == LENGTH
        assert (
            tuple(without_bos.encoded.ids.tolist())
            == without_bos.sentence.token_ids
            == with_bos.sentence.token_ids
        )


def test_a_tokenizer_without_bos_sets_none(tmp_path, texts):
    windows = inputs(model_folder(tmp_path / "m", bos=False), texts)
    assert all(window.encoded.ids.tolist() == [*window.sentence.token_ids] for window in windows)


def test_a_bos_token_inside_a_text_is_left_out(folder, tmp_path):
    (tmp_path / "a.txt").write_text("<s> the cat sat </s> on a mat\n" * 10, "utf-8")
    windows = inputs(folder, tmp_path / "a.txt")
    assert all({0, 1, 2}.isdisjoint(window.sentence.token_ids) for window in windows)


def test_samples_counts_windows_drawn_or_first(folder, texts):
    all_windows = [window.sentence.token_ids for window in inputs(folder, texts)]
    assert [window.sentence.token_ids for window in inputs(folder, texts, samples=3)] == all_windows[:3]
    drawn = [window.sentence.source_row for window in inputs(folder, texts, samples=5, sampling="random")]
    assert drawn == sorted(set(drawn))
    assert drawn != [*range(5)]


class Reading:
    """A tokenizer that counts the characters which it is given."""

    def __init__(self, tokenizer):
        self.tokenizer, self.read = tokenizer, 0

    def __getattr__(self, name):
        return getattr(self.tokenizer, name)

    def __call__(self, text, **options):
        self.read += len(text)
        return self.tokenizer(text, **options)


@pytest.mark.parametrize("letters", [1, 30, 200])
def test_of_a_long_text_no_more_is_encoded_than_the_first_tokens_need(folder, letters):
    """Words shorter and longer than the first guess of what a token takes."""
    reading = Reading(AutoTokenizer.from_pretrained(folder))
    text = " ".join("abcdefg"[at % 7] * letters if at % 3 else "cat" for at in range(4000))
    all_tokens = Encoder(reading.tokenizer).bare(text)
    assert len(all_tokens) == 4000
    assert Encoder(reading).bare(text, most=50) == all_tokens[:50]
    assert reading.read < len(text) / 5
    assert Encoder(reading).bare(text, most=3990) == all_tokens[:3990]


def test_lists_of_token_ids_are_joined(folder, tmp_path):
    windows = inputs(
        folder, id_lines(tmp_path / "a.jsonl", [[at % 90 + 4] * 5 for at in range(20)]), bos="drop"
    )
    row = [at % 90 + 4 for at in range(20) for _ in range(5)]
    first = [*windows[0].sentence.token_ids]
    assert any(row[at : at + LENGTH] == first for at in range(LENGTH))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_tokens": None}, "set max_tokens"),
        ({"max_tokens": 60, "texts": "short"}, r"has 4 tokens of m, too few for one window of 60"),
        ({"texts": "mixed"}, "windows and sentences do not go into one run"),
        ({"texts": "both"}, "row 1 is a text and row 0 a list of token ids; windows are cut from one or"),
    ],
)
def test_bad_input(folder, texts, tmp_path, changes, message):
    (tmp_path / "short.txt").write_text("the cat sat on\n", "utf-8")
    lines = [{"text": [4, 5]}, {"text": "the cat"}, {"text": [6]}]
    (tmp_path / "both.jsonl").write_text("\n".join(map(json.dumps, lines)), "utf-8")
    window = {"path": str(texts), "per": "window"}
    named = {
        "short": {"path": str(tmp_path / "short.txt"), "per": "window"},
        "both": {"path": str(tmp_path / "both.jsonl"), "per": "window"},
        "mixed": [window, {"path": str(texts)}],
    }
    values = {"max_tokens": LENGTH, **changes}
    values["texts"] = named.get(values.get("texts"), window)
    with pytest.raises(ConfigError, match=message):
        make_plan(asc.Study(models=str(folder), **values))


def test_a_run_over_windows_stores_what_was_read(folder, texts, tmp_path):
    results = asc.run(
        asc.Study(
            models=str(folder),
            texts={"path": str(texts), "per": "window", "samples": 5},
            max_tokens=LENGTH,
            metrics=["attention_entropy"],
            block=2,
            output=str(tmp_path),
            name="a",
        ),
        progress=False,
    )
    samples = results.table("samples")
    assert samples["n_tokens"].tolist() == [LENGTH] * 5
    assert samples["bos"].all()
    assert not samples["truncated"].any()
    assert len(set(samples["text"])) == 5


def test_the_manual_of_python_has_enough_windows(folder):
    windows = inputs(folder, "builtin:pydoc", samples=300)
    assert len(windows) == 300
