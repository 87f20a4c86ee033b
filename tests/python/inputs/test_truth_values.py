# SPDX-License-Identifier: MIT
"""Arguments that are True or False at every public function: nothing else stands for a truth value, and a
truth value stands for no number."""

import inspect
import re

import numpy as np
import pytest
import torch

import attnscope as asc
from attnscope import plots, protocols, statistics
from attnscope.engine.executors.shards import gather
from every_call import every_call
from models import text, tiny

CALLS = {name: (function, arguments) for name, function, arguments in every_call()}
#: "false" and 2 would count as true; 1 and 0 are refused by torch and scikit-learn too.
NO_TRUTH_VALUES = ["false", "", 2, 1, 0, 0.0, np.int64(1), torch.tensor(1), np.ones(2), [True]]
TRUTH_VALUES = [True, np.True_, torch.tensor(True), False, np.False_, torch.tensor(False)]


def parameters(function, kind):
    return [
        parameter.name
        for parameter in inspect.signature(function).parameters.values()
        if re.search(rf"\b{kind}\b", str(parameter.annotation))
        and parameter.kind is not parameter.VAR_KEYWORD
    ]


def flags(kind="bool"):
    return [(name, flag) for name, (function, _) in CALLS.items() for flag in parameters(function, kind)]


def outcome(function, arguments):
    """Return the call's result or its error as text, with every digit that is shown."""
    try:
        return str(function(**arguments))
    except (ValueError, TypeError) as error:
        return str(error)


def test_there_are_a_hundred_flags():
    assert len(flags()) > 100


@pytest.mark.parametrize(("name", "flag"), flags())
@pytest.mark.filterwarnings("ignore")
def test_nothing_else_stands_for_a_truth_value(name, flag):
    function, arguments = CALLS[name]
    public = name.removeprefix("statistics.").removeprefix("protocols.")
    for value in NO_TRUTH_VALUES:
        with pytest.raises(TypeError, match=f"{flag} must be True or False, got ") as caught:
            function(**arguments | {flag: value})
        assert str(caught.value) == f"{public}: {flag} must be True or False, got {value!r}"


@pytest.mark.parametrize(("name", "flag"), flags())
@pytest.mark.filterwarnings("ignore")
def test_truth_values_of_numpy_and_torch_count(name, flag):
    function, arguments = CALLS[name]
    for value in TRUTH_VALUES:
        expected = outcome(function, arguments | {flag: bool(value)})
        assert outcome(function, arguments | {flag: value}) == expected, value


@pytest.mark.parametrize(("name", "number"), flags("int|float"))
@pytest.mark.filterwarnings("ignore")
def test_a_truth_value_is_no_number(name, number):
    function, arguments = CALLS[name]
    for value in (True, np.True_, torch.tensor(True)):
        with pytest.raises((TypeError, ValueError), match=f"{number}.*(True|bool)"):
            function(**arguments | {number: value})


MODEL = tiny("llama", attn_implementation="eager")
INPUTS = text(MODEL, batch=1, n=9)["input_ids"]
DIRECTION = torch.ones(MODEL.config.hidden_size)
BLOCK = MODEL.model.layers[0]
MASKED = {"input_ids": INPUTS, "attention_mask": torch.ones_like(INPUTS)}


def features_of_answers(**flag):
    probe = asc.AttentionFeatures(MODEL, metrics=["lookback"], **flag)
    return probe.fit(INPUTS.tolist())


