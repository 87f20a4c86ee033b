# SPDX-License-Identifier: MIT
"""A call of analyze as it runs: its bar, its bound of memory, what a stop keeps, and no vectors unasked."""

import contextlib
import fcntl
import io
import os
import pty
import struct
import sys
import termios
import time

import numpy as np
import pandas as pd
import pytest

import attnscope as asc
from attnscope._progress import progress_bar
from attnscope.analysis import text_measurement as module
from attnscope.analysis.recipe import Recipe
from folders import WORDS, tokenizer
from models import tiny

TEXTS = [" ".join(WORDS[: 4 + place]) for place in range(12)]


@pytest.fixture(scope="module")
def reader():
    return tokenizer()


@pytest.fixture(scope="module")
def model(reader):
    return tiny("llama", vocab_size=len(reader), num_hidden_layers=2)


def stop_after(monkeypatch, calls):
    """Interrupts the measurement of a layer behind some calls, as Ctrl-C would."""
    measure, count = Recipe.measure, iter(range(10**6))

    def interrupted(self, *arguments, **options):
        if next(count) >= calls:
            raise KeyboardInterrupt
        return measure(self, *arguments, **options)

    monkeypatch.setattr(Recipe, "measure", interrupted)


def analyzed(model, reader, **options):
    return asc.analyze(
        model, TEXTS, ["fiedler_value"], tokenizer=reader, max_memory=4 * 4 * 4 * 15 * 15, **options
    )


def test_a_bound_of_memory_makes_smaller_passes_and_the_same_numbers(model, reader, monkeypatch):
    sizes = []
    self_attention = module.self_attention

    def counted(model, arguments, **options):
        sizes.append(len(arguments["input_ids"]))
        return self_attention(model, arguments, **options)

    monkeypatch.setattr(module, "self_attention", counted)
    expected = asc.analyze(model, TEXTS, ["fiedler_value"], tokenizer=reader)["heads"]
    at_once, sizes[:] = max(sizes), []
    small = analyzed(model, reader)["heads"]
    assert max(sizes) < at_once
    keys = ["sample", "layer", "head"]
    pd.testing.assert_frame_equal(
        small.sort_values(keys, ignore_index=True), expected.sort_values(keys, ignore_index=True), rtol=1e-5
    )
    with pytest.raises(ValueError, match="expected an amount such as 4GB, got 'much'"):
        asc.analyze(model, TEXTS, ["fiedler_value"], tokenizer=reader, max_memory="much")


def test_a_stop_at_a_prompt_keeps_the_measured_texts(model, reader, monkeypatch):
    expected = analyzed(model, reader)["heads"]
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    stop_after(monkeypatch, 5)  # in the middle of the third pass of two layers
    with pytest.warns(
        RuntimeWarning, match=r"analyze: stopped; \d+ of 12 texts are measured and in the results"
    ):
        results = analyzed(model, reader)
    samples = results["samples"]["sample"].tolist()
    assert 0 < len(samples) < 12
    heads = results["heads"]
    assert heads.groupby("sample").size().to_dict() == dict.fromkeys(samples, 2 * 4)
    merged = heads.merge(expected, on=["sample", "layer", "head"])
    np.testing.assert_array_equal(merged["fiedler_value_x"], merged["fiedler_value_y"])
    assert results.provenance["stopped"] == f"{len(samples)} of 12 texts"


def test_a_stop_of_a_script_is_a_stop_with_the_results(model, reader, monkeypatch):
    monkeypatch.delattr(sys, "ps1", raising=False)
    stop_after(monkeypatch, 5)
    with pytest.raises(KeyboardInterrupt) as caught:
        analyzed(model, reader)
    assert 0 < len(caught.value.results["samples"]) < 12
    stop_after(monkeypatch, 1)
    with pytest.raises(KeyboardInterrupt) as caught:  # not one text is complete
        analyzed(model, reader)
    assert not hasattr(caught.value, "results")


def test_a_stop_of_features_is_a_stop(model, reader, monkeypatch):
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    stop_after(monkeypatch, 1)
    with pytest.raises(KeyboardInterrupt):
        asc.features(model, TEXTS, ["fiedler_value"], tokenizer=reader)


def on_terminal(function):
    """Returns what a call writes to a standard error that is a terminal."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 120, 0, 0))
    stderr = sys.stderr
    sys.stderr = os.fdopen(follower, "w")
    try:
        function()
    finally:
        sys.stderr.close()
        sys.stderr = stderr
    parts = []
    with contextlib.suppress(OSError):  # the end of what a closed terminal holds
        while part := os.read(leader, 4096):
            parts.append(part)
    os.close(leader)
    return b"".join(parts).decode()


def test_the_bar_comes_after_its_delay_on_terminals_alone(model, reader, monkeypatch):
    assert on_terminal(lambda: analyzed(model, reader)) == ""  # over within two seconds
    monkeypatch.setattr(module, "BAR_SECONDS", 0.0)
    shown = on_terminal(lambda: analyzed(model, reader))
    assert "analyze: LlamaForCausalLM" in shown
    assert "12/12" in shown
    assert "text/s" in shown
    assert on_terminal(lambda: analyzed(model, reader, progress=False)) == ""
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    analyzed(model, reader)
    assert sys.stderr.getvalue() == ""


def test_the_bar_of_a_long_call_is_shown():
    def count():
        with progress_bar(8, "analyze: model", delay=0.3, unit="text") as bar:
            for _ in range(8):
                time.sleep(0.12)
                bar.update()

    shown = on_terminal(count)
    assert "0/8" not in shown
    assert "8/8" in shown


def test_vectors_come_when_they_are_asked_for(model, reader):
    results = asc.analyze(model, TEXTS, ["attention_entropy", "sink_share"], tokenizer=reader)
    assert set(results) == {"samples", "heads", "head_means"}
    with_vectors = asc.analyze(
        model, TEXTS, ["attention_entropy", "sink_share"], tokenizer=reader, vectors=True
    )
    assert set(with_vectors) == {"samples", "heads", "head_means", "vectors", "head_mean_vectors"}
    pd.testing.assert_frame_equal(results["heads"], with_vectors["heads"])
    # a metric that has nothing else is asked for by its name
    assert "vectors" in asc.analyze(model, TEXTS, ["laplacian_eigenvalues"], tokenizer=reader)


@pytest.mark.parametrize(
    ("function", "metrics", "options", "message"),
    [
        (
            "analyze",
            ["fiedlr_value"],
            {},
            "analyze: unknown metric 'fiedlr_value'; did you mean 'fiedler_value'",
        ),
        ("features", ["fiedlr_value"], {}, "features: unknown metric 'fiedlr_value'"),
        (
            "analyze",
            ["fiedler_value"],
            {"colour": 1},
            "analyze: none of the metrics fiedler_value takes .*'colour'",
        ),
        ("features", ["span_attention"], {}, "features: span_attention reads special_keys"),
    ],
)
def test_errors_begin_with_the_function_that_was_called(model, reader, function, metrics, options, message):
    with pytest.raises((ValueError, TypeError), match=f"^{message}"):
        getattr(asc, function)(model, TEXTS, metrics, tokenizer=reader, **options)
