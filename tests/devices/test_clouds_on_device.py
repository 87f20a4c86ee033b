# SPDX-License-Identifier: MIT
"""Measures of clouds of points in torch operations against the CPU's, and on devices that lack something."""

import math
import re
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

import attnscope as asc
from attnscope.devices import placement, slab, slabs
from attnscope.devices.call_counts import count_calls
from attnscope.metrics import _powers
from every_call import answer, arrays_of
from on_device import CPU, DEVICES, DTYPES, assert_equal, on_device

pytestmark = pytest.mark.filterwarnings("ignore::attnscope.errors.NonFiniteWarning")

POINTS, WIDTH = 12, 5
#: What each measure of a cloud needs besides the points.
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "cka": [{}, {"debiased": False}],
    "cloud_distances": [{}, {"metric": "cosine"}],
    "cloud_spectrum": [{}, {"center": False}],
    "log_volume": [{}, {"alpha": 0.5}],
    "massive_activations": [{}, {"absolute": 1, "relative": 2}],
    "matrix_entropy": [{}, {"center": True, "unit": True}, {"normalized": True}],
    "neighbourhood_overlap": [{"k": 3}],
    "harmonic_distortion": [{"theta": 1.2}],
}
#: Measures whose distances come from the device, and the rest from the core.
OF_DISTANCES: dict[str, dict[str, Any]] = {
    "local_dimension": {"k": 4},
    "two_nn": {},
    "gride": {"n1": 2},
    "fragmentation": {},
    "cloud_components": {"scales": [0.5, 2.0]},
}
OF_TWO = ("cka", "neighbourhood_overlap")


def clouds(dtype: torch.dtype = torch.float64, *, width: int = WIDTH) -> torch.Tensor:
    """Return clouds [2, 3, POINTS, width], one of which holds a NaN in its last point."""
    generator = torch.Generator().manual_seed(width)
    points = torch.randn(2, 3, POINTS, width, generator=generator, dtype=torch.float64).to(dtype)
    points[1, 1, -1, 0] = math.nan
    return points


def beside(name: str, points: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return what a measure of two clouds takes behind the first."""
    return (points.flip(-1).square(),) if name in OF_TWO else ()


@pytest.fixture(autouse=True)
def every_size_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure small clouds on the device too, where the CPU would be faster."""
    monkeypatch.setattr(placement, "FEWEST_BYTES", 0)
    monkeypatch.setattr(placement, "CUDA_IS_SLOWER", {})


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", OPTIONS)
def test_measures_of_clouds_equal_the_core(name: str, dtype: torch.dtype, device: str) -> None:
    function = getattr(asc, name)
    for options in OPTIONS[name]:
        for width in (1, 3, WIDTH, 20):
            points = clouds(dtype, width=width)
            if name == "harmonic_distortion":
                points = points.transpose(-1, -2).nan_to_num()
            assert_equal(function, device, points, *beside(name, points), **options)
            if name not in (*OF_TWO, "harmonic_distortion"):
                lengths = torch.tensor([[POINTS, 5, 2], [1, POINTS - 1, 7]])
                assert_equal(function, device, points, lengths=lengths, **options)
            view = points.mT.contiguous().mT[::1, ::2]
            assert_equal(function, device, view, *beside(name, view), **options)
            for single in (points[0, 0], points[:0]):
                assert_equal(function, device, single, *beside(name, single), **options)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", OF_DISTANCES)
def test_what_rests_on_distances_equals_the_core(name: str, device: str) -> None:
    points = clouds()[0]
    expected = answer(getattr(asc, name), {"points": points, **OF_DISTANCES[name]})
    computed = on_device(
        lambda x: answer(getattr(asc, name), {"points": x, **OF_DISTANCES[name]}), device, points
    )
    for have, want in zip(arrays_of(computed), arrays_of(expected), strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("device", DEVICES)
def test_distances_have_closed_forms_whatever_their_size(device: str) -> None:
    """A triangle of sides 3, 4 and 5, from the smallest normal numbers to the largest."""
    corner = torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.0, 4.0]], dtype=torch.float64)
    sides = torch.tensor([[0.0, 3.0, 4.0], [3.0, 0.0, 5.0], [4.0, 5.0, 0.0]], dtype=torch.float64)
    for exponent in (-1020, -700, -400, 0, 400, 700, 1020):
        scale = 2.0**exponent
        distances = on_device(asc.cloud_distances, device, corner * scale)
        np.testing.assert_allclose(distances / scale, sides, rtol=1e-15)
    far = torch.tensor([[-1.5e308], [1.5e308]], dtype=torch.float64)
    assert on_device(asc.cloud_distances, device, far)[0, 1].item() == math.inf
    near = torch.tensor([[1e9], [1e9 + 1e-6]], dtype=torch.float64)
    assert on_device(asc.cloud_distances, device, near)[0, 1] == near[1, 0] - near[0, 0]
    smallest = torch.tensor([[0.0], [5e-324]], dtype=torch.float64)
    assert on_device(asc.cloud_distances, device, smallest)[0, 1].item() == 5e-324


