# SPDX-License-Identifier: MIT
"""|fast − exact| stays below the stated bound, of every function of maps that takes a precision.

Functions are found by their signature, so that a new fast way is held by this law the day it comes.
"""

import inspect
import itertools
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import attnscope as asc
from attnscope.metrics.request import metric_names

#: Functions of attention, of the heads of a layer or of scores.
NAMES = sorted(
    name
    for name in dir(asc)
    if name in metric_names()
    and "precision" in (parameters := inspect.signature(getattr(asc, name)).parameters)
    and next(iter(parameters)) in ("attention", "heads", "scores")
)
#: Those whose first argument is no scores, which may have any size.
OF_MAPS = [name for name in NAMES if next(iter(inspect.signature(getattr(asc, name)).parameters)) != "scores"]
#: Relative bound where the docstring states another than 1e-5, and an absolute one by the exact result.
BOUNDS: dict[str, tuple[float, Callable[[Any], float]]] = {
    "fiedler_value": (1e-6, lambda _: 1e-14),
    "effective_rank": (1e-3, lambda _: 0.0),
    # the gap to 5e-6 of the tokens
    "graph_statistics": (1e-6, lambda _: 5e-6 * 130),
    "laplacian_eigenvalues": (0.0, lambda values: 1e-5 * _largest(values)),
    # 2e-5 of the largest eigenvalue, which no map here has above 50
    "laplacian_gap": (0.0, lambda _: 1e-3),
    "laplacian_shape": (1e-5, lambda _: 1e-6),
    "marchenko_pastur": (1e-5, lambda _: 1e-4),
    "marchenko_pastur_deviation": (1e-5, lambda _: 1e-4),
    "singular_values": (0.0, lambda values: 1e-5 * _largest(values)),
    "spectral_gap": (1e-5, lambda _: 1e-3),
    # 1e-5·σ1/σ2, which is below 10 where σ2 is not 0
    "spectral_ratio": (1e-4, lambda _: 0.0),
}
#: Functions whose fast result is exactly that of the maps in float32.
OF_FLOAT32 = ("betti_numbers", "persistence")
REGIMES = ("sink", "local", "diffuse", "peaky", "bidirectional")
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
SIZES = (1, 2, 3, 16, 33, 65)


def _largest(values: Tensor) -> float:
    finite = values[values.isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0


def scores_of(regime: str, n: int, seed: int) -> Tensor:
    """Return scores [1, 3, n, n] of the regimes of the benchmarks, −inf where a key is hidden."""
    generator = torch.Generator().manual_seed(seed)
    left, right = torch.randn(2, 3, n, 64, generator=generator, dtype=torch.float64)
    scores = left @ right.mT / 8
    place = torch.arange(n)
    if regime == "sink":
        scores[..., 0] = 2 + torch.randn(3, n, generator=generator, dtype=torch.float64) / 2
    elif regime == "local":
        scores -= 0.25 * (place[:, None] - place).abs()
    elif regime == "diffuse":
        scores *= 0.3
    else:
        scores *= 3.0
    if regime != "bidirectional":
        scores = scores.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), -torch.inf)
    return scores[None]


def degenerate_maps() -> Iterator[tuple[str, Tensor]]:
    """Yield maps [1, 3, n, n] that hold zero rows, exact ties, one key, and a NaN beside finite maps."""
    uniform = torch.ones(1, 3, 24, 24).tril() / torch.arange(1, 25)[:, None]
    empty = uniform.clone()
    empty[..., 5:9, :] = 0
    identity = torch.eye(24).expand(1, 3, 24, 24).clone()
    spoilt = uniform.clone()
    spoilt[0, 1, 7, 3] = torch.nan
    star = torch.zeros(1, 3, 24, 24)
    star[..., 0] = 1
    yield from (("uniform", uniform), ("zero rows", empty), ("identity", identity), ("star", star))
    yield "a NaN", spoilt


