# SPDX-License-Identifier: MIT
"""Several texts on one page, the lines between their tokens, and the picture that a notebook keeps."""

import base64
import io
import json

import numpy as np
import pytest
import torch
from PIL import Image

import attnscope as asc
from attnscope.plots import still
from attnscope.view import measured
from browser import in_a_browser, looked_at, probe
from folders import tokenizer
from models import tiny, tiny_llama

IDS = [[1, 5, 9, 7, 3, 2, 11, 30], [4, 8, 2], [7, 7, 7, 6, 2]]
N = 12


@pytest.fixture(scope="module")
def model():
    return tiny_llama()


@pytest.fixture(scope="module")
def page(model):
    return asc.view(model, IDS)


def attention(n=N):
    logits = 2 * torch.randn(2, 3, n, n, generator=torch.Generator().manual_seed(1))
    logits[1, 2, :, 0] += 4
    return logits.masked_fill(torch.ones(n, n).triu(1) > 0, -torch.inf).softmax(-1)


def matrices(contents, place):
    return {
        (entry["layer"], entry["head"]): (entry["tokens"], entry["entries"])
        for entry in contents["maps"]
        if entry["input"] == place
    }


def test_every_text_has_what_a_page_of_its_own_has(model, page):
    contents = page.contents
    assert contents["texts"] == ["1 5 9 7 3 2 11 30", "4 8 2", "7 7 7 6 2"]
    names = [metric["name"] for metric in contents["metrics"]]
    for place, ids in enumerate(IDS):
        single = asc.view(model, ids).contents
        assert matrices(contents, place) == matrices(single, 0)
        for at, metric in enumerate(single["metrics"]):
            assert contents["values"][0][place][names.index(metric["name"])] == single["values"][0][0][at]
            assert contents["uniform"][place][names.index(metric["name"])] == single["uniform"][0][at]


def test_texts_come_as_analyze_takes_them(model):
    words = ["the cat sat on the mat", "rain fell over the old town"]
    reader = tokenizer()
    small = tiny("llama", vocab_size=len(reader), num_hidden_layers=1)
    expected = asc.view(small, words, tokenizer=reader).contents
    assert expected["texts"] == words
    batch = reader(words, padding=True, return_tensors="pt")
    for texts in ({"text": words, "label": [0, 1]}, tuple(words), batch):
        contents = asc.view(small, texts, tokenizer=reader).contents
        assert [matrices(contents, place) for place in (0, 1)] == [
            matrices(expected, place) for place in (0, 1)
        ]


def test_texts_of_an_encoder_decoder_are_pairs():
    pairs = [([3, 4, 5, 6, 7], [1, 9, 10]), ([3, 4], [1, 9, 10, 11])]
    contents = asc.view(tiny("t5"), pairs).contents
    assert contents["inputs"] == ["encoder", "decoder", "cross"]
    sizes = {
        entry["input"]: (len(entry.get("queries", entry["tokens"])), entry["n"]) for entry in contents["maps"]
    }
    assert sizes == {0: (5, 5), 1: (3, 3), 2: (3, 5), 3: (2, 2), 4: (4, 4), 5: (4, 2)}


