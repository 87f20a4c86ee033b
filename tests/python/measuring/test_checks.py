# SPDX-License-Identifier: MIT
"""What every metric refuses, and the words it uses; provoked through one metric of each kind.

A warning names the line of whoever called, whichever function that was. What is not attention is named, once
and with its likely cause.
"""

import inspect
import re
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import xarray as xr

import attnscope as asc
import models
from attnscope import _checks, _core
from attnscope._warn import collect_warnings
from attnscope.arguments.row_sums import check_row_sums
from attnscope.errors import NonFiniteWarning, NotAttentionWarning


def refuses(message, attention, error=ValueError, **options):
    with pytest.raises(error, match=re.escape(message)):
        asc.fiedler_value(attention, **options)


@pytest.mark.parametrize(
    ("attention", "message"),
    [
        (torch.zeros(3), "must have at least two dimensions [..., n, n], got shape (3,)"),
        (torch.zeros(2, 4, 7, 8), "must be square in its last two dimensions, got shape (2, 4, 7, 8)"),
        (torch.zeros(2, 0, 0), "must hold at least one token, got shape (2, 0, 0)"),
        (
            torch.zeros(3, 3, dtype=torch.int64),
            "must be float16, bfloat16, float32 or float64, got torch.int64",
        ),
        (torch.zeros(3, 3, dtype=torch.complex64), "got torch.complex64"),
        (torch.zeros(3, 3, dtype=torch.bool), "got torch.bool"),
        (torch.eye(3).to_sparse(), "must be a dense tensor, got layout torch.sparse_coo"),
    ],
)
def test_shapes_and_dtypes(attention, message):
    refuses(message, attention)


def test_what_is_no_array_is_a_type_error():
    refuses("attention must be a torch.Tensor or an array, got str", "attention", TypeError)
    refuses("got list", [[1.0]], TypeError)
    message = "attention holds no memory, got a tensor of shape (3, 3) on meta"
    refuses(message, torch.zeros(3, 3, device="meta"), TypeError)


@pytest.mark.parametrize("lengths", [0, 6, -1, [3, 9]])
def test_lengths_out_of_range(lengths):
    refuses("lengths must lie between 1 and n = 5", torch.rand(2, 5, 5), lengths=lengths)


def test_lengths_of_the_wrong_kind_or_shape():
    refuses("lengths must be integers, got torch.float32", torch.rand(2, 5, 5), lengths=[2.0, 3.0])
    refuses(
        "lengths of shape (3,) do not broadcast to the leading shape (2,)",
        torch.rand(2, 5, 5),
        lengths=[1, 2, 3],
    )


@pytest.mark.parametrize("threshold", [0.0, 1.0, -0.5, 2.0, float("nan"), float("inf")])
def test_threshold_outside_the_open_interval(threshold):
    refuses("threshold must lie strictly between 0 and 1", torch.rand(5, 5), threshold=threshold)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.25, 1.5])
def test_validate_names_the_first_offending_entry(value):
    attention = torch.full((2, 3, 4, 4), 0.25)
    attention[1, 0, 2, 3] = value
    attention[1, 2, 0, 0] = value
    refuses(f"got {value} at index (1, 0, 2, 3)", attention, validate=True)


def test_validate_looks_inside_lengths_only_and_forgives_rounding():
    attention = torch.full((4, 4), 0.25)
    attention[3, 3] = torch.nan
    attention[0, 0] = 1.004
    assert asc.fiedler_value(attention, lengths=3, validate=True).isfinite()


def test_one_bad_matrix_leaves_its_neighbours_alone_and_is_counted_once():
    good = torch.softmax(torch.randn(6, 5, 5), -1)
    bad = good.clone()
    bad[1, 0, 0], bad[4, 4, 4] = torch.nan, torch.inf
    with pytest.warns(RuntimeWarning, match="fiedler_value: 2 of 6 matrices hold NaN") as record:
        result = asc.fiedler_value(bad)
    assert len(record) == 1
    assert result.isnan().tolist() == [False, True, False, False, True, False]
    expected = asc.fiedler_value(good)
    assert torch.equal(result[[0, 2, 3, 5]], expected[[0, 2, 3, 5]])


