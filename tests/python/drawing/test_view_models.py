# SPDX-License-Identifier: MIT
"""The page of a model and a text, of cross attention, of infinite numbers, and in a notebook's cell."""

import json

import numpy as np
import pytest
import torch

import attnscope as asc
import figure_tables as made
from attnscope.errors import ResultsError
from attnscope.results.results import Results
from browser import CHROMIUM, in_a_browser, looked_at, probe
from models import tiny_llama

N, LAYERS, HEADS = 12, 3, 4


def attention():
    logits = 2 * torch.randn(LAYERS, HEADS, N, N, generator=torch.Generator().manual_seed(1))
    logits[1, 2, :, 0] += 4
    return logits.masked_fill(torch.ones(N, N).triu(1) > 0, -torch.inf).softmax(-1)


@pytest.fixture(scope="module")
def page():
    return asc.view(attention())


def test_a_model_and_a_text_are_a_page():
    model, ids = tiny_llama(), [1, 5, 9, 7, 3, 2, 11, 30]
    page = asc.view(model, ids, head=(1, 2))
    with asc.capture(model) as recording:
        maps = [layer.attention[0].clone() for layer in recording.run(input_ids=torch.tensor([ids]))]
    stored = {
        (attention_map["layer"], attention_map["head"]): attention_map
        for attention_map in page.contents["maps"]
    }
    assert sorted(stored) == [(layer, head) for layer in range(2) for head in range(4)]
    assert stored[1, 2]["tokens"] == [str(token_id) for token_id in ids]
    share = next(at for at, metric in enumerate(page.contents["metrics"]) if metric["name"] == "sink_share")
    shown = np.array(page.contents["values"][0][0][share], dtype=float)
    assert np.allclose(
        shown, [asc.sink_share(attention_map).share.numpy() for attention_map in maps], rtol=1e-5
    )
    assert page.contents["open"] == [1, 2]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: asc.view(tiny_llama()), "a model needs a text"),
        (lambda: asc.view(tiny_llama(), "a cat"), "a sentence needs a tokenizer"),
        (lambda: asc.view(tiny_llama(), " ", tokenizer=str.split), "text is an empty text: ' '"),
        (lambda: asc.view(tiny_llama(), []), "a text needs at least one token, got none"),
        (lambda: asc.view(tiny_llama(), [[1, 2], []]), "a text needs at least one token, got none"),
        (lambda: asc.view(tiny_llama(), [[1, 2], [3, 4]], answer=1), "answer of one text is, got 2 texts"),
        (lambda: asc.view(tiny_llama(), [1, 2, 3], head=(2, 0)), "no head 0 in layer 2; layers 0 to 1"),
        (lambda: asc.view(tiny_llama(), [1, 2], sample=0), "sample does not go with a model"),
        (lambda: asc.view(attention(), text="a"), "text does not go with tensors"),
    ],
)
def test_a_model_without_what_it_needs_says_so(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_an_encoder_decoder_has_three_kinds_of_attention(tmp_path):
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    shape = dict(d_model=16, d_ff=16, d_kv=4, num_layers=2, num_decoder_layers=3, num_heads=4, vocab_size=30)
    model = T5ForConditionalGeneration(T5Config(**shape)).eval()
    page = asc.view(model, ([3, 4, 5, 6, 7], [1, 9, 10]))
    assert page.contents["inputs"] == ["encoder", "decoder", "cross"]
    crossing = [attention_map for attention_map in page.contents["maps"] if attention_map["input"] == 2]
    assert len(crossing) == 3 * 4
    assert all(len(page_map["tokens"]) == 5 and len(page_map["queries"]) == 3 for page_map in crossing)
    names = [metric["name"] for metric in page.contents["metrics"]]
    of_cross = dict(zip(names, page.contents["values"][0][2], strict=True))
    assert all(cell is None for row in of_cross["fiedler_value"] for cell in row)
    assert all(cell is not None for row in of_cross["entropy"] for cell in row)
    entropy_of_uniform = page.contents["uniform"][2][names.index("entropy")]
    assert entropy_of_uniform == pytest.approx(np.log(5), rel=1e-5)
    if CHROMIUM is not None:
        script = "state.input = 2; at('input').value = 2; choose(2, 1); " + probe(
            "[state.map.rows, state.map.n, at('graph').closest('figure').hidden, at('tokens').textContent]"
        )
        rows, n, hidden, words = looked_at(page, tmp_path, script=script).probe
        assert (rows, n, hidden) == (3, 5, True)
        assert "What the query \u206810\u2069 (2) attends to" in words


def test_results_of_analyze_remember_their_model_while_it_lives():
    model = tiny_llama()
    results = asc.analyze(model, torch.tensor([[1, 4, 8, 15]]), ["sink_share"])
    assert len(asc.view(results, sample=0).contents["maps"]) == 8
    results.model = lambda: None
    with pytest.raises(ResultsError, match="their model is gone"):
        asc.view(results, sample=0)
    assert len(asc.view(results, sample=0, model=model).contents["maps"]) == 8


def test_the_page_opens_on_the_strongest_head_of_its_metric(page, tmp_path):
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine")
    grid = np.array(page.contents["values"][0][0][0], dtype=float)
    layer, head = np.unravel_index(np.nanargmax(grid), grid.shape)
    assert looked_at(page, tmp_path, script=probe("[state.layer, state.head]")).probe == [layer, head]


def test_every_matrix_has_a_small_picture_when_asked_for(page, tmp_path):
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine")
    script = "at('of-thumbnails').open = true; drawThumbnails(); " + probe(
        "[document.querySelectorAll('#thumbnails canvas').length, "
        "at('thumbnails').children[6].getContext('2d').getImageData(2, 30, 1, 1).data[3]]"
    )
    assert looked_at(page, tmp_path, script=script).probe == [LAYERS * HEADS, 255]


@pytest.mark.parametrize("width", [700, 960, 1300])
def test_a_cell_of_a_notebook_holds_two_columns(page, tmp_path, width):
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine")
    script = (
        "Math.max(at('overview').getBoundingClientRect().right, "
        "document.querySelector('#numbers table').getBoundingClientRect().right) "
        "<= at('detail').getBoundingClientRect().left"
    )
    shown = looked_at(page, tmp_path, script=probe(script), options=[f"--window-size={width},900"])
    assert shown.probe is True


def test_raw_marks_of_vocabularies_are_text():
    page = asc.view(
        attention(), tokens=["<s>", "\u0120the", "\u2581a", "\u010a", *(f"t{at}" for at in range(4, N))]
    )
    assert page.contents["maps"][0]["tokens"][:4] == ["<s>", " the", " a", "\n"]


def test_a_mean_leaves_an_infinite_sample_out_as_the_report_does():
    results = made.make_results()
    heads, samples = results.table("heads"), results.table("samples")
    of_head = (heads["layer"] == 0) & (heads["head"] == 1)
    heads.loc[of_head & (heads["sample"] == 1), "mp_ks"] = np.inf
    page = asc.view(Results({"heads": heads, "samples": samples}))
    at = [metric["name"] for metric in page.contents["metrics"]].index("mp_ks")
    group = samples.groupby("sample")["group"].first()
    first = heads[of_head & (heads["step"] == heads["step"].min())]
    numbers = first[first["sample"].map(group) == group[1]]["mp_ks"]
    assert np.isinf(numbers).sum() == 1
    expected = numbers[np.isfinite(numbers)].mean()
    assert page.contents["values"][0][0][at][0][1] == pytest.approx(expected, rel=1e-5)
    json.dumps(page.contents, allow_nan=False)


@in_a_browser
def test_infinity_is_shown_and_colours_leave_it_out(tmp_path):
    page = asc.view(attention())
    page.contents["values"][0][0][0][1][2] = "Infinity"
    box = """document.querySelector('[data-layer="1"][data-head="2"]').getAttribute("aria-label")"""
    result = looked_at(page, tmp_path, "#layer=1&head=2", probe(f"[{box}, at('scale').textContent]"))
    assert result.probe[0] == "layer 1 head 2: ∞"
    assert "attention to first key∞" in result.text["numbers"]
    assert "∞" not in result.probe[1]
