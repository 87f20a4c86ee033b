# SPDX-License-Identifier: MIT
"""What stages write: declared tables with their companions, sums over units, p-values of claims together."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from attnscope.results.results import Results
from attnscope.study_api.claims import UNDECIDED, Claim, adjusted
from attnscope.study_api.reductions import Partials, folded
from attnscope.study_api.tables import Column, Rows, Table, control_rows

HEADS = Table(
    "heads",
    ("sample", "layer", "head"),
    (
        *(Column("share", label="share"), Column("ratio", kind="ratio"), Column("bars", kind="count")),
        *(Column("place", kind="position"), Column("sharp", kind="flag"), Column("token", "string", "text")),
        Column("signal", "list<float64>"),
    ),
)


def rows(table=HEADS, **columns):
    table_rows = Rows(table, "toy")
    table_rows.add(**columns)
    return table_rows


def test_what_has_no_value_is_null_and_types_stay():
    table = rows(
        sample=0,
        layer=0,
        head=[1, 0],
        share=[math.nan, 1.5],
        ratio=[math.inf, 2.0],
        bars=np.ma.MaskedArray([7, 3], [True, False]),
        place=pd.Series([None, 4], dtype="Int64"),
        token=[None, "a"],
        signal=[[1.0], [2.0, 3.0]],
    ).arrow()
    assert table.to_pydict() == {
        "sample": [0, 0],
        "layer": [0, 0],
        "head": [0, 1],
        "share": [1.5, None],
        "ratio": [2.0, math.inf],
        "bars": [3, None],
        "place": [4, None],
        "sharp": [None, None],
        "token": ["a", None],
        "signal": [[2.0, 3.0], [1.0]],
    }
    assert [table.schema.field(name).type for name in ("bars", "place", "sharp", "token")] == [
        pa.int64(),
        pa.int64(),
        pa.bool_(),
        pa.string(),
    ]


def test_an_empty_text_is_null_where_it_is_not_declared_as_a_text():
    table = Table(
        "answers",
        ("name",),
        (Column("reason", "string", "text"), Column("answer", "string", "text", empty=True)),
    )
    table_rows = rows(table, name=["", "a"], reason=["", "short"], answer=["", "yes"])
    table_rows.add(name="b", reason="", answer="")
    assert table_rows.arrow().to_pydict() == {
        "name": ["", "a", "b"],
        "reason": [None, "short", None],
        "answer": ["", "yes", ""],
    }
    assert table_rows.arrow().schema.field("answer").metadata[b"empty"] == b"true"


def test_a_file_says_what_a_key_counts():
    table = Table(
        "states", ("step", "layer"), (Column("norm", meaning="Euclidean."),), about={"layer": "−1: in"}
    )
    schema = rows(table, step=-1, layer=-1, norm=1.0).arrow().schema
    meanings = [schema.field(name).metadata[b"meaning"].decode() for name in ("step", "layer", "norm")]
    assert meanings == ["Of training; −1: not known.", "−1: in", "Euclidean."]
    assert table.head_means().about == replace(table, variants="full").controls().about == table.about


def test_rows_of_tables_without_declared_columns_lack_values_too():
    table_rows = Rows(Table("any", ("sample",), None), "toy")
    table_rows.add(sample=0, count=3, name="a", flag=True)
    table_rows.add(sample=1, share=0.5)
    assert table_rows.arrow().to_pylist()[1] == {
        "sample": 1,
        "count": None,
        "name": None,
        "flag": None,
        "share": 0.5,
    }


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"head": 0, "shares": 1.0}, "declares no column 'shares'; did you mean 'share'"),
        ({"share": 1.0}, "the key 'head' is missing"),
        ({"head": [0, 1], "share": [1.0, 2.0, 3.0]}, r"columns of different lengths: .*\(3,\)"),
    ],
)
def test_what_a_table_does_not_declare_is_refused(columns, message):
    with pytest.raises(ValueError, match=message):
        rows(sample=0, layer=0, **columns)


def test_a_key_is_never_null():
    with pytest.raises(ValueError, match="a key is never null"):
        rows(sample=0, layer=0, head=np.ma.MaskedArray([0, 1], [False, True])).arrow()


def test_head_means_are_the_same_columns_without_a_head():
    means = HEADS.head_means()
    assert (means.name, means.keys, means.columns) == ("head_means", ("sample", "layer"), HEADS.columns)
    graphs = Table("graphs", ("sample", "head", "threshold")).head_means()
    assert (graphs.name, graphs.keys) == ("head_mean_graphs", ("sample", "threshold"))


def test_controls_of_heads_and_of_their_means_stand_together():
    heads = rows(
        sample=[0, 0, 1],
        layer=[0, 1, 0],
        head=0,
        share=[1.0, 2.0, math.nan],
        ratio=[math.inf, 3.0, 1.0],
        bars=[1, 2, 3],
        place=5,
        sharp=[True, False, True],
        token="a",
    )
    means = rows(HEADS.head_means(), sample=0, layer=[0, 1], share=[4.0, 6.0])
    controls = control_rows([(heads, "shuffled"), (means, "shuffled"), (means, "random")], 2)
    assert controls.table.name == "heads_variants"
    assert controls.table.keys == ("sample", "variant", "seed", "scope")
    names = ("sample", "variant", "seed", "scope", "share", "ratio", "bars", "sharp")
    # what is infinite has no part in a mean; a position and a text have none
    assert [tuple(row[name] for name in names) for row in controls.arrow().to_pylist()] == [
        (0, "random", 2, "head_mean", 5.0, None, None, None),
        (0, "shuffled", 2, "head_mean", 5.0, None, None, None),
        (0, "shuffled", 2, "heads", 1.5, 3.0, 1.5, 0.5),
        (1, "shuffled", 2, "heads", None, 1.0, 3.0, 1.0),
    ]
    assert set(controls.arrow().column_names) == set(names)
    listed = Results({"heads_variants": controls.arrow()}).variants()
    assert len(listed) == 2 + 4 + 3
    bars_of_heads = listed[(listed["scope"] == "heads") & (listed["metric"] == "bars")]
    assert bars_of_heads["value"].tolist() == [1.5, 3.0]
    assert set(listed["table"]) == {"heads"}
    assert Results({"heads_variants": controls.arrow()}).variants("layers").empty


def test_whole_rows_of_controls_are_kept_where_a_table_says_so():
    table = Table("tokens", ("sample", "position"), (Column("log_p"),), variants="full")
    controls = control_rows([(rows(table, sample=0, position=[0, 1], log_p=[1.0, 3.0]), "random_weights")], 1)
    assert controls.table.keys == ("sample", "position", "variant", "seed")
    assert controls.arrow()["log_p"].to_pylist() == [1.0, 3.0]
    # which are no averages
    assert Results({"tokens_variants": controls.arrow()}).variants().empty


@pytest.fixture
def files(tmp_path):
    """Two units with sums of shape [2, 3] by group and layer."""
    paths = []
    for unit in range(2):
        partials = Partials()
        for group in "ab":
            for layer in range(3):
                term = np.full((2, 3), 100.0 * unit + 10 * layer + (group == "b"))
                partials.add("x", term, group=group, layer=layer)
        paths.append(tmp_path / f"{unit}.parquet")
        pq.write_table(partials.tables()["reduced-x"], paths[-1])
    return paths


def test_sums_are_folded_over_units_and_over_the_keys_that_are_not_kept(files):
    sums = folded(files, ("layer",))
    assert set(sums) == {(0,), (1,), (2,)}
    assert sums[2,].count == 4
    assert (sums[2,].sum == 2 * (20 + 120) + 2).all()
    assert sums[2,].sum.shape == (2, 3)


def test_only_sums_of_one_value_are_read(files):
    sums = folded(files, ("group",), {"layer": 1})
    assert {key: total.sum[0, 0] for key, total in sums.items()} == {("a",): 120.0, ("b",): 122.0}
    assert folded(files, ("group",), {"layer": 7}) == {}
    assert folded(files, (), {"layer": 1, "group": "b"})[()].mean[1, 2] == 61.0


def claims(**p_values):
    return [Claim(code, "a statistic", UNDECIDED, p_value=p) for code, p in p_values.items()]


def test_the_primary_list_is_holms_and_the_rest_benjamini_and_hochbergs():
    """The smallest of m counts m-fold, the next m − 1-fold; none below the one before it."""
    tested = claims(C1=0.01, C7=0.03, C2=0.04, C9=np.nan, C4=0.02, C8=0.01, C10=0.03)
    adjusted_p, names = adjusted(tested, ("C7", "C8"))
    np.testing.assert_allclose(adjusted_p, [0.04, 0.03, 0.06, np.nan, 0.06, 0.02, 0.06], rtol=1e-12)
    assert names == ["holm", "benjamini_hochberg", "holm", "", "holm", "benjamini_hochberg", "holm"]


def test_without_a_list_of_its_own_every_claim_is_primary():
    adjusted_p, names = adjusted(claims(a=0.6, b=0.01))
    np.testing.assert_allclose(adjusted_p, [0.6, 0.02], rtol=1e-12)
    assert names == ["holm", "holm"]


@pytest.mark.parametrize("secondary", [(), ("a",)])
def test_what_was_not_tested_has_no_adjusted_p(secondary):
    adjusted_p, names = adjusted(claims(a=np.nan), secondary)
    assert np.isnan(adjusted_p).all()
    assert names == [""]
    assert adjusted([], secondary)[1] == []


@settings(max_examples=60)
@given(
    primary=st.lists(st.floats(0, 1), max_size=8),
    rest=st.lists(st.floats(0, 1), min_size=1, max_size=8),
    order=st.randoms(use_true_random=False),
)
def test_each_list_is_adjusted_by_itself_in_any_order(primary, rest, order):
    tested = claims(
        **{f"p{at}": p for at, p in enumerate(primary)}, **{f"s{at}": p for at, p in enumerate(rest)}
    )
    order.shuffle(tested)
    secondary = [claim.claim for claim in tested if claim.claim.startswith("s")]
    adjusted_p = dict(zip([claim.claim for claim in tested], adjusted(tested, secondary)[0], strict=True))
    expected = stats.false_discovery_control(rest)
    np.testing.assert_allclose([adjusted_p[f"s{at}"] for at in range(len(rest))], expected, rtol=1e-12)
    ranked = sorted(primary)
    for at, p in enumerate(primary):
        below = [
            (len(primary) - place) * smaller_p for place, smaller_p in enumerate(ranked) if smaller_p <= p
        ]
        assert adjusted_p[f"p{at}"] == pytest.approx(min(1.0, max(below)), rel=1e-12)


def test_checkpoints_are_in_the_order_of_their_steps():
    """Revisions are texts, among which step10 is before step2."""
    table = Table("means", ("model", "revision", "step", "layer"), (Column("share"),))
    steps = [10, 2, 0, -1]
    stored = rows(
        table,
        model="m",
        revision=[f"step{step}" if step >= 0 else "main" for step in steps],
        step=steps,
        layer=[1, 0, 0, 0],
        share=[4.0, 3.0, 2.0, 1.0],
    ).arrow()
    assert stored["share"].to_pylist() == [1.0, 2.0, 3.0, 4.0]
    assert stored.column_names[:4] == ["model", "revision", "step", "layer"]


def test_models_are_in_the_order_of_the_plan():
    """They were by name in tables that a run writes once, and as the user lists them in all others."""
    table = Table("means", ("model", "step", "layer"), (Column("share"),))
    stored = Rows(table, "toy", models=["tiny", "base", "tiny"])
    stored.add(
        model=["base", "other", "tiny", "another", "tiny"],
        step=[0, 0, 9, 0, 1],
        layer=0,
        share=[3.0, 5.0, 2.0, 4.0, 1.0],
    )
    assert stored.arrow()["share"].to_pylist() == [1.0, 2.0, 3.0, 4.0, 5.0]
