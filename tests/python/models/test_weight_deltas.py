# SPDX-License-Identifier: MIT
"""weight_deltas against the subtraction of loaded models, on every family, shard and dtype."""

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import attnscope as asc
from attnscope.models.weights import WeightFolder
from models import few
from weight_models import FAMILIES, QUICK, tiny

transformers = pytest.importorskip("transformers")


@pytest.fixture(autouse=True, scope="module")
def quiet():
    transformers.utils.logging.disable_progress_bar()


def saved(model, folder, dtypes=(torch.float32,), shards=1):
    """Saves a model into files of its own, the tensors' dtypes in turn."""
    model.save_pretrained(folder)
    stored = load_file(folder / "model.safetensors")
    names = sorted(stored)
    kinds = {name: dtypes[at % len(dtypes)] for at, name in enumerate(names)}
    index = {name: f"model-{at % shards + 1:05}-of-{shards:05}.safetensors" for at, name in enumerate(names)}
    for file in set(index.values()):
        inside = {name: stored[name].to(kinds[name]).contiguous() for name in names if index[name] == file}
        save_file(inside, folder / file, metadata={"format": "pt"})
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": index}), "utf-8"
    )
    return folder


def loaded(model, folder):
    """The parameters of a folder, loaded by transformers into a module in float32."""
    result = type(model).from_pretrained(folder, dtype=torch.float32)
    return {name: parameter.detach() for name, parameter in result.named_parameters(remove_duplicate=False)}


MIXED = (torch.float32, torch.bfloat16, torch.float16)


@pytest.mark.parametrize("name", few(FAMILIES, QUICK))
def test_deltas_are_the_difference_of_two_loaded_models_to_the_bit(name, tmp_path):
    before, after = tiny(name, seed=0), tiny(name, seed=1)
    folders = saved(before, tmp_path / "a", MIXED, 3), saved(after, tmp_path / "b", MIXED[::-1], 3)
    first, other = (loaded(before, folder) for folder in folders)
    result = {(delta.layer, delta.role, delta.expert): delta for delta in asc.weight_deltas(*folders)}
    entries = asc.weight_map(before)
    assert set(result) == {entry.key for entry in entries}
    for entry in entries:
        delta = result[entry.key]
        assert delta.delta.dtype == torch.float32
        assert torch.equal(delta.delta, entry.of(other[entry.tensor]) - entry.of(first[entry.tensor]))
        assert delta.finite
    assert {delta.before_dtype for delta in result.values()} <= {"float32", "bfloat16", "float16"}


def test_float64_stays_float64_and_half_is_widened_before_the_subtraction(tmp_path):
    before, after = tiny("llama").double(), tiny("llama", seed=1).double()
    a, b = saved(before, tmp_path / "a", (torch.float64,)), saved(after, tmp_path / "b", (torch.float64,))
    q = next(asc.weight_deltas(a, b, roles=["q"], layers=[1])).delta
    entry = asc.weight_map(before)[1, "q"]
    parameters = [dict(model.named_parameters())[entry.tensor].detach() for model in (before, after)]
    assert torch.equal(q, parameters[1] - parameters[0])
    half = (
        saved(tiny("llama"), tmp_path / "c", (torch.bfloat16,)),
        saved(tiny("llama", seed=1), tmp_path / "d", (torch.bfloat16,)),
    )
    result = next(asc.weight_deltas(*half, roles=["q"], layers=[1]))
    first, other = (WeightFolder(folder).read(entry.tensor) for folder in half)
    assert torch.equal(result.delta, other.float() - first.float())
    assert not torch.equal(result.delta, (other - first).float())
    assert (result.before_dtype, result.after_dtype) == ("bfloat16", "bfloat16")


def test_blocks_smaller_than_a_matrix_give_the_same_bits(monkeypatch, tmp_path):
    folders = [saved(tiny("gpt2", seed=seed), tmp_path / str(seed)) for seed in (0, 1)]
    deltas = [weight_delta.delta for weight_delta in asc.weight_deltas(*folders)]
    monkeypatch.setattr("attnscope.models.weights._BLOCK", 7 * 48)
    parts = [weight_delta.delta for weight_delta in asc.weight_deltas(*folders)]
    assert all(torch.equal(a, b) for a, b in zip(deltas, parts, strict=True))


