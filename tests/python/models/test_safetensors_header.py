# SPDX-License-Identifier: MIT
"""Files that break the safetensors format, and configurations of another form: refused in one line."""

import json
import os
import re
import struct

import pytest
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

import attnscope as asc
from attnscope.models.safetensors_header import BITS, read_header
from weight_models import tiny

transformers = pytest.importorskip("transformers")

FOUR = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


def written(path, header, data=b"\0" * 4, length=None):
    """A file of a header (an object, or text as it is) and data."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def refusal(path):
    """The line in which a file is refused."""
    with pytest.raises(ValueError) as caught:
        read_header(path)
    assert type(caught.value) is ValueError
    assert str(path) in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 600
    return str(caught.value)


def changed(**fields):
    return {"a": {**FOUR, **fields}}


def two(*spans, size=4):
    """Tensors of bytes at some spans."""
    names = "abcd"
    return {
        names[at]: {"dtype": "U8", "shape": [end - begin], "data_offsets": [begin, end]}
        for at, (begin, end) in enumerate(spans)
    }


#: What breaks the format's rules, whatever reads it.
MALFORMED = {
    **{
        f"offset {begin} {end}": changed(data_offsets=[begin, end])
        for begin, end in (
            (-64, 0),
            (-4, 0),
            (4, 0),
            (0, 3),
            (0, 5),
            (1, 5),
            (0, 2**64),
            (-1, 3),
            (2**63, 2**63 + 4),
        )
    },
    **{
        f"offsets {value!r}": changed(data_offsets=value)
        for value in (
            None,
            [],
            [0],
            [0, 4, 8],
            "04",
            "\x1b[31m",
            {"0": 4},
            [0, "4"],
            [0.0, 4.0],
            [False, 4],
            [[0], [4]],
        )
    },
    **{
        f"shape {value!r}": changed(shape=value)
        for value in (
            None,
            1,
            "1",
            "two\nlines",
            {},
            [-1],
            [1.0],
            [True],
            ["1"],
            [None],
            [[1]],
            [2],
            [0],
            [2**64],
            [2**63, 2],
        )
    },
    **{
        f"dtype {value!r}": changed(dtype=value)
        for value in (
            None,
            1,
            [],
            "f32",
            "float32",
            "O",
            "F128",
            "",
            "F32 ",
            "F64",
            "F16",
            "F4",
            "F6_E2M3",
            "\x1f",
        )
    },
    **{f"tensor {value!r}": {"a": value} for value in (None, 1, "x", [], [1, 2, 3], {}, {"dtype": "F32"})},
    **{
        f"metadata {value!r}": {"__metadata__": value, "a": FOUR}
        for value in (1, "x", [], {"a": 1}, {"a": None}, {"a": {}})
    },
    "overlap": two((0, 4), (2, 4)),
    "twice the same bytes": two((0, 4), (0, 4)),
    "hole": two((0, 2), (3, 4)),
    "hole at the beginning": two((1, 4)),
    "bytes at the end": two((0, 3)),
    "none of the bytes": {},
    "list": [FOUR],
    "text": "a",
    "number": 1,
    "null": None,
    "not JSON": b"{" * 40,
    "open": json.dumps({"a": FOUR}).encode()[:-1],
    "more behind it": json.dumps({"a": FOUR}).encode() + b"{}",
    "NUL behind it": json.dumps({"a": FOUR}).encode() + b"\0",
    "NaN": json.dumps({"a": {**FOUR, "x": float("nan")}}).encode(),
    "Infinity": json.dumps({"a": {**FOUR, "x": float("inf")}}).encode(),
    "a number out of range": json.dumps({"a": {**FOUR, "x": 7}}).encode().replace(b"7", b"1e999"),
    "a number of 5,000 digits": json.dumps({"a": {**FOUR, "x": 7}}).encode().replace(b"7", b"7" * 5000),
    "a negative zero": json.dumps({"a": FOUR}).encode().replace(b"[0, 4]", b"[-0, 4]"),
    "200,000 deep": b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    "Latin-1": json.dumps({"ä": FOUR}, ensure_ascii=False).encode("latin-1"),
    "UTF-16": json.dumps({"a": FOUR}).encode("utf-16"),
    "byte order mark": b"\xef\xbb\xbf" + json.dumps({"a": FOUR}).encode(),
    "half a surrogate pair": json.dumps({"\ud800": FOUR}).encode(),
    "a control character": json.dumps({"a": FOUR}).encode().replace(b'"a"', b'"a\x01"'),
    "a field twice": b'{"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
    "metadata twice": b'{"__metadata__":{},"__metadata__":{},"a":' + json.dumps(FOUR).encode() + b"}",
}
#: What only this package refuses, and why its header says so.
STRICTER = {
    "a name twice": b'{"a":' + json.dumps(FOUR).encode() + b',"a":' + json.dumps(FOUR).encode() + b"}",
    "a tensor as a list": b'{"a":["F32",[1],[0,4]]}',
    "a dtype as an object": changed(dtype={"F32": None}),
    "a field that is a list": changed(x=[1]),
    "a name of a million letters": {"a" * 1_000_000: FOUR},
    "a name of two lines": {"a\nb": FOUR},
    "a name with an escape sequence": {"a\x1b[31m": FOUR},
    "a name that is read from right to left": {"a\u202eb": FOUR},
}


def library(path):
    """Shapes as the library reads them, None where it refuses the file."""
    try:
        with safe_open(path, "pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in list(file.keys())}
    except SafetensorError:
        return None


@pytest.mark.parametrize("name", MALFORMED)
def test_what_breaks_the_format_is_refused_as_the_library_refuses_it(tmp_path, name):
    path = written(tmp_path / "a.safetensors", MALFORMED[name])
    assert library(path) is None
    refusal(path)


def test_there_are_more_malformed_files_than_were_found():
    assert len(MALFORMED) > 56


@pytest.mark.parametrize("name", STRICTER)
def test_what_is_refused_beyond_the_format(tmp_path, name):
    path = written(tmp_path / "a.safetensors", STRICTER[name])
    assert library(path) is not None
    refusal(path)


@pytest.mark.parametrize(
    ("length", "size"), [(0, 0), (1, 8), (2**63, 8), (2**64 - 1, 0), (100, 99), (10**8 + 1, 0)]
)
def test_lengths_of_the_header(tmp_path, length, size):
    path = written(tmp_path / "a.safetensors", b" " * size, b"", length)
    if length == 10**8 + 1:
        with open(path, "r+b") as file:
            file.truncate(length + 8)  # a file with holes, which takes no room
    assert library(path) is None
    assert "safetensors" in refusal(path)


def test_devices_and_folders_are_no_files(tmp_path):
    os.mkfifo(tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="holds no"):
        asc.weight_map(tmp_path)
    (tmp_path / "folder.safetensors").mkdir()
    with pytest.raises(ValueError, match="is no file"):
        read_header(tmp_path / "folder.safetensors")


@pytest.mark.parametrize("dtype", BITS)
def test_every_dtype_of_the_format_is_read_where_the_library_knows_it(tmp_path, dtype):
    count = 4  # whole bytes of every dtype
    size = BITS[dtype] * count // 8
    header = {"a": {"dtype": dtype, "shape": [count], "data_offsets": [0, size]}}
    path = written(tmp_path / "a.safetensors", header, bytes(size))
    if library(path) is None:
        pytest.skip(f"this version of safetensors does not know {dtype}")
    assert [entry.shape for entry in read_header(path)] == [(count,)]


def test_what_the_library_writes_is_read_to_the_byte(tmp_path):
    tensors = {
        "a": torch.arange(6, dtype=torch.float64).reshape(2, 3),
        "empty": torch.zeros(0, 5),
        "scalar": torch.tensor(7, dtype=torch.int8),
        "b": torch.randn(3, 4).bfloat16(),
    }
    save_file(tensors, tmp_path / "a.safetensors", metadata={"format": "pt"})
    content = (tmp_path / "a.safetensors").read_bytes()
    result = {entry.name: entry for entry in read_header(tmp_path / "a.safetensors")}
    assert result.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert result[name].shape == tuple(tensor.shape)
        raw = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
        assert content[result[name].start :][: len(raw)] == raw


# --- folders


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Two folders of a model's weights, the second changed."""
    folder = tmp_path_factory.mktemp("pair")
    transformers.utils.logging.disable_progress_bar()
    for seed in (0, 1):
        tiny("llama", seed=seed).save_pretrained(folder / str(seed))
    return folder / "0", folder / "1"


