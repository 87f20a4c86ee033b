# SPDX-License-Identifier: MIT
"""The page to look at heads with, in a real browser: what it shows is what the package computes."""

import html
import json
import re
import shutil
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch

import attnscope as asc
import figure_tables as made
from attnscope.errors import ResultsError
from attnscope.results.results import Results
from browser import CHROMIUM, Document, dom, in_a_browser, looked_at, probe
from models import tiny

EVIL = "<script>document.title='broken'</script>"
N, LAYERS, HEADS = 12, 3, 4


def attention(dtype=torch.float32, causal=True):
    logits = 2 * torch.randn(LAYERS, HEADS, N, N, generator=torch.Generator().manual_seed(1))
    logits[1, 2, :, 0] += 4
    if causal:
        logits = logits.masked_fill(torch.ones(N, N).triu(1) > 0, -torch.inf)
    return logits.softmax(-1).to(dtype)


TOKENS = ["<s>", EVIL, "&amp;", "", "\n", *(f"t{place}" for place in range(5, N))]


CLICK = """
    const box = document.querySelector('[data-layer="1"][data-head="2"]');
    box.dispatchEvent(new MouseEvent('click', {bubbles: true}));
"""
GRAPHS = """[250, 500, 600, 750, 875].map((place) => {
    at('threshold').value = place;
    at('threshold').dispatchEvent(new Event('input'));
    return [threshold(), at('graph-facts').textContent, document.querySelectorAll('#graph line').length];
})"""


@pytest.fixture(scope="module")
def page():
    return asc.view(attention(), tokens=TOKENS, title=EVIL)


@pytest.fixture(scope="module")
def clicked(page, tmp_path_factory):
    ends = "[endLabels(0.12345, 0.12346), endLabels(0.5, 2), endLabels(0.5, 0.5)]"
    heads_and_maps = (
        f"{{graphs: {GRAPHS}, matrix: Array.from(state.map.matrix), title: document.title, ends: {ends}}}"
    )
    return looked_at(page, tmp_path_factory.mktemp("clicked"), script=CLICK + probe(heads_and_maps))


@in_a_browser
def test_a_click_on_a_head_shows_that_head(clicked):
    assert clicked.text["head-title"] == "Layer 1, head 2"
    assert clicked.pressed == [(1, 2)]
    assert np.array_equal(
        np.array(clicked.probe["matrix"], np.float32).reshape(N, N), attention()[1, 2].numpy()
    )


@in_a_browser
def test_the_ends_of_a_scale_differ_in_print(clicked):
    assert clicked.probe["ends"] == [["0.1234500", "0.1234600"], ["0.5", "2"], ["0.5", "0.5"]]


@in_a_browser
def test_the_graph_at_a_threshold_is_that_of_the_kernels(clicked):
    for threshold, facts, lines in clicked.probe["graphs"]:
        betti = asc.betti_numbers(attention()[1, 2], [threshold])[0].tolist()
        edges = round(float(asc.graph_statistics(attention()[1, 2], [threshold]).density) * N * (N - 1) / 2)
        result = list(map(int, re.search(r"(\d+) of \d+ pairs.* β₀ (\d+) · β₁ (\d+)", facts).groups()))
        assert result == [edges, *betti], threshold
        assert lines == edges
    assert len({facts for _, facts, _ in clicked.probe["graphs"]}) > 2


@in_a_browser
def test_the_spectrum_says_the_distance_that_the_metric_says(clicked):
    expected = float(asc.marchenko_pastur_deviation(attention()[1, 2]))
    assert f"KS {expected:.3f};" in clicked.text["spectrum-facts"]
    assert "triangular law" in clicked.text["spectrum-facts"]


@in_a_browser
def test_tokens_that_look_like_markup_stay_text(clicked):
    assert EVIL in clicked.text["tokens"]
    assert "&amp;" in clicked.text["tokens"]
    assert clicked.scripts == 3, "the data, the page's script, the test's own"
    assert clicked.probe["title"] == f"{EVIL} · attnscope"


@in_a_browser
@pytest.mark.parametrize(("dtype", "causal"), [(torch.bfloat16, True), (torch.float16, False)], ids=str)
def test_an_address_opens_a_head_and_every_entry_arrives(tmp_path, dtype, causal):
    maps = attention(dtype, causal)
    result = looked_at(
        asc.view(maps),
        tmp_path,
        "#layer=2&head=1&metric=stable_rank",
        probe("[Array.from(state.map.matrix), valueOf(state.metric, 2, 1)]"),
    )
    assert result.text["head-title"] == "Layer 2, head 1"
    assert result.pressed == [(2, 1)]
    assert np.array_equal(np.array(result.probe[0]).reshape(N, N), maps[2, 1].double().numpy())
    assert result.probe[1] == pytest.approx(float(asc.stable_rank(maps[2, 1])), rel=1e-5)
    assert f"stable rank{result.probe[1]:.3g}" in result.text["numbers"]