OF_MODELS = {
    "analyze": lambda **flag: asc.analyze(MODEL, INPUTS, "sink_share", **flag),
    "features": lambda **flag: asc.features(MODEL, INPUTS, ["lookback"], answers=[(2, 6)], **flag),
    "AttentionFeatures": features_of_answers,
    "capture": lambda **flag: asc.capture(MODEL, **flag),
    "detection": lambda **flag: asc.detection([[0.0], [1.0]] * 4, [0, 1] * 4, folds=[0, 1] * 4, **flag),
    "effective_unembedding": lambda **flag: asc.effective_unembedding(MODEL, **flag),
    "fisher_trace": lambda **flag: asc.fisher_trace(MODEL, [{"input_ids": INPUTS}], **flag),
    "ruscio2025.fisher_trace": lambda **flag: protocols.ruscio2025.fisher_trace(
        MODEL, [{"input_ids": INPUTS}], **flag
    ),
    "second_moments": lambda **flag: asc.second_moments(MODEL, INPUTS.tolist(), **flag),
    "mean_intervals": lambda **flag: statistics.mean_intervals([[1.0, 2.0, 3.0, 4.0, 5.0]], **flag),
    "fisher": lambda **flag: protocols.ruscio2026.fisher(MODEL, MASKED, BLOCK, DIRECTION, **flag),
    "grad_alignment": lambda **flag: protocols.ruscio2026.grad_alignment(
        MODEL, MASKED, BLOCK, DIRECTION, **flag
    ),
    "attention_map": lambda **flag: plots.attention_map(torch.eye(3), **flag),
    "layer_head_map": lambda **flag: plots.layer_head_map(np.ones((2, 2)), **flag),
    "view": lambda **flag: asc.view(torch.eye(4)[None, None], **flag),
    "run": lambda **flag: asc.run("no study", **flag),
    "resume": lambda **flag: asc.resume("no folder", **flag),
    "gather": lambda **flag: gather(["no folder"], **flag),
}
FUNCTIONS = {
    "ruscio2025.fisher_trace": protocols.ruscio2025.fisher_trace,
    "gather": gather,
    "mean_intervals": statistics.mean_intervals,
    "fisher": protocols.ruscio2026.fisher,
    "grad_alignment": protocols.ruscio2026.grad_alignment,
    "attention_map": plots.attention_map,
    "layer_head_map": plots.layer_head_map,
}


@pytest.mark.parametrize("name", OF_MODELS)
def test_nothing_else_stands_for_a_truth_value_where_models_are_read(name):
    flags = parameters(FUNCTIONS[name] if name in FUNCTIONS else getattr(asc, name), "bool")
    assert flags
    for flag in flags:
        for value in ("false", 2, 1, 0):
            with pytest.raises(TypeError) as caught:
                OF_MODELS[name](**{flag: value})
            says = str(caught.value).replace("AttentionFeatures", name).replace("features", name)
            assert says == f"{name}: {flag} must be True or False, got {value!r}"


def test_saved_results_are_replaced_by_true_alone(tmp_path):
    results = asc.analyze(MODEL, INPUTS, "sink_share")
    results.save(tmp_path / "saved")
    with pytest.raises(TypeError, match="save: overwrite must be True or False, got 'no'"):
        results.save(tmp_path / "saved", overwrite="no")
    results.save(tmp_path / "saved", overwrite=np.True_)


def test_truth_values_and_complex_numbers_are_no_scales():
    bars = asc.persistence(torch.softmax(torch.randn(6, 6), -1))
    for scales in (True, torch.tensor([True]), np.array([True]), torch.tensor([0.5 + 1j]), 0.5 + 1j):
        with pytest.raises(TypeError, match="betti_curve: scales must hold real numbers, got "):
            asc.betti_curve(bars, scales)


def test_a_truth_value_is_no_mask():
    maps = torch.softmax(torch.randn(2, 6, 6), -1)
    calls = {
        "support": lambda value: asc.sink_share(maps, support=value),
        "keys": lambda value: asc.sink_removal(maps, value),
        "reference": lambda value: asc.reference_influence(maps, torch.ones(6, 2), value),
    }
    for name, call in calls.items():
        for value in TRUTH_VALUES:
            with pytest.raises(
                ValueError, match=f"{name} must be a boolean tensor with an axis, got {bool(value)}"
            ):
                call(value)


def test_a_number_of_columns_may_be_a_tensor_without_an_axis():
    matrix, basis = torch.randn(4, 3), torch.eye(3)
    expected = asc.subspace_fraction(matrix, basis, k=2).fraction
    for k in (torch.tensor(2), np.array(2), np.int64(2)):
        assert torch.equal(asc.subspace_fraction(matrix, basis, k=k).fraction, expected)
