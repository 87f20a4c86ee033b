# SPDX-License-Identifier: MIT
"""The test for sinks: against loops in NumPy, on heads without a sink, and on heads with one."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

import attnscope as asc

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
DATA = Path(__file__).resolve().parents[3].parent / "shared/data/gpt2_attention_maps"


def softmax(logits, support="causal"):
    """Rows of a support, from logits [..., n, n]."""
    seen = mask_of(support, logits.shape[-1])
    return torch.softmax(logits.masked_fill(~torch.as_tensor(seen), -math.inf), -1)


def mask_of(support, n):
    if isinstance(support, str):
        return np.tril(np.ones((n, n), bool)) if support == "causal" else np.ones((n, n), bool)
    return np.asarray(support)


def window(n, w):
    place = torch.arange(n)
    return (place[:, None] >= place) & (place[:, None] - place < w)


def distance_of(n):
    return max(math.ceil(n / 10), min(4, n // 4), 1)


def oracle(a, seen, alpha=0.01):
    """The rule's own words, key by key."""
    a, n = np.asarray(a, dtype=np.float64), len(a)
    far = seen & (np.abs(np.subtract.outer(np.arange(n), np.arange(n))) >= distance_of(n))
    count = far.sum(0)
    required = max(3, 0.4 * count.max())
    eligible = count >= required - 1e-9
    sinks, excess = np.zeros(n, bool), np.full(n, np.nan)
    far_entries = [a[i][far[i]] if far[i].any() else np.zeros(1) for i in range(n)]
    means, variances, tops = ([float(f(row)) for row in far_entries] for f in (np.mean, np.var, np.max))
    for j in range(n):
        rows = np.flatnonzero(far[:, j])
        if not len(rows):
            continue
        mass = a[rows, j].sum()
        expected, variance = sum(means[i] for i in rows), sum(variances[i] for i in rows)
        largest = max(tops[i] for i in rows)
        uniform = sum(1 / seen[i].sum() for i in rows)
        excess[j] = (mass - expected) / len(rows)
        level = math.log(max(eligible.sum(), 1) / alpha)
        linear = level * largest / 3
        threshold = linear + math.sqrt(linear**2 + 2 * variance * level)
        sinks[j] = eligible[j] and mass - expected >= threshold and mass > 2 * uniform
    return sinks, excess, eligible


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def with_key(logits, key, mass, support="causal"):
    """The attention of the logits with `mass` moved to one key of every row that sees it."""
    a = softmax(logits, support)
    seen = torch.as_tensor(mask_of(support, a.shape[-1]))[:, key]
    moved = a * (1 - mass)
    moved[..., key] += mass
    return torch.where(seen[:, None], moved, a)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("support", ["causal", "full", "window", "mask"])
