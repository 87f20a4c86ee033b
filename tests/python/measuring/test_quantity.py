# SPDX-License-Identifier: MIT
"""Quantities: found without a list, each with a closed form that holds; measured together as one by one."""

import functools
import json
import math
import sys
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

import attnscope as asc
from attnscope.metrics import measure as measuring
from attnscope.metrics import measured
from attnscope.metrics.discovery import declared_in, modules_of, quantity, registry
from attnscope.metrics.measured import check_closed_form, measure_quantities
from attnscope.metrics.quantity import ClosedForm, Quantity
from attnscope.protocols import ruscio2025
from models import text, tiny

QUANTITIES = registry().quantities
EXACT = [quantity for quantity in QUANTITIES if quantity.protocol == "exact"]
SITES = ("hidden", "block_output", "attention_output", "mlp_output")


def in_words(quantity):
    return " ".join(quantity.identity)


def maps(*shape, seed=0, dtype=torch.float64):
    logits = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    hidden = ~torch.ones(shape[-2:], dtype=torch.bool).tril()
    return torch.softmax(logits.masked_fill(hidden, -torch.inf), -1).to(dtype)


def layer(batch=3, heads=4, n=12, dtype=torch.float64):
    """Everything that may be captured of a layer."""
    draw = torch.Generator().manual_seed(1)
    attention = maps(batch, heads, n, n, dtype=dtype)
    states = {name: torch.randn(batch, n, 5, generator=draw).to(dtype) for name in SITES}
    return {
        "attention": attention,
        "head_mean": attention.double().mean(1, keepdim=True),
        "value": torch.randn(batch, 2, n, 5, generator=draw).to(dtype),
        "word_span": torch.tensor([[2, 4]]).expand(batch, 1, 2),
        "special_keys": (torch.arange(n) == 0).expand(batch, 1, n),
        "answer": torch.tensor([[2, 6]]).expand(batch, 1, 2),
        "tokens": (torch.arange(n) % 5).expand(batch, 1, n),
        "value_norms": torch.rand(batch, heads, n, generator=draw).double(),
        **states,
    }


def test_the_closed_form_of_every_quantity_holds():
    examples = {in_words(quantity): check_closed_form(quantity) for quantity in QUANTITIES}
    assert len(examples) > 200
    wrong = {
        name: pair for name, pair in examples.items() if not math.isclose(*pair, rel_tol=1e-10, abs_tol=1e-12)
    }
    assert not wrong


def test_a_quantity_says_what_it_is():
    functions = {**registry().functions, **registry().derived}
    for column in QUANTITIES:
        name = in_words(column)
        assert column.label, name
        assert column.meaning.endswith("."), name
        assert "{" not in column.label + column.meaning, name
        assert column.kind in ("value", "ratio", "count", "position", "flag", "constant"), name
        low, high = column.bounds(12)
        assert low is None or high is None or low < high, name
        assert (column.protocol, column.metric) in functions, name


def test_no_two_quantities_share_an_identity():
    assert max(Counter(quantity.identity for quantity in QUANTITIES).values()) == 1
    module = type(sys)("twice")
    module.QUANTITIES = (quantity("entropy"), quantity("entropy"))
    with pytest.raises(ValueError, match="two quantities are called exact map entropy"):
        declared_in([module])


@pytest.mark.parametrize("protocol", ["exact", "ruscio2025"])
def test_values_lie_within_their_bounds(protocol):
    quantities = [
        quantity
        for quantity in QUANTITIES
        if quantity.protocol == protocol and quantity.scope not in ("weights", "cloud")
    ]
    measured = measure_quantities(layer(n=40), quantities, heads=range(4))
    seen = 0
    for column, values in measured.values.items():
        defined_values = values[measured.defined[column]].double()
        low, high = column.bounds(40)
        seen += len(defined_values) > 0
        assert low is None or (defined_values >= low - 1e-12).all(), column.identity
        assert high is None or (defined_values <= high + 1e-12).all(), column.identity
    assert seen > 0.9 * len(measured.values)


