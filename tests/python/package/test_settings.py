# SPDX-License-Identifier: MIT
"""`attnscope configs NAME` and `attnscope init`: settings as YAML that `attnscope run` reads."""

import pytest
import yaml

from attnscope.commands.settings import _meanings, _name, written
from attnscope.engine.config import ConfigError, Settings, models_in
from attnscope.engine.discovery import studies, study_class
from attnscope.engine.packaged import packaged_text


def test_a_packaged_study_is_printed_as_it_is(call):
    code, out, _ = call("configs", "phi-2")
    assert (code, out.strip()) == (0, packaged_text("phi-2").strip())
    code, _, err = call("configs", "phi-3")
    assert (code, "there is no packaged study 'phi-3'; did you mean 'phi-2'?" in err) == (2, True)


@pytest.mark.parametrize("name", sorted({one.name for one in studies().values()}))
def test_what_init_writes_is_every_setting_with_its_default(name, tmp_path):
    file = tmp_path / "study.yaml"
    file.write_text(written(name), encoding="utf-8")
    read = Settings.from_yaml(file)
    plain = Settings(study=name, models="MODEL_FOLDER_OR_HUB_NAME", texts="sentences.txt")
    assert read.to_dict() == plain.to_dict()
    keys = yaml.safe_load(file.read_text(encoding="utf-8"))
    assert set(keys) == set(Settings.model_fields)


def test_every_key_is_explained():
    text = written("absolute_position")
    for line in ("(bool, default false)", "#     dtype: of the weights in memory", "bos: keep"):
        assert line in text
    assert "# sentences per unit of work" in text


def keys_of(model):
    """Every key of a model and of the models below it."""
    for key, field in model.model_fields.items():
        yield model, key, field
        for inner in models_in(field.annotation):
            yield from keys_of(inner)


@pytest.mark.parametrize("name", sorted({one.name for one in studies().values()}))
def test_every_key_has_its_meaning_its_type_and_its_default(name):
    text = " ".join(written(name).replace("#", " ").split())
    for model in (Settings, study_class(name).Options):
        for owner, key, field in keys_of(model):
            if (owner, key) == (Settings, "options"):
                continue
            meaning = _meanings(owner).get(key, "")
            assert meaning, f"{owner.__name__}.{key}"
            about = f"{meaning} ({_name(field.annotation)}"
            assert about in text if owner is model else f"{key}: {about}, " in text, key


def test_init_writes_a_file_once(call, tmp_path):
    file = tmp_path / "mine.yaml"
    code, out, _ = call("init", "wavelet_heads", "-o", file)
    assert (code, f"attnscope run {file}" in out) == (0, True)
    before = file.read_bytes()
    code, _, err = call("init", "-o", file)
    assert (code, "is there already" in " ".join(err.split())) == (2, True)
    assert file.read_bytes() == before


def test_an_unknown_study_is_refused():
    with pytest.raises((ConfigError, KeyError), match="wavelet"):
        written("wavelet_head")
