# SPDX-License-Identifier: MIT
"""Which checkpoints a path names, how their weights differ, context lengths; an unreachable hub."""

import shutil
import socket
import threading
import time
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

from attnscope.config.run_config import RunConfig
from attnscope.engine.planning import make_plan
from attnscope.errors import ConfigError
from attnscope.models import (
    Encoder,
    LoadError,
    checkpoints,
    find_checkpoints,
    hub,
    load_model,
    load_tokenizer,
    step_of,
)
from attnscope.models.checkpoints import fingerprint
from attnscope.models.inputs.context_length import context_length
from folders import model_folder, series, tokenizer


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("step0", 0),
        ("step143000", 143000),
        ("checkpoint-500", 500),
        ("global_step12", 12),
        ("ckpt_7", 7),
        ("stage1-step1000-tokens5B", 1000),
        ("main", -1),
        ("", -1),
        ("2step", -1),
        ("steps", -1),
    ],
)
def test_steps_of_names(name, step):
    assert step_of(name) == step


@pytest.mark.parametrize("name", [f"step{2**63}", "checkpoint-" + "9" * 5000])
def test_a_step_that_no_table_holds_is_refused_with_its_name(tmp_path, name):
    with pytest.raises(ConfigError, match=rf"a training step has at most 18 digits, got '{name[:60]}"):
        find_checkpoints("EleutherAI/pythia-14m", ["step2", name])
    touch(tmp_path / "a", "step2", name[:40])
    with pytest.raises(
        ConfigError, match=rf"^models\[0\]: a training step has at most 18 digits, got '{name[:40]}'"
    ):
        make_plan(RunConfig(models=str(tmp_path / "a"), texts="sample"))
    assert step_of(f"step{'0' * 30}{10**18 - 1}") == 10**18 - 1


def touch(folder, *names):
    for name in names:
        (folder / name).mkdir(parents=True)
        (folder / name / "config.json").write_text("{}", "utf-8")
    return folder


def test_a_series_is_in_integer_order(tmp_path):
    touch(tmp_path / "pythia", *(f"step{step}" for step in (1, 10, 2, 512, 64, 0)))
    result = find_checkpoints(str(tmp_path / "pythia"))
    assert [checkpoint.step for checkpoint in result] == [0, 1, 2, 10, 64, 512]
    assert {checkpoint.model for checkpoint in result} == {"pythia"}
    assert [checkpoint.step for checkpoint in find_checkpoints(str(tmp_path / "pythia" / "step?"))] == [
        0,
        1,
        2,
    ]
    chosen = find_checkpoints(str(tmp_path / "pythia"), ["step512", "step2"])
    assert [checkpoint.revision for checkpoint in chosen] == ["step2", "step512"]


def test_folder_names_that_say_nothing_give_way_to_the_one_above(tmp_path):
    touch(tmp_path / "llama2xs", "hf")
    assert find_checkpoints(str(tmp_path / "llama2xs" / "hf"))[0].model == "llama2xs"
    touch(tmp_path / "run" / "checkpoints", "step1", "step2")
    assert {
        checkpoint.model for checkpoint in find_checkpoints(str(tmp_path / "run" / "checkpoints" / "step*"))
    } == {"run"}
    assert find_checkpoints(str(tmp_path / "llama2xs" / "hf"), label="mine")[0].model == "mine"


def test_hub_ids_and_their_revisions():
    result = find_checkpoints("EleutherAI/pythia-14m", ["step1000", "step8"])
    assert [
        (checkpoint.model, checkpoint.revision, checkpoint.step, checkpoint.local) for checkpoint in result
    ] == [
        ("EleutherAI/pythia-14m", "step8", 8, False),
        ("EleutherAI/pythia-14m", "step1000", 1000, False),
    ]
    assert [checkpoint.revision for checkpoint in find_checkpoints("gpt2", ["main", "step3"])] == [
        "main",
        "step3",
    ]
    assert find_checkpoints("gpt2")[0].title == "gpt2"


@pytest.mark.parametrize("path", ["./x", "/x/y", "~/no such", "a/b/c", "../x", "has space", "x/"])
def test_what_is_neither_folder_nor_hub_id(path):
    with pytest.raises(FileNotFoundError, match="there is no model folder"):
        find_checkpoints(path)


def test_files_and_empty_patterns_are_named(tmp_path):
    (tmp_path / "model.bin").write_bytes(b"x")
    with pytest.raises(FileNotFoundError, match="is a file; a model is a folder"):
        find_checkpoints(str(tmp_path / "model.bin"))
    with pytest.raises(FileNotFoundError, match=r"no folder with a config\.json matches"):
        find_checkpoints(str(tmp_path / "step*"))