def test_together_they_are_what_the_functions_give():
    sites = layer()
    attention, mean = sites["attention"], sites["head_mean"]
    lengths = torch.tensor([12, 7, 10])
    map_lengths = lengths[:, None]
    measured = measure_quantities(sites, EXACT, lengths=lengths, heads=range(4))
    columns, of_layer = measured.columns(), measured.columns("layer")

    def assert_column(name, values, among=columns):
        np.testing.assert_array_equal(among[name].astype(float).filled(np.nan), values.flatten(), name)

    share = asc.sink_share(attention, lengths=map_lengths)
    assert_column("sink_boost", share.boost)
    assert_column(
        "fiedler_value_normalized", asc.fiedler_value(attention, normalized=True, lengths=map_lengths)
    )
    assert_column("stable_rank", asc.stable_rank(attention, lengths=map_lengths))
    bars = asc.persistence(attention, lengths=map_lengths)
    assert_column("total_persistence_1", asc.total_persistence(bars)[..., 1])
    assert_column("head_divergence", asc.head_divergence(attention, lengths=lengths))
    assert_column("head_divergence", asc.head_divergence(attention, lengths=lengths).mean(-1), of_layer)
    sinks = asc.sink_tokens(attention, lengths=map_lengths)
    states = sites["value"]
    assert_column("alignment_value", asc.geometric_semantic_alignment(attention, states, lengths=map_lengths))
    assert_column(
        "alignment_hidden_without_sinks",
        asc.geometric_semantic_alignment(
            attention, sites["hidden"][:, None], without=sinks, lengths=map_lengths
        ),
    )
    before, after = (sites[name][:, None] for name in ("hidden", "block_output"))
    assert_column(
        "entropy_magnitude_correlation",
        asc.entropy_magnitude_correlation(attention, before, after, lengths=map_lengths),
    )
    keys = asc.sink_tokens(mean, lengths=map_lengths)[:, 0]
    removed = asc.sink_removal(attention, keys, lengths=lengths)
    assert_column("kl_reduction", removed.kl_reduction, of_layer)
    assert_column("excluded_rows", removed.excluded.sum(-1).double(), of_layer)
    assert_column("sink_count", keys.sum(-1).double(), of_layer)
    moved = asc.transformation_magnitude(sites["hidden"], sites["block_output"], lengths=lengths)
    assert_column("transformation_magnitude", moved.nanmean(-1), of_layer)


def test_a_protocol_of_whole_maps_takes_them_by_length():
    sites, lengths = layer(dtype=torch.float32), [12, 7, 12]
    quantities = [quantity for quantity in QUANTITIES if quantity.protocol == "ruscio2025"]
    measured = measure_quantities(sites, quantities, lengths=lengths, heads=range(4))
    columns = measured.columns()
    for sample, n in enumerate(lengths):
        maps_of_text = sites["attention"][sample, :, :n, :n].double()
        rows = slice(4 * sample, 4 * sample + 4)
        np.testing.assert_array_equal(columns["stable_rank"][rows], ruscio2025.stable_rank(maps_of_text))
        np.testing.assert_array_equal(columns["bulk_edge"][rows], ruscio2025.bulk(maps_of_text).edge)
        found_there = ruscio2025.topology(maps_of_text)
        np.testing.assert_array_equal(columns["strongest_key"][rows], found_there.strongest_edge[:, 1])
        np.testing.assert_array_equal(
            measured.values[quantity("entropy", "ruscio2025")][sample, :, :n],
            ruscio2025.attention_entropy(maps_of_text),
        )
        graph = ruscio2025.graph_statistics(maps_of_text, [0.1, 0.2], variant="fiedler").gini
        gini = quantity("gini_fiedler", "ruscio2025").with_options(thresholds=[0.1, 0.2])
        again = measure_quantities({"attention": maps_of_text[None]}, [gini])
        np.testing.assert_array_equal(again.values[gini][0], graph)


def test_of_a_map_that_is_not_finite_nothing_is_defined():
    sites = layer(n=40)
    sites["attention"][1, 2, 5, 3] = torch.nan
    with pytest.warns(RuntimeWarning):
        measured = measure_quantities(
            sites, [quantity for quantity in EXACT if quantity.scope == "map"], heads=range(4)
        )
    assert measured.finite.sum() == 11
    assert not measured.finite[1, 2]
    for value in measured.values:
        if value.needs[0] == "attention":
            assert not measured.defined[value][1, 2].any(), value.identity
    assert measured.columns()["sink_count"].mask.sum() == 1
    assert measured.columns()["sink_rate"].mask.sum() == 1
    # a divergence is one of the whole layer
    assert measured.columns()["head_divergence"].mask.tolist() == [False] * 4 + [True] * 4 + [False] * 4


def test_entries_behind_the_length_are_nobodys():
    attention = maps(2, 1, 6, 6)
    attention[1, :, 4:] = torch.inf
    attention[1, :, :, 4:] = 0
    measured = measure_quantities({"attention": attention}, [quantity("top_mass")], lengths=[6, 4])
    assert measured.finite.all()


