# SPDX-License-Identifier: MIT
"""The attention of a query on the picture itself: the grid's orientation, colours, and what is clicked."""

import base64

import numpy as np
import pytest
import torch

import attnscope as asc
from browser import in_a_browser, looked_at, probe
from media_models import PICTURE_AND_TEXT, VISION, picture, sound, spectrogram, swin, whisper

#: Row and column of the red patch.
ROW, COLUMN = 1, 2


def painted():
    """A green picture of four by four patches, one of which is yellow: red is there alone."""
    pixels = torch.zeros(1, 3, 32, 32)
    pixels[:, 1] = 1
    pixels[:, 0, 8 * ROW : 8 * ROW + 8, 8 * COLUMN : 8 * COLUMN + 8] = 1
    return pixels


def red_reader():
    """A model whose head 0 attends to the reddest patch, and whose other heads attend to all alike."""
    from transformers import ViTConfig, ViTModel

    shape = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    # an epsilon that large makes the norm a scale of a tenth
    model = ViTModel(ViTConfig(image_size=32, patch_size=8, layer_norm_eps=100.0, **shape)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.zero_()
            if "layernorm_before.weight" in name:
                parameter.fill_(1)
            elif "patch_embeddings" in name and name.endswith("weight"):
                parameter[0, 0] = 1 / 64
            elif name.endswith(("query.bias", "q_proj.bias")):
                parameter[0] = 10
            elif name.endswith(("key.weight", "k_proj.weight")):
                parameter[0, 0] = 20
    return model


@pytest.fixture(scope="module")
def page():
    return asc.view(red_reader(), {"pixel_values": painted()}, head=(0, 0))


def test_a_grid_lies_over_the_patches(page):
    contents = page.contents
    assert contents["grids"] == [[{"first": 1, "rows": 4, "columns": 4, "picture": 0}]]
    first = next(entry for entry in contents["maps"] if entry["head"] == 0)
    entries = np.frombuffer(base64.b64decode(first["entries"]), dtype="<f4").reshape(17, 17)
    assert first["tokens"][int(entries[0].argmax())] == f"patch ({ROW}, {COLUMN})"
    assert entries[0].max() > 0.9


def test_the_picture_is_what_the_model_read(page):
    (shown,) = page.contents["pictures"]
    colours = np.frombuffer(base64.b64decode(shown["rgb"]), dtype=np.uint8).reshape(32, 32, 3)
    assert (colours == painted()[0].permute(1, 2, 0).numpy() * 255).all()


def test_a_processor_s_normalisation_is_undone():
    build, process, _ = VISION["vit"]
    processor = process()
    page = asc.view(build(), picture(), processor=processor)
    (shown,) = page.contents["pictures"]
    colours = np.frombuffer(base64.b64decode(shown["rgb"]), dtype=np.uint8).reshape(32, 32, 3)
    cut = processor(images=picture(), do_normalize=False, do_rescale=False, return_tensors="pt")[
        "pixel_values"
    ]
    assert np.abs(colours - cut[0].permute(1, 2, 0).numpy()).max() <= 1


_CELLS = """(() => {
  const light = (kind, channel) => {
    const canvas = document.querySelector(`canvas.${kind}`), found = [];
    const context = canvas.getContext("2d");
    for (let r = 0; r < 4; r++) for (let c = 0; c < 4; c++)
      found.push(
        context.getImageData((c + 0.5) * canvas.width / 4, (r + 0.5) * canvas.height / 4, 1, 1).data[channel],
      );
    return found;
  };
  const before = [light("plain", 0), light("overlay", 1), at("picture-facts").textContent];
  const canvas = document.querySelector("canvas.overlay"), box = canvas.getBoundingClientRect();
  const [clientX, clientY] = [box.left + 0.1 * box.width, box.top + 0.9 * box.height];
  canvas.dispatchEvent(new MouseEvent("click", { clientX, clientY }));
  return [...before, state.query];
})()"""


@in_a_browser
def test_rows_run_down_and_columns_right_in_a_browser(page, tmp_path):
    red, lit, words, clicked = looked_at(page, tmp_path, script=probe(_CELLS)).probe
    place = 4 * ROW + COLUMN
    assert int(np.argmax(red)) == place
    assert sorted(red)[-2] == 0
    assert int(np.argmax(lit)) == place
    assert lit[place] == 255
    assert max(lit[:place] + lit[place + 1 :]) < 60
    assert "of its attention goes to the picture" in words
    assert clicked == 1 + 4 * 3


@in_a_browser
def test_an_address_names_the_query_to_begin_with(page, tmp_path):
    assert looked_at(page, tmp_path, "#query=7", probe("state.query")).probe == 7
    assert looked_at(page, tmp_path, "#query=99", probe("state.query")).probe == 16


@in_a_browser
def test_a_text_has_no_picture(tmp_path):
    page = asc.view(torch.full((1, 2, 4, 4), 0.25))
    assert looked_at(page, tmp_path, script=probe("at('of-picture').hidden")).probe is True


@pytest.mark.parametrize("kind", PICTURE_AND_TEXT)
def test_a_text_s_query_reads_the_picture(kind):
    model, processor = PICTURE_AND_TEXT[kind]()
    contents = asc.view(model, (picture(), "what is this"), processor=processor).contents
    place = next(at for at, name in enumerate(contents["inputs"]) if "vis" not in name)
    (grid,) = contents["grids"][place]
    first = next(entry for entry in contents["maps"] if entry["input"] == place)
    assert first["tokens"][grid["first"]] == "image (0, 0)"
    last = grid["first"] + grid["rows"] * grid["columns"] - 1
    assert first["tokens"][last] == f"image ({grid['rows'] - 1}, {grid['columns'] - 1})"
    assert first["tokens"][-1] == "this"
    assert len(contents["pictures"]) == 1


def test_a_spectrogram_is_a_picture_of_bands_and_frames():
    model, extractor = spectrogram()
    contents = asc.view(model, sound(), processor=extractor).contents
    assert contents["grids"] == [[{"first": 2, "rows": 2, "columns": 8, "picture": 0}]]
    assert [(shown["width"], shown["height"]) for shown in contents["pictures"]] == [(64, 16)]


def test_frames_of_speech_are_seconds_in_all_three_kinds():
    model, processor = whisper()
    contents = asc.view(model, (sound(), "the cat"), processor=processor).contents
    assert contents["inputs"] == ["encoder", "decoder", "cross"]
    cross = next(entry for entry in contents["maps"] if entry["input"] == 2)
    assert cross["tokens"][17] == "0.34 s"
    assert cross["queries"] == ["the", "cat"]


def test_windows_are_refused_by_name():
    with pytest.raises(ValueError, match=r"maps of windows.*\(16 maps\); capture\(model\) gives them"):
        asc.view(swin(), {"pixel_values": torch.rand(1, 3, 64, 64)})


def test_a_processor_goes_with_a_model():
    with pytest.raises(ValueError, match="processor does not go with tensors, only with a model"):
        asc.view(torch.full((1, 2, 4, 4), 0.25), processor=print)


def test_layers_whose_keys_are_fewer_than_their_queries_are_refused_by_name():
    from transformers import SegformerConfig, SegformerModel

    config = SegformerConfig(
        depths=[1] * 4, hidden_sizes=[8] * 4, num_attention_heads=[1, 2, 4, 4], sr_ratios=[8, 4, 2, 1]
    )
    words = (
        r"^view: SegformerModel: a page has no place for .* more queries than keys: layer 0 of .*: 256 x 4"
    )
    with pytest.raises(ValueError, match=words):
        asc.view(SegformerModel(config).eval(), {"pixel_values": torch.rand(1, 3, 64, 64)})
