# SPDX-License-Identifier: MIT
"""One reader of inputs: every kind of input at every function that takes texts, and refusals by name."""

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

import attnscope as asc
from folders import tokenizer
from models import tiny

TEXTS = ["the cat sat on the mat", "rain fell over the old town"]
LABELS = [0, 1]


@pytest.fixture(scope="module")
def reader():
    reader = tokenizer()
    reader.chat_template = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
    return reader


@pytest.fixture(scope="module")
def model(reader):
    return tiny("llama", vocab_size=len(reader), num_hidden_layers=1)


def analyzed(model, inputs, reader):
    return asc.analyze(model, inputs, ["sink_share"], tokenizer=reader)["samples"]["n_tokens"].tolist()


def features(model, inputs, reader):
    return asc.features(model, inputs, ["sink_share"], tokenizer=reader).index["n_tokens"].tolist()


def likelihood(model, inputs, reader):
    scores = asc.token_likelihood(model, inputs, tokenizer=reader).log_likelihood
    return [1 + int(row.isfinite().sum()) for row in scores]


def moments(model, inputs, reader):
    """Tokens of all texts together; the first of each is left out of the sums."""
    return [len(TEXTS) + asc.second_moments(model, inputs, tokenizer=reader).tokens(0, "q")]


FUNCTIONS = {
    "analyze": analyzed,
    "features": features,
    "token_likelihood": likelihood,
    "second_moments": moments,
}


def data_set(reader):
    datasets = pytest.importorskip("datasets")
    return datasets.Dataset.from_dict({"text": TEXTS, "label": LABELS})


KINDS = {
    "list": lambda reader: TEXTS,
    "tuple": lambda reader: tuple(TEXTS),
    "generator": lambda reader: (text for text in TEXTS),
    "array of texts": lambda reader: np.array(TEXTS),
    "series": lambda reader: pd.Series(TEXTS, index=[7, 3]),
    "data frame": lambda reader: pd.DataFrame({"text": TEXTS, "label": LABELS}),
    "the only texts": lambda reader: pd.DataFrame({"label": LABELS, "words": TEXTS}),
    "columns": lambda reader: {"sentence": TEXTS, "label": LABELS},
    "rows": lambda reader: [
        {"content": text, "label": label} for text, label in zip(TEXTS, LABELS, strict=True)
    ],
    "arrow table": lambda reader: pa.table({"text": TEXTS}),
    "arrow column": lambda reader: pa.table({"text": TEXTS})["text"],
    "data set": data_set,
    "encodings": lambda reader: reader(TEXTS),
    "padded tensors": lambda reader: reader(TEXTS, padding=True, return_tensors="pt"),
    "list of encodings": lambda reader: [reader(text) for text in TEXTS],
    "lists of ids": lambda reader: reader(TEXTS)["input_ids"],
    "tensors of ids": lambda reader: [torch.tensor(ids) for ids in reader(TEXTS)["input_ids"]],
    "conversations": lambda reader: [[{"role": "user", "content": text}] for text in TEXTS],
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_function_reads_every_kind(model, reader, function, kind):
    expected = [len(ids) for ids in reader(TEXTS)["input_ids"]]
    if kind == "conversations":  # the template writes no BOS
        expected = [length - 1 for length in expected]
    if function == "second_moments":
        expected = [sum(expected)]
    assert FUNCTIONS[function](model, KINDS[kind](reader), reader) == expected


ONE_TEXT = {
    "sentence": lambda reader: TEXTS[0],
    "conversation": lambda reader: [{"role": "user", "content": TEXTS[0]}],
    "pair": lambda reader: [(TEXTS[0], TEXTS[1])],
    "row": lambda reader: [{"text": TEXTS[0], "label": 0}],
    "data frame": lambda reader: pd.DataFrame({"text": TEXTS[:1], "label": LABELS[:1]}),
    "encoding": lambda reader: reader(TEXTS[0]),
}


@pytest.mark.parametrize("kind", ONE_TEXT)
def test_view_reads_what_analyze_reads(model, reader, kind):
    inputs = ONE_TEXT[kind](reader)
    page = asc.view(model, inputs, tokenizer=reader)
    assert [page.contents["maps"][0]["n"]] == analyzed(model, inputs, reader)


def viewed(model, inputs, reader):
    return asc.view(model, inputs, tokenizer=reader)


REFUSED = {
    "bytes": (b"a cat", "got bytes"),
    "number": (3, "got int"),
    "numbers": ([1.5, 2.5], "got 1.5"),
    "flags": ([[True, False]], r"got \[True, False\]"),
    "file": (__file__, "is a path, .*; read the file first"),
    "path": (Path("no_such.csv"), "is a path, 'no_such.csv'; read the file first"),
    "two columns": (pd.DataFrame({"title": TEXTS, "body": TEXTS}), "which column of the DataFrame"),
    "rows without texts": ([{"label": 0}], "which column of the list of rows"),
    "empty text": ([" "], "is an empty text"),
    "missing cell": (pd.DataFrame({"text": ["a", None]}), "input 1 must be a sentence"),
}


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("function", [*FUNCTIONS, "view"])
def test_what_is_no_input_is_refused_by_name(model, reader, function, kind):
    inputs, words = REFUSED[kind]
    measure = FUNCTIONS.get(function, viewed)
    with pytest.raises(ValueError, match=f"^{function}: .*{words}"):
        measure(model, inputs, reader)


def test_second_moments_reads_a_generator_one_text_at_a_time(model, reader):
    """The texts behind a bad one are not read."""
    read = []

    def texts():
        for text in (*TEXTS, 1.5, TEXTS[0]):
            read.append(text)
            yield text

    with pytest.raises(ValueError, match="second_moments: input 2 must be a sentence"):
        asc.second_moments(model, texts(), tokenizer=reader)
    assert read == [*TEXTS, 1.5]
