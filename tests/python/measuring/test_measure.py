# SPDX-License-Identifier: MIT
"""measure: the same values as the functions, shared work done once, options that go where they belong."""

import functools
import re
import subprocess
import sys

import numpy as np
import pytest
import torch

import attnscope as asc
from attnscope.errors import NonFiniteWarning
from attnscope.metrics import measurement_run
from attnscope.metrics import plan as planning
from attnscope.metrics.discovery import registry
from attnscope.metrics.request import metric_names

SCALES = torch.linspace(0, 1, 5, dtype=torch.float64)


def maps(*shape, causal=True, seed=0):
    logits = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    if causal:
        logits = logits.masked_fill(~torch.ones(shape[-2:], dtype=torch.bool).tril(), -torch.inf)
    return torch.softmax(logits, -1)


def equal_results(a, b):
    if isinstance(a, torch.Tensor):
        return (
            torch.equal(a.nan_to_num(nan=-7), b.nan_to_num(nan=-7))
            if a.is_floating_point()
            else torch.equal(a, b)
        )
    if isinstance(a, tuple):
        return all(equal_results(x, y) for x, y in zip(a, b, strict=True))
    return all(
        equal_results(getattr(a, name), getattr(b, name))
        for name in ("birth", "death", "dimension", "offsets")
    )


def direct(name, attention, **options):
    """The value by the public function itself."""
    of_bars = ("bar_count", "bar_statistics", "total_persistence", "max_persistence", "persistent_entropy")
    if name in ("betti_curve", *of_bars):
        bars = asc.persistence(attention, lengths=options.pop("lengths", None))
        return getattr(asc, name)(bars, **options)
    return getattr(asc, name)(attention, **options)


OPTIONS = {
    "graph_statistics": {"thresholds": [0.05, 0.1]},
    "betti_numbers": {"thresholds": [0.05, 0.1]},
    "betti_curve": {"scales": SCALES},
    "top_mass": {"k": 2},
    "span_attention": {"spans": (0, 1)},
    "lookback": {"answer": (3, 6), "context": 2},
    "prompt_divergence": {"answer": (3, 6)},
    "pattern_share": {"pattern": "previous"},
}
NEEDS_MORE = (
    *("sink_removal", "geometric_semantic_alignment", "reference_influence"),
    *("entropy_magnitude_correlation", "scale_sensitivity", "graph_signal", "weighted_attention"),
)
SIMPLE = [name for name in metric_names() if name not in NEEDS_MORE]


@pytest.mark.parametrize("name", SIMPLE)
def test_one_metric_equals_its_function(name):
    attention, options = maps(3, 2, 12, 12), OPTIONS.get(name, {})
    assert equal_results(asc.measure(attention, {name: options})[name], direct(name, attention, **options))


def test_all_metrics_at_once_equal_their_functions_on_ragged_lengths():
    attention, lengths = maps(3, 2, 12, 12), torch.tensor([[12], [9], [10]])
    result = asc.measure(attention, {name: OPTIONS.get(name, {}) for name in SIMPLE}, lengths=lengths)
    assert list(result) == SIMPLE
    for name in SIMPLE:
        layer_lengths = lengths[:, 0] if name == "head_divergence" else lengths
        assert equal_results(
            result[name], direct(name, attention, lengths=layer_lengths, **OPTIONS.get(name, {}))
        ), name


@pytest.fixture
def calls(monkeypatch):
    """The functions that are called, with their options."""
    calls_made = []
    for name, function in registry().functions.items():

        def call(*arguments, name=name, function=function, **options):
            calls_made.append((name[1], options))
            return function(*arguments, **options)

        monkeypatch.setitem(registry().functions, name, functools.wraps(function)(call))
    return calls_made


def test_shared_work_is_done_once(calls):
    asc.measure(
        maps(2, 9, 9), ["stable_rank", "effective_rank", "spectral_gap", "spectral_ratio", "singular_values"]
    )
    assert [name for name, _ in calls] == ["singular_values"]
    calls.clear()
    asc.measure(maps(2, 9, 9), ["bar_count", "total_persistence", "max_persistence", "persistent_entropy"])
    assert [name for name, _ in calls] == ["persistence"]
    calls.clear()
    asc.measure(
        maps(2, 9, 9),
        {"a": {"metric": "fiedler_value"}, "b": {"metric": "fiedler_value", "normalized": True}},
    )
    assert [name for name, _ in calls] == ["fiedler_value", "fiedler_value"]