def test_numpy_arrays_are_taken_in_place_even_when_read_only():
    array = np.full((5, 5), 0.2)
    array.setflags(write=False)
    assert asc.fiedler_value(array).item() == pytest.approx(1.0)


def test_a_masked_array_is_read_only_where_it_hides_nothing():
    maps = np.full((2, 5, 5), 0.2)
    hidden = np.ma.masked_array(maps, mask=np.arange(50).reshape(maps.shape) == 7)
    refuses("attention is a masked array with 1 hidden entries", hidden)
    with pytest.raises(ValueError, match="keys is a masked array"):
        asc.sink_removal(maps, np.ma.masked_array([True, False, True, False, False], mask=[0, 0, 1, 0, 0]))
    assert torch.equal(asc.fiedler_value(np.ma.masked_array(maps)), asc.fiedler_value(maps))


def test_no_matrices_give_an_empty_result():
    assert asc.fiedler_value(torch.zeros(0, 3, 4, 4)).shape == (0, 3)


@pytest.mark.parametrize(
    ("thresholds", "expected"),
    [
        ([0.1, 0.5], [0.1, 0.5]),
        (0.25, [0.25]),
        ("1/n", [0.125]),
        (["4/n", "8/n"], [0.5, float("inf")]),
        (["2.5/n"], [0.3125]),
    ],
)
def test_thresholds(thresholds, expected):
    eight = _checks.attention_argument("f", torch.rand(8, 8))
    assert _checks.thresholds_argument("f", thresholds, eight).tolist() == expected


def test_thresholds_over_n_follow_each_maps_own_length():
    ragged = _checks.attention_argument("f", torch.rand(2, 8, 8), [4, 8])
    assert _checks.thresholds_argument("f", ["1/n", 0.5], ragged).tolist() == [[0.25, 0.5], [0.125, 0.5]]


@pytest.mark.parametrize("thresholds", [[], [0.0], [1.0], ["n/2"], ["0/n"], ["x/n"], ["-1/n"], [0.5, 1.2]])
def test_bad_thresholds(thresholds):
    with pytest.raises(ValueError, match="threshold"):
        _checks.thresholds_argument("f", thresholds, _checks.attention_argument("f", torch.rand(8, 8)))


def test_support_words_and_shapes():
    checked = _checks.attention_argument("f", torch.rand(3, 4, 4))
    assert _checks.support_argument("f", "causal", checked) == "causal"
    with pytest.raises(ValueError, match="support must be one of 'auto', 'causal', 'full', got 'lower'"):
        _checks.support_argument("f", "lower", checked)
    with pytest.raises(ValueError, match=r"support must be boolean, got torch\.float32"):
        _checks.support_argument("f", torch.ones(4, 4), checked)
    with pytest.raises(ValueError, match=re.escape("support of shape (5, 5) does not broadcast")):
        _checks.support_argument("f", torch.ones(5, 5, dtype=torch.bool), checked)


@pytest.mark.parametrize(
    "thresholds",
    [np.float32(0.5), np.array(0.5), np.array([[0.5]]), torch.tensor(0.5), pd.Series([0.5]), iter([0.5])],
    ids=["numpy number", "0-d array", "2-d array", "0-d tensor", "series", "generator"],
)
def test_thresholds_of_every_kind(thresholds):
    result = asc.betti_numbers(torch.full((3, 3), 0.5), thresholds)
    assert result.tolist() == [[1, 0]]


def test_a_table_is_an_array():
    table = pd.DataFrame(np.full((4, 4), 0.25))
    assert asc.fiedler_value(table).item() == pytest.approx(1.0)
    assert asc.fiedler_value(xr.DataArray(table)).item() == pytest.approx(1.0)