@pytest.mark.parametrize(
    ("ties", "flag"),
    [((True, True), "tied"), ((False, False), ""), ((True, False), "untied"), ((False, True), "untied")],
)
def test_tied_and_untied_heads(tmp_path, ties, flag):
    models = [tiny("llama", seed=seed, tie_word_embeddings=tie) for seed, tie in enumerate(ties)]
    folders = []
    for at, model in enumerate(models):
        folders.append(tmp_path / str(at))
        model.save_pretrained(folders[-1])
        stored = load_file(folders[-1] / "model.safetensors")
        assert ("lm_head.weight" in stored) == (not ties[at])
    result = {delta.role: delta for delta in asc.weight_deltas(*folders, layers=[-1])}
    assert set(result) == {"embed", "unembed"}
    heads = [model.get_output_embeddings().weight.detach() for model in models]
    assert torch.equal(result["unembed"].delta, heads[1] - heads[0])
    assert (result["unembed"].tied, result["embed"].tied) == (flag, "")


def tokenizer(folder, words, added=()):
    vocabulary = {word: at for at, word in enumerate(words)}
    tokens = [{"id": len(words) + at, "content": content} for at, content in enumerate(added)]
    stored = {"model": {"vocab": vocabulary}, "added_tokens": tokens}
    (folder / "tokenizer.json").write_text(json.dumps(stored), "utf-8")


def test_vocabularies_of_two_sizes_are_compared_over_their_common_rows(tmp_path):
    before, after = tiny("llama"), tiny("llama", seed=1, vocab_size=101)
    a, b = saved(before, tmp_path / "a"), saved(after, tmp_path / "b")
    result = next(weight_delta for weight_delta in asc.weight_deltas(a, b) if weight_delta.role == "embed")
    rows = [model.get_input_embeddings().weight.detach() for model in (before, after)]
    assert torch.equal(result.delta, rows[1][:97] - rows[0])
    assert (result.added, result.removed, result.changed, result.tokens.tolist()) == (
        4,
        0,
        0,
        list(range(97)),
    )
    back = next(weight_delta for weight_delta in asc.weight_deltas(b, a) if weight_delta.role == "unembed")
    assert (back.added, back.removed) == (0, 4)
    words = [f"w{at}" for at in range(97)]
    tokenizer(a, words)
    tokenizer(b, [*words[:5], "other", *words[6:]], added=["<new>"])
    result = next(weight_delta for weight_delta in asc.weight_deltas(a, b) if weight_delta.role == "embed")
    rows_left = [at for at in range(97) if at != 5]
    assert result.changed == 1
    assert result.tokens.tolist() == rows_left
    assert torch.equal(result.delta, (rows[1][:97] - rows[0])[rows_left])


def test_identical_weights_are_refused_whatever_their_dtypes(tmp_path):
    model = tiny("llama").bfloat16()
    a, b = saved(model, tmp_path / "a", (torch.bfloat16,)), saved(model, tmp_path / "b")
    with pytest.raises(ValueError, match="before and after hold the same weights"):
        asc.weight_deltas(a, b)
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight[-1, -1] += 1
    c = saved(model, tmp_path / "c")
    assert int(sum(weight_delta.delta.count_nonzero() for weight_delta in asc.weight_deltas(a, c))) == 1
    with pytest.raises(ValueError, match="same weights"):
        asc.weight_deltas(a, c, roles=["q"])


def test_another_architecture_is_refused_with_up_to_five_names(tmp_path):
    a = saved(tiny("llama"), tmp_path / "a")
    wider = saved(tiny("llama", intermediate_size=96), tmp_path / "b")
    with pytest.raises(
        ValueError, match=r"not one architecture: layer 0 down is \[48, 80\] in before and \[48, 96\]"
    ):
        asc.weight_deltas(a, wider, roles=["q"])
    deeper = saved(tiny("llama", num_hidden_layers=3), tmp_path / "c")
    with pytest.raises(ValueError, match=r"layer 2 .* is only in after; .* and 2 more") as error:
        asc.weight_deltas(a, deeper)
    assert str(error.value).count("is only in") == 5
    with pytest.raises(ValueError, match="not one architecture"):
        asc.weight_deltas(a, saved(tiny("gpt2"), tmp_path / "d"))