def test_common_options_reach_every_metric_that_takes_them():
    attention = maps(2, 10, 10)
    result = asc.measure(
        attention, ["fiedler_value", "betti_numbers", "stable_rank"], symmetrize="mean", thresholds=[0.2]
    )
    assert torch.equal(result["betti_numbers"], asc.betti_numbers(attention, [0.2], symmetrize="mean"))
    assert result["betti_numbers"].shape == (2, 1, 2)


def test_an_option_called_metric_reaches_the_function_that_takes_it():
    attention = maps(2, 9, 9)
    expected = asc.persistence(attention, metric="hellinger")
    result = asc.measure(
        attention,
        {
            "persistence": {"metric": "hellinger"},
            "bars": {"function": "persistence", "metric": "hellinger"},
            "own": {"metric": "persistence"},
            "connectivity": {"function": "fiedler_value"},
        },
    )
    for key in ("persistence", "bars"):
        assert torch.equal(result[key].death, expected.death)
    assert torch.equal(result["own"].death, asc.persistence(attention).death)
    assert not torch.equal(result["own"].death, expected.death)
    assert torch.equal(result["connectivity"], asc.fiedler_value(attention))
    with pytest.raises(ValueError, match="metric must be one of 'attention', 'hellinger', got 'x'"):
        asc.measure(attention, {"persistence": {"metric": "x"}})


@pytest.mark.parametrize(
    ("metrics", "options", "error", "message"),
    [
        (["fidler_value"], {}, ValueError, "unknown metric 'fidler_value'; did you mean 'fiedler_value'?"),
        ("zzz", {}, ValueError, "unknown metric 'zzz'; there are: attention_entropy, "),
        (["fiedler_value", {"k": 1}], {}, TypeError, "metrics must be names, or a mapping from"),
        (["betti_curve"], {}, TypeError, "betti_curve needs the option 'scales'"),
        (["sink_removal"], {}, TypeError, "sink_removal needs the option 'keys'"),
        (["fiedler_value"], {"normalised": True}, TypeError, "'normalised'; did you mean 'normalized'?"),
        (
            ["stable_rank"],
            {"thresholds": [0.1]},
            TypeError,
            "none of the metrics stable_rank takes the option 'thresholds'",
        ),
        ({"fiedler_value": {"kk": 1}}, {}, TypeError, "fiedler_value takes no option 'kk'; there are: "),
        (
            {"fiedler_value": {"normalised": 1}},
            {},
            TypeError,
            "fiedler_value takes no option 'normalised'; did you mean 'normalized'?",
        ),
    ],
)
def test_what_it_refuses(metrics, options, error, message):
    with pytest.raises(error, match=re.escape(message)):
        asc.measure(maps(4, 4), metrics, **options)


def test_bad_attention_is_refused_before_any_work():
    message = "measure: attention must be float16, bfloat16, float32 or float64, got torch.int64"
    with pytest.raises(ValueError, match=f"^{message}"):
        asc.measure(torch.ones(3, 3, dtype=torch.int64), ["fiedler_value"])


def test_layer_metrics_want_one_length_for_all_heads():
    message = "lengths of the heads of one layer must be equal, got [[3, 4, 5], [3, 3, 3]]"
    with pytest.raises(ValueError, match=re.escape(message)):
        asc.measure(maps(2, 3, 8, 8), ["head_divergence"], lengths=[[3, 4, 5], [3, 3, 3]])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("symmetrize", ["max", "min", "mean"])