def test_a_wrong_name_of_the_package_says_the_right_one():
    with pytest.raises(AttributeError, match="no attribute 'fiedlr_value'; did you mean 'fiedler_value'"):
        asc.fiedlr_value  # noqa: B018
    with pytest.raises(AttributeError, match=r"has no attribute 'zzz'$"):
        asc.zzz  # noqa: B018


def test_a_plain_batch_is_taken_as_it_is_and_anything_else_is_looked_at():
    maps = torch.rand(2, 4, 4)
    assert _checks.square_tensor("f", "attention", maps) is maps
    assert _core.is_plain_batch(maps[:, ::2, ::2].mT)
    assert not _core.is_plain_batch(maps.clone().requires_grad_())
    assert not _core.is_plain_batch(torch._neg_view(maps))
    assert not _core.is_plain_batch(torch.nn.Parameter(maps, requires_grad=False))
    for other in (maps[0, 0], maps[:, :3], maps[:, :0, :0], maps.long(), maps.cfloat(), maps.to_sparse()):
        assert not _core.is_plain_batch(other)
    for other in (maps.to("meta"), maps.numpy(), maps.tolist(), None, "attention"):
        assert not _core.is_plain_batch(other)


def test_a_read_only_array_is_read_without_a_word(fresh):
    """As pandas gives columns; torch says it once per process, so a process of its own is asked."""
    script = (
        "import warnings, numpy as np, torch; from attnscope import _checks\n"
        "warnings.simplefilter('error')\n"
        "values = np.arange(6.0); values.flags.writeable = False\n"
        "tensor = _checks.as_tensor('f', 'x', values)\n"
        "assert tensor.data_ptr() == values.ctypes.data and tensor.tolist() == values.tolist()"
    )
    done = fresh(script)
    assert done.returncode == 0, done.stderr


NOT_FINITE = torch.full((2, 4, 4), float("nan"))


def captured():
    model = models.tiny("llama")
    for name, weights in model.named_parameters():
        if "layers.1.self_attn.q_proj" in name:
            weights.data.fill_(float("nan"))
    return asc.analyze(model, torch.arange(6)[None], ["fiedler_value"])


