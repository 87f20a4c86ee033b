# SPDX-License-Identifier: MIT
"""Adapters of unknown origin: patterns that would never end, configurations and factors of another form."""

import contextlib
import json
import re
import time
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

import attnscope as asc
from attnscope.models.name_patterns import Steps, matches
from weight_models import tiny

transformers = pytest.importorskip("transformers")

MODULE = "model.layers.0.self_attn.q_proj"


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    transformers.utils.logging.disable_progress_bar()
    folder = tmp_path_factory.mktemp("base")
    model = tiny("llama")
    model.save_pretrained(folder)
    return folder, tuple(model.get_submodule(MODULE).weight.shape)


def adapter(folder, shape, left=(None, 3), right=(3, None), config=None, **extra):
    """An adapter of one module; None in a shape is the module's own size."""
    folder.mkdir()
    sizes = [
        [shape[at] if size is None else size for at, size in enumerate(sizes)] for sizes in (left, right)
    ]
    tensors = {
        f"base_model.model.{MODULE}.lora_{side}.weight": torch.randn(size)
        for side, size in zip("BA", sizes, strict=True)
    }
    save_file(tensors | extra, folder / "adapter_model.safetensors")
    if not isinstance(config, bytes):
        config = json.dumps(config or {"peft_type": "LORA", "r": 3}).encode()
    (folder / "adapter_config.json").write_bytes(config)
    return folder


def one_line(before, after):
    with pytest.raises(ValueError) as caught:
        list(asc.weight_deltas(before, after))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1500
    return str(caught.value)


@pytest.mark.parametrize("option", ["rank_pattern", "alpha_pattern"])
@pytest.mark.parametrize(
    "pattern",
    [r"(([a-z_.0-9]+)+)+!", "(a|a)*" * 20 + "!", "(.*)*" * 30 + "!", "(x?){999}" * 20, "(.*.*.*)*!"],
)
def test_patterns_end(base, tmp_path, option, pattern):
    """Python's own engine tries 2^31 ways on the first."""
    folder, shape = base
    config = {"peft_type": "LORA", "r": 3, option: {pattern: 3}}
    began = time.process_time()
    # what would match nothing is known soon, what takes too many steps is refused
    with contextlib.suppress(ValueError):
        assert len(list(asc.weight_deltas(folder, adapter(tmp_path / "a", shape, config=config)))) == 1
    assert time.process_time() - began < 20


@pytest.mark.parametrize(
    "config",
    [
        b"",
        b"null",
        b"[]",
        b"1",
        b'"LORA"',
        b"\xff",
        b"[" * 100_000,
        b"{}",
        *(
            json.dumps({"peft_type": "LORA", "r": 3, **changes}).encode()
            for changes in (
                {"peft_type": None},
                {"peft_type": []},
                {"peft_type": "IA3\n" * 999},
                {"r": "3"},
                {"init_lora_weights": "pissa\n" * 999},
                {"r": None},
                {"r": [3]},
                {"r": 10**400},
                {"lora_alpha": "x"},
                {"lora_alpha": []},
                {"lora_alpha": None},
                {"lora_alpha": True},
                {"lora_alpha": 10**400},
                {"rank_pattern": [1]},
                {"rank_pattern": "q"},
                {"rank_pattern": {"(": 3}},
                {"rank_pattern": {"(?=q)": 3}},
                {"rank_pattern": {r"(q)\1": 3}},
                {"rank_pattern": {"q" * 1000: 3}},
                {"alpha_pattern": {"q_proj": {}}},
            )
        ),
    ],
    ids=lambda config: repr(config[:60]),
)
def test_configurations_of_another_form_are_refused_in_one_line(base, tmp_path, config):
    folder, shape = base
    one_line(folder, adapter(tmp_path / "a", shape, config=config))


def test_the_name_of_a_base_is_one_short_line_of_the_warning(base, tmp_path):
    folder, shape = base
    config = {"peft_type": "LORA", "r": 3, "base_model_name_or_path": "else\nwhere" * 999}
    with pytest.warns(RuntimeWarning, match="was trained on") as caught:
        assert len(list(asc.weight_deltas(folder, adapter(tmp_path / "a", shape, config=config)))) == 1
    text = str(caught[0].message)
    assert "\n" not in text
    assert len(text) < 1500


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((3,), (3, None)),
        ((None, 3), (3,)),
        ((None, 3), ()),
        ((None, 3), (2, None)),
        ((None, 0), (0, None)),
        ((None, 3, 1), (3, None)),
        ((7, 3), (3, None)),
        ((None, 3), (3, 7)),
        ((0, 3), (3, None)),
    ],
)
def test_factors_of_other_shapes_are_refused_in_one_line(base, tmp_path, left, right):
    folder, shape = base
    assert MODULE in one_line(folder, adapter(tmp_path / "a", (shape[0], shape[1]), left, right))


def test_magnitudes_of_another_size_are_refused_in_one_line(base, tmp_path):
    folder, shape = base
    extra = {f"base_model.model.{MODULE}.lora_magnitude_vector": torch.ones(shape[0] + 1)}
    assert "magnitudes" in one_line(folder, adapter(tmp_path / "a", shape, **extra))


#: Patterns of the language that is understood, and a few that are none.
PATTERNS = st.recursive(
    st.sampled_from(["a", "b", ".", "[ab]", "[^a]", r"\d", r"\.", "q_proj", "^", "$", "[0-9]", "a{2}", "-"]),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map("({0[0]}|{0[1]})".format),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{,2}", "{1,}", "*?", "+?"])).map(
            "({0[0]}){0[1]}".format
        ),
        inner.map("(?:{}|)".format),
    ),
    max_leaves=6,
)


@settings(max_examples=500)
@given(PATTERNS, st.text(alphabet="ab.1q_", max_size=6))
def test_patterns_match_what_pythons_own_engine_matches(pattern, text):
    assert matches(pattern, text) is (re.fullmatch(pattern, text) is not None)


@settings(max_examples=500)
@given(st.text(alphabet=r"ab()[]{}*+?|\^$.,1-", max_size=12), st.sampled_from(["", "a", "ab", "aab1"]))
def test_any_text_as_a_pattern_is_matched_or_refused(pattern, text):
    with warnings.catch_warnings(), contextlib.suppress(ValueError, re.error):
        # Python warns of classes such as [[a], and knows no "^?", which is read here
        warnings.simplefilter("ignore")
        assert matches(pattern, text) is (re.fullmatch(pattern, text) is not None)


def test_steps_are_shared_and_bounded():
    steps = Steps(2000)
    assert not matches("(a|b)*c", "ab" * 20, steps)
    used = steps.count
    assert 0 < used < 2000
    for _ in range(2000 // used - 1):
        assert not matches("(a|b)*c", "ab" * 20, steps)
    with pytest.raises(ValueError, match="takes more than 2,000 steps"):
        matches("(a|b)*c", "ab" * 40, steps)
    with pytest.raises(ValueError, match="are not matched"):
        matches("a", "a" * 1001)
