# SPDX-License-Identifier: MIT
"""Tiny random models of pictures, sounds and both with text, each with a processor made here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from models import sharpen

SIDE, PATCH = 32, 8
_SMALL = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=32)
_TEXT = dict(
    vocab_size=64,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    intermediate_size=32,
    head_dim=8,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
    max_position_embeddings=512,
)
_SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")


def picture(seed: int = 0, height: int = 40, width: int = 56) -> Any:
    """Return a picture of random colours."""
    from PIL import Image

    colours = np.random.default_rng(seed).random((height, width, 3)) * 255
    return Image.fromarray(colours.astype("uint8"))


def sound(seconds: float = 0.5, seed: int = 0) -> np.ndarray:
    """Return noise at 16,000 samples a second."""
    return np.random.default_rng(seed).standard_normal(int(16000 * seconds)).astype(np.float32)


def tokenizer(*special: str) -> Any:
    """Return a tokenizer of a few words, with these special tokens."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = [*_SPECIAL, *special, "a", "cat", "is", "on", "the", "mat", "what", "this"]
    encoder = Tokenizer(models.WordLevel({word: place for place, word in enumerate(words)}, "<unk>"))
    encoder.pre_tokenizer = pre_tokenizers.Whitespace()
    names = dict(zip(("pad_token", "bos_token", "eos_token", "unk_token"), _SPECIAL, strict=True))
    words_of_text = PreTrainedTokenizerFast(tokenizer_object=encoder, **names)
    words_of_text.add_special_tokens({"additional_special_tokens": list(special)})
    return words_of_text


def _square(name: str, **options: Any) -> Any:
    import transformers

    return getattr(transformers, f"{name}ImageProcessorPil")(size={"height": SIDE, "width": SIDE}, **options)


def _cropped(name: str) -> Any:
    import transformers

    crop = {"height": SIDE, "width": SIDE}
    return getattr(transformers, f"{name}ImageProcessorPil")(size={"shortest_edge": SIDE}, crop_size=crop)


def _model(config: str, model: str, **options: Any) -> Any:
    import transformers

    torch.manual_seed(0)
    network = getattr(transformers, model)(getattr(transformers, config)(**options)).eval()
    sharpen(network, 3.0)
    return network


_PATCHES = dict(image_size=SIDE, patch_size=PATCH)
_NO_WIDTH = {key: value for key, value in _SMALL.items() if key != "intermediate_size"}

#: Vision transformers: model, processor and the names of the tokens before the patches.
VISION: dict[str, tuple[Callable[[], Any], Callable[[], Any], tuple[str, ...]]] = {
    "vit": (lambda: _model("ViTConfig", "ViTModel", **_PATCHES, **_SMALL), lambda: _square("ViT"), ("CLS",)),
    "deit": (
        lambda: _model("DeiTConfig", "DeiTModel", **_PATCHES, **_SMALL),
        lambda: _square("DeiT", do_center_crop=False),
        ("CLS", "distillation"),
    ),
    "beit": (
        lambda: _model("BeitConfig", "BeitModel", **_PATCHES, **_SMALL),
        lambda: _square("Beit", do_center_crop=False),
        ("CLS",),
    ),
    "dinov2_with_registers": (
        lambda: _model(
            "Dinov2WithRegistersConfig",
            "Dinov2WithRegistersModel",
            num_register_tokens=3,
            **_PATCHES,
            **_NO_WIDTH,
        ),
        lambda: _cropped("Bit"),
        ("CLS", "register 1", "register 2", "register 3"),
    ),
    "dinov3": (
        lambda: _model("DINOv3ViTConfig", "DINOv3ViTModel", num_register_tokens=2, **_PATCHES, **_SMALL),
        lambda: _square("ViT"),
        ("CLS", "register 1", "register 2"),
    ),
    "siglip": (
        lambda: _model("SiglipVisionConfig", "SiglipVisionModel", **_PATCHES, **_SMALL),
        lambda: _square("Siglip"),
        (),
    ),
    "clip": (
        lambda: _model("CLIPVisionConfig", "CLIPVisionModel", **_PATCHES, **_SMALL),
        lambda: _cropped("CLIP"),
        ("CLS",),
    ),
}


def swin() -> Any:
    """Return a model whose attention is within windows, sixteen patches each."""
    shape = dict(embed_dim=16, depths=[1, 1], num_heads=[2, 2], window_size=4)
    return _model("SwinConfig", "SwinModel", image_size=64, patch_size=4, **shape)


