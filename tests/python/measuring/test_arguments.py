# SPDX-License-Identifier: MIT
"""Any tensor and any argument at every metric of one map: a result of the documented type and shape, or a
ValueError, TypeError or MemoryError that begins with the name of the function; nothing else, and no crash."""

import inspect
import math
import os
import re
import signal
import warnings

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import attnscope as asc
from attnscope import _memory
from attnscope.cli.doctor import _public

#: `.ci/sanitize module`, which loads the library before everything else.
UNDER_ASAN = "libasan" in os.environ.get("LD_PRELOAD", "")
# Functions of attention maps; those of barcodes have tests of their own.
METRICS = sorted(
    name
    for name, metric in _public().items()
    if next(iter(inspect.signature(metric).parameters)) in ("attention", "heads")
    # of more than one map, or of states before and after: test_arguments_elsewhere.py
    and name not in ("entropy_magnitude_correlation", "scale_sensitivity")
)
quick = settings(
    max_examples=int(os.environ.get("ATTNSCOPE_EXAMPLES", "5")),
    suppress_health_check=list(HealthCheck),
)


class Subclass(torch.Tensor):
    pass


def call(name, value, **options):
    """What `said` gives, without its warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return error_text(name, value, **options)


def error_text(name, value, **options):
    """The metric with plain values for the arguments that have no default."""
    metric = getattr(asc, name)
    shape = () if getattr(value, "is_nested", False) else tuple(getattr(value, "shape", ()))
    n = shape[-1] if shape else 3
    plain = {
        "thresholds": [0.1, 0.5],
        "states": torch.ones(n, 2),
        "before": torch.ones(n, 2),
        "after": torch.zeros(n, 2),
        "keys": [0],
        "spans": [0, 1],
        "answer": [0, 1],
        "pattern": "first",
        "norms": torch.ones(n),
        "reference": torch.arange(n) < 1,
        "scales": [1.0, 4.0],
    }
    parameters = list(inspect.signature(metric).parameters.values())[1:]
    for parameter in parameters:
        if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD:
            options.setdefault(parameter.name, plain[parameter.name])
    return metric(value, **options)


def tensors_of(result):
    if isinstance(result, torch.Tensor):
        return [result]
    fields = result if isinstance(result, tuple) else vars(result).values()
    return [field for field in fields if isinstance(field, torch.Tensor)]


def look_at(name, result, has_gradient=False):
    """The documented types, on the CPU, without a gradient unless the argument has one."""
    tensors = tensors_of(result)
    assert tensors, f"{name} gives no tensor"
    for tensor in tensors:
        dtypes = (torch.float64, torch.int64, torch.bool, torch.int32, torch.int8)
        assert type(tensor) is torch.Tensor, f"{name} gives a {type(tensor).__name__}"
        assert tensor.dtype in dtypes, f"{name} gives {tensor.dtype}"
        assert tensor.device.type == "cpu"
        assert not tensor.requires_grad or has_gradient


def answered(name, value, **options):
    """The result, or None after a documented error."""
    failed = None
    try:
        result = call(name, value, **options)
    except (ValueError, TypeError, MemoryError) as error:
        failed = error
    if failed is not None:
        words = str(failed)
        documented = (
            words.startswith((name, "measure", "results of shape", "laplacian_eigenvalues"))
            or "unexpected keyword" in words
        )
        assert documented, f"{type(failed).__name__}: {words}"
        return None
    look_at(name, result, has_gradient=getattr(value, "requires_grad", False))
    return result


base = torch.softmax(torch.randn(2, 9, 9, generator=torch.Generator().manual_seed(5)), -1)
with torch.inference_mode():
    inference = base.clone()
# Tensors that hold `base` in another way: the answer is the same.
SAME_NUMBERS = {
    "float64": base.double(),
    "requires_grad": base.clone().requires_grad_(),
    "parameter": torch.nn.Parameter(base),
    "subclass": base.as_subclass(Subclass),
    "inference": inference,
    "negative bit": torch._neg_view(-base),
    "imaginary part": torch.complex(base, -base).conj().imag,
    "numpy": base.numpy(),
    "transposed memory": base.mT.contiguous().mT,
    "every other": torch.stack([base, base * torch.nan], -1)[..., 0],
    "twice a slice": torch.nn.functional.pad(base, (1, 1, 2, 0), value=torch.nan)[:, 2:, 1:-1],
}
# What is refused in words.
#: Functions that take the last rows of causal maps too.
OF_LAST_ROWS = ("lookback", "prompt_divergence")
REFUSED = {
    "None": None,
    "text": "attention",
    "a list": [[1.0]],
    "a number": 3.0,
    "integers": torch.ones(3, 3, dtype=torch.int64),
    "booleans": torch.ones(3, 3, dtype=torch.bool),
    "complex": torch.complex(base, base),
    "conjugate": torch.complex(base, base).conj(),
    "float8": base.to(torch.float8_e4m3fn),
    "scalar": torch.tensor(1.0),
    "one axis": base[0, 0],
    "more queries than keys": base[..., :3],
    "no tokens": torch.zeros(2, 0, 0),
    "sparse": base.to_sparse(),
    "compressed rows": base[0].to_sparse_csr(),
    "meta": base.to("meta"),
    "quantised": torch.quantize_per_tensor(base, 0.1, 0, torch.quint8),
    "nested": torch.nested.nested_tensor([base[0], base[1, :4, :4]]),
    "objects": np.array([[object()]]),
    "words": np.array([["a"]]),
    "long double": base.numpy().astype(np.longdouble),
    "other byte order": base.numpy().astype(">f4"),
    "negative strides": base.numpy()[:, ::-1, ::-1],
}


def equal(a, b):
    return all(
        torch.equal(x.nan_to_num(-7.0), y.nan_to_num(-7.0))
        for x, y in zip(tensors_of(a), tensors_of(b), strict=True)
    )


@pytest.mark.parametrize("name", METRICS)
def test_the_same_numbers_in_another_tensor_give_the_same_result(name):
    expected = call(name, base)
    look_at(name, expected)
    for kind, value in SAME_NUMBERS.items():
        result = call(name, value)
        look_at(name, result, has_gradient=kind in ("requires_grad", "parameter"))
        # A float64 map is the same numbers in another precision, in which ties and sums round otherwise.
        if kind != "float64":
            assert equal(result, expected), kind


@pytest.mark.parametrize("name", METRICS)
def test_what_is_no_attention_is_refused_in_words(name):
    for kind, value in REFUSED.items():
        if kind == "not square" and name in OF_LAST_ROWS:
            continue
        with pytest.raises((ValueError, TypeError)) as caught:
            call(name, value)
        assert str(caught.value).startswith(name.removesuffix("_deviation")), f"{kind}: {caught.value}"


def taking(argument):
    return [name for name in METRICS if argument in inspect.signature(getattr(asc, name)).parameters]


@pytest.mark.parametrize("name", taking("validate"))
def test_a_bad_entry_is_refused_by_its_place_or_counted_in_words(name):
    non_finite = base.clone()
    non_finite[1, 4, 2] = -0.5
    with pytest.raises(ValueError, match=rf"^{name}: .* got -0.5 at index \(1, 4, 2\)"):
        call(name, non_finite, validate=True)
    call(name, base, validate=True)
    non_finite[1, 4, 2] = math.nan
    with warnings.catch_warnings(record=True) as words:
        warnings.simplefilter("always")
        error_text(name, non_finite)
    assert any(re.match(rf"{name}: 1 of [12] ", str(warning.message)) for warning in words)
    # Behind a map's own length nothing is read.
    other = non_finite.clone()
    other[:, 4:] = other[:, :, 4:] = 0.25
    assert equal(call(name, non_finite, lengths=4), call(name, other, lengths=4))
    call(name, non_finite, lengths=4, validate=True)


@pytest.mark.parametrize("name", taking("support"))
def test_a_support_that_does_not_fit_is_refused_by_name(name):
    message = rf"^{name}: support of shape \(5, 5\) does not broadcast to attention of shape \(2, 9, 9\)"
    with pytest.raises(ValueError, match=message):
        call(name, base, support=torch.ones(5, 5, dtype=torch.bool))


@pytest.mark.parametrize("name", METRICS)
def test_no_matrices_and_one_token(name):
    for shape in [(0, 3, 9, 9), (3, 0, 2, 9, 9), (1, 1, 1), (1,) * 9 + (2, 3, 3)]:
        if "heads" in inspect.signature(getattr(asc, name)).parameters and shape[-3] == 0:
            continue
        result = answered(name, torch.zeros(shape))
        assert result is not None, shape


@pytest.mark.parametrize("name", METRICS)
@quick
@given(data=st.data())
def test_any_tensor_is_answered_or_refused(name, data):
    shape = data.draw(hnp.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=7))
    if data.draw(st.booleans()) and shape:
        shape = (*shape[:-1], shape[-1], shape[-1])[-4:]
    dtype = data.draw(st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]))
    values = data.draw(hnp.arrays(np.float64, shape, elements=st.floats(width=32), fill=st.floats(0, 1)))
    tensor = torch.from_numpy(values).to(dtype)
    copy = tensor.clone()
    answered(name, tensor)
    assert torch.equal(tensor.nan_to_num(), copy.nan_to_num()), "the input was written to"


WORDS = ["auto", "causal", "full", "max", "mean", "min", "exact", "fast", "permutation", "rows", "", "é"]
TENSORS = [
    torch.tensor(3),
    torch.ones(9, dtype=torch.bool),
    torch.ones(9, 9, dtype=torch.bool),
    base.mean(-1),
    object,
]
ARGUMENTS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 20),
    st.sampled_from([2**31, 2**63, -(2**63), 2**70]),
    st.floats(),
    st.sampled_from(WORDS),
    st.lists(st.integers(-2, 12), max_size=3),
    st.lists(st.floats(), max_size=3),
    st.sampled_from(TENSORS),
)
# One bad argument must not cost minutes: these are numbers of draws and of points.
COSTLY = {"draws", "resample", "bands", "padding", "k"}


@pytest.mark.parametrize("name", METRICS)
@quick
@given(data=st.data())
def test_any_argument_is_answered_or_refused(name, data):
    parameters = [
        p
        for p in list(inspect.signature(getattr(asc, name)).parameters.values())[1:]
        if p.kind is not p.VAR_KEYWORD
    ]
    chosen = data.draw(
        st.lists(st.sampled_from([p.name for p in parameters]), min_size=1, max_size=2, unique=True)
    )
    options = {argument: data.draw(ARGUMENTS, label=argument) for argument in chosen}
    for argument in COSTLY & set(options):
        value = options[argument]
        if isinstance(value, (int, float)) and math.isfinite(value) and value > 50:
            options[argument] = 50
    answered(name, base, **options)


@pytest.mark.parametrize("name", METRICS)
def test_each_argument_in_turn_is_answered_or_refused(name):
    numbers = [None, True, False, -1, 0, 1, 5, 0.5, 2.0, math.nan, math.inf, 1j, -(2**63), 2**63, 2**70]
    lists = [[], [0], [0.5], [1, 2, 3], [math.nan], [[1.0]], ["x"], {"a": 1}, b"max", np.ones(2)]
    for parameter in list(inspect.signature(getattr(asc, name)).parameters.values())[1:]:
        for value in [*numbers, *WORDS, *lists, *TENSORS]:
            if parameter.kind is not parameter.VAR_KEYWORD:
                answered(name, base, **{parameter.name: value})


@pytest.mark.parametrize("name", METRICS)
def test_whole_numbers_beyond_the_core_s_are_refused_by_name(name):
    parameters = inspect.signature(getattr(asc, name)).parameters.values()
    for parameter in parameters:
        if str(parameter.annotation) in ("int", "int | None"):
            for value in (2**63, 2**64 - 1, 2**70, -(2**63) - 1):
                assert answered(name, base, **{parameter.name: value}) is None


@pytest.mark.parametrize("name", METRICS)
def test_results_too_large_for_memory_are_a_memory_error(name):
    if UNDER_ASAN and name == "persistence":
        pytest.skip("its bars are asked of operator new, which in AddressSanitizer ends the process")
    pid = os.fork()
    if pid == 0:
        import resource

        signal.alarm(30)
        # AddressSanitizer maps terabytes of addresses for itself, and gives no memory of a terabyte to others
        if not UNDER_ASAN:
            resource.setrlimit(resource.RLIMIT_AS, (2**35, 2**35))
        status = 1
        heard = []
        _memory.warn = lambda message, category: heard.append(message)
        huge = torch.zeros(1, 3, 3).expand(2**40, 3, 3)
        if next(iter(inspect.signature(getattr(asc, name)).parameters)) == "heads":
            huge = huge.unsqueeze(1)
        try:
            call(name, huge)
        except MemoryError:
            # A prediction comes before the try.
            status = 0 if any("of memory" in message and message.startswith(name) for message in heard) else 2
        finally:
            os._exit(status)
    _, ended = os.waitpid(pid, 0)
    assert ended == 0, f"{name} of 2^40 maps ended with status {ended}"
