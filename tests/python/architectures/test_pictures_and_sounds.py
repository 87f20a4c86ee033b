# SPDX-License-Identifier: MIT
"""Models of pictures and sounds: tokens are called by their places, maps are eager attention's."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch

import attnscope as asc
from media_models import (
    PICTURE_AND_TEXT,
    VISION,
    detr,
    perceiver,
    picture,
    sound,
    spectrogram,
    speech,
    swin,
    whisper,
)

PATCHES = [f"patch ({row}, {column})" for row in range(4) for column in range(4)]


def tokens_of(results, sample=0):
    return list(results["samples"]["tokens"].iloc[sample])


def eager_shares(model, inputs, name="attentions"):
    """Mean attention to the first key by layer and head, of the first input."""
    eager = type(model)._from_config(copy.deepcopy(model.config), attn_implementation="eager").eval()
    eager.load_state_dict(model.state_dict())
    with torch.no_grad():
        maps = eager(**inputs, output_attentions=True)[name]
    return np.array([layer[0, :, :, 0].mean(-1).tolist() for layer in maps])


def measured_shares(results, sample=0):
    heads = results["heads"]
    return (
        heads[heads["sample"] == sample].pivot(index="layer", columns="head", values="sink_share").to_numpy()
    )


@pytest.mark.parametrize("kind", VISION)
def test_a_vision_transformer_is_measured_and_its_tokens_are_places(kind):
    build, process, before = VISION[kind]
    model, processor = build(), process()
    pictures = [picture(0), picture(1)]
    results = asc.analyze(model, pictures, ["sink_share"], processor=processor)
    assert tokens_of(results) == tokens_of(results, 1) == [*before, *PATCHES]
    assert results["heads"]["n_tokens"].eq(len(before) + 16).all()
    inputs = dict(processor(images=pictures, return_tensors="pt"))
    assert np.allclose(measured_shares(results), eager_shares(model, inputs), atol=1e-6)
    second = {"pixel_values": inputs["pixel_values"][1:]}
    assert np.allclose(measured_shares(results, 1), eager_shares(model, second), atol=1e-6)


def test_patches_of_a_wide_picture_are_rows_down_and_columns_right():
    model = VISION["vit"][0]()
    pixels = torch.rand(1, 3, 16, 48)
    names = tokens_of(
        asc.analyze(model.eval(), {"pixel_values": pixels, "interpolate_pos_encoding": True}, ["sink_share"])
    )
    assert names[1:] == [f"patch ({row}, {column})" for row in range(2) for column in range(6)]


def test_windows_are_refused_by_name():
    with pytest.raises(
        ValueError, match=r"maps of windows.*encoder\.layers.*\(16 for 1\); capture\(model\) gives"
    ):
        asc.analyze(swin(), {"pixel_values": torch.rand(1, 3, 64, 64)}, ["sink_share"])
    with asc.capture(swin()) as recording:
        sizes = [layer.attention.shape for layer in recording.run(pixel_values=torch.rand(1, 3, 64, 64))]
    assert [list(size) for size in sizes] == [[16, 2, 16, 16], [4, 2, 16, 16]]


#: First place, rows and columns of the picture's tokens.
SPANS = {
    "llava": (0, 4, 4),
    "paligemma": (0, 4, 4),
    "gemma3": (1, 2, 2),
    "smolvlm": (2, 2, 2),
    "qwen2_vl": (1, 2, 4),
}


@pytest.mark.parametrize("kind", PICTURE_AND_TEXT)
def test_a_model_of_pictures_and_text_has_the_span_of_the_picture(kind):
    model, processor = PICTURE_AND_TEXT[kind]()
    results = asc.analyze(model, (picture(), "what is this"), ["sink_share"], processor=processor)
    first, rows, columns = SPANS[kind]
    places = [f"image ({row}, {column})" for row in range(rows) for column in range(columns)]
    assert tokens_of(results)[first : first + len(places)] == places
    assert tokens_of(results)[-3:] == ["what", "is", "this"]
    samples = results["samples"].iloc[0]
    assert (list(samples["image_start"]), list(samples["image_tokens"])) == ([first], [len(places)])
    decoder = results["heads"].query("n_tokens == @samples.n_tokens")
    assert len(decoder) == 2 * 4
    tower = asc.analyze(model, (picture(), "what is this"), ["sink_share"], processor=processor, stack="vis")
    assert len(tower["heads"]) == 2 * 4
    assert tower["heads"]["layer"].max() == 1


def test_the_share_that_goes_to_the_picture_is_the_span_s():
    model, processor = PICTURE_AND_TEXT["llava"]()
    results = asc.analyze(model, (picture(), "what is this"), ["sink_share"], processor=processor)
    (start,), (length,) = results["samples"][["image_start", "image_tokens"]].iloc[0]
    inputs = processor(images=picture(), text="<image> what is this", return_tensors="pt")
    with asc.capture(model) as recording:
        layers = [layer for layer in recording.run(**inputs) if "language" in layer.stack]
    maps = layers[-1].matrices()[0]
    received = asc.span_attention(maps, [start, start + length])
    expected = maps[:, start + length :, start : start + length].sum(-1).mean(-1)
    assert torch.allclose(received.received.float(), expected, atol=1e-6)


def test_an_unknown_stack_is_named_with_those_that_exist():
    model, processor = PICTURE_AND_TEXT["llava"]()
    with pytest.raises(ValueError, match=r"no stack is called 'tower_of_babel', only .*language_model"):
        asc.analyze(model, (picture(), "what"), ["sink_share"], processor=processor, stack="tower_of_babel")


def test_several_pictures_of_a_text_have_a_span_each():
    model, processor = PICTURE_AND_TEXT["llava"]()
    with pytest.warns(RuntimeWarning, match="maps of windows or of single pictures"):
        results = asc.analyze(model, ([picture(), picture(1)], "what"), ["sink_share"], processor=processor)
    samples = results["samples"].iloc[0]
    assert (list(samples["image_start"]), list(samples["image_tokens"])) == ([0, 16], [16, 16])
    assert tokens_of(results)[15:17] == ["image (3, 3)", "image (0, 0)"]


def test_whisper_has_an_encoder_in_seconds():
    model, processor = whisper()
    results = asc.analyze(model, sound(), ["sink_share"], processor=processor)
    assert tokens_of(results) == [f"{0.02 * place:.2f} s" for place in range(50)]
    inputs = processor.feature_extractor(sound(), sampling_rate=16000, return_tensors="pt")
    ids = torch.tensor([[1]])
    expected = eager_shares(model, {**inputs, "decoder_input_ids": ids}, "encoder_attentions")
    assert np.allclose(measured_shares(results), expected, atol=1e-6)


@pytest.mark.parametrize("name", ["Wav2Vec2", "Hubert"])
def test_speech_frames_are_seconds(name):
    model, extractor = speech(name)
    results = asc.analyze(model, sound(), ["sink_share"], processor=extractor)
    names = tokens_of(results)
    assert names == [f"{0.02 * place:.2f} s" for place in range(len(names))]
    inputs = extractor(sound(), sampling_rate=16000, return_tensors="pt")
    assert np.allclose(measured_shares(results), eager_shares(model, inputs), atol=1e-6)
    unnamed = asc.analyze(model, dict(inputs), ["sink_share"])
    assert tokens_of(unnamed)[:2] == ["frame 0", "frame 1"]


def test_spectrogram_patches_are_seconds_and_bands():
    model, extractor = spectrogram()
    results = asc.analyze(model, sound(), ["sink_share"], processor=extractor)
    places = [f"{0.08 * column:.2f} s, band {row}" for row in range(2) for column in range(8)]
    assert tokens_of(results) == ["CLS", "distillation", *places]


def test_a_sound_of_another_rate_is_refused():
    model, extractor = speech("Wav2Vec2")
    with pytest.raises(ValueError, match=r"sound 0 has a sampling rate of 8000.*needs 16000; resample it"):
        asc.analyze(model, [{"array": sound(), "sampling_rate": 8000}], ["sink_share"], processor=extractor)


def test_object_queries_read_patches_of_the_last_map():
    model, processor = detr()
    page = asc.view(model, picture(), processor=processor)
    cross = next(
        entry for entry in page.contents["maps"] if page.contents["inputs"][entry["input"]] == "cross"
    )
    assert cross["queries"] == [f"query {place}" for place in range(5)]
    assert cross["tokens"] == [f"patch ({row}, {column})" for row in range(3) for column in range(4)]


def test_latents_of_a_perceiver_are_queries_of_a_text():
    page = asc.view(perceiver(), list(range(4, 16)))
    first = page.contents["maps"][0]
    assert first["queries"] == [f"query {place}" for place in range(7)]
    assert first["tokens"] == [str(token) for token in range(4, 16)]


def test_a_processor_is_no_text():
    with pytest.raises(TypeError, match="processor must be one of transformers, got 'vit'"):
        asc.analyze(VISION["vit"][0](), picture(), processor="vit")


def test_the_page_s_example_measures_a_diffusion_transformer():
    """Its maps are of 4 by 4 patches and five tokens of text, in two heads of four each."""
    pytest.importorskip("diffusers", reason="diffusers, which the example needs, is not installed")
    page = (Path(__file__).resolve().parents[3] / "python/docs/models.md").read_text("utf-8")
    example = next(part for part in page.split("```python\n") if "diffusers" in part).partition("```")[0]
    names: dict = {}
    exec(example, names)
    (entropies,) = names["measured"]
    assert entropies.shape == (1, 4, 21)
    assert ((entropies > 0.5) & (entropies <= 1 + 1e-6)).all()