def _llava() -> tuple[Any, Any]:
    import transformers as t

    words = tokenizer("<image>")
    place = words.convert_tokens_to_ids("<image>")
    vision = t.CLIPVisionConfig(**_PATCHES, **_SMALL, projection_dim=32)
    model = _model(
        "LlavaConfig",
        "LlavaForConditionalGeneration",
        vision_config=vision,
        image_token_index=place,
        text_config=t.LlamaConfig(**_TEXT),
        image_seq_length=16,
    )
    processor = t.LlavaProcessor(
        _cropped("CLIP"),
        words,
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
    )
    return model, processor


def _paligemma() -> tuple[Any, Any]:
    import transformers as t

    words = tokenizer("<image>")
    images = _square("Siglip")
    images.image_seq_length = 16
    model = _model(
        "PaliGemmaConfig",
        "PaliGemmaForConditionalGeneration",
        projection_dim=32,
        hidden_size=32,
        vision_config=t.SiglipVisionConfig(**_PATCHES, **_SMALL, projection_dim=32, vision_use_head=False),
        text_config=t.GemmaConfig(**_TEXT),
        image_token_index=words.convert_tokens_to_ids("<image>"),
    )
    return model, t.PaliGemmaProcessor(images, words)


def _gemma3() -> tuple[Any, Any]:
    import transformers as t

    words = tokenizer("<start_of_image>", "<image_soft_token>", "<end_of_image>")
    for name, token in (
        ("boi", "<start_of_image>"),
        ("image", "<image_soft_token>"),
        ("eoi", "<end_of_image>"),
    ):
        setattr(words, f"{name}_token", token)
        setattr(words, f"{name}_token_id", words.convert_tokens_to_ids(token))
    model = _model(
        "Gemma3Config",
        "Gemma3ForConditionalGeneration",
        mm_tokens_per_image=4,
        vision_config=t.SiglipVisionConfig(**_PATCHES, **_SMALL, vision_use_head=False).to_dict(),
        text_config=t.Gemma3TextConfig(**_TEXT),
        image_token_index=words.image_token_id,
        boi_token_index=words.boi_token_id,
        eoi_token_index=words.eoi_token_id,
    )
    images = t.Gemma3ImageProcessorPil(size={"height": SIDE, "width": SIDE})
    return model, t.Gemma3Processor(images, words, image_seq_length=4)


def _smolvlm() -> tuple[Any, Any]:
    import transformers as t

    words = tokenizer("<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>")
    # SmolVLM's own processor is this one with videos, for which it needs torchvision and num2words
    images = t.Idefics3ImageProcessorPil(
        size={"longest_edge": SIDE}, max_image_size={"longest_edge": SIDE}, do_image_splitting=False
    )
    processor = t.Idefics3Processor(images, words, image_seq_len=4)
    model = _model(
        "SmolVLMConfig",
        "SmolVLMForConditionalGeneration",
        scale_factor=2,
        image_token_id=words.convert_tokens_to_ids("<image>"),
        vision_config=t.SmolVLMVisionConfig(**_PATCHES, **_SMALL).to_dict(),
        text_config=t.LlamaConfig(**_TEXT),
    )
    return model, processor


def _qwen2_vl() -> tuple[Any, Any]:
    import transformers as t

    words = tokenizer("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")
    ids = {name: words.convert_tokens_to_ids(f"<|{name}|>") for name in ("image_pad", "video_pad")}
    images = t.Qwen2VLImageProcessorPil(
        patch_size=PATCH, merge_size=2, size={"shortest_edge": 16 * 16, "longest_edge": 64 * 64}
    )
    vision = dict(depth=2, embed_dim=32, hidden_size=32, num_heads=4, patch_size=PATCH, mlp_ratio=1)
    rope = {"rope_type": "default", "mrope_section": [1, 1, 2]}
    model = _model(
        "Qwen2VLConfig",
        "Qwen2VLForConditionalGeneration",
        vision_config=vision,
        text_config=dict(**_TEXT, rope_parameters={**rope, "rope_theta": 10000.0}),
        image_token_id=ids["image_pad"],
        video_token_id=ids["video_pad"],
        vision_start_token_id=words.convert_tokens_to_ids("<|vision_start|>"),
        vision_end_token_id=words.convert_tokens_to_ids("<|vision_end|>"),
    )
    return model, _MergingProcessor(images, words)