@pytest.mark.parametrize("device", DEVICES)
def test_the_distances_of_a_part_are_those_of_the_cloud(device: str) -> None:
    points = clouds(width=40)[0, 0]
    together = on_device(asc.cloud_distances, device, points)
    part = on_device(asc.cloud_distances, device, points[3:9].clone())
    assert torch.equal(part, together[3:9, 3:9])
    assert torch.equal(together, together.mT)
    assert not together.diagonal().any()


def test_powers_of_two_are_those_of_the_core() -> None:
    generator = torch.Generator().manual_seed(3)
    matrices = torch.randn(40, 4, 6, generator=generator, dtype=torch.float64)
    matrices *= (2.0 ** torch.arange(-1000.0, 1000.0, 50.0, dtype=torch.float64))[:, None, None]
    matrices[3] = 0
    matrices[4, 0, 0], matrices[5, 1, 1], matrices[6] = math.nan, math.inf, 1e308
    lengths = torch.arange(40) % 4 + 1
    for part in (matrices, matrices[..., :4]):
        for ends in (None, lengths):
            expected = _powers.scales_of(part, ends)
            assert torch.equal(_powers._scales_in_torch(part, ends), expected)
    assert _powers._scales_in_torch(torch.ones(2, 3, 3, dtype=torch.float64), None) is None