@pytest.mark.parametrize(
    "call",
    [
        lambda: asc.fiedler_value(NOT_FINITE),
        lambda: asc.stable_rank(NOT_FINITE),
        lambda: asc.measure(NOT_FINITE, "stable_rank"),
        lambda: asc.measure(NOT_FINITE, ["betti_numbers"], thresholds=[0.1]),
        lambda: asc.marchenko_pastur_deviation(torch.full((4, 4), 0.25)),
        lambda: asc.protocols.ruscio2025.marchenko_pastur_deviation(NOT_FINITE),
        lambda: asc.transformation_magnitude(torch.tensor([[float("nan")]]), torch.zeros(1, 1)),
        captured,
    ],
)
def test_the_callers_line_is_named(call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    lines, first = inspect.getsourcelines(call)
    assert caught
    for warning in caught:
        assert warning.filename == __file__, f"{warning.filename}:{warning.lineno}"
        assert first <= warning.lineno < first + len(lines)


LOGITS = torch.randn(2, 4, 9, 9, generator=torch.Generator().manual_seed(0))
MAPS = LOGITS.softmax(-1)
HIDDEN = torch.ones(9, 9).triu(1).bool()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (LOGITS, "rows of 8 of 8 maps .* logits, which softmax"),
        (LOGITS.masked_fill(HIDDEN, -torch.inf), "look like logits"),
        (100 * MAPS, r"the first: 100\): they look like percent"),
        (MAPS / 2, r"the first: 0.5\): queries of padding .* learned sink"),
        (MAPS.mT, "columns do, so the maps look transposed"),
        (3 * MAPS, "divide each row by its sum"),
    ],
)
def test_the_cause_is_named(value, words):
    with pytest.warns(NotAttentionWarning, match=words):
        asc.sink_share(value)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_attention_of_any_type_is_passed_without_a_word(dtype):
    causal = LOGITS.masked_fill(HIDDEN, -torch.inf).softmax(-1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", NotAttentionWarning)
        for maps in (MAPS, causal, torch.cat([MAPS, torch.zeros_like(MAPS)])):
            asc.attention_entropy(maps.to(dtype))


def test_the_last_row_of_each_length_is_the_one_that_is_looked_at():
    maps = MAPS.clone()
    maps[0, 0, 5:] = 0
    maps[0, 0, :, 5:] = 0
    maps[0, 0, :5] /= maps[0, 0, :5].sum(-1, keepdim=True)
    lengths = torch.full((2, 4), 9)
    lengths[0, 0] = 5
    with warnings.catch_warnings():
        warnings.simplefilter("error", NotAttentionWarning)
        asc.sink_share(maps, lengths=lengths)
    with pytest.warns(NotAttentionWarning, match="rows of 7 of 8 maps"):
        asc.sink_share(MAPS, lengths=torch.where(lengths == 5, 9, 5))


def test_rows_that_are_not_numbers_are_another_warnings_matter():
    maps = MAPS.clone()
    maps[0, 0, -1, 0] = torch.nan
    maps[0, 1, -1, 0] = torch.inf
    with warnings.catch_warnings():
        warnings.simplefilter("error", NotAttentionWarning)
        assert check_row_sums("f", maps, None) is None


def test_a_million_views_of_one_map_are_judged_by_some():
    many_views = (MAPS[0, 0] * 2).expand(2**20, 9, 9)
    with pytest.warns(NotAttentionWarning, match="rows of 64 of 64 maps"):
        check_row_sums("f", many_views, None)


def test_singular_values_are_of_any_matrix():
    with warnings.catch_warnings():
        warnings.simplefilter("error", NotAttentionWarning)
        asc.singular_values(LOGITS)


def test_validate_refuses_what_is_not_attention_but_not_a_learned_sinks_rows():
    even = torch.full((2, 4, 4), 0.375)
    with pytest.raises(ValueError, match="columns do, so the maps look transposed"):
        asc.sink_share(MAPS.mT, validate=True)
    with pytest.raises(ValueError, match=r"rows of 2 of 2 maps do not sum to 1 \(the first: 1.5\): divide"):
        asc.sink_share(even, validate=True)
    with pytest.warns(NotAttentionWarning, match="learned sink"):
        asc.sink_share(MAPS * 0.5, validate=True)


def test_maps_of_several_metrics_are_looked_at_once(monkeypatch):
    looked = []
    monkeypatch.setattr("attnscope.arguments.row_sums._is_off", lambda maps, *_: bool(looked.append(maps)))
    # with lengths, because the core looks at maps without any option itself
    lengths = MAPS.shape[-1]
    asc.measure(MAPS, ["sink_share", "attention_entropy", "local_global_ratio"], lengths=lengths)
    assert len(looked) == 1
    asc.measure(MAPS, ["sink_share"], lengths=lengths)
    assert len(looked) == 2
    asc.sink_share(MAPS, lengths=lengths)
    asc.sink_share(MAPS, lengths=lengths)
    assert len(looked) == 4


def test_the_core_knows_maps_that_need_no_other_check():
    uniform = torch.full((2, 3, 8, 8), 1 / 8)
    most = (9, 7)  # tokens and maps
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        assert _core.is_usual_attention(uniform.to(dtype), *most, 0.02)
        assert _core.is_usual_attention(uniform.to(dtype).mT, *most, 0.02)
    assert not _core.is_usual_attention(uniform, 8, 7, 0.02)
    assert not _core.is_usual_attention(uniform, 9, 6, 0.02)
    for value in (1.021, 0.979, float("nan"), float("inf"), -1.0):
        off = uniform.clone()
        off[-1, -1, -1] *= value
        assert not _core.is_usual_attention(off, *most, 0.02)
    off[-1, -1, -1] = 1 / 8 * 1.019
    assert _core.is_usual_attention(off, *most, 0.02)
    for other in (
        uniform[0, :0],
        uniform[..., :4],
        uniform[0, 0, 0],
        uniform.int(),
        uniform.requires_grad_(),
        "x",
    ):
        assert not _core.is_usual_attention(other, *most, 0.02)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize(
    "metric", [asc.incoming_attention, asc.sink_share, asc.attention_entropy, asc.local_global_ratio]
)
def test_a_call_without_options_gives_the_bits_of_one_that_checks_every_entry(metric, dtype):
    maps = torch.rand(2, 3, 20, 20, generator=torch.Generator().manual_seed(0)).tril()
    maps = (maps / maps.sum(-1, keepdim=True)).to(dtype)
    torch.testing.assert_close(metric(maps), metric(maps, validate=True), rtol=0, atol=0)


def test_options_of_entropy_and_locality_are_not_taken_for_a_call_without():
    maps = torch.ones(4, 4, dtype=torch.float64).tril()
    maps /= maps.sum(-1, keepdim=True)
    bits = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64).log2()
    torch.testing.assert_close(asc.attention_entropy(maps, base=2), bits)
    torch.testing.assert_close(asc.attention_entropy(maps, normalized=True)[1:], torch.ones(3).double())
    # a quarter of four keys is a window of one token
    near, far = torch.tensor([1 + 1 + 2 / 3 + 1 / 2, 1 / 3 + 1 / 2], dtype=torch.float64)
    torch.testing.assert_close(asc.local_global_ratio(maps, window=0.25), near / far)