@pytest.mark.parametrize("n", [1, 2, 3, 5, 16, 33, 70])
def test_equal_to_loops_for_every_size_support_and_dtype(n, support, dtype):
    words = support
    if support == "window":
        words = window(n, max(2, n // 2))
    elif support == "mask":
        words = (torch.rand(n, n, generator=torch.Generator().manual_seed(n)) < 0.6) | torch.eye(n).bool()
    attention = torch.stack([softmax(2 * normal(n, n, seed=s), words) for s in range(3)])
    attention[1] = with_key(normal(n, n), 0, 0.4, words)
    attention = attention.to(dtype)
    result = asc.sink_test(attention, support=words)
    for values, sinks, excess, eligible in zip(
        attention, result.sinks, result.excess, result.eligible, strict=True
    ):
        expected = oracle(values.double(), mask_of(words, n))
        assert sinks.tolist() == expected[0].tolist()
        np.testing.assert_allclose(excess, expected[1], rtol=1e-11, atol=1e-15)
        assert eligible.tolist() == expected[2].tolist()
    best = np.where(result.sinks, result.mean, -np.inf)
    assert result.position.tolist() == [int(np.argmax(row)) if row.max() > 0 else -1 for row in best]


def test_strides_lengths_and_what_a_bad_map_touches():
    attention = torch.stack([with_key(normal(40, 40, seed=s), 0, 0.4) for s in range(3)])
    plain = asc.sink_test(attention)
    wide = torch.zeros(3, 80, 120, dtype=torch.float64)
    wide[:, ::2, ::3] = attention
    for other in (wide[:, ::2, ::3], attention.mT.contiguous().mT):
        for name, values, again in zip(plain._fields, plain, asc.sink_test(other), strict=True):
            np.testing.assert_allclose(values.double(), again.double(), rtol=1e-12, err_msg=name)
    cut = asc.sink_test(attention, lengths=[40, 17, 1])
    single_result = asc.sink_test(attention[1, :17, :17])
    np.testing.assert_array_equal(cut.mass[1, :17], single_result.mass)
    assert cut.position.tolist() == [0, single_result.position.item(), -1]
    assert cut.untested.tolist() == [False, False, True]
    assert cut.mass[1, 17:].isnan().all()
    assert not cut.eligible[1, 17:].any()
    bad = attention.clone()
    bad[1, 30, 2] = math.nan
    with pytest.warns(asc._warn.NonFiniteWarning):
        result = asc.sink_test(bad)
    assert result.untested.tolist() == [False, True, False]
    assert not result.sinks[1].any()
    for field, values in zip(result, plain, strict=True):
        np.testing.assert_array_equal(field[[0, 2]], values[[0, 2]])


def test_arguments():
    with pytest.raises(ValueError, match=r"sink_test: alpha must lie strictly between 0 and 1, got 1"):
        asc.sink_test(torch.eye(4), alpha=1)
    result = asc.sink_test(torch.eye(4).expand(2, 4, 4))
    with pytest.raises(ValueError, match="sink_sums: label must be one of 'start', 'end', 'token', got 'x'"):
        asc.sink_sums(result, label="x")
    with pytest.raises(ValueError, match="sink_sums: tokens must hold 2 texts, got 0"):
        asc.sink_sums(result, label="token")
    with pytest.raises(ValueError, match=r"sink_sums: maps must have an axis of texts, .*\(4,\)"):
        asc.sink_sums(asc.sink_test(torch.eye(4)))
    with pytest.raises(ValueError, match="pooled_sinks: texts must be at least 1, got 0"):
        asc.pooled_sinks(asc.sink_sums(result), texts=0)
    with pytest.raises(ValueError, match="pooled_sinks: sums has no column 'layer'"):
        asc.pooled_sinks(asc.sink_sums(result), texts=2, by=["layer"])


# Heads without a sink ------------------------------------------------------------------------------------

SIZES = (16, 33, 64, 128)
HEADS = 50


def decay(n, rate):
    place = torch.arange(n, dtype=torch.float64)
    return -rate * (place[:, None] - place).abs()


def regimes(n, support):
    """Name -> attention [heads, n, n] and its support."""
    shape = (HEADS, n, n)
    tables = {"uniform": torch.zeros(1, n, n, dtype=torch.float64)}
    tables |= {f"logits N(0, {s}²)": s * normal(*shape, seed=s) for s in (1, 2, 4, 10)}
    near = {"self": 0, "previous": 1, "next": -1}
    for name, offset in near.items():
        place = torch.arange(n)
        key = (place - offset).clamp(0, n - 1)
        key = torch.minimum(key, place) if support == "causal" else key
        tables[name] = 12.0 * torch.nn.functional.one_hot(key, n)[None].double() + normal(*shape)
    place = torch.arange(n)
    tables["window of 5"] = torch.where((place[:, None] - place).abs() < 5, 8.0, 0.0) + normal(*shape)
    block = (place[:, None] // 8 == place // 8).double()
    tables["block"] = 8 * block + normal(*shape)
    for rate in (0.02, 0.1, 0.3, 1.0):
        tables[f"decay e^(-{rate}d)"] = decay(n, rate) + normal(*shape)
    return {name: softmax(logits, support) for name, logits in tables.items()}


@pytest.mark.parametrize("support", ["causal", "full"])
@pytest.mark.parametrize("n", SIZES)
def test_heads_without_a_sink_have_none(n, support):
    answer = {}
    for name, attention in regimes(n, support).items():
        result = asc.sink_test(attention, support=support)
        assert not result.untested.any()
        answer[name] = (result.position >= 0).double().mean().item()
        pooled = asc.pooled_sinks(
            asc.sink_sums(
                result._replace(**{field: getattr(result, field)[:, None] for field in result._fields})
            ),
            texts=len(attention),
        )
        assert not pooled["sink"].any(), name
    print(n, support, answer)
    assert max(answer.values()) <= 0.01


@pytest.mark.parametrize("share", [0.27, 0.35, 0.5])
@pytest.mark.parametrize("n", SIZES)
def test_windows_have_none(n, share):
    band = window(n, max(2, round(share * n)))
    for sharpness in (0.0, 1.0, 4.0):
        attention = softmax(sharpness * normal(HEADS, n, n, seed=3), band)
        result = asc.sink_test(attention[:, None], support=band)
        assert not result.sinks.any()
        assert not asc.pooled_sinks(asc.sink_sums(result), texts=HEADS)["sink"].any()


def test_a_window_that_leaves_no_key_is_untested():
    band = window(64, 6)  # keys farther than 6 are far
    result = asc.sink_test(softmax(normal(64, 64), band), support=band)
    assert result.untested.item()
    assert result.position.item() == -1


@pytest.mark.parametrize("sharpness", [0.5, 4.0])
def test_the_level_is_far_below_alpha_as_the_page_says(sharpness):
    """Logits of noise: the far entries of each row are exchangeable."""
    logits = torch.randn(300, 64, 64, generator=torch.Generator().manual_seed(0)) * sharpness
    maps = logits.masked_fill(torch.ones(64, 64, dtype=torch.bool).triu(1), -torch.inf).softmax(-1)
    assert not asc.sink_test(maps, alpha=0.05).sinks.any()
    assert asc.sink_test(maps, alpha=0.5).sinks.any(-1).double().mean() < 0.02


# Heads with one ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "mass", "least"), [(33, 0.3, 1), (64, 0.1, 1), (64, 0.3, 1), (128, 0.05, 1)])
def test_a_first_key_is_found(n, mass, least):
    result = asc.sink_test(with_key(normal(HEADS, n, n), 0, mass))
    assert (result.position == 0).double().mean() >= least
    assert result.sinks.sum(-1).max() == 1


def test_power_falls_with_sharpness_as_the_page_says():
    result = asc.sink_test(with_key(3 * normal(HEADS, 128, 128), 0, 0.05))
    assert (result.position == 0).double().mean() < 0.2


def test_heads_whose_logits_depend_on_the_key_alone_have_sinks():
    logits = 3 * normal(HEADS, 1, 64).expand(HEADS, 64, 64)
    assert (asc.sink_test(softmax(logits, "full")).position >= 0).all()


def test_a_random_key_of_each_text_is_found_there_and_not_pooled_by_position():
    n, texts = 64, 40
    keys = torch.randint(0, n // 3, (texts,), generator=torch.Generator().manual_seed(1))
    attention = torch.stack([with_key(normal(n, n, seed=s), int(k), 0.3) for s, k in enumerate(keys)])
    result = asc.sink_test(attention[:, None])
    assert (result.position[:, 0] == keys).double().mean() > 0.95
    for label in ("start", "end"):
        assert not asc.pooled_sinks(asc.sink_sums(result, label=label), texts=texts)["sink"].any()


def test_a_special_token_in_the_first_half_of_each_text_is_pooled_by_token():
    n, texts = 64, 40
    draw = np.random.default_rng(2)
    keys = draw.integers(0, n // 2, texts)
    tokens = [[f"t{draw.integers(20)}" for _ in range(n)] for _ in range(texts)]
    for text, key in zip(tokens, keys, strict=True):
        text[key] = "special"
    attention = torch.stack([with_key(normal(n, n, seed=s), int(k), 0.1) for s, k in enumerate(keys)])
    result = asc.sink_test(attention[:, None])
    pooled = asc.pooled_sinks(asc.sink_sums(result, label="token", tokens=tokens), texts=texts)
    assert pooled["label"][pooled["sink"]].tolist() == ["special"]


def test_labels_from_the_end_follow_the_lengths():
    lengths = [40, 50, 64, 45, 60]
    attention = torch.zeros(5, 64, 64, dtype=torch.float64)
    for text, size in enumerate(lengths):
        attention[text, :size, :size] = with_key(normal(size, size, seed=text), size - 1, 0.4, "full")
    result = asc.sink_test(attention[:, None], lengths=torch.tensor(lengths)[:, None], support="full")
    pooled = asc.pooled_sinks(asc.sink_sums(result, label="end", lengths=torch.tensor(lengths)), texts=5)
    assert pooled["label"][pooled["sink"]].tolist() == [-1]
    by_start = asc.pooled_sinks(asc.sink_sums(result, lengths=lengths), texts=5)
    assert not by_start["sink"].any()
    # Two batches below each other say what one says.
    halves = [
        asc.sink_sums(asc.SinkTest(*(field[part] for field in result)), label="end", lengths=lengths[part])
        for part in (slice(0, 2), slice(2, 5))
    ]
    import pandas as pd

    again = asc.pooled_sinks(pd.concat(halves), texts=5)
    pd.testing.assert_frame_equal(again, pooled)


def test_pooling_follows_the_words_of_the_rule():
    """Sums, eligible labels and shares of texts, counted by hand on a table."""
    n, texts = 12, 7
    attention = torch.stack([with_key(normal(2, n, n, seed=s), 0, 0.5) for s in range(texts)])
    result = asc.sink_test(attention)
    pooled = asc.pooled_sinks(asc.sink_sums(result), texts=texts).set_index(["map", "label"])
    for head in range(2):
        labels = np.flatnonzero(result.eligible[:, head].sum(0) >= max(texts / 2, 3))
        level = math.log(len(labels) / 0.01)
        for key in labels:
            mass, expected, variance, uniform, queries = (
                float(getattr(result, field)[:, head, key].sum())
                for field in ("mass", "expected", "variance", "uniform", "queries")
            )
            linear = level * float(result.largest[:, head, key].max()) / 3
            threshold = linear + math.sqrt(linear**2 + 2 * variance * level)
            above = (result.mass[:, head, key] > 2 * result.uniform[:, head, key]).double().mean()
            row = pooled.loc[(head, key)]
            assert row["sink"] == (mass - expected >= threshold and mass > 2 * uniform and above > 0.5)
            assert row["excess"] == pytest.approx((mass - expected) / queries)
            assert row["threshold"] == pytest.approx(threshold / queries)
    assert pooled["sink"].groupby("map").sum().tolist() == [1, 1]


def test_the_examples_of_gpt2_pooled():
    if not DATA.exists():
        pytest.skip(f"no maps of GPT-2 at {DATA}")
    import pandas as pd

    sums, tested_alone = [], 0
    for path in sorted(DATA.glob("ex*.npz")):
        result = asc.sink_test(
            torch.from_numpy(np.load(path)["attn_softmax"]).reshape(
                1, 144, *[np.load(path)["attn_softmax"].shape[-1]] * 2
            )
        )
        sums.append(asc.sink_sums(result))
        tested_alone += int((result.position >= 0).sum())
    pooled = asc.pooled_sinks(pd.concat(sums), texts=5)
    print("heads with a sink:", pooled["sink"].sum(), "of 144; in single texts:", tested_alone, "of 720")
    assert 95 <= pooled["sink"].sum() <= 110
    assert set(pooled["label"][pooled["sink"]]) == {0}


def test_the_largest_entry_of_uniform_attention_is_no_sink():
    """What the argmax and the frequency rule say of heads that have none."""
    uniform = softmax(torch.zeros(64, 64, dtype=torch.float64))
    assert asc.sink_position(uniform, rule="largest").item() == 0
    identity = torch.eye(64)
    assert asc.sink_position(identity, rule="largest").item() == 64 - math.ceil(0.3 * 64)
    assert asc.sink_tokens(identity, rule="frequency").sum() > 0
    for attention in (uniform, identity):
        assert asc.sink_test(attention, support="causal").position.item() == -1
        assert asc.sink_position(attention).item() == -1
        assert not asc.sink_tokens(attention).any()
        assert asc.measure(attention, ["sink_position"])["sink_position"].item() == -1


@pytest.mark.parametrize("lengths", [None, [40, 33]])
@pytest.mark.parametrize("support", ["auto", "full"])
def test_position_tokens_and_excess_are_fields_of_the_test(lengths, support):
    logits = torch.randn(2, 40, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    logits[..., 0] += 4
    attention = softmax(logits) if support == "auto" else logits.softmax(-1)
    options = {"lengths": lengths, "support": support}
    pooled_result = asc.sink_test(attention, alpha=0.02, **options)
    assert pooled_result.sinks.any()
    assert torch.equal(asc.sink_position(attention, alpha=0.02, **options), pooled_result.position)
    assert torch.equal(asc.sink_tokens(attention, alpha=0.02, **options), pooled_result.sinks)
    assert torch.equal(
        asc.sink_excess(attention, **options).nan_to_num(7), pooled_result.excess.nan_to_num(7)
    )
    # what else one read of the maps answers stands beside them
    together = asc.measure(
        attention, ["sink_position", "sink_tokens", "sink_excess", "sink_share", "sink_rate"], **options
    )
    assert torch.equal(together["sink_position"], asc.sink_position(attention, **options))
    assert torch.equal(together["sink_excess"].nan_to_num(7), pooled_result.excess.nan_to_num(7))


def test_beside_what_one_read_answers_the_position_is_that_of_the_test():
    """The largest key of uniform attention is the first, and no sink."""
    uniform = softmax(torch.zeros(40, 40, dtype=torch.float64))
    result = asc.measure(uniform, ["sink_share", "sink_rate", "sink_position"])
    assert result["sink_position"].item() == -1
    metrics = {"sink_share": {}, "sink_rate": {}, "sink_position": {"rule": "largest"}}
    assert asc.measure(uniform, metrics)["sink_position"].item() == 0


def test_a_warning_carries_the_name_of_the_function():
    attention = torch.rand(2, 9, 9)
    attention[1, 3, 2] = math.nan
    for function in (asc.sink_position, asc.sink_tokens, asc.sink_excess):
        with pytest.warns(RuntimeWarning, match=f"^{function.__name__}: 1 of 2 matrices"):
            function(attention)


@pytest.mark.parametrize(("times", "has_sink"), [(1.7, False), (2.3, True)])
def test_a_sink_has_more_than_twice_what_uniform_attention_gives(times, has_sink):
    """However many texts say that a key gets more than its neighbours."""
    n = 300
    a = torch.ones(n, n, dtype=torch.float64).tril()
    a[2:, 0] = times * torch.arange(2, n) / (torch.arange(3, n + 1) - times)  # this many times 1/(i + 1)
    a = (a / a.sum(-1, keepdim=True)).expand(6, 1, n, n)
    single_result = asc.sink_test(a[0, 0])
    assert single_result.excess[0] * single_result.queries[0] > single_result.threshold[0]
    assert single_result.sinks[0].item() is has_sink
    pooled = asc.pooled_sinks(asc.sink_sums(asc.sink_test(a)), texts=6).set_index("label").loc[0]
    assert pooled["excess"] > pooled["threshold"]
    assert pooled["sink"] == has_sink


def test_a_sink_receives_more_than_twice_what_uniform_attention_gives_it():
    maps = torch.tensor([0.5, 0.25, 0.125, 0.125], dtype=torch.float64).expand(64, 4)
    twice = asc.sink_test(maps, cross=True)
    assert twice.mass[0] == 2 * twice.uniform[0]
    assert twice.mass[0] - twice.expected[0] > twice.threshold[0]
    assert not twice.sinks.any()
    above_twice = maps + torch.tensor([2.0**-20, -(2.0**-20), 0, 0])
    assert asc.sink_test(above_twice, cross=True).sinks.tolist() == [True, False, False, False]


@pytest.mark.parametrize(
    ("texts", "above", "eligible", "sink"),
    [(3, 3, True, True), (2, 2, False, False), (4, 2, True, False), (4, 3, True, True)],
)
def test_a_pooled_label_is_in_half_of_the_texts_and_above_in_more_than_half_of_its_own(
    texts, above, eligible, sink
):
    import pandas as pd

    sums = pd.DataFrame(
        {
            "map": [0],
            "label": [0],
            "texts": [texts],
            "above": [above],
            "mass": [90.0],
            "expected": [10.0],
            "variance": [1.0],
            "largest": [1.0],
            "uniform": [10.0],
            "queries": [100],
        }
    )
    pooled = asc.pooled_sinks(sums, texts=6)
    assert (bool(pooled["eligible"][0]), bool(pooled["sink"][0])) == (eligible, sink)
