# SPDX-License-Identifier: MIT
"""What the likelihood study refuses, what it leaves out, and what it says."""

import json

import pytest

import attnscope as asc
from attnscope.engine.run_study import run
from attnscope.errors import ConfigError, LoadError
from folders import model_folder, sentences, tokenizer
from likelihood_study import encoder_folder, settings, texts_of
from models import tiny
from placeholders import placeholders


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    return texts_of(tmp_path_factory.mktemp("t") / "texts.txt")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return model_folder(tmp_path_factory.mktemp("m") / "m")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"modes": ["lowst"]}, r"options.modes: there is no mode 'lowst'; did you mean 'lowest'"),
        ({"modes": ["nats:x"]}, r"'nats:x': nats: needs a positive number"),
        ({"modes": ["nats:-1"]}, r"'nats:-1': nats: needs a positive number"),
        ({"modes": ["low", "low"]}, r"expected each mode once, got \['low', 'low'\]"),
        ({"word": "middel"}, r"expected middle, random or column:NAME, got 'middel'; did you mean 'middle'"),
        ({"context": "own"}, r"options.context"),
        ({"nulls": ["random_weight"]}, r"there is no 'random_weight'; did you mean 'random_weights'"),
        ({"permutations": 10}, r"options.permutations"),
        ({"word_": "middle"}, r"unknown key 'word_' in options; did you mean 'word'"),
    ],
)
def test_bad_options(folder, texts, tmp_path, changes, message):
    with pytest.raises(ConfigError, match=message):
        settings(folder, texts, tmp_path, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"word": "column:lemm"}, r"options.word: the texts have no column 'lemm'; did you mean 'lemma'"),
        ({"min_left": 40}, r"no text of 6 has a usable word \(too early 6\)"),
        (
            {"context": "masked"},
            r"m: attention_likelihood: context must be 'left' for a causal model .*'masked'",
        ),
        ({"likelihood_from": "./no/such"}, r"options.likelihood_from: there is no model folder ./no/such"),
    ],
)
def test_what_only_texts_and_models_can_tell(folder, texts, tmp_path, changes, message):
    rows = [{"text": line, "lemma": line.split()[5]} for line in texts.read_text("utf-8").splitlines()[:6]]
    file = tmp_path / "texts.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in rows), "utf-8")
    with pytest.raises(ConfigError, match=message):
        run(settings(folder, {"path": str(file), "column": "text"}, tmp_path, **changes), progress=False)


def test_windows_are_refused(folder, texts, tmp_path):
    source = {"path": str(texts), "per": "window"}
    with pytest.raises(ConfigError, match="attention_likelihood reads texts as they are written"):
        run(settings(folder, source, tmp_path), progress=False)


def test_few_texts_run_and_say_so(folder, texts, tmp_path):
    results = run(settings(folder, texts, tmp_path), progress=False)
    assert [note for note in results.provenance["notes"] if "attention_likelihood" in note] == [
        "attention_likelihood: 12 texts have a word; below 20 little can be said"
    ]


def test_left_out_texts_are_counted_by_reason(folder, texts, tmp_path):
    lines = [*texts.read_text("utf-8").splitlines(), "a cat", "the the the the the the the the the the"]
    file = tmp_path / "texts.txt"
    file.write_text("\n".join(lines) + "\n", "utf-8")
    results = run(settings(folder, file, tmp_path), progress=False)
    assert "2 of 14 texts are left out" in " ".join(results.provenance["notes"])
    targets = results.table("targets").set_index("sample")
    assert targets["reason"].notna().to_numpy().nonzero()[0].tolist() == [12, 13]
    assert targets.loc[[12, 13], ["word", "start", "stop", "partner"]].isna().all(axis=None)
    assert placeholders(results) == []
    assert set(results.table("words")["sample"]) == set(range(12))


def test_a_word_with_few_candidates_is_left_out(folder, tmp_path):
    """Long sentences hold nearly all words that the tokenizer knows."""
    file = sentences(tmp_path / "long.txt", 3, shortest=26)
    with pytest.raises(ConfigError, match=r"no text of 3 has a usable word \(few candidates 3\)"):
        run(settings(folder, file, tmp_path), progress=False)


def test_of_a_model_of_bytes_nearly_all_letters_stand_in_any_text(tmp_path):
    """The model that `attnscope demo` trains reads bytes, 52 of which are letters."""
    from attnscope.demo.texts import byte_tokenizer

    for model_or_tokenizer in (tiny("llama", vocab_size=257), byte_tokenizer(128)):
        model_or_tokenizer.save_pretrained(tmp_path / "bytes")
    line = "The five boxing wizards jump quickly at dawn, A B C D E F G H I J K L M N O P Q R S U V W X Y Z."
    file = tmp_path / "texts.txt"
    file.write_text(f"{line}\n{line[::-1]}\n", "utf-8")
    with pytest.raises(ConfigError, match=r"no text of 2 has a usable word \(.*few candidates \d"):
        run(settings(tmp_path / "bytes", file, tmp_path, max_tokens=128), progress=False)


def test_a_text_that_is_cut_keeps_the_words_inside(folder, tmp_path):
    file = texts_of(tmp_path / "long.txt", 6, least=20)
    study = settings(folder, file, tmp_path, max_tokens=9, swap=False, modes=["lowest"])
    results = run(study, progress=False)
    targets = results.table("targets")
    assert set(targets["n_tokens"]) == {9}
    assert (targets["stop"] <= 9).all()
    assert (results.table("words")["n_tokens"] == 9).all()