def test_betti_numbers_from_bars_equal_their_own(dtype, symmetrize):
    torch.manual_seed(3)
    a = torch.softmax(3 * torch.randn(5, 2, 14, 14), -1).to(dtype)
    a[1, 0, 3, 4] = 1.0
    a[2] = 0.0
    a[3, 1] = (a[3, 1].double() * 8).round().to(dtype) / 8  # many ties
    # entries themselves, where a comparison is a tie, and what lies just beside them; in any order, twice
    entries = [float(x) for x in a[0, 0, 2:9, 5] if x > 1e-5] + [0.125, 0.25]
    levels = tuple(float(np.nextafter(x, to)) for x in entries for to in (1.0, x, 0.0))
    lengths = torch.tensor([[14, 9], [14, 14], [3, 1], [14, 14], [12, 2]])
    result = asc.measure(
        a,
        {
            "betti_numbers": {"thresholds": levels},
            "one": {"metric": "betti_numbers", "thresholds": 0.3},
            "bar_count": {},
            "persistence": {},
        },
        symmetrize=symmetrize,
        lengths=lengths,
    )
    assert torch.equal(
        result["betti_numbers"], asc.betti_numbers(a, levels, symmetrize=symmetrize, lengths=lengths)
    )
    assert torch.equal(result["one"], asc.betti_numbers(a, 0.3, symmetrize=symmetrize, lengths=lengths))
    assert result["betti_numbers"].dtype == torch.int64


@pytest.mark.parametrize(
    ("betti", "bars", "dtype", "own_calls"),
    [
        ({"thresholds": (0.2, 0.5)}, {}, torch.float32, 0),
        ({"thresholds": (0.2, 0.5)}, {}, torch.float64, 1),
        ({"thresholds": ("2/n",)}, {}, torch.float32, 1),
        ({"thresholds": (1e-9,)}, {}, torch.float32, 1),
        ({"thresholds": (0.2,), "symmetrize": "min"}, {}, torch.float32, 1),
        ({"thresholds": (0.2,)}, {"max_dimension": 0}, torch.float32, 1),
    ],
)
def test_betti_numbers_are_read_from_bars_only_where_these_hold_them(calls, betti, bars, dtype, own_calls):
    a = torch.softmax(3 * torch.randn(4, 9, 9, dtype=dtype), -1)
    expected = asc.betti_numbers(a, **betti)
    result = asc.measure(a, {"betti_numbers": betti, "persistence": bars})
    assert torch.equal(result["betti_numbers"], expected)
    assert [name for name, _ in calls].count("betti_numbers") == own_calls


def test_betti_numbers_of_a_non_finite_map_are_its_own_call():
    a = torch.softmax(torch.randn(3, 6, 6), -1)
    a[1, 2, 2] = float("nan")
    with pytest.warns(RuntimeWarning, match=r"^bar_count and betti_numbers: 1 of 3 matrices hold") as warned:
        result = asc.measure(a, {"betti_numbers": {"thresholds": (0.2,)}, "bar_count": {}})
    assert len(warned) == 1
    assert (result["betti_numbers"][1] == -1).all()
    assert (result["betti_numbers"][[0, 2]] >= 0).all()


