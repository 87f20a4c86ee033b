# SPDX-License-Identifier: MIT
"""Every function that takes a tokenizer names an argument that is none."""

import pytest

import attnscope as asc
import models
from attnscope.demo.texts import byte_tokenizer
from attnscope.protocols import ruscio2023, ruscio2025, ruscio2026

TEXTS = ["the cat sat", "a dog"]
IDS = {"input_ids": [[5, 6, 7, 8]]}
#: Functions of a model and a tokenizer: those that need one, and those that take token ids too.
NEED = {
    "replacements": lambda model, it: asc.replacements(model, IDS, [[1, 3]], ["lowest"], tokenizer=it),
    "ruscio2023.find_span": lambda _, it: ruscio2023.find_span(it, [1, 2, 3], "cat"),
    "ruscio2026.uncertain_tokens": lambda _, it: ruscio2026.uncertain_tokens(it),
}
MAY_NEED = {
    "token_likelihood": lambda model, it: asc.token_likelihood(model, IDS, tokenizer=it),
    "word_likelihood": lambda model, it: asc.word_likelihood(model, IDS, [[1, 3]], tokenizer=it),
    "fisher_trace": lambda model, it: asc.fisher_trace(model, TEXTS, tokenizer=it),
    "ruscio2025.fisher_trace": lambda model, it: ruscio2025.fisher_trace(model, TEXTS, tokenizer=it),
    "second_moments": lambda model, it: asc.second_moments(model, TEXTS, tokenizer=it),
    "analyze": lambda model, it: asc.analyze(model, TEXTS, ["attention_entropy"], tokenizer=it),
    "view": lambda model, it: asc.view(model, TEXTS[0], tokenizer=it),
}


WRONG = {"a number": 7, "of tokenizers": byte_tokenizer().backend_tokenizer}
CASES = [(name, kind) for name in (*NEED, *MAY_NEED) for kind in WRONG] + [(name, "nothing") for name in NEED]


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_what_is_no_tokenizer_is_named(name, kind):
    call, tokenizer = {**NEED, **MAY_NEED}[name], WRONG.get(kind)
    with pytest.raises(TypeError, match=rf"^{name}: tokenizer must be one of transformers") as raised:
        call(models.cached_model("llama"), tokenizer)
    assert f"got {tokenizer!r:.60}" in str(raised.value)