class _MergingProcessor:
    """A processor of pictures and text as Qwen's, which needs torchvision for its videos."""

    image_token = "<|image_pad|>"

    def __init__(self, image_processor: Any, words: Any) -> None:
        self.image_processor, self.tokenizer = image_processor, words

    def __call__(self, *, images: Any, text: str, return_tensors: str) -> dict[str, Any]:
        inputs = self.image_processor(images=images, return_tensors=return_tensors)
        counts = (inputs["image_grid_thw"].prod(-1) // self.image_processor.merge_size**2).tolist()
        parts = text.split(self.image_token)
        pictures = [
            f"<|vision_start|>{' '.join([self.image_token] * count)}<|vision_end|>" for count in counts
        ]
        full = "".join(part + picture for part, picture in zip(parts, [*pictures, ""], strict=True))
        encoded = self.tokenizer(full, return_tensors=return_tensors)
        is_picture = encoded["input_ids"] == self.tokenizer.convert_tokens_to_ids(self.image_token)
        return {**inputs, **encoded, "mm_token_type_ids": is_picture.int()}


#: Models of pictures and text.
PICTURE_AND_TEXT = {
    "llava": _llava,
    "paligemma": _paligemma,
    "gemma3": _gemma3,
    "smolvlm": _smolvlm,
    "qwen2_vl": _qwen2_vl,
}


def with_picture(name: str) -> tuple[Any, dict[str, Any]]:
    """Return a model of pictures and text, and what it takes for a text behind a picture."""
    import pytest
    import transformers

    if not hasattr(transformers, "CLIPImageProcessorPil"):
        pytest.skip(f"transformers {transformers.__version__} has no processors of this kind")
    model, processor = PICTURE_AND_TEXT[name]()
    place = processor.boi_token if name == "gemma3" else processor.image_token
    inputs = processor(images=picture(), text=f"{place} a cat is on", return_tensors="pt")
    return model, {key: value for key, value in inputs.items() if key != "labels"}


def whisper() -> tuple[Any, Any]:
    """Return a speech recogniser of one second: 100 frames of a filter bank, 50 of the encoder."""
    import transformers as t

    extractor = t.WhisperFeatureExtractor(feature_size=16, chunk_length=1)
    words = tokenizer()
    model = _model(
        "WhisperConfig",
        "WhisperForConditionalGeneration",
        num_mel_bins=16,
        max_source_positions=50,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        vocab_size=64,
        decoder_start_token_id=1,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        max_target_positions=32,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    return model, _SpeechProcessor(extractor, words)


class _SpeechProcessor:
    """A processor of sounds and text."""

    def __init__(self, feature_extractor: Any, words: Any) -> None:
        self.feature_extractor, self.tokenizer = feature_extractor, words

    def __call__(self, *sounds: Any, **options: Any) -> Any:
        return self.feature_extractor(*sounds, **options)


def speech(name: str) -> tuple[Any, Any]:
    """Return a wav2vec2 or a HuBERT that makes a frame of 320 samples."""
    import transformers as t

    strides = dict(
        conv_dim=[16] * 3, conv_stride=[8, 8, 5], conv_kernel=[10, 8, 5], num_feat_extract_layers=3
    )
    shape = dict(**_SMALL, num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2, vocab_size=32)
    model = _model(f"{name}Config", f"{name}Model", **strides, **shape)
    return model, t.Wav2Vec2FeatureExtractor()


def spectrogram() -> tuple[Any, Any]:
    """Return a transformer of spectrogram patches: 16 bands, 64 frames of 10 ms, patches of 8 by 8."""
    import transformers as t

    shape = dict(patch_size=8, frequency_stride=8, time_stride=8, max_length=64, num_mel_bins=16)
    model = _model("ASTConfig", "ASTModel", **shape, **_SMALL)
    return model, t.ASTFeatureExtractor(num_mel_bins=16, max_length=64)


def detr() -> tuple[Any, Any]:
    """Return a detector with five object queries over the last map of a convolutional network."""
    import transformers as t

    backbone = t.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 8, 8, 16], depths=[1, 1, 1, 1], out_features=["stage4"]
    )
    model = _model(
        "DetrConfig",
        "DetrModel",
        backbone_config=backbone,
        use_timm_backbone=False,
        backbone=None,
        use_pretrained_backbone=False,
        num_queries=5,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
    )
    return model, t.DetrImageProcessorPil(size={"height": 96, "width": 128})


def perceiver() -> Any:
    """Return a model whose seven latents read a text."""
    return _model(
        "PerceiverConfig",
        "PerceiverForMaskedLM",
        num_latents=7,
        d_latents=16,
        d_model=16,
        num_blocks=1,
        num_self_attends_per_block=2,
        num_self_attention_heads=2,
        num_cross_attention_heads=2,
        vocab_size=64,
        max_position_embeddings=32,
        qk_channels=16,
        v_channels=16,
    )
