# SPDX-License-Identifier: MIT
"""The border of prompt and answer on a page: of a model that writes, results, recordings and tensors."""

import numpy as np
import pytest
import torch

import attnscope as asc
from browser import in_a_browser, looked_at, probe
from models import tiny, tiny_llama

PROMPT = [1, 5, 9, 7, 3, 2]
GREEDY = {"max_new_tokens": 5, "do_sample": False, "eos_token_id": None}


def answers(page, kind=0):
    return {tuple(shown["answer"]) for shown in page.contents["maps"] if shown["input"] == kind}


def matrices(page):
    """The maps of a page of square causal maps, [layer, head, n, n]."""
    import base64

    shown = {(entry["layer"], entry["head"]): entry for entry in page.contents["maps"]}
    n = shown[0, 0]["n"]
    maps = np.zeros((2, 4, n, n), dtype=np.float32)
    for (layer, head), entry in shown.items():
        maps[layer, head][np.tril_indices(n)] = np.frombuffer(base64.b64decode(entry["entries"]), "<f4")
    return maps


@pytest.fixture(scope="module")
def model():
    return tiny_llama()


@pytest.fixture(scope="module")
def page(model):
    return asc.view(model, PROMPT, generate=GREEDY, head=(0, 1))


def test_a_model_writes_and_the_page_knows_where_its_answer_begins(model, page):
    ids = torch.tensor([PROMPT])
    written = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), pad_token_id=0, **GREEDY)
    assert answers(page) == {(6, 11)}
    assert page.contents["maps"][0]["tokens"] == [str(token) for token in written[0].tolist()]
    with asc.capture(model) as recording:
        expected = torch.stack([layer.attention[0].clone() for layer in recording.run(input_ids=written)])
    np.testing.assert_allclose(matrices(page), expected.numpy(), atol=1e-6)


def test_a_recording_of_several_padded_prompts(model):
    ids = torch.tensor([[1, 5, 9, 7], [0, 0, 3, 4]])
    with asc.capture(model) as recording:
        for _ in recording.generate(input_ids=ids, attention_mask=(ids > 0).long(), pad_token_id=0, **GREEDY):
            pass
        layers = list(recording.assembled())
    assert [layer.answer_start.tolist() for layer in layers] == [[4, 2]] * 2
    with pytest.raises(ValueError, match="the recording holds 2 sequences; sample=0 shows the first"):
        asc.view(recording)
    with pytest.raises(ValueError, match="the recording has no sample 2, only 0 to 1"):
        asc.view(recording, sample=2)
    with pytest.raises(ValueError, match="6 queries need as many names, got 1 tokens"):
        asc.view(recording, sample=1, tokens=["a"])
    for sample, start, n in ((0, 4, 8), (1, 2, 6)):
        page = asc.view(recording, sample=sample)
        assert answers(page) == {(start, n)}
        written = recording.output[sample].tolist()
        assert page.contents["maps"][0]["tokens"] == [str(token) for token in written[8 - n : 8]]
        expected = torch.stack([layer.samples()[sample] for layer in layers]).numpy()
        np.testing.assert_allclose(matrices(page), expected, atol=1e-7)


def test_a_prompt_that_is_read_in_pieces(model):
    ids = torch.tensor([PROMPT])
    with asc.capture(model) as recording:
        steps = [
            layer.attention.shape[-2]
            for layer in recording.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                pad_token_id=0,
                **GREEDY,
                prefill_chunk_size=4,
            )
            if layer.index == 0
        ]
        (first, _) = recording.assembled()
    assert steps[:2] == [4, 2]
    assert first.answer_start.tolist() == [6]


def test_nothing_is_marked_where_no_token_follows_the_prompt(model):
    ids = torch.tensor([PROMPT])
    with asc.capture(model) as recording:
        list(recording.generate(input_ids=ids, pad_token_id=0, **{**GREEDY, "max_new_tokens": 1}))
        assert [layer.answer_start.tolist() for layer in recording.assembled()] == [[6], [6]]
    assert all("answer" not in shown for shown in asc.view(recording).contents["maps"])


def test_the_decoder_of_an_encoder_decoder_answers():
    model = tiny("t5")
    ids = torch.tensor([[3, 4, 5, 6, 7]])
    with asc.capture(model) as recording:
        for _ in recording.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), pad_token_id=0, **GREEDY
        ):
            pass
    contents = asc.view(recording).contents
    spans = {contents["inputs"][shown["input"]]: tuple(shown.get("answer", ())) for shown in contents["maps"]}
    assert spans == {
        "encoder.block.*.layer.*.SelfAttention": (),
        "decoder.block.*.layer.*.SelfAttention": (1, 5),
        "decoder.block.*.layer.*.EncDecAttention": (1, 5),
    }


@pytest.mark.parametrize("options", [{"generate": GREEDY}, {"answer": [(4, 6), (1, 2)]}])
def test_a_sentence_of_results_with_answers(model, options):
    metrics = ["sink_share"]
    results = asc.analyze(model, [PROMPT, [4, 5, 6]], metrics, **options)
    expected = [(6, 11), (3, 8)] if "generate" in options else options["answer"]
    assert [answers(asc.view(results, sample=sample)) for sample in (0, 1)] == [{span} for span in expected]
    without = asc.analyze(model, [PROMPT], metrics)
    assert all("answer" not in shown for shown in asc.view(without, sample=0).contents["maps"])


