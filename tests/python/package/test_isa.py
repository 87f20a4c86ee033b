# SPDX-License-Identifier: MIT
"""Which build of the core is loaded, and what is said when none can be.

Under each instruction set `python test_isa.py FILE.npz` runs and writes every metric of maps of many sizes,
full and causal, of four dtypes and ragged lengths, to one file.
"""

import dataclasses
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import attnscope as asc
from attnscope import _build, _isa
from attnscope.metrics.request import metric_names

SIZES = (*range(1, 41), 64, 100, 257)
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
OPTIONS = {
    "graph_statistics": {"thresholds": [0.02, 0.05, 0.1]},
    "betti_numbers": {"thresholds": [0.02, 0.05, 0.1]},
    "betti_curve": {"scales": [0.5, 0.9, 0.95, 1.0]},
    "top_mass": {"k": 1},
    "sink_removal": {"keys": [0]},
    "morlet_scalogram": {"scales": [2.0, 5.0]},
}


def maps(n, causal, dtype):
    """Two samples of three heads, the first a token or more longer than the second."""
    generator = torch.Generator().manual_seed(1000 * n + causal)
    logits = 2 * torch.randn(2, 3, n, n, generator=generator, dtype=torch.float64)
    lengths = torch.tensor([[n], [max(1, n - 1 - n // 7)]])
    token = torch.arange(n)
    hidden = (token >= lengths[:, :, None, None]).expand(2, 3, n, n)
    if causal:
        hidden = hidden | (token[None, :] > token[:, None])
    states = torch.randn(2, n, 5, generator=generator, dtype=torch.float64)
    return torch.softmax(logits.masked_fill(hidden, -1e300), -1).to(dtype), lengths, states


def parts(result):
    """The arrays of a result, by name."""
    if isinstance(result, torch.Tensor):
        return {"": result.numpy()}
    if hasattr(result, "_asdict"):
        named = result._asdict()
    elif dataclasses.is_dataclass(result):
        named = {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
    else:
        named = {name: getattr(result, name) for name in ("birth", "death", "dimension", "offsets")}
    return {
        f".{name}{below}": array
        for name, value in named.items()
        if isinstance(value, torch.Tensor) or hasattr(value, "_asdict")
        for below, array in parts(value).items()
    }


def answers(n, causal, dtype):
    """The arrays of every metric of the maps of one size, by metric and part."""
    attention, lengths, states = maps(n, causal, dtype)
    head = -(-n // 2)
    shared = states[:, None]
    answer = torch.tensor([0, 1]) + (int(lengths.min()) > 1)
    further_options = {
        "span_attention": {"spans": torch.tensor([0, 1])},
        "lookback": {"answer": answer, "context": 1},
        "prompt_divergence": {"answer": answer},
        "pattern_share": {"pattern": "previous"},
        "graph_signal": {"states": shared},
        "weighted_attention": {"norms": shared.norm(dim=-1)},
        "geometric_semantic_alignment": {"states": shared},
        "reference_influence": {"states": shared, "reference": torch.arange(n) % 3 == 0},
        "entropy_magnitude_correlation": {"before": shared, "after": shared.flip(-1)},
        "scale_sensitivity": {
            "prefix": attention[..., :head, :head],
            "prefix_lengths": lengths.clamp(max=head),
        },
    }
    metrics = {name: {**OPTIONS, **further_options}.get(name, {}) for name in metric_names()}
    result = asc.measure(attention, metrics, lengths=lengths)
    return {
        f"{name}{part}": array
        for name, result_of_metric in result.items()
        for part, array in parts(result_of_metric).items()
    }


def test_the_best_build_that_runs_is_live():
    assert (
        _isa.live() == os.environ.get("ATTNSCOPE_ISA", "").replace("-", "_")
        or _isa.live() == _isa.runnable()[0]
    )
    assert set(_isa.runnable()) <= set(_isa.available())


@pytest.mark.parametrize("isa", _isa.runnable())
def test_every_build_that_runs_here_gives_the_same_answers(fresh, isa):
    script = (
        "import torch, attnscope as asc; from attnscope import _isa;"
        "a = torch.softmax(torch.randn(4, 40, 40, generator=torch.Generator().manual_seed(0)), -1);"
        "print(_isa.live(), *asc.fiedler_value(a).tolist(), *asc.participation_ratio(a).tolist())"
    )
    answer = fresh(script, ATTNSCOPE_ISA=isa)
    assert answer.returncode == 0, answer.stderr
    live, *numbers = answer.stdout.split()
    assert live == isa
    lines = fresh(script).stdout.split()[1:]
    assert [float(x) for x in numbers] == pytest.approx([float(x) for x in lines], rel=1e-9)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_every_metric_is_asked_for():
    result = {name.partition(".")[0] for name in answers(5, True, torch.float64)}
    assert result == set(metric_names())


def stored_answers(isa, folder):
    path = folder / f"{isa}.npz"
    done = subprocess.run(
        [sys.executable, __file__, path],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "ATTNSCOPE_ISA": isa},
    )
    assert done.returncode == 0, done.stderr
    return np.load(path)


@pytest.mark.slow
@pytest.mark.skipif(len(_isa.runnable()) < 2, reason="one build runs here, and has nothing to differ from")
def test_every_metric_agrees_on_every_build_that_runs_here(tmp_path):
    best, *others = _isa.runnable()
    expected = stored_answers(best, tmp_path)
    assert len(expected.files) > 10_000
    for isa in others:
        result = stored_answers(isa, tmp_path)
        assert result.files == expected.files
        apart = [name for name in expected.files if not agree(name, result[name], expected[name])]
        assert not apart, f"{isa} is not {best} in {len(apart)} of {len(result.files)}, e.g. {apart[:20]}"


def agree(name, a, b):
    """The same whole numbers; the same float64 numbers to what rounding in another order leaves."""
    if a.shape != b.shape:
        return False
    if not np.issubdtype(a.dtype, np.floating):
        return np.array_equal(a, b)
    if name.startswith("fiedler_vector"):  # of either sign
        return all(
            np.allclose(x, y, rtol=0, atol=1e-7, equal_nan=True) or np.allclose(x, -y, rtol=0, atol=1e-7)
            for x, y in zip(a.reshape(-1, a.shape[-1]), b.reshape(-1, b.shape[-1]), strict=True)
        )
    return np.allclose(a, b, rtol=1e-9, atol=1e-11, equal_nan=True)


def test_a_build_that_is_not_there_is_named(fresh):
    answer = fresh("from attnscope import fiedler_value", ATTNSCOPE_ISA="x86-64-v9")
    assert "ATTNSCOPE_ISA=x86_64_v9 is not one of the builds that run here" in answer.stderr


def test_a_core_of_other_sources_is_refused_in_words(fresh):
    facts = {name: value for name, value in vars(_build).items() if name.isupper()}
    # attnscope._build comes from a finder of its own, as if the core had been built from another stub
    script = (
        "import sys, types\n"
        f"made = types.ModuleType('attnscope._build'); vars(made).update({facts!r})\n"
        "made.STUB = '0' * 64; made.__spec__ = types.SimpleNamespace()\n"
        "sys.modules['attnscope._build'] = made\n"
        "from attnscope import fiedler_value"
    )
    answer = fresh(script)
    assert answer.returncode != 0
    assert "the compiled core is of another state of the sources" in answer.stderr
    assert "Build it again: pip install -e ." in answer.stderr


def test_the_core_here_was_built_from_this_stub():
    stub = Path(_isa.__file__).with_name("_core.pyi")
    assert hashlib.sha256(stub.read_bytes()).hexdigest() == _build.STUB


def main(path):
    result = {}
    for n in SIZES:
        for causal in (False, True):
            for dtype in DTYPES:
                kind = f"{'causal' if causal else 'full'} {str(dtype).removeprefix('torch.')}"
                result |= {f"{name} {n} {kind}": array for name, array in answers(n, causal, dtype).items()}
    np.savez(path, **result)


if __name__ == "__main__":
    main(sys.argv[1])