def test_what_a_layer_lacks_is_undefined():
    sites = {"attention": maps(2, 3, 8, 8)}
    expected = [quantity("alignment_value"), quantity("reference_magnitude").mean_over("query")]
    measured = measure_quantities(sites, [*expected, quantity("head_divergence"), quantity("top_mass")])
    columns = measured.columns()
    for name in ("alignment_value", "reference_magnitude", "head_divergence"):
        assert columns[name].mask.all()
        assert len(columns[name]) == 6
    assert not columns["top_mass"].mask.any()


def test_several_protocols_are_measured_one_at_a_time():
    expected = [quantity("entropy"), quantity("entropy", "ruscio2025")]
    with pytest.raises(ValueError, match="one protocol at a time, got exact, ruscio2025"):
        measure_quantities({"attention": maps(1, 1, 4, 4)}, expected)


@pytest.fixture
def calls(monkeypatch):
    """The names of the functions that are called."""
    calls_made = []
    for name, function in registry().functions.items():

        def call(*arguments, name=name, function=function, **options):
            calls_made.append(name[1])
            return function(*arguments, **options)

        monkeypatch.setitem(registry().functions, name, functools.wraps(function)(call))
    return calls_made


def test_a_layer_is_gone_through_once(calls):
    once = ("persistence", "singular_values", "marchenko_pastur", "reference_influence")
    measure_quantities(layer(n=40), EXACT, heads=range(4))
    assert {name: calls.count(name) for name in once} == dict.fromkeys(once, 1)
    # of the heads by the test and by frequency, and of their mean
    assert calls.count("sink_tokens") == 3
    # the plain entropy comes with the sinks
    assert calls.count("attention_entropy") == 1
    calls.clear()
    theirs = [quantity for quantity in QUANTITIES if quantity.protocol == "ruscio2025"]
    measure_quantities(layer(n=40), theirs, heads=range(4))
    once = ("persistence", "_eigenvalue_sizes", "_singular_values", "_by_variant", "_removals", "topology")
    assert {name: calls.count(name) for name in once} == dict.fromkeys(once, 1)


def test_settings_of_a_run():
    density = quantity("density").with_options(thresholds=[0.05, "2/n"])
    measured = measure_quantities({"attention": maps(1, 2, 9, 9)}, [density])
    expected = asc.graph_statistics(maps(1, 2, 9, 9), [0.05, 2 / 9]).density
    assert torch.equal(measured.values[density], expected)
    assert quantity("density").options == {}


def test_axes_are_reduced_or_taken_apart_by_name():
    entropy = quantity("entropy")
    assert entropy.mean_over("query").axes == ()
    assert entropy.mean_over("threshold") is entropy
    measured = measure_quantities(
        {"attention": maps(1, 2, 9, 9)}, [entropy, mean := entropy.mean_over("query")], lengths=[7]
    )
    assert torch.equal(measured.values[entropy].nanmean(-1), measured.values[mean])
    last = entropy.at(query=6)
    assert (last.name, last.axes) == ("entropy_6", ())
    with pytest.raises(ValueError, match="entropy: no axis 'rank' in query"):
        entropy.at(rank=0)
    assert quantity("betti_1").axes == ("threshold",)


def test_what_nobody_declares_is_called_by_its_name():
    assert quantity("my_own_number").label == "my own number"
    assert quantity("fiedler_value").axis == r"Fiedler value $\lambda_2$"
    assert quantity("bulk_edge").protocol == "ruscio2025"
    assert quantity("head_divergence", scope="layer").meaning.startswith("Mean over heads")


def forget():
    """What was found, and plans made of it."""
    registry.cache_clear()
    measuring._plan_in_words.cache_clear()
    measured._plan_for.cache_clear()