def copied(folder, target):
    target.mkdir()
    for file in folder.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    return target


def one_line(before, after):
    """The line in which two folders are refused."""
    with pytest.raises(ValueError) as caught:
        list(asc.weight_deltas(before, after))
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1500
    return str(caught.value)


def test_the_bytes_of_a_header_are_no_weights(pair, tmp_path):
    """A range that begins before the data would read the header as the first matrix."""
    before, after = pair[0], copied(pair[1], tmp_path / "after")
    (file,) = after.glob("*.safetensors")
    content = file.read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + length])
    for entry in header.values():
        if "data_offsets" in entry:
            entry["data_offsets"] = [place - 64 for place in entry["data_offsets"]]
    written(file, header, content[8 + length :])
    assert re.search(r"data_offsets \[-64, \d+\], expected two whole numbers", one_line(before, after))


CONFIGS = [
    b"",
    b"null",
    b"[]",
    b"1",
    b'"x"',
    b"{",
    b"\xff\xfe",
    b"[" * 100_000,
    b'{"model_type": {"a": 1}}',
    *(
        json.dumps({"model_type": "llama", key: value}).encode()
        for key in ("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "hidden_size")
        for value in ("x", [2], {"a": 1}, 1.5, True, -1, 10**400, 2**31)
    ),
    b'{"model_type": "falcon", "new_decoder_architecture": true, "num_kv_heads": "x"}',
    b'{"model_type": "falcon", "new_decoder_architecture": true, "n_head_kv": "x"}',
]


@pytest.mark.parametrize("content", CONFIGS, ids=[repr(config[:60]) for config in CONFIGS])
def test_configurations_of_another_form_are_refused_in_one_line(pair, tmp_path, content):
    after = copied(pair[1], tmp_path / "after")
    (after / "config.json").write_bytes(content)
    if content == b'{"model_type": {"a": 1}}':
        # an unknown family: common names are still understood
        assert len(list(asc.weight_deltas(pair[0], after))) > 4
        return
    one_line(pair[0], after)


@pytest.mark.parametrize(
    "index",
    [
        [],
        {},
        {"weight_map": []},
        {"weight_map": {"a": 1}},
        {"weight_map": {"a": "../0/model.safetensors"}},
        {"weight_map": {"a": "/etc/passwd"}},
        {"weight_map": {"a": "a\0b"}},
        {"weight_map": {"a": "none.safetensors"}},
    ],
    ids=repr,
)
def test_indices_of_another_form_are_refused_in_one_line(pair, tmp_path, index):
    after = copied(pair[1], tmp_path / "after")
    (after / "model.safetensors.index.json").write_text(json.dumps(index), "utf-8")
    one_line(pair[0], after)


@pytest.mark.parametrize(
    "tokenizer",
    [
        [],
        {"model": []},
        {"model": {"vocab": 1}},
        {"model": {"vocab": {"a": []}}},
        {"model": {"vocab": [1]}},
        {"added_tokens": 1},
        {"added_tokens": [1]},
        {"added_tokens": [{"id": "x", "content": "a"}]},
    ],
    ids=repr,
)
def test_tokenizers_of_another_form_are_refused_in_one_line(pair, tmp_path, tokenizer):
    after = copied(pair[1], tmp_path / "after")
    (after / "tokenizer.json").write_text(json.dumps(tokenizer), "utf-8")
    (tmp_path / "before").parent.mkdir(exist_ok=True)
    before = copied(pair[0], tmp_path / "before")
    (before / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0}}}', "utf-8")
    assert "tokenizer.json" in one_line(before, after)


def test_matrices_without_entries_are_refused(pair, tmp_path):
    """Such a matrix takes no byte, so that its other size may be any: nothing may count up to it."""
    after = copied(pair[1], tmp_path / "after")
    (file,) = after.glob("*.safetensors")
    tensors = load_file(file)
    tensors["model.layers.0.self_attn.q_proj.weight"] = torch.zeros(2**40, 0)
    save_file(tensors, file)
    assert "and so no entry" in one_line(pair[0], after)