@pytest.mark.parametrize("name", OPTIONS)
def test_a_common_factor_changes_no_ratio_on_a_device(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch operations look for powers of two where the core does not."""
    if name not in ("cka", "matrix_entropy"):
        pytest.skip("its numbers have a scale")
    monkeypatch.setattr(_powers._core, "power_scales", _powers._scales_in_torch)
    points = clouds()[0, 0]
    function = getattr(asc, name)
    expected = function(points, *beside(name, points))
    for scale in (2.0**-600, 2.0**600):
        scaled = points * scale
        computed = on_device(function, CPU, scaled, *(part * scale for part in beside(name, points)))
        np.testing.assert_allclose(computed, expected, rtol=1e-12)


@pytest.mark.parametrize("name", OPTIONS)
def test_small_slabs_give_the_results_of_the_batch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    points = clouds()
    if name == "harmonic_distortion":
        points = points.transpose(-1, -2).nan_to_num()
    call = {"points": points, "beside": beside(name, points), "options": OPTIONS[name][0]}

    def measured() -> list[np.ndarray]:
        computed = on_device(getattr(asc, name), CPU, call["points"], *call["beside"], **call["options"])
        return arrays_of(computed)

    together = measured()
    sizes = []
    original = slabs._to_host
    monkeypatch.setattr(slabs, "DEFAULT_BYTES", 1)
    monkeypatch.setattr(slabs, "_to_host", lambda tensors: sizes.append(len(tensors[0])) or original(tensors))
    apart = measured()
    assert set(sizes) == {1}
    for have, want in zip(apart, together, strict=True):
        np.testing.assert_array_equal(have, want)


def calls_of(name: str) -> dict[str, Any]:
    points = clouds()[0]
    first = {"cka": "x", "neighbourhood_overlap": "x", "massive_activations": "states"}.get(name, "points")
    if name == "harmonic_distortion":
        return {"signal": points.transpose(-1, -2), **OPTIONS[name][0]}
    arguments = {first: points, **OPTIONS.get(name, [{}])[0], **OF_DISTANCES.get(name, {})}
    return {**arguments, "y": points.square()} if name in OF_TWO else arguments


@pytest.mark.parametrize("name", [*OPTIONS, *OF_DISTANCES])
def test_a_device_without_memory_halves_its_slabs_and_then_says_so(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    most, sizes = [1], []
    original = slabs._to_host

    def scarce(tensors):
        sizes.append(len(tensors[0]))
        if len(tensors[0]) > most[0]:
            raise torch.OutOfMemoryError("no memory left")
        return original(tensors)

    expected = answer(getattr(asc, name), calls_of(name))
    monkeypatch.setattr(slabs, "_to_host", scarce)
    with asc.devices.use("torch"):
        computed = answer(getattr(asc, name), calls_of(name))
        assert max(sizes) > 1
        for have, want in zip(arrays_of(computed), arrays_of(expected), strict=True):
            np.testing.assert_allclose(have, want, rtol=1e-11, atol=1e-11)
        most[0] = 0
        words = rf"^{name}: cpu has no memory for a cloud of \d+ points next to what it holds: no memory left"
        with pytest.raises(MemoryError, match=words):
            answer(getattr(asc, name), calls_of(name))


@pytest.mark.parametrize("name", [*OPTIONS, *OF_DISTANCES])
def test_a_lost_device_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    failure = getattr(torch, "AcceleratorError", None)
    if failure is None:
        pytest.skip("this torch has no error of its own for devices that fail")

    def fail(tensors):
        raise failure("CUDA error: unspecified launch failure")

    monkeypatch.setattr(slabs, "_to_host", fail)
    words = rf"^{name}: cpu failed, and tensors on it may be lost: CUDA error: unspecified launch failure"
    with asc.devices.use("torch"), pytest.raises(RuntimeError, match=words) as caught:
        answer(getattr(asc, name), calls_of(name))
    assert isinstance(caught.value.__cause__, failure)


@pytest.mark.parametrize("name", [*OPTIONS, *OF_DISTANCES])
def test_where_a_cloud_was_measured_is_counted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    of_distances = name in OF_DISTANCES or name in ("cloud_distances", "neighbourhood_overlap")
    calls: Counter[str] = Counter()
    with asc.devices.use("torch"), count_calls(calls):
        answer(getattr(asc, name), calls_of(name))
    assert f"cpu: {'cloud_distances' if of_distances else name}" in calls
    # without float64 the core measures, to the bit
    monkeypatch.setattr(slab, "arithmetic_type", lambda device: torch.float32)
    expected = answer(getattr(asc, name), calls_of(name))
    calls.clear()
    with asc.devices.use("torch"), count_calls(calls):
        computed = answer(getattr(asc, name), calls_of(name))
    assert not any(call.startswith("cpu: ") and "cloud" in call for call in calls)
    for have, want in zip(arrays_of(computed), arrays_of(expected), strict=True):
        np.testing.assert_array_equal(have, want)


#: Tensors that are no dense float tensors in memory, and what the message says of them.
REFUSED = {
    "sparse": (lambda points: points.to_sparse(), "must be a dense tensor, got layout torch.sparse_coo"),
    "quantised": (
        lambda points: torch.quantize_per_tensor(points.float(), 0.1, 0, torch.quint8),
        "must be float16, bfloat16, float32 or float64, got torch.quint8",
    ),
    "nested": (
        lambda points: torch.nested.nested_tensor([points[0], points[1, :2]]),
        "must be one dense tensor, got a nested tensor; pad it",
    ),
    "meta": (lambda points: points.to("meta"), "holds no memory, got a tensor of shape"),
    "complex": (
        lambda points: torch.complex(points, points),
        "must be float16, bfloat16, float32 or float64, got torch.complex128",
    ),
}


@pytest.mark.filterwarnings("ignore::UserWarning:torch")
@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("name", [*OPTIONS, *OF_DISTANCES])
def test_what_is_no_dense_tensor_is_refused_in_words(name: str, kind: str) -> None:
    make, words = REFUSED[kind]
    arguments = calls_of(name)
    first = next(iter(arguments))
    for implementation in ("core", "torch"):
        with (
            asc.devices.use(implementation),
            pytest.raises((TypeError, ValueError), match=f"^{name}: .*{re.escape(words)}"),
        ):
            answer(getattr(asc, name), {**arguments, first: make(arguments[first])})


@pytest.mark.parametrize("name", ["cka", "log_volume", "matrix_entropy"])
def test_gradients_pass_through_slabs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    points = clouds()[0]
    function = getattr(asc, name)

    def gradient_of() -> torch.Tensor:
        leaf = points.clone().requires_grad_()
        function(leaf, *beside(name, points)).sum().backward()
        return leaf.grad

    expected = gradient_of()
    monkeypatch.setattr(slabs, "DEFAULT_BYTES", 1)
    with asc.devices.use("torch"):
        torch.testing.assert_close(gradient_of(), expected, rtol=1e-12, atol=1e-12)


def test_two_clouds_may_lie_on_two_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one follows the first, here to a device that counts what comes to it."""
    points = clouds()[0]
    moved = []
    original = torch.Tensor.to
    monkeypatch.setattr(
        torch.Tensor, "to", lambda tensor, *to, **o: moved.append(to) or original(tensor, *to, **o)
    )
    on_device(asc.cka, CPU, points, points.square())
    assert sum(to == (torch.device(CPU),) for to in moved) == 2
