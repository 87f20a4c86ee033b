# SPDX-License-Identifier: MIT
"""Arbitrary content for the files of unknown origin: what reads them answers, or refuses them in one line.

The C++ targets of this folder feed the kernels; these feed the formats. Each runs a hundred examples in the
quick suite and some thousand in the slow one. Documents are changed where they are read: a value somewhere in
a valid one becomes any other JSON value, a key is left out, or bytes of the file change.
"""

import contextlib
import json
import struct
from copy import deepcopy

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

import attnscope as asc
from attnscope.config.run_config import RunConfig
from attnscope.errors import ConfigError, ResultsError
from attnscope.models.safetensors_header import BITS, read_header
from attnscope.results.results import load
from attnscope.results.store import damage
from folders import model_folder, sentences

#: Examples of the quick and of the slow run.
AMOUNTS = [pytest.param(100, id="quick"), pytest.param(5_000, id="long", marks=pytest.mark.slow)]

NUMBERS = st.one_of(
    st.integers(-(2**70), 2**70),
    st.sampled_from([0, 1, -1, 4, 2**31, 2**53, 2**63, 2**64 - 1, 2**64]),
    st.floats(),
)
VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        NUMBERS,
        st.text(max_size=8),
        st.sampled_from([*BITS, "a", "../a", "\x00", "a\nb", "\x1b[31m", "a\u202eb"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=6,
)


def places(document, at=()):
    """The paths to every value of a document."""
    yield at
    if isinstance(document, (dict, list)):
        for key, value in document.items() if isinstance(document, dict) else enumerate(document):
            yield from places(value, (*at, key))


@st.composite
def changed(draw, document):
    """A document with some of its values replaced or left out, as JSON; sometimes with other bytes in it."""
    document = deepcopy(document)
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(sorted(places(document), key=repr)))
        if not path:
            document = draw(VALUES)
            continue
        parent = document
        for key in path[:-1]:
            parent = parent[key]
        if draw(st.booleans()) and isinstance(parent, dict):
            del parent[path[-1]]
        else:
            parent[path[-1]] = draw(VALUES)
    content = json.dumps(document).encode()
    if draw(st.integers(0, 9)) == 0 and content:
        at = draw(st.integers(0, len(content) - 1))
        content = content[:at] + draw(st.binary(max_size=3)) + content[at + draw(st.integers(0, 3)) :]
    return content


def fuzz(amount, *strategies):
    """Runs a function with so many draws."""
    quiet = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture]
    return lambda function: settings(max_examples=amount, suppress_health_check=quiet, database=None)(
        given(*strategies)(function)
    )()


@contextlib.contextmanager
def refusals(*kinds, reasons=None):
    """Lets pass what is refused in one line; that goes to a list."""
    try:
        yield
    except kinds as error:
        text = str(error)
        if not text.strip() or not text.isprintable() or len(text) > 3000:
            raise AssertionError(f"no line of words: {text!r}") from error
        if reasons is not None:
            reasons.append(text)


# --- safetensors


TENSORS = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.zeros(0, 4), "c": torch.ones(3, dtype=torch.int8)}