TOY = '''
import torch
from attnscope.metrics.quantity import ClosedForm, Quantity

def self_attention(attention, *, power=1.0, lengths=None):
    """Mean attention of a query to itself."""
    return attention.double().diagonal(dim1=-2, dim2=-1).pow(power).mean(-1)

def attention_trace(mean, options):
    """Sum of the diagonal."""
    return mean

DERIVED = {"attention_trace": ("self_attention", attention_trace)}
QUANTITIES = (
    Quantity("self_attention", "self_attention", "attention to itself", "Mean of the diagonal.",
             ClosedForm(1.0, torch.eye(3)), low=0, high=1),
)
'''


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """An installed package of somebody else's, with a metric in a module of a folder."""
    folder = tmp_path / "toy_metrics"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "diagonal.py").write_text(TOY)
    metadata_folder = tmp_path / "toy_metrics-1.0.dist-info"
    metadata_folder.mkdir()
    (metadata_folder / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-metrics\nVersion: 1.0\n")
    (metadata_folder / "entry_points.txt").write_text("[attnscope.metrics]\ntoy = toy_metrics\n")
    monkeypatch.syspath_prepend(tmp_path)
    forget()
    yield
    forget()
    for name in ("toy_metrics.diagonal", "toy_metrics"):
        sys.modules.pop(name, None)


def test_a_metric_of_another_package_is_found_everywhere(toy):
    from attnscope.cli.doctor import examine

    attention = maps(2, 5, 5)
    expected = attention.diagonal(dim1=-2, dim2=-1).mean(-1)
    assert torch.equal(asc.measure(attention, "self_attention")["self_attention"], expected)
    assert torch.equal(
        asc.measure(attention, {"square": {"metric": "self_attention", "power": 2.0}})["square"],
        attention.diagonal(dim1=-2, dim2=-1).pow(2.0).mean(-1),
    )
    assert quantity("self_attention").label == "attention to itself"
    assert [check.ok for check in examine() if check.name == "self_attention"] == [True]


def test_a_metric_of_another_package_is_described_and_listed(toy, call):
    lines = json.loads(call("metrics", "--json")[1])
    assert lines["self_attention"] == "Mean attention of a query to itself."
    assert lines["attention_trace"] == "Sum of the diagonal."
    code, out, _ = call("metrics", "self_attention")
    assert code == 0
    first, _, sentence, *_ = out.splitlines()
    assert first == "toy_metrics.diagonal.self_attention(attention, *, power=1.0, lengths=None)"
    assert sentence == lines["self_attention"]
    assert "self_attention: attention to itself. Mean of the diagonal." in out


def test_a_metric_of_another_package_is_viewed(toy):
    attention = maps(2, 3, 5, 5)
    contents = asc.view(attention).contents
    at, shown = next(
        (at, metric) for at, metric in enumerate(contents["metrics"]) if metric["name"] == "self_attention"
    )
    assert (shown["label"], shown["meaning"]) == ("attention to itself", "Mean of the diagonal.")
    means = attention.double().diagonal(dim1=-2, dim2=-1).mean(-1)
    np.testing.assert_allclose(contents["values"][0][0][at], means, 1e-5)
    assert contents["uniform"][0][at] == pytest.approx(sum(1 / k for k in range(1, 6)) / 5, rel=1e-5)


def test_a_metric_of_another_package_is_a_column_of_analyze(toy):
    model = tiny("llama", implementation="eager")
    ids = text(model, batch=2, n=9)["input_ids"]
    single_heads = asc.analyze(model, ids, "self_attention").table("heads")
    all_heads = asc.analyze(model, ids).table("heads")
    assert (single_heads["self_attention"] == all_heads["self_attention"]).all()
    with torch.no_grad():
        maps = model(ids, output_attentions=True).attentions[1]
    rows_of_layer = single_heads[(single_heads["layer"] == 1) & (single_heads["head"] >= 0)].sort_values(
        ["sample", "head"]
    )
    np.testing.assert_allclose(
        rows_of_layer["self_attention"], maps.diagonal(dim1=-2, dim2=-1).mean(-1).flatten(), 1e-5
    )


def test_columns_of_analyze_are_called_as_quantities():
    model = tiny("llama", implementation="eager")
    results = asc.analyze(model, text(model, batch=1, n=9)["input_ids"], bars=True)
    known_columns = {quantity.name for quantity in EXACT} | {"sink_token"}
    for table in ("heads", "graphs", "layers"):
        keys = {"model", "revision", "step", "sample", "layer", "head", "protocol", "n_tokens", "threshold"}
        assert set(results.table(table)) - keys <= known_columns
    assert len(results.table("bars"))
    assert {"sink_share", "fiedler_value_normalized", "alignment_hidden"} <= set(results.table("heads"))
    assert {"graph_fiedler_value", "betti_0"} <= set(results.table("graphs"))
    assert {"kl_reduction_90", "transformation_magnitude"} <= set(results.table("layers"))


def test_without_the_package_there_is_no_such_metric():
    with pytest.raises(ValueError, match="unknown metric 'self_attention'"):
        asc.measure(maps(2, 5, 5), "self_attention")


def test_every_module_of_the_folders_is_walked():
    names = {module.__name__ for module in modules_of("attnscope.metrics")}
    assert {"attnscope.metrics.graphs.fiedler", "attnscope.metrics.states.alignment"} <= names


def test_an_example_can_fail():
    wrong = replace(quantity("stable_rank"), closed_form=ClosedForm(3.0, torch.eye(4)))
    computed, expected = check_closed_form(wrong)
    assert (computed, expected) == (pytest.approx(4.0), 3.0)
    assert isinstance(wrong, Quantity)