def test_paths_with_spaces_and_unicode(tmp_path):
    folder = model_folder(tmp_path / "mein Modell ü" / ".." / "mein Modell ü")
    assert load_model(find_checkpoints(str(folder))[0]).architecture == "LlamaForCausalLM"


def test_fingerprints_follow_the_weights(tmp_path):
    series(tmp_path / "a", (0, 1))
    first, two = (fingerprint(checkpoint) for checkpoint in find_checkpoints(str(tmp_path / "a")))
    assert first != two
    shutil.copytree(tmp_path / "a" / "step0", tmp_path / "copy")
    assert fingerprint(find_checkpoints(str(tmp_path / "copy"))[0]) == first
    (tmp_path / "copy" / "README.md").write_text("words", "utf-8")
    assert fingerprint(find_checkpoints(str(tmp_path / "copy"))[0]) == first
    hub = find_checkpoints("gpt2", ["a", "b"])
    assert fingerprint(hub[0]) != fingerprint(hub[1])


def _change(folder, name, entry=...):
    """Change one tensor of a checkpoint in place: all of it, some rows or a single number."""
    file = folder / "model.safetensors"
    weights = load_file(file)
    weights[name][entry] += 1
    save_file(weights, file)


def test_one_number_changed_in_place_is_another_fingerprint(tmp_path):
    checkpoint = find_checkpoints(str(model_folder(tmp_path / "m")))[0]
    seen = {fingerprint(checkpoint)}
    for name, weight in load_file(tmp_path / "m" / "model.safetensors").items():
        _change(tmp_path / "m", name, tuple(length // 3 for length in weight.shape))
        seen.add(fingerprint(checkpoint))
    assert len(seen) == 1 + len(load_file(tmp_path / "m" / "model.safetensors"))


def test_every_matrix_of_large_weights_is_in_the_fingerprint(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "READ_IN_FULL", 1024)
    checkpoint = find_checkpoints(str(model_folder(tmp_path / "m", hidden_size=128)))[0]
    file = tmp_path / "m" / "model.safetensors"
    torch.manual_seed(0)
    weights = {**load_file(file), "between": torch.randn(768, 768), "last": torch.zeros(())}
    layers = [(f"model.layers.{at}.{name}", weights[name].clone()) for at in range(3) for name in weights]
    save_file(dict(layers), file)
    seen, names = {fingerprint(checkpoint)}, list(load_file(file))
    for name in names:
        _change(tmp_path / "m", name)
        seen.add(fingerprint(checkpoint))
    assert len(seen) == 1 + len(names)
    # the rows by which one of twelve heads writes
    for head in range(12):
        _change(tmp_path / "m", "model.layers.1.between", slice(64 * head, 64 * head + 64))
        seen.add(fingerprint(checkpoint))
    assert len(seen) == 1 + len(names) + 12


def test_a_weight_file_that_is_none_has_a_fingerprint(tmp_path, monkeypatch):
    checkpoint = find_checkpoints(str(model_folder(tmp_path / "m")))[0]
    for limit in (2**20, 2):
        monkeypatch.setattr(checkpoints, "READ_IN_FULL", limit)
        seen = set()
        for content in (b"", b"\xff" * 9, bytes(500_000), b"\0" * 499_999 + b"1"):
            (tmp_path / "m" / "model.safetensors").write_bytes(content)
            seen.add(fingerprint(checkpoint))
        assert len(seen) == 4


def test_dtype_is_kept_or_as_asked(tmp_path):
    checkpoint = find_checkpoints(str(model_folder(tmp_path / "m")))[0]
    assert load_model(checkpoint).dtype == "float32"
    assert load_model(checkpoint, dtype="bfloat16").dtype == "bfloat16"
    with pytest.raises(LoadError, match=r"^m: "):
        load_model(checkpoint, device="no such device")


#: Kind of model: the changes of its configuration, and the longest text of twenty positions.
POSITIONS = {
    "Llama": ({}, 20),
    "Bert": ({}, 20),
    "Roberta": ({}, 18),
    "Camembert": ({}, 18),
    "XLMRoberta": ({}, 18),
    "MPNet": ({}, 18),
    "Data2VecText": ({}, 18),
    "Longformer": ({"attention_window": [4]}, 18),
    "Luke": ({"entity_vocab_size": 5}, 18),
    "Esm": ({"mask_token_id": 4, "position_embedding_type": "absolute"}, 18),
    "Xmod": ({"default_language": "en_XX"}, 18),
    "IBert": ({}, 18),
    "OPT": ({"ffn_dim": 32, "word_embed_proj_dim": 32}, 20),
    "GPT2": ({"n_positions": 20, "n_embd": 32, "n_layer": 1, "n_head": 4}, 20),
    "Bart": ({"d_model": 32, "encoder_layers": 1, "decoder_layers": 1}, 20),
}


@pytest.mark.parametrize("kind", POSITIONS)
def test_a_text_is_as_long_as_the_position_table_allows(kind):
    """The table's rows less its offset: a text of that length runs, and one more token has no row."""
    import transformers

    changes, longest = POSITIONS[kind]
    shape = dict(vocab_size=40, hidden_size=32, num_hidden_layers=1, num_attention_heads=4)
    shape |= dict(intermediate_size=32, max_position_embeddings=20, pad_token_id=1)
    if kind in ("GPT2", "Bart"):
        shape = {name: shape[name] for name in ("vocab_size", "pad_token_id", "max_position_embeddings")}
        shape |= {} if kind == "Bart" else {"max_position_embeddings": 20}
    config = getattr(transformers, f"{kind}Config")(**{**shape, **changes})
    model = getattr(transformers, f"{kind}Model")(config).eval()
    assert context_length(config, None) == longest
    assert context_length(config, None, model) == longest
    assert context_length(config, SimpleNamespace(model_max_length=7), model) == 7
    assert context_length(config, SimpleNamespace(model_max_length=10**30), model) == longest
    body = model.get_encoder() if kind == "Bart" else model
    with torch.no_grad():
        body(input_ids=torch.randint(5, 40, (1, longest)))
        if kind not in ("Llama", "Longformer"):  # no table; one that pads texts
            with pytest.raises((IndexError, RuntimeError, ValueError)):
                body(input_ids=torch.randint(5, 40, (1, longest + 1)))


def test_a_configuration_without_positions_bounds_nothing():
    import transformers

    assert context_length(transformers.BloomConfig(hidden_size=32, n_layer=1, n_head=2), None) is None
    assert context_length(SimpleNamespace(max_position_embeddings=100), None) == 100


def test_an_encoder_keeps_the_token_at_its_end_when_it_cuts(tmp_path):
    model_folder(tmp_path / "bert", "bert")
    tokenizer = load_tokenizer(find_checkpoints(str(tmp_path / "bert"))[0])
    from tokenizers import processors

    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    cut = Encoder(tokenizer, limit=5).encode("the cat sat on a mat")
    assert cut.truncated
    assert cut.ids.tolist()[0] == 1
    assert cut.ids.tolist()[-1] == 2
    assert len(cut.ids) == 5


def test_dropping_bos_leaves_room_for_one_more_token():
    encoder = Encoder(tokenizer(), limit=3, bos="drop")
    assert encoder.names(encoder.encode("the cat sat").ids) == ["the", "cat", "sat"]
    assert not encoder.encode("the cat sat").truncated
    assert encoder.encode("the cat sat on").truncated


def test_a_listening_address_answers_and_a_closed_one_does_not():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert hub._connects(f"http://127.0.0.1:{port}")
    assert not hub._connects(f"http://127.0.0.1:{port}")


def test_a_name_that_never_resolves_costs_no_more_than_the_patience(monkeypatch):
    never = threading.Event()

    def waits(*at, **options):
        never.wait(20)
        raise OSError

    monkeypatch.setattr(socket, "create_connection", waits)
    monkeypatch.setattr(hub, "PATIENCE", 0.2)
    start_time = time.monotonic()
    assert not hub._connects("https://nowhere.invalid")
    assert time.monotonic() - start_time < 5
    never.set()


def test_a_model_that_is_not_here_is_said_at_once_and_once(monkeypatch):
    addresses = []
    monkeypatch.setattr(hub, "_connects", lambda endpoint: addresses.append(endpoint))
    monkeypatch.setattr(hub, "_silent_since", None)
    monkeypatch.setattr(hub.urllib.request, "getproxies", dict)
    (checkpoint,) = find_checkpoints("nobody/nothing")
    for _ in range(2):
        with pytest.raises(LoadError, match="not on this machine and the hub cannot be reached"):
            load_model(checkpoint)
    assert len(addresses) == 1


def test_behind_a_proxy_the_hubs_own_client_decides(monkeypatch):
    monkeypatch.setattr(hub.urllib.request, "getproxies", lambda: {"https": "http://proxy:3128"})
    monkeypatch.setattr(hub, "_connects", lambda endpoint: pytest.fail("asked"))
    assert hub.hub_answers()