@pytest.mark.parametrize(
    ("metrics", "reads"),
    [
        (["top_mass"], []),
        (["top_mass", "fiedler_value"], []),
        (["top_mass", "sink_rate", "attention_entropy"], [["attention_entropy", "sink_rate", "top_mass"]]),
        ({"top_mass": {}, "attention_entropy": {"base": 2.0}}, []),
        ({"top_mass": {}, "attention_entropy": {"normalized": True}}, []),
        (
            {"top_mass": {}, "sink_rate": {}, "again": {"metric": "sink_rate", "epsilon": 0.2}},
            [["sink_rate", "top_mass"]],
        ),
        ({"top_mass": {}, "sink_rate": {"support": "full"}}, []),
        ({"top_mass": {}, "sink_rate": {"validate": True}}, []),
        (
            {
                "top_mass": {},
                "sink_rate": {},
                "sink_share": {"support": "full"},
                "sink_position": {"support": "full", "rule": "largest"},
            },
            [["sink_rate", "top_mass"], ["sink_position", "sink_share"]],
        ),
        # by the test it is read off far attention
        ({"top_mass": {}, "sink_position": {}}, []),
        (["attention_entropy"], []),
        (["head_divergence"], []),
        (["head_divergence", "top_mass"], []),
        (["head_divergence", "attention_entropy"], [["attention_entropy"]]),
        (["fiedler_value", "attention_entropy", "head_divergence"], [["attention_entropy"]]),
        ({"head_divergence": {}, "attention_entropy": {"support": "full"}}, []),
    ],
)
def test_one_read_answers_what_it_can(monkeypatch, metrics, reads):
    attention, reads_made, entropies = maps(2, 3, 9, 9), [], []
    read, divergence = planning.SharedRead.results, measurement_run.divergence_of
    read_usual = planning.SharedRead.results_of_usual

    def reading(shared_read, *arguments):
        reads_made.append(sorted(shared_read.calls))
        return read(shared_read, *arguments)

    def reading_usual(shared_read, *arguments):
        results = read_usual(shared_read, *arguments)
        if results is not None:
            reads_made.append(sorted(shared_read.calls))
        return results

    def diverging(tensor, entropy, **options):
        entropies.append(entropy)
        return divergence(tensor, entropy, **options)

    monkeypatch.setattr(planning.SharedRead, "results", reading)
    monkeypatch.setattr(planning.SharedRead, "results_of_usual", reading_usual)
    monkeypatch.setattr(measurement_run, "divergence_of", diverging)
    result = asc.measure(attention, metrics)
    assert reads_made == reads
    assert len(entropies) == ("head_divergence" in metrics and ["attention_entropy"] in reads)
    assert all(equal_results(entropy, asc.attention_entropy(attention)) for entropy in entropies)
    for key in metrics:
        options = metrics[key] if isinstance(metrics, dict) else {}
        metric_options = {name: value for name, value in options.items() if name != "metric"}
        assert equal_results(result[key], direct(options.get("metric", key), attention, **metric_options)), (
            key
        )


def test_each_divergence_has_the_entropy_of_its_own_support(monkeypatch):
    attention, supports = maps(2, 3, 9, 9), []
    divergence = measurement_run.divergence_of

    def diverging(tensor, entropy, **options):
        supports.append(options["support"])
        return divergence(tensor, entropy, **options)

    monkeypatch.setattr(measurement_run, "divergence_of", diverging)
    ask = {
        "x": {"metric": "head_divergence", "support": "full"},
        "head_divergence": {},
        "attention_entropy": {},
    }
    result = asc.measure(attention, ask)
    assert supports == ["auto"]
    assert equal_results(result["x"], asc.head_divergence(attention, support="full"))
    assert equal_results(result["head_divergence"], asc.head_divergence(attention))


@pytest.mark.parametrize(
    ("n", "metrics", "eigenvalue_counts"),
    [
        (9, ["laplacian_gap"], [3]),
        (2, ["laplacian_gap"], [2]),
        (9, ["laplacian_eigenvalues"], [9]),
        (9, {"laplacian_eigenvalues": {"k": 2}}, [2]),
        (9, {"laplacian_gap": {}, "laplacian_eigenvalues": {"k": 3}}, [3]),
        (9, {"laplacian_eigenvalues": {"k": 9}, "all": {"metric": "laplacian_eigenvalues", "k": None}}, [9]),
    ],
)
def test_as_many_eigenvalues_are_computed_as_are_wanted(calls, n, metrics, eigenvalue_counts):
    asc.measure(maps(2, n, n), metrics)
    assert [options["k"] for _, options in calls] == eigenvalue_counts


@pytest.mark.parametrize("array", [torch.Tensor.clone, torch.Tensor.numpy])
def test_equal_options_are_one_call_and_different_arrays_are_two(calls, array):
    attention = maps(40, 40, causal=False)
    two = {"metric": "betti_numbers", "thresholds": [0.125 / 3, 0.2]}
    asc.measure(attention, {"x": two, "y": {**two, "thresholds": [0.125 / 3, 0.2]}})
    assert [name for name, _ in calls] == ["betti_numbers"]
    calls.clear()
    # Of so many entries torch and NumPy print the first and the last.
    masks = torch.ones(2, 40, 40, dtype=torch.bool)
    masks[1, :, 15:25] = False
    first, other = map(array, masks)
    assert repr(first) == repr(other)
    ask = {
        key: {"metric": "local_global_ratio", "support": seen} for key, seen in (("x", first), ("y", other))
    }
    result = asc.measure(attention, ask)
    assert [name for name, _ in calls] == ["local_global_ratio", "local_global_ratio"]
    assert torch.equal(result["x"], asc.local_global_ratio(attention, support=first))
    assert torch.equal(result["y"], asc.local_global_ratio(attention, support=other))
    assert not torch.equal(result["x"], result["y"])