def test_every_text_has_an_equal_part_of_the_room():
    room = 2 * (8 * 9 // 2) * 16 // 3 * 3
    contents = asc.view(tiny_llama(), [IDS[0]] * 3, max_bytes=room).contents
    assert [entry["input"] for entry in contents["maps"]] == [0, 0, 1, 1, 2, 2]
    assert contents["notes"] == [
        "The page holds the matrices of the first 6 of 24 heads of 3 texts, those of the first layers of "
        "each; more would make it larger than max_bytes. Pass fewer texts or layers to see the others."
    ]


def test_more_texts_than_a_page_holds_are_said(monkeypatch, model):
    monkeypatch.setattr(measured, "MOST_NUMBERS", 2000)
    contents = asc.view(model, IDS).contents
    assert contents["notes"] == [f"The page holds the first {len(contents['texts'])} of 3 texts."]
    assert len(contents["texts"]) < 3


@in_a_browser
def test_an_address_opens_a_text_and_the_menu_another(page, tmp_path):
    other = "at('text').value = 0; at('text').dispatchEvent(new Event('change'));"
    shown = "[state.text, state.query, state.map.n, at('text').value, location.hash]"
    script = f"const opened = {shown}; {other}" + probe(f"[opened, {shown}, at('of-text').hidden]")
    opened, chosen, hidden = looked_at(page, tmp_path, "#text=2&query=1", script=script).probe
    assert opened[:4] == [2, 1, 5, "2"]
    assert "text=2" in opened[4]
    assert chosen[:4] == [0, 7, 8, "0"]
    assert "text=0" in chosen[4]
    assert hidden is False


@in_a_browser
def test_a_page_of_one_text_has_no_menu_of_texts(model, tmp_path):
    script = probe("[at('of-text').hidden, location.hash.includes('text')]")
    assert looked_at(asc.view(model, IDS[0]), tmp_path, "#text=7", script=script).probe == [True, False]


LINES = """Array.from(document.querySelectorAll('#lines line')).map((line) => [
    line.getAttribute('y1'), line.getAttribute('y2'), line.getAttribute('stroke-width'),
    line.classList.contains('chosen')
].map(Number))"""


@in_a_browser
def test_lines_go_from_queries_to_keys_as_wide_as_their_attention(tmp_path):
    maps = attention()
    keys = "at('lines').dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowUp'}));"
    of_query_alone = "at('every-query').checked = false; drawLines();"
    script = f"const all = {LINES}; {keys} const moved = state.query; {of_query_alone}" + probe(
        f"[all, moved, {LINES}]"
    )
    lines, moved, of_query = looked_at(
        asc.view(maps), tmp_path, "#layer=1&head=1&query=9", script=script
    ).probe
    matrix = maps[1, 1].numpy()
    top = matrix.max()
    drawn = {
        (round((y1 - 16) / 16), round((y2 - 16) / 16)): (width, chosen) for y1, y2, width, chosen in lines
    }
    expected = {(i, j) for i, j in np.argwhere(matrix > 0.01 * top).tolist()}
    assert set(drawn) == expected
    for (i, j), (width, chosen) in drawn.items():
        assert width == pytest.approx(0.4 + 2.6 * matrix[i, j] / top, abs=0.006)
        assert chosen == (i == 9)
    assert moved == 8
    assert {round((y1 - 16) / 16) for y1, *_ in of_query} == {8}
    assert len(of_query) == len([key for query, key in expected if query == 8])


@in_a_browser
def test_lines_of_long_texts_are_the_strongest(tmp_path):
    maps = attention(160)
    script = probe("[document.querySelectorAll('#lines line').length, at('line-facts').textContent]")
    count, words = looked_at(asc.view(maps[:1, :1]), tmp_path, script=script).probe
    assert count == 1500
    assert (
        f"The strongest 1500 of {int((maps[0, 0] > 0.01 * maps[0, 0].max()).sum())} lines are drawn." in words
    )


@in_a_browser
def test_places_of_tokens_have_no_rank(tmp_path):
    maps = attention()
    page = asc.view(maps)
    page.contents["metrics"][1]["kind"] = "position"
    assert "constant" in {metric["kind"] for metric in page.contents["metrics"]}
    ranks = (
        "Array.from(document.querySelectorAll('#numbers tbody tr')).map((row) => row.lastChild.textContent)"
    )
    for metric, rank in zip(
        page.contents["metrics"], looked_at(page, tmp_path, script=probe(ranks)).probe, strict=True
    ):
        is_ordered = metric["kind"] not in ("position", "constant")
        assert bool(rank) == is_ordered, metric


def test_a_notebook_keeps_a_picture_next_to_the_page():
    page = asc.view(attention())
    bundle = page._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html", "image/png"}
    picture = Image.open(io.BytesIO(base64.b64decode(bundle["image/png"])))
    assert picture.format == "PNG"
    assert len(picture.convert("RGB").getcolors(10**6)) > 20
    assert f'src="data:image/png;base64,{bundle["image/png"]}"' in bundle["text/html"]
    json.dumps(bundle)


@pytest.mark.parametrize("head", [None, (0, 1)])
def test_the_picture_is_of_the_head_that_the_page_opens_on(monkeypatch, head):
    maps, calls = attention(), []
    monkeypatch.setattr(still, "draw_still", lambda *arguments: calls.append(arguments) or b"")
    asc.view(maps, head=head, tokens=[f"t{place}" for place in range(N)]).still()
    ((rows, metric, shown, matrix, _),) = calls
    share = maps[..., 0].double().mean(-1).numpy()
    assert metric == "attention to first key"
    assert np.allclose(rows[metric].to_numpy().reshape(share.shape), share, rtol=1e-5)
    expected = head or tuple(int(place) for place in np.unravel_index(share.argmax(), share.shape))
    assert shown == expected
    assert np.array_equal(matrix.entries.astype(np.float32), maps[expected].numpy())
    assert matrix.keys[3] == "t3"


def test_pages_without_a_matrix_and_of_rectangles_have_a_picture():
    results = asc.analyze(tiny_llama(), [IDS[0]], ["sink_share"])
    assert asc.view(results).still().startswith(b"\x89PNG")
    cross = asc.view(tiny("t5"), ([3, 4, 5, 6, 7], [1, 9, 10]))
    cross.contents["maps"] = [entry for entry in cross.contents["maps"] if "queries" in entry]
    assert cross.still().startswith(b"\x89PNG")


def test_a_page_without_matplotlib_has_no_picture(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "attnscope.plots.still", None)
    bundle = asc.view(attention())._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html"}
    assert "<img" not in bundle["text/html"].partition("<iframe")[0]