@in_a_browser
def test_results_without_matrices_open_on_the_strongest_head(tmp_path):
    results = asc.analyze(tiny("llama"), [[1, 2, 3, 4, 5]], ["sink_share"])
    result = looked_at(asc.view(results), tmp_path, "", probe("data.maps.length"))
    strongest = results["heads"].set_index(["layer", "head"])["sink_share"].idxmax()
    assert result.pressed == [strongest]
    assert result.probe == 0


@in_a_browser
def test_stored_results_show_the_matrices_that_the_run_kept_and_say_why_others_are_missing(tmp_path):
    page = asc.view(made.make_results(token=EVIL, group=EVIL))
    shown_matrix = looked_at(page, tmp_path, "#layer=1&head=0", probe("Array.from(state.map.matrix)"))
    assert np.allclose(np.array(shown_matrix.probe).reshape(N, N), made.attention(), rtol=1e-7, atol=0)
    assert EVIL in shown_matrix.text["tokens"]
    assert EVIL in shown_matrix.text["input"]
    assert "why" not in shown_matrix.text
    other = looked_at(page, tmp_path, "#layer=0&head=1")
    assert "matrices of L1H0 only" in other.text["why"]
    assert "hidden" in other.attributes["of-matrix"]


@in_a_browser
def test_results_without_matrices_say_what_to_do(tmp_path):
    results = made.make_results()
    bare = Results({name: results.table(name) for name in ("heads", "samples")})
    result = looked_at(asc.view(bare), tmp_path, "#layer=0&head=1")
    assert "numbers, not attention matrices" in result.text["why"]
    assert result.pressed == [(0, 1)]


def test_maps_hold_the_metrics(page):
    maps, contents = attention(), page.contents
    values = {
        metric["name"]: torch.tensor(grid)
        for metric, grid in zip(contents["metrics"], contents["values"][0][0], strict=True)
    }
    expected = {
        "fiedler_value": asc.fiedler_value(maps),
        "fiedler_value_normalized": asc.fiedler_value(maps, normalized=True),
        "mp_ks": asc.marchenko_pastur_deviation(maps),
        "sink_share": maps[..., 0].double().mean(-1),
        "total_persistence_0": asc.total_persistence(asc.persistence(maps))[..., 0],
        "head_divergence": asc.head_divergence(maps),
    }
    for name, value in expected.items():
        torch.testing.assert_close(values[name].double(), value, rtol=1e-5, atol=1e-6)
    uniform = dict(
        zip((metric["name"] for metric in contents["metrics"]), contents["uniform"][0], strict=True)
    )
    assert uniform["sink_share"] == pytest.approx(sum(1 / k for k in range(1, N + 1)) / N, rel=1e-5)


def test_stored_maps_are_means_over_samples_at_their_checkpoint_and_input():
    contents = asc.view(made.make_results()).contents
    assert contents["checkpoints"] == ["step 0", "step 2", "step 64"]
    assert contents["inputs"] == ["text", "copying"]
    names = [metric["name"] for metric in contents["metrics"]]
    half = made.SAMPLES // 2
    for checkpoint, step in enumerate(made.STEPS):
        for group, samples in enumerate([range(half), range(half, made.SAMPLES)]):
            grid = contents["values"][checkpoint][group][names.index("sink_share")]
            for layer in range(made.LAYERS):
                for head in range(made.HEADS):
                    expected = np.mean([made.value(step, sample, layer, head) for sample in samples])
                    assert grid[layer][head] == pytest.approx(expected, rel=1e-5)
    at = names.index("density at 0.1")
    expected = 1 - 0.1 - np.mean([made.value(2, sample, 1, 1) for sample in range(half)]) / 10
    assert contents["values"][1][0][at][1][1] == pytest.approx(expected, rel=1e-5)
    assert contents["uniform"][0][at] == pytest.approx(0.9)
    assert contents["uniform"][0][names.index("fiedler_value")] == pytest.approx(0.5)


def test_counts_of_non_finite_maps_are_left_out_of_means():
    results = made.make_results()
    heads = results.table("heads").assign(sink_count=2)
    heads.loc[heads["sample"] == 0, "sink_count"] = -1
    contents = asc.view(Results({"heads": heads, "samples": results.table("samples")})).contents
    at = [metric["name"] for metric in contents["metrics"]].index("sink_count")
    assert contents["values"][0][0][at] == [[2.0] * made.HEADS] * made.LAYERS