def test_a_window_of_more_digits_than_a_float_holds_is_refused_as_before():
    with pytest.raises(TypeError, match="window must be a number"):
        asc.local_global_ratio(torch.eye(4), window=10**400)


def with_nan(tensor):
    """Return a copy whose entry [..., 5, 2] of the first part is NaN."""
    non_finite = tensor.clone()
    non_finite.reshape(-1, *tensor.shape[-2:])[0, 5, 2] = torch.nan
    return non_finite


SOURCE = torch.Generator().manual_seed(8)
STATES = torch.randn(2, 3, 12, 8, generator=SOURCE)
SCORES = torch.randn(2, 3, 12, 12, generator=SOURCE)
WEIGHTS = torch.randn(2, 12, 8, generator=SOURCE)
PROJECTION = torch.randn(16, 3, 8, generator=SOURCE)
AXES = torch.eye(8)
#: Calls of what is no metric of maps with one input that is not finite, and what the warning counts.
GIVE_NAN_FOR_NON_FINITE = {
    "offset_fit": (lambda: asc.offset_fit(with_nan(SCORES)), "1 of 6 matrices"),
    "toeplitz_split": (lambda: asc.toeplitz_split(with_nan(SCORES)), "1 of 6 matrices"),
    "rope_bands": (
        lambda: asc.rope_bands(STATES, with_nan(STATES), bands=2, layout="half", scaling=0.3),
        "1 of 6 heads",
    ),
    "value_norms": (lambda: asc.value_norms(with_nan(STATES), PROJECTION), "1 of 72 values"),
    "value_norms, layer": (
        lambda: asc.value_norms(with_nan(STATES), PROJECTION, layer=True),
        "1 of 72 values",
    ),
    "value_norms, projection": (
        lambda: asc.value_norms(STATES, with_nan(PROJECTION.mT).mT.contiguous()),
        "24 of 72 values",
    ),
    "weighted_attention": (
        lambda: asc.weighted_attention(SCORES.softmax(-1), with_nan(STATES)[..., 2]),
        "1 of 72 norms",
    ),
    "attention_rollout": (
        lambda: asc.attention_rollout(with_nan(SCORES).softmax(-1)[:, None]),
        "1 of 1 texts",
    ),
    "harmonic_distortion": (lambda: asc.harmonic_distortion(with_nan(SCORES), 2.0), "1 of 72 signals"),
    "recurrent_uncertainty": (
        lambda: asc.recurrent_uncertainty(
            with_nan(SCORES[:, :, None, :, :].sigmoid())[:, :, 0], -SCORES[:, 0, 0].abs()
        ),
        "1 of 2 texts",
    ),
    "position_share": (lambda: asc.position_share(with_nan(STATES)), "1 of 6 texts"),
    "subspace_fraction": (lambda: asc.subspace_fraction(with_nan(WEIGHTS), AXES), "1 of 2 matrices"),
    "concentration": (lambda: asc.concentration(with_nan(WEIGHTS), AXES), "1 of 2 matrices"),
    "relative_subspace_fraction": (
        lambda: asc.relative_subspace_fraction(with_nan(WEIGHTS), right=AXES[:, :2]),
        "1 of 2 matrices",
    ),
    "alignment_gain": (lambda: asc.alignment_gain(with_nan(WEIGHTS), AXES, side="in"), "1 of 2 matrices"),
    "alignment_gain, factors": (
        lambda: asc.alignment_gain(asc.LowRank(with_nan(WEIGHTS[0]), AXES), AXES, side="in"),
        "1 of 1 matrices",
    ),
}