def test_bars_are_computed_once_for_all_that_they_hold(calls):
    attention = maps(3, 9, 9).float()
    ask = {"bar_count": {}, "x": {"metric": "betti_numbers", "thresholds": (0.2,)}}
    ask["y"] = {"metric": "betti_numbers", "thresholds": (0.1, 0.3)}
    result = asc.measure(attention, ask)
    assert [name for name, _ in calls] == ["persistence"]
    assert torch.equal(result["y"], asc.betti_numbers(attention, [0.1, 0.3]))
    calls.clear()
    # Weights of 1 open no bar but the infinite one.
    result = asc.measure(torch.ones(2, 4, 4), ask)
    assert [name for name, _ in calls] == ["persistence"]
    assert result["x"].tolist() == [[[1, 0]]] * 2


def test_the_papers_thresholds_are_taken_where_none_are_given():
    attention = maps(2, 12, 12)
    levels = [0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2]
    result = asc.measure(attention, ["betti_numbers", "graph_statistics"])
    assert torch.equal(result["betti_numbers"], asc.betti_numbers(attention, levels))
    assert equal_results(result["graph_statistics"], asc.graph_statistics(attention, levels))


def test_one_read_of_a_non_finite_map_speaks_as_measure():
    attention = maps(3, 8, 8)
    attention[1, 4, 2] = torch.nan
    with pytest.warns(RuntimeWarning, match=r"^measure: 1 of 3 matrices") as warned:
        result = asc.measure(
            attention, {"top_mass": {}, "attention_entropy": {}, "sink_position": {"rule": "largest"}}
        )
    assert len(warned) == 1
    assert result["top_mass"].isnan().tolist() == [False, True, False]
    assert result["attention_entropy"][1].isnan().all()
    assert result["sink_position"][1] == -1
    with pytest.raises(ValueError, match=r"^measure: attention must hold .* got nan at index \(1, 4, 2\)"):
        asc.measure(attention, ["top_mass", "attention_entropy"], validate=True)


def test_lengths_that_do_not_fit_are_named():
    message = "measure: lengths of shape (4,) do not broadcast to the leading shape (2, 3)"
    with pytest.raises(ValueError, match=re.escape(message)):
        asc.measure(maps(2, 3, 8, 8), ["head_divergence"], lengths=[3, 4, 5, 6])
    with pytest.raises(ValueError, match="heads must have at least three dimensions"):
        asc.measure(maps(8, 8), ["head_divergence"], lengths=4)
    divergence = asc.measure(maps(2, 1, 8, 8), ["head_divergence"], lengths=[[5], [7]])["head_divergence"]
    assert equal_results(divergence, asc.head_divergence(maps(2, 1, 8, 8), lengths=[5, 7]))
    for lengths in (5, [[5], [7]], [[5, 5, 5], [7, 7, 7]]):
        result = asc.measure(maps(2, 3, 8, 8), ["head_divergence"], lengths=lengths)
        text_lengths = [5, 5] if lengths == 5 else [5, 7]
        assert equal_results(
            result["head_divergence"], asc.head_divergence(maps(2, 3, 8, 8), lengths=text_lengths)
        )


@pytest.mark.parametrize(
    ("derived", "source"),
    [
        ("laplacian_gap", "laplacian_eigenvalues"),
        ("stable_rank", "singular_values"),
        ("effective_rank", "singular_values"),
        ("spectral_gap", "singular_values"),
    ],
)
def test_an_option_that_cuts_a_result_cuts_nothing_that_is_derived_from_it(derived, source):
    """`k` was meant for the keys of `top_mass`, and left one eigenvalue for the gap between two."""
    maps = torch.rand(2, 9, 9, generator=torch.Generator().manual_seed(0)).softmax(-1)
    options = {"k": 1} if source == "laplacian_eigenvalues" else {"largest": 1}
    measured = asc.measure(maps, [derived, source, "top_mass"], **{"k": 1, **options})
    assert torch.equal(measured[derived], getattr(asc, derived)(maps))
    assert measured[source].shape == (2, 1)