def test_an_answer_of_tensors_and_of_a_text(model):
    uniform = torch.full((1, 2, 6, 6), 1 / 6)
    assert answers(asc.view(uniform, answer=4)) == {(4, 6)}
    assert answers(asc.view(uniform, answer=(2, 5))) == {(2, 5)}
    assert answers(asc.view(model, PROMPT, answer=(2, 5))) == {(2, 5)}
    pair = asc.view(tiny("t5"), ([3, 4, 5, 6, 7], [1, 9, 10]), answer=1).contents
    spans = {pair["inputs"][shown["input"]]: shown.get("answer") for shown in pair["maps"]}
    assert spans == {"encoder": None, "decoder": [1, 3], "cross": [1, 3]}


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda model: asc.view(model, PROMPT, generate=GREEDY, answer=2), "generate writes one; give one"),
        (lambda model: asc.view(model, PROMPT, answer=6), r"answer must be .* of 6 tokens, got 6"),
        (lambda model: asc.view(model, PROMPT, answer=(3, 2)), r"of 6 tokens, got \(3, 2\)"),
        (lambda model: asc.view(torch.ones(1, 1), answer="0"), "of 1 tokens, got '0'"),
        (lambda model: asc.view(torch.ones(1, 1), generate=GREEDY), "generate does not go with tensors"),
        (lambda model: asc.view(model, PROMPT, generate=5), "generate must be a mapping of options, got 5"),
        (
            lambda model: asc.view(model, PROMPT, generate={"inputs": 1}),
            "view: generate sets 'inputs' itself",
        ),
        (
            lambda model: asc.view(model, {"inputs_embeds": torch.zeros(1, 3, 96)}, generate=GREEDY),
            "view: generate takes a text or token ids, got inputs with inputs_embeds too",
        ),
        (
            lambda model: asc.view(tiny("t5"), ([3, 4], [1, 9]), generate=GREEDY),
            "an encoder-decoder, is in its decoder",
        ),
    ],
)
def test_what_has_no_answer_says_so(model, call, words):
    with pytest.raises(ValueError, match=words):
        call(model)


_LINES = """(() => {
  const context = at("matrix").getContext("2d"), side = 2 * sideOf(state.map), start = 2 * MARGIN;
  const is = (x, y, rgb) => {
    const pixel = context.getImageData(Math.round(x), Math.round(y), 1, 1).data;
    return Math.max(...rgb.map((c, i) => Math.abs(c - pixel[i]))) < 60;
  };
  const blackOrWhite = (x, y) => is(x, y, [0, 0, 0]) || is(x, y, [255, 255, 255]);
  const rows = [], columns = [], bar = [];
  for (let end = 0; end < state.map.rows; end++) {
    rows.push([0.3, 0.6, 0.9, 1.3].every((k) => blackOrWhite(start + k * side, start + end * side)));
    const below = (k) => start + (state.map.rows - k) * side;
    columns.push([0.3, 0.6, 0.9, 1.3].every((k) => blackOrWhite(start + end * side, below(k))));
    const accent = getComputedStyle(document.body).getPropertyValue("--accent");
    bar.push(is(start - 5, start + (end + 0.5) * side, accent.match(/\\w\\w/g).map((c) => parseInt(c, 16))));
  }
  const underlined = [...at("tokens").querySelectorAll(".answer")].map((node) => node.textContent);
  const nodes = [...at("graph").querySelectorAll("circle")].map((node) => node.classList.contains("answer"));
  query(2);
  const ofPrompt = at("tokens").textContent;
  query(8);
  const [ofAnswer, facts] = [at("tokens").textContent, at("answer-facts").textContent];
  return { rows, columns, bar, underlined, nodes, ofPrompt, ofAnswer, facts };
})()"""


@in_a_browser
def test_the_border_is_drawn_and_the_answer_s_queries_are_named(page, tmp_path):
    shown = looked_at(page, tmp_path, script=probe(_LINES)).probe
    assert [place for place, is_line in enumerate(shown["rows"]) if is_line] == [6]
    assert [place for place, is_line in enumerate(shown["columns"]) if is_line] == [6]
    assert [place for place, is_bar in enumerate(shown["bar"]) if is_bar] == [6, 7, 8, 9, 10]
    assert shown["underlined"] == page.contents["maps"][0]["tokens"][6:]
    assert shown["nodes"] == [False] * 6 + [True] * 5
    assert "(2, of the prompt) attends to" in shown["ofPrompt"]
    assert "(8, of the answer) attends to" in shown["ofAnswer"]
    weights = matrices(page)[0, 1, 6:]
    share = float(f"{weights[:, :6].sum(-1).mean():.3g}")
    assert "queries 6 to 10, at the bar" in shown["facts"]
    assert f"They give {share} of their attention to the prompt" in shown["facts"]


@in_a_browser
def test_pages_without_an_answer_have_no_border(model, tmp_path):
    shown = looked_at(asc.view(model, PROMPT), tmp_path, script=probe("at('answer-facts').hidden")).probe
    assert shown is True