@pytest.mark.parametrize("name", GIVE_NAN_FOR_NON_FINITE)
def test_an_input_that_is_not_finite_is_counted_in_one_warning(name):
    call, counted = GIVE_NAN_FOR_NON_FINITE[name]
    function = name.split(",")[0]
    with pytest.warns(NonFiniteWarning, match=f"^{function}: {counted}") as warned:
        call()
    assert len(warned) == 1
    assert warned[0].filename == __file__


def test_a_layer_with_an_entry_that_is_not_finite_has_no_head():
    previous = torch.full((3, 2, 4), 0.5)
    previous[1, 0, 2] = torch.nan
    with pytest.warns(NonFiniteWarning, match="recurrent_uncertainty: 1 of 1 texts"):
        result = asc.recurrent_uncertainty(previous, torch.full((4,), -1.0))
    assert result.head.tolist() == [0, -1, 0]
    assert result.layers.isnan().tolist() == [False, True, False]
    assert bool(result.value.isnan())


@pytest.mark.parametrize("columns", [False, True])
def test_a_call_of_many_metrics_warns_once_of_one_fault(columns):
    nan = MAPS.clone()
    nan[0, 0, 3, 3] = torch.nan
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asc.measure(nan * 0.5, columns=columns)
    words = [str(warning.message).split(": ", 1) for warning in caught]
    faults = [fault for _, fault in words]
    assert len(faults) == len(set(faults)), faults
    subjects = {fault[:25]: subject for subject, fault in words if subject.startswith("measure (")}
    assert set(subjects) == {"1 of 8 matrices hold NaN ", "rows of 8 of 8 maps do no"}
    assert all(
        re.fullmatch(r"measure \(\w+, \w+, \w+ and others\)", subject) for subject in subjects.values()
    )
    assert {Path(warning.filename).name for warning in caught} == {"test_checks.py"}


def test_a_fault_of_few_metrics_names_them_and_that_of_one_is_its_own():
    off = MAPS * 0.5
    for metrics, subject in (
        (["fiedler_value"], "fiedler_value"),
        (["fiedler_value", "sink_excess"], "fiedler_value and sink_excess"),
        (["fiedler_value", "sink_excess", "fiedler_vector"], "fiedler_value, sink_excess and fiedler_vector"),
    ):
        with pytest.warns(NotAttentionWarning) as warned:
            asc.measure(off, metrics)
        assert [str(warning.message).split(":")[0] for warning in warned] == [subject]


def test_warnings_before_an_error_are_given_and_collectors_see_single_metrics():
    off = MAPS * 0.5
    with pytest.warns(NotAttentionWarning), pytest.raises(ValueError, match="head_divergence"):
        asc.measure(off[0, 0], ["fiedler_value", "head_divergence"])
    with collect_warnings() as collected:
        asc.measure(off, ["fiedler_value", "fiedler_vector"])
    assert [warning.function for warning in collected] == ["fiedler_value", "fiedler_vector"]