def test_a_first_call_loads_no_library_that_it_does_not_need():
    script = """
import sys, torch, attnscope as asc
asc.measure(torch.eye(4)[None], ["attention_entropy"])
heavy = ("scipy.stats", "scipy.linalg", "scipy.sparse", "pandas", "matplotlib", "transformers")
print([name for name in heavy if name in sys.modules])
"""
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize("shape", [(9, 9), (2, 9, 9), (2, 6, 9), (6, 9)])
def test_no_metrics_are_all_that_maps_of_their_kind_have(shape, cross):
    attention = maps(*shape, causal=False)
    measured = asc.measure(attention, cross=cross)
    left_out = set(asc.measure(maps(1, 9, 9))) - set(measured)
    for name in left_out:
        with pytest.raises(ValueError, match=r"square|cross attention|three dimensions"):
            asc.measure(attention, name, cross=cross)
    assert {"attention_entropy", "sink_share", "stable_rank"} <= set(measured)
    assert ("persistence" in measured) == (shape[-1] == shape[-2] and not cross)
    assert ("head_divergence" in measured) == (len(shape) > 2)


def test_no_metrics_are_of_lazy_attention_what_one_pass_measures():
    lazy = asc.LazyAttention(torch.randn(2, 9, 4), torch.randn(2, 9, 4))
    measured = asc.measure(lazy)
    assert "attention_entropy" in measured
    assert "persistence" not in measured
    for name, values in measured.items():
        assert equal_results(values, direct(name, lazy))
    with pytest.raises(TypeError, match="columns=True needs the map, and LazyAttention"):
        asc.measure(lazy, columns=True)


#: Options that are refused by every function whose result another metric is read off.
REFUSED = {
    "stable_rank": {"lengths": 99},
    "effective_rank": {"validate": True},
    "spectral_gap": {"lengths": 99},
    "spectral_ratio": {"lengths": 99},
    "laplacian_gap": {"symmetrize": "median"},
    "marchenko_pastur_deviation": {"draws": 0},
    "bar_count": {"max_dimension": 9},
    "total_persistence": {"lengths": 99},
}


@pytest.mark.parametrize("metric", REFUSED)
def test_errors_and_warnings_name_the_metric_that_was_requested(metric):
    maps = torch.eye(8).expand(3, 8, 8) * (3.0 if "validate" in REFUSED[metric] else 1.0)
    with pytest.raises((TypeError, ValueError), match=f"^{metric}: "):
        asc.measure(maps, metric, **REFUSED[metric])
    non_finite = maps.clone()
    non_finite[1, 4, 2] = torch.nan
    with pytest.warns(NonFiniteWarning, match=f"^{metric}: 1 of 3 matrices") as warned:
        asc.measure(non_finite, [metric])
    assert [warning.filename for warning in warned] == [__file__]


def test_a_source_that_is_requested_itself_has_its_own_name():
    with pytest.raises(ValueError, match=r"^singular_values: lengths"):
        asc.measure(torch.eye(8), ["stable_rank", "singular_values"], lengths=99)


def test_functions_name_themselves_and_not_what_they_call():
    maps = torch.full((2, 64, 64), 1 / 64)
    with pytest.raises(ValueError, match=r"^scale_sensitivity: min_keys"):
        asc.scale_sensitivity(maps, maps[..., :32, :32], min_keys=1)
    with pytest.raises(ValueError, match=r"^entropy_magnitude_correlation: before and after"):
        asc.entropy_magnitude_correlation(maps, torch.zeros(2, 64, 3), torch.zeros(2, 64, 4))
    with pytest.raises(ValueError, match=r"^entropy_magnitude_correlation: support"):
        asc.entropy_magnitude_correlation(maps, torch.zeros(64, 3), torch.ones(64, 3), support="some")
    maps[1, 4, 2] = torch.nan
    with pytest.warns(NonFiniteWarning, match=r"^entropy_magnitude_correlation: 1 of 2"):
        asc.entropy_magnitude_correlation(maps, torch.zeros(64, 3), torch.rand(64, 3))