def test_bad_folders_roles_and_layers(tmp_path):
    a, b = (saved(tiny("llama", seed=seed), tmp_path / str(seed)) for seed in (0, 1))
    with pytest.raises(ValueError, match="no matrix has the role 'quer'"):
        asc.weight_deltas(a, b, roles=["quer"])
    with pytest.raises(ValueError, match=r"layer 7 is outside the model's 0 \.\. 1"):
        asc.weight_deltas(a, b, layers=[7])
    with pytest.raises(ValueError, match="is not a folder"):
        asc.weight_deltas(a, tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"no \*\.safetensors"):
        asc.weight_deltas(tmp_path / "empty", b)
    name = "model.layers.1.self_attn.q_proj.weight"
    for file in b.glob("*.safetensors"):
        stored = load_file(file)
        stored[name] = stored[name].to(torch.float8_e4m3fn)
        save_file(stored, file)
    with pytest.raises(ValueError, match=r"layers\.1\.self_attn\.q_proj\.weight is quantised \(F8_E4M3\)"):
        asc.weight_deltas(a, b)


def test_nan_in_one_matrix_is_marked_and_the_others_go_on(tmp_path):
    before, after = tiny("llama"), tiny("llama", seed=1)
    with torch.no_grad():
        after.model.layers[0].mlp.up_proj.weight[3, 4] = float("nan")
    result = list(asc.weight_deltas(saved(before, tmp_path / "a"), saved(after, tmp_path / "b")))
    broken = [(entry.layer, entry.role) for entry in result if not entry.finite]
    assert broken == [(0, "up")]
    (first,) = (first for first in result if not first.finite)
    assert int(first.delta.isnan().sum()) == 1


def test_a_truncated_file_is_named(tmp_path):
    a, b = (saved(tiny("llama", seed=seed), tmp_path / str(seed)) for seed in (0, 1))
    (file,) = b.glob("*.safetensors")
    with open(file, "r+b") as data:
        data.truncate(os.path.getsize(file) - 100)
    with pytest.raises(ValueError, match=r"00001\.safetensors has \d+ bytes of \d+: not all of it is there"):
        asc.weight_deltas(a, b)


MEMORY = """
import re, sys
import torch
import attnscope as asc
def peak():
    # not getrusage, which starts a child at its parent's peak
    return 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
asc.weight_deltas, asc.delta_statistics(torch.ones(2, 2), torch.zeros(2, 2))
before, seen = peak(), 0
for one in asc.weight_deltas(*sys.argv[1:]):
    seen += int(one.delta[0, 0] != 0)
    del one
print(peak() - before, seen)
"""


@pytest.mark.parametrize(
    ("size", "dtype"),
    [
        (2048, torch.bfloat16),
        pytest.param(8192, torch.float32, marks=pytest.mark.slow, id="1 GB"),
        pytest.param(8192, torch.bfloat16, marks=pytest.mark.slow, id="1 GB bfloat16"),
    ],
)
def test_peak_memory_is_three_times_the_largest_matrix_as_it_is_stored(fresh, tmp_path, size, dtype):
    """Two folders that hold 1 GB together; bfloat16 is widened, so its matrices weigh twice in memory."""
    shape = (size, 2048 * 4 // dtype.itemsize)
    for folder, value in (("a", 1.0), ("b", 2.0)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "config.json").write_text('{"model_type": "llama"}', "utf-8")
        for at in range(8):
            tensors = {f"model.layers.{at}.mlp.up_proj.weight": torch.full(shape, value, dtype=dtype)}
            save_file(tensors, tmp_path / folder / f"part{at}.safetensors")
    done = fresh(MEMORY, tmp_path / "a", tmp_path / "b")
    assert done.returncode == 0, done.stderr
    peak, seen = map(int, done.stdout.split())
    largest = shape[0] * shape[1] * dtype.itemsize
    print(f"{peak / largest:.2f} times the largest matrix")
    assert seen == 8
    # what does not grow with the matrices (thread pools, blocks of a file) shows on small ones
    assert peak <= (3 if size > 4096 else 5) * largest, f"{peak / largest:.2f} times the largest matrix"


def test_the_printed_form_of_a_delta(tmp_path):
    folders = [saved(tiny("mixtral", seed=seed), tmp_path / str(seed)) for seed in (0, 1)]
    result = next(weight_delta for weight_delta in asc.weight_deltas(*folders, roles=["up"], layers=[1]))
    assert repr(result) == "WeightDelta(layer=1, up, expert=0, delta=float32[80, 48])"
    assert Path(folders[0]).name == "0"