def test_token_ids_have_no_words(folder, tmp_path):
    file = tmp_path / "ids.jsonl"
    file.write_text("\n".join(json.dumps({"ids": list(range(4, 18))}) for _ in range(3)), "utf-8")
    with pytest.raises(ConfigError, match=r"no text of 3 has a usable word \(token ids 3\)"):
        run(settings(folder, {"path": str(file), "column": "ids"}, tmp_path), progress=False)


def test_a_word_of_a_column_is_the_one_that_is_replaced(folder, texts, tmp_path):
    lines = texts.read_text("utf-8").splitlines()[:6]
    file = tmp_path / "texts.jsonl"
    file.write_text(
        "\n".join(json.dumps({"text": line, "lemma": line.split()[6]}) for line in lines), "utf-8"
    )
    source = {"path": str(file), "column": "text"}
    results = run(settings(folder, source, tmp_path, word="column:lemma", swap=False), progress=False)
    words = results.table("words")
    assert set(words[words["mode"] == "real"]["word"]) == {line.split()[6] for line in lines}
    assert "swap" not in set(words["mode"])


def test_another_vocabulary_is_refused_by_its_first_id(folder, texts, tmp_path):
    other = model_folder(tmp_path / "other")
    file = other / "tokenizer.json"
    content = json.loads(file.read_text("utf-8"))
    names = content["model"]["vocab"]
    names["dog"] = names.pop("cat")
    file.write_text(json.dumps(content), "utf-8")
    with pytest.raises(ConfigError, match=r"has another vocabulary: id 5 is 'cat' here and 'dog' there"):
        run(settings(folder, texts, tmp_path, likelihood_from=str(other)), progress=False)


def test_an_encoder_without_mask_token_or_head_is_refused_in_words(texts, tmp_path):
    bare = encoder_folder(tmp_path / "bare", head=False)
    with pytest.raises(LoadError, match=r"BertModel has no vocabulary head.*likelihood_from"):
        run(settings(bare, texts, tmp_path), progress=False)
    with pytest.raises(ConfigError, match=r"BertModel has no vocabulary head.*likelihood_from"):
        run(settings(bare, texts, tmp_path / "f", likelihood_from=str(bare)), progress=False)
    plain = encoder_folder(tmp_path / "plain", mask=False)
    with pytest.raises(ConfigError, match="context 'masked' needs a tokenizer with a mask token"):
        run(settings(plain, texts, tmp_path / "p"), progress=False)
    folder = encoder_folder(tmp_path / "b")
    with pytest.raises(ConfigError, match="context must be 'masked' or 'own'"):
        run(settings(folder, texts, tmp_path / "l", context="left"), progress=False)


@pytest.mark.usefixtures("unarranged", "unpictured")
def test_a_model_without_a_head_is_left_out_of_a_run_of_several(texts, tmp_path):
    """It ended the run of all models, with exit code 2 of a study that cannot be understood."""
    models = [
        {"path": str(encoder_folder(tmp_path / name, head=name == "whole"))} for name in ("bare", "whole")
    ]
    results = run(settings("", texts, tmp_path, models=models), progress=False)
    assert set(results.table("versions")["model"]) == {"whole"}
    (skipped,) = results.provenance["skipped"]
    assert skipped["checkpoint"] == "bare"
    assert "BertModel has no vocabulary head" in skipped["reason"]


def test_the_published_protocol_refuses_causal_models_in_words(folder, texts, tmp_path):
    with pytest.raises(ConfigError, match=r"ruscio2023.*masked-language"):
        run(settings(folder, texts, tmp_path, protocols="both"), progress=False)


@pytest.mark.usefixtures("unarranged", "unpictured")
@pytest.mark.parametrize("dtype", [pytest.param("bfloat16", marks=pytest.mark.slow), "float16"])
def test_half_precision_is_measured_and_named_in_the_report(folder, texts, tmp_path, dtype):
    models = {"path": str(folder), "dtype": dtype}
    results = run(settings(folder, texts, tmp_path, models=models), progress=False)
    assert results.table("checks")["holds"].all()
    words = results.table("words")
    assert words["log_likelihood"].notna().all()
    # formed in float64: more digits than the model's own numbers have
    assert (words["log_likelihood"] != words["log_likelihood"].astype("float32")).any()
    assert isinstance(asc.load(tmp_path / "a").table("claims")["verdict"].iloc[0], str)
    assert dtype in results.report().read_text("utf-8")


def test_a_model_of_pictures_and_text_is_refused_by_name(texts, tmp_path):
    """CLIP reads tokens beside a picture alone; the run ended in Python's own error about None."""
    from transformers import CLIPConfig, CLIPModel

    shape = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    text = {**shape, "vocab_size": 97, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    config = CLIPConfig(text_config=text, vision_config={**shape, "image_size": 12, "patch_size": 4})
    CLIPModel(config).save_pretrained(tmp_path / "clip")
    tokenizer().save_pretrained(tmp_path / "clip")
    with pytest.raises(
        LoadError, match="clip: capture: CLIPModel does not run on input_ids and attention_mask alone"
    ):
        run(settings(tmp_path / "clip", texts, tmp_path), progress=False)
    assert not list((tmp_path / "a" / "units").glob("[0-9]*"))