def of_library(path):
    """Shapes as the library reads them, None where it refuses the file."""
    try:
        with safe_open(path, "pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in list(file.keys())}
    except SafetensorError:
        return None


@pytest.mark.parametrize("amount", AMOUNTS)
def test_headers_against_the_library(tmp_path, amount):
    """The library accepts what is accepted here, with the same tensors, and little else."""
    content = save(TENSORS, metadata={"format": "pt"})
    length = struct.unpack("<Q", content[:8])[0]
    header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    path, accepted = tmp_path / "a.safetensors", []

    def check(text, cut, appended):
        path.write_bytes(struct.pack("<Q", len(text)) + text + data[: len(data) - cut] + bytes(appended))
        theirs, ours, reasons = of_library(path), None, []
        with refusals(ValueError, reasons=reasons):
            ours = {entry.name: entry.shape for entry in read_header(path)}
        stricter = (
            "twice",
            "not of the format",
            "must have",
            "no file holds",
            "letters, at most",
            "be printed",
        )
        assert theirs == ours or any(word in reason for reason in reasons for word in stricter), (
            reasons,
            theirs,
        )
        if ours is not None:
            assert ours == theirs
            accepted.append(ours)

    cuts = st.sampled_from([0, 0, 0, 0, 1, 27])
    fuzz(amount, changed(header), cuts, st.sampled_from([0, 0, 0, 1]))(check)
    check(json.dumps(header).encode(), 0, 0)
    assert accepted[-1] == {name: tuple(tensor.shape) for name, tensor in TENSORS.items()}


@pytest.mark.parametrize("amount", AMOUNTS)
def test_bytes_as_a_header(tmp_path, amount):
    path = tmp_path / "a.safetensors"

    def check(content):
        path.write_bytes(content)
        with refusals(ValueError):
            assert {entry.name: entry.shape for entry in read_header(path)} == of_library(path)

    file_bytes = save(TENSORS)
    cuts = st.tuples(st.integers(0, len(file_bytes)), st.binary(max_size=9), st.integers(0, 9)).map(
        lambda drawn: file_bytes[: drawn[0]] + drawn[1] + file_bytes[drawn[0] + drawn[2] :]
    )
    fuzz(amount, st.one_of(st.binary(max_size=64), cuts))(check)


# --- configurations and adapters of models


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return model_folder(tmp_path_factory.mktemp("model") / "tiny")


@pytest.mark.parametrize("amount", AMOUNTS)
def test_configurations_of_models(model, amount):
    stored = json.loads((model / "config.json").read_text("utf-8"))
    shapes = {entry.name: entry.shape for file in model.glob("*.safetensors") for entry in read_header(file)}

    def check(content):
        with refusals(ValueError):
            config = json.loads(content)
            if isinstance(config, dict):
                asc.weight_map(shapes, config=config)

    fuzz(amount, changed(stored))(check)


@pytest.mark.parametrize("amount", AMOUNTS)
def test_configurations_of_adapters(model, tmp_path, amount):
    stored = {
        "peft_type": "LORA",
        "r": 2,
        "lora_alpha": 4,
        "use_rslora": False,
        "init_lora_weights": True,
        "rank_pattern": {"q_proj": 2},
        "alpha_pattern": {r"layers\.[0-9]+\..*": 8},
        "base_model_name_or_path": "tiny",
    }
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_{}.weight"
    size = asc.weight_map(model)[0, "q"].shape
    factors = {name.format("A"): torch.ones(2, size[1]), name.format("B"): torch.ones(size[0], 2)}
    (tmp_path / "adapter_model.safetensors").write_bytes(save(factors))

    def check(content):
        (tmp_path / "adapter_config.json").write_bytes(content)
        with refusals(ValueError):
            assert len(list(asc.weight_deltas(model, tmp_path))) == 1

    check(json.dumps(stored).encode())
    fuzz(amount, changed(stored))(check)


# --- run folders


@pytest.fixture(scope="module")
def finished(tmp_path_factory, model):
    folder = tmp_path_factory.mktemp("runs")
    texts = sentences(folder / "texts.txt", 2)
    study = asc.Study(
        models=str(model), texts=str(texts), metrics=["sink_share"], output=str(folder), name="a"
    )
    return asc.run(study, progress=False).path


@contextlib.contextmanager
def restored(file):
    content = file.read_bytes()
    try:
        yield json.loads(content) if file.suffix == ".json" else content
    finally:
        file.write_bytes(content)


@pytest.mark.parametrize("amount", AMOUNTS)
def test_manifests_of_units(finished, amount):
    unit = min(path for path in (finished / "units").iterdir() if (path / "unit.json").is_file())
    with restored(unit / "unit.json") as stored:

        def check(content):
            (unit / "unit.json").write_bytes(content)
            reason = damage(unit, stored["unit"])
            assert isinstance(reason, str)
            assert "\n" not in reason

        fuzz(amount, changed(stored))(check)
    assert damage(unit, stored["unit"]) == ""


@pytest.mark.parametrize("amount", AMOUNTS)
def test_provenance(finished, amount):
    with restored(finished / "provenance.json") as stored:

        def check(content):
            (finished / "provenance.json").write_bytes(content)
            with refusals(ResultsError):
                assert len(load(finished).table("heads")) == 16

        fuzz(amount, changed(stored))(check)


@pytest.mark.parametrize("amount", AMOUNTS)
def test_studies(finished, tmp_path, amount):
    """JSON is YAML: any value anywhere in a study."""
    stored = asc.load(finished).study
    file = tmp_path / "study.yaml"

    def check(content):
        file.write_bytes(content)
        with refusals(ConfigError):
            assert RunConfig.from_yaml(file).models

    check(json.dumps(stored).encode())
    check(json.dumps(stored | {"texts": [{"\x1f": []}]}).encode())
    fuzz(amount, changed(stored))(check)


@pytest.mark.parametrize("amount", AMOUNTS)
def test_bytes_as_a_study(finished, tmp_path, amount):
    file = tmp_path / "study.yaml"
    file_bytes = (finished / "study.yaml").read_bytes()
    words = st.sampled_from(
        [b"&a ", b"*a", b"<<: ", b"!!python/object:os.system ", b"!!int ", b"\t", b"- ", b"{", b"%"]
    )
    changes = st.tuples(
        st.integers(0, len(file_bytes)), st.one_of(words, st.binary(max_size=4)), st.integers(0, 4)
    ).map(lambda drawn: file_bytes[: drawn[0]] + drawn[1] + file_bytes[drawn[0] + drawn[2] :])

    def check(content):
        file.write_bytes(content)
        with refusals(ConfigError):
            assert RunConfig.from_yaml(file).models

    fuzz(amount, st.one_of(st.binary(max_size=64), changes))(check)