def arguments_of(name: str, maps: Tensor, seed: int) -> dict[str, Any] | None:
    """Return what a function needs beside maps; None where maps of so few tokens have none of it."""
    n = maps.shape[-1]
    generator = torch.Generator().manual_seed(seed)
    states = torch.randn(2, 1, 3, n, 8, generator=generator)
    values: dict[str, Any] = {
        "before": states[0],
        "after": states[1],
        "states": states[0],
        "reference": 0,
        "thresholds": [0.05, 0.2],
        "keys": [0],
        "spans": [[0, 1]],
        "pattern": "previous",
        "norms": states[0, ..., 0].abs(),
        "answer": [(1, n)],
        "prefix": maps[..., : max(1, n // 2), : max(1, n // 2)],
        "scales": [1.0, 2.0],
    }
    parameters = list(inspect.signature(getattr(asc, name)).parameters.values())[1:]
    needed = [
        parameter.name
        for parameter in parameters
        if parameter.default is inspect.Parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
    ]
    return None if "answer" in needed and n < 2 else {key: values[key] for key in needed}


def fields_of(result: Any) -> dict[str, Tensor]:
    if isinstance(result, Tensor):
        return {"": result}
    names = result._fields if hasattr(result, "_fields") else vars(result)
    fields = {key: getattr(result, key) for key in names}
    return {key: value for key, value in fields.items() if isinstance(value, Tensor)}


def assert_within(name: str, maps: Tensor, seed: int, label: str) -> None:
    arguments = arguments_of(name, maps, seed)
    if arguments is None:
        return
    function = getattr(asc, name)
    try:
        exact = function(maps.float() if name in OF_FLOAT32 else maps, **arguments)
    except ValueError:
        with pytest.raises(ValueError, match=f"^{name}"):
            function(maps, **arguments, precision="fast")
        return
    fast = fields_of(function(maps, **arguments, precision="fast"))
    relative, absolute = BOUNDS.get(name, (0.0 if name in OF_FLOAT32 else 1e-5, lambda _: 0.0))
    expected = fields_of(exact)
    assert set(fast) == set(expected)
    for key, values in expected.items():
        words = f"{name}.{key} of {label}"
        if not values.dtype.is_floating_point:
            assert torch.equal(fast[key], values), words
            continue
        assert torch.equal(fast[key].isnan(), values.isnan()), words
        torch.testing.assert_close(
            fast[key],
            values,
            rtol=relative,
            atol=absolute(values),
            equal_nan=True,
            msg=lambda text, words=words: f"{words}: {text}",
        )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_fast_holds_its_bound(name: str) -> None:
    of_scores = next(iter(inspect.signature(getattr(asc, name)).parameters)) == "scores"
    for regime, (at, n) in itertools.product(REGIMES, enumerate(SIZES)):
        seed = zlib.crc32(f"{regime} {n}".encode())
        dtype = DTYPES[(at + REGIMES.index(regime)) % len(DTYPES)]
        scores = scores_of(regime, n, seed)
        maps = (scores if of_scores else scores.softmax(-1)).to(dtype)
        assert_within(name, maps, seed, f"{regime} n={n} {dtype}")
        strided = maps.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
        assert_within(name, strided, seed, f"{regime} n={n} {dtype}, heads fastest")
    for label, maps in () if of_scores else degenerate_maps():
        assert_within(name, maps, 0, label)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_fast_holds_its_bound_on_longer_maps(name: str, dtype: torch.dtype) -> None:
    of_scores = next(iter(inspect.signature(getattr(asc, name)).parameters)) == "scores"
    for regime, n in (("sink", 130), ("peaky", 128), ("bidirectional", 97)):
        scores = scores_of(regime, n, n)
        maps = (scores if of_scores else scores.softmax(-1)).to(dtype)
        assert_within(name, maps, n, f"{regime} n={n} {dtype}")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("exponent", [-60, -110, -128, -140])
@pytest.mark.parametrize("name", OF_MAPS)
def test_fast_holds_its_bound_on_tiny_weights(name: str, exponent: int) -> None:
    """Below 2⁻¹²⁶ float32 has fewer digits, and products of it none: such maps are measured exactly."""
    for regime, n, dtype in (
        ("sink", 40, torch.float32),
        ("diffuse", 33, torch.float64),
        ("bidirectional", 130, torch.float32),
    ):
        maps = (scores_of(regime, n, n).softmax(-1) * 2.0**exponent).to(dtype)
        assert_within(name, maps, n, f"{regime} n={n} {dtype} times 2^{exponent}")