def test_the_file_fetches_nothing_and_its_data_cannot_end_its_script(page, tmp_path):
    text = page.save(tmp_path / "sub" / "view.html").read_text(encoding="utf-8")
    assert set(re.findall(r"https?://[^\s\"'<>)]+", text)) <= {"http://www.w3.org/2000/svg"}
    assert "default-src 'none'" in text
    document = Document(text)
    assert document.fetched == []
    assert document.scripts == 2
    assert EVIL not in text
    assert not list((tmp_path / "sub").glob(".*"))


def test_a_notebook_gets_the_page_in_a_frame(page):
    frame = page._repr_html_()
    source = re.search(r'srcdoc="([^"]*)"', frame)[1]
    assert html.unescape(source) == page.html()
    assert 'sandbox="allow-scripts"' in frame


def test_a_full_page_says_what_it_left_out():
    room = 2 * (N * (N + 1) // 2) * 16 // 3
    contents = asc.view(attention(), max_bytes=room).contents
    assert [(attention_map["layer"], attention_map["head"]) for attention_map in contents["maps"]] == [
        (0, 0),
        (0, 1),
    ]
    assert "first 2 of 12" in contents["notes"][0]


def test_matrices_with_nan_are_shown_as_they_are():
    maps = attention()
    maps[0, 0, 3, 1] = torch.nan
    with pytest.warns(RuntimeWarning):
        contents = asc.view(maps).contents
    assert contents["maps"][0]["bars"] == contents["maps"][0]["betti"] == []
    assert "not finite" in contents["maps"][0]["spectrum"]["reason"]
    assert contents["values"][0][0][0][0][0] is None
    json.dumps(contents, allow_nan=False)


@pytest.mark.parametrize(
    "give",
    [
        lambda maps: tuple(layer[None] for layer in maps),  # outputs.attentions of a batch of one
        list,
        lambda maps: maps.requires_grad_(),
    ],
    ids=["hugging face", "layers", "with gradient"],
)
def test_layers_come_in_many_wrappings(give):
    assert asc.view(give(attention())).contents["values"] == asc.view(attention()).contents["values"]


def test_one_matrix_is_one_head():
    assert repr(asc.view(attention()[0, 0], title="one")).startswith("View('one': 1 layers × 1 heads")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: asc.view(torch.zeros(2, 3, 4)), r"got shape \(2, 3, 4\)"),
        (lambda: asc.view(torch.zeros(2, 5, 3, 4, 4)), r"one sentence.*\(2, 5, 3, 4, 4\)"),
        (lambda: asc.view(attention(), tokens=["a"]), "12 tokens needs as many names, got 1"),
        (lambda: asc.view([attention()[0], attention()[0, :2]]), "one shape"),
        (lambda: asc.view([]), "got list"),
        (lambda: asc.view(()), "transformers gave no attention"),
        (
            lambda: asc.view(5),
            "expected a model and a text, Results, a tensor, or one tensor per layer, got int",
        ),
        (lambda: asc.view(made.make_results(), tokens=["a"]), "tokens does not go with stored results"),
    ],
)
def test_what_is_not_one_sentence_is_refused_in_words(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_results_without_heads_are_refused():
    with pytest.raises(ResultsError, match="no table 'heads'"):
        asc.view(Results({"samples": pd.DataFrame({"model": ["m"]})}))


def test_the_command_writes_the_page(tmp_path, capsys):
    from attnscope.cli.application import main

    made.make_results().save(tmp_path / "run")
    with pytest.raises(SystemExit) as stop:
        main(["view", str(tmp_path / "run")])
    assert stop.value.code == 0
    assert (tmp_path / "run" / "view.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert "view.html" in capsys.readouterr().out


def test_a_sentence_of_a_run_is_captured_again(tmp_path):
    """Every head of the chosen sentence has the matrix that a direct capture gives."""
    from folders import model_folder, sentences

    model = model_folder(tmp_path / "tiny")
    results = asc.run(
        asc.Study(
            models=str(model),
            texts=str(sentences(tmp_path / "t.txt", 3)),
            metrics=["sink_share"],
            output=str(tmp_path),
            name="run",
        ),
        progress=False,
    )
    assert asc.view(results).contents["maps"] == []
    page = asc.view(asc.load(results.path), sample=2)
    assert len(page.contents["maps"]) == 2 * 4
    assert {attention_map["sample"] for attention_map in page.contents["maps"]} == {2}
    if CHROMIUM is not None:
        result = looked_at(page, tmp_path, "#layer=1&head=2", probe("Array.from(state.map.matrix)"))
        from transformers import AutoModelForCausalLM

        ids = torch.tensor([list(results.table("samples")["token_ids"][2])])
        with asc.capture(AutoModelForCausalLM.from_pretrained(model).eval()) as recording:
            maps = [layer.attention[0].clone() for layer in recording.run(input_ids=ids)]
        assert np.allclose(np.array(result.probe), maps[1][2].numpy().ravel(), atol=1e-6)
    with pytest.raises(ResultsError, match="no sample 7, only 0 to 2"):
        asc.view(results, sample=7)
    with pytest.raises(ValueError, match="sample does not go with tensors"):
        asc.view(torch.eye(4), sample=0)
    shutil.rmtree(model)
    with pytest.raises(ResultsError, match="the model tiny of the run cannot be loaded again"):
        asc.view(results, sample=0)
    with pytest.raises(ResultsError, match="no checkpoint of it has revision 'step64' and step 64"):
        asc.view(made.make_results(), sample=0)


def test_arrays_are_maps():
    maps = np.full((2, 3, 5, 5), 0.2, dtype=np.float32)
    assert repr(asc.view(maps)) == repr(asc.view(torch.from_numpy(maps)))
    assert repr(asc.view(list(maps))) == repr(asc.view(torch.from_numpy(maps)))


def test_columns_of_the_other_protocol_are_not_shown():
    results = made.make_results()
    heads = results.table("heads").assign(entropy_bits=np.nan, strongest_key=-1)
    other = heads.assign(protocol="ruscio2025", entropy_bits=1.5, strongest_key=3, fiedler_value=np.nan)
    samples = results.table("samples")
    names = [
        {
            metric["name"]
            for metric in asc.view(Results({"heads": table, "samples": samples})).contents["metrics"]
        }
        for table in (pd.concat([heads, other], ignore_index=True), other)
    ]
    assert "fiedler_value" in names[0]
    assert not {"entropy_bits", "strongest_key"} & names[0]
    assert {"entropy_bits", "strongest_key"} <= names[1]
    assert "fiedler_value" not in names[1]


def test_graphs_without_rows_leave_the_heads():
    results = made.make_results()
    graphs = results.table("graphs")
    tables = {"heads": results.table("heads"), "graphs": graphs.iloc[:0]}
    contents = asc.view(Results(tables)).contents
    assert {metric["group"] for metric in contents["metrics"]} == {"heads"}


def test_a_run_of_the_published_protocol_alone_says_so():
    results = made.make_results()
    heads = results.table("heads").assign(protocol="ruscio2025")
    contents = asc.view(Results({"heads": heads, "samples": results.table("samples")})).contents
    assert contents["notes"] == ["The numbers are those of protocol ruscio2025."]


def test_betti_numbers_and_outliers_come_from_the_kernels():
    maps = attention()
    result = next(
        attention_map
        for attention_map in asc.view(maps).contents["maps"]
        if (attention_map["layer"], attention_map["head"]) == (1, 2)
    )
    for threshold in (0.5, 0.1, 0.02, 0.003):
        scale = 1 - threshold
        steps = [step[1:] for step in result["betti"] if step[0] <= scale]
        assert steps[-1] == asc.betti_numbers(maps[1, 2], [threshold])[0].tolist()
    law = asc.marchenko_pastur(maps[1, 2])
    assert result["spectrum"]["outliers"] == int(law.outliers)
    assert result["spectrum"]["ks"] == pytest.approx(float(law.ks), rel=1e-5)
    below, above = sorted(result["spectrum"]["between"])
    assert above - below == pytest.approx(float(law.ks), abs=2e-4)


@pytest.mark.slow
@in_a_browser
def test_a_run_is_looked_at_without_a_network(tmp_path):
    """`attnscope run`, `attnscope view`, then a browser: the page needs the file alone."""
    from folders import model_folder, sentences

    model, texts = model_folder(tmp_path / "tiny"), sentences(tmp_path / "texts.txt", 2, shortest=9)
    study = ["run", "attention_sinks", "--model", model, "--texts", texts, "--output", tmp_path]
    study += ["--name", "seen", "--no-draw", "--quiet"]
    for command in (study, ["view", tmp_path / "seen", "--sample", "1"]):
        run = [sys.executable, "-m", "attnscope", *map(str, command)]
        done = subprocess.run(run, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    offline = ("--virtual-time-budget=4000", "--host-resolver-rules=MAP * ~NOTFOUND")
    page = (tmp_path / "seen" / "view.html").as_uri()
    for layer, head in ((1, 2), (0, 1)):
        shown = dom(f"{page}#layer={layer}&head={head}", tmp_path / "profile", *offline)
        assert f"<th>L{layer}H{head}</th>" in shown, "the opened head's numbers are not on the page"
