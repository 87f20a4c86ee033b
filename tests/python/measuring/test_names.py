# SPDX-License-Identifier: MIT
"""One name for one quantity: functions, columns, labels, tables of studies, metric pages and the view.

Named results print dtype and shape of every field, and what is no tensor as it is.
"""

from collections import Counter
from functools import cache
from typing import Any, NamedTuple

import pytest
import torch

import attnscope as asc
from attnscope.analysis.recipe import named_recipe, table_of
from attnscope.cli.doctor import describe
from attnscope.config.study_folders import studies
from attnscope.metrics._named import shown_by_shape
from attnscope.metrics.discovery import columns_of, metric_of, registry
from attnscope.study_api.study import study_class
from attnscope.view.measured import contents_of_tensors

QUANTITIES = registry().quantities
EXACT = [quantity for quantity in QUANTITIES if quantity.protocol == "exact"]


def in_words(quantity):
    return " ".join(quantity.identity)


def test_no_two_columns_share_a_label():
    counted = Counter((quantity.protocol, quantity.scope, quantity.label) for quantity in QUANTITIES)
    assert [named for named, times in counted.items() if times > 1] == []


def test_a_column_is_described_by_its_name_and_by_its_function():
    page = cache(describe)
    for quantity in EXACT:
        line = f"    {quantity.name}: {quantity.label}. {quantity.meaning}"
        functions = [
            function for function in (metric_of(quantity), *quantity.also) if not function.startswith("_")
        ]
        for name in (quantity.name, *functions):
            assert line in page(name), (in_words(quantity), name)


def test_a_column_called_as_a_public_function_is_what_that_function_gives():
    public = [quantity for quantity in EXACT if hasattr(asc, quantity.name)]
    assert len(public) > 10
    for quantity in public:
        assert quantity.name in (metric_of(quantity), *quantity.also), in_words(quantity)


def test_analyze_takes_the_name_of_a_column():
    # spans of tokens and prefixes are arguments that no model gives
    placed = [
        quantity
        for quantity in EXACT
        if table_of(quantity) and not {"word_span", "prefix"} & set(quantity.needs)
    ]
    assert len(placed) > 100
    for quantity in placed:
        columns = named_recipe([quantity.name], {}).columns
        assert quantity.name in {column.name for column in columns}, in_words(quantity)
        assert quantity.identity in {column.identity for column in columns}, in_words(quantity)


def test_a_column_that_is_asked_for_comes_alone():
    assert {column.name for column in named_recipe(["mp_ks"], {}).columns} == {"mp_ks"}
    named = named_recipe({"law": {"metric": "mp_ks", "null": "full"}}, {}).columns
    assert [(column.name, column.options["null"]) for column in named] == [("law", "full")]
    (hidden,) = named_recipe(["alignment_hidden"], {}).columns
    assert hidden.needs[-1] == "hidden"
    with pytest.raises(ValueError, match="the column sink_concentration takes no option, got 'draws'"):
        named_recipe({"sink_concentration": {"draws": 3}}, {})


def test_a_function_whose_number_is_a_field_of_another_gives_that_column():
    assert {column.name for column in named_recipe(["marchenko_pastur_deviation"], {}).columns} == {"mp_ks"}
    assert [column.name for column in columns_of("marchenko_pastur_deviation")] == ["mp_ks"]


def test_measure_says_whose_column_a_name_is():
    with pytest.raises(ValueError, match="unknown metric 'mp_ks'; mp_ks is a column of marchenko_pastur"):
        asc.measure(torch.eye(4), "mp_ks")


LABELS = {
    quantity.name: {other.label for other in QUANTITIES if other.name == quantity.name}
    for quantity in QUANTITIES
}


@pytest.mark.parametrize("study", studies())
def test_tables_of_studies_call_a_quantity_as_it_is_called(study):
    other = [
        (table.name, column.name, column.label)
        for table in study_class(study).tables
        for column in table.columns or ()
        if column.label and column.label not in LABELS.get(column.name, {column.label})
    ]
    assert other == []


def test_the_view_calls_quantities_by_their_labels():
    draw = torch.Generator().manual_seed(0)
    maps = torch.randn(1, 2, 9, 9, generator=draw, dtype=torch.float64).softmax(-1)
    shown = {metric["name"]: metric["label"] for metric in contents_of_tensors(maps, None, 10**7)["metrics"]}
    assert len(shown) > 20
    assert shown == {
        quantity.name: quantity.label
        for quantity in EXACT
        if quantity.name in shown and quantity.scope == "map"
    }


def test_what_splits_scores_and_states_by_position_is_listed():
    names = {"toeplitz_split", "mask_only", "offset_variance", "offset_fit", "position_share", "rope_bands"}
    assert names <= set(registry().names())


def test_a_result_names_its_fields_with_dtype_and_shape():
    class Pair(NamedTuple):
        value: torch.Tensor
        count: torch.Tensor
        items: Any

    shown = shown_by_shape(Pair)
    assert shown is Pair
    pair = shown(torch.zeros(2, 3), torch.zeros((), dtype=torch.int64), [1, 2])
    assert repr(pair) == "Pair(value=float32[2, 3], count=0, items=[1, 2])"
    third = shown(torch.tensor(1 / 3), torch.tensor([2, 3]), None)
    assert repr(third) == "Pair(value=0.3333, count=int64[2], items=None)"
    assert f"{[pair]}" == "[Pair(value=float32[2, 3], count=0, items=[1, 2])]"
