# SPDX-License-Identifier: MIT
"""Tiny random models of every type that transformers' auto classes know, and one capture of each compared.

`outcome` builds a model from its default configuration with small sizes, runs it with eager attention and
``output_attentions=True`` on a copy, captures it in three paddings, and says what came out:

equal · refused (an error that names the model and the reason) · different · visibility · changed · numbers ·
incomplete (equal, and a warning names what is missing) · not built
"""

from __future__ import annotations

import copy
import signal
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

import torch

from attnscope.capture import capture, module_tracing
from attnscope.capture.sites import SITES
from fingerprint import differing, fingerprint
from models import sharpen
from support import matrix as support_matrix

Result = TypeVar("Result")

#: Parameters of the largest model that is built.
LARGEST = 30_000_000
#: The lists of transformers' auto classes by kind.
MAPPINGS = {
    "causal": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "masked": "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "seq2seq": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "image": "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
    "image-text": "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
    "audio": "MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES",
    "speech": "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES",
}
KINDS = tuple(MAPPINGS)
TOKENS = 24
#: Seconds for one type.
LIMIT = 240
VOCABULARY = 96

_SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "unpadded_vocab_size": VOCABULARY,
    "hidden_size": 64,
    "d_model": 64,
    "n_embd": 64,
    "dim": 64,
    "emb_dim": 64,
    "intermediate_size": 64,
    "ffn_dim": 64,
    "d_ff": 64,
    "hidden_dim": 64,
    "n_inner": 64,
    "d_inner": 64,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "ffn_hidden_size": 64,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "num_hidden_layers": 3,
    "num_layers": 3,
    "n_layer": 3,
    "n_layers": 3,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "num_decoder_layers": 2,
    "num_encoder_layers": 2,
    "num_attention_heads": 4,
    "num_heads": 4,
    "n_head": 4,
    "n_heads": 4,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "num_encoder_attention_heads": 4,
    "num_decoder_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "d_kv": 16,
    "attention_head_size": 16,
    "kv_channels": 16,
    "max_position_embeddings": 128,
    "n_positions": 128,
    "n_ctx": 128,
    "max_seq_len": 128,
    "sliding_window": 7,
    "attention_window": 8,
    "window_size": 7,
    "local_attention": 14,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 16,
    "index_topk": 5,
    "index_n_heads": 2,
    "index_head_dim": 16,
    "embedding_size": 32,
    "rotary_dim": 8,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "cls_token_id": 1,
    "sep_token_id": 2,
    "mask_token_id": 3,
    "unk_token_id": 4,
    "mamba_d_state": 4,
    "mamba_dt_rank": 4,
    "mamba_d_head": 16,
    "mamba_n_heads": 8,
    "state_size": 4,
    "use_mamba_kernels": False,
    "vocab_size_per_layer_input": VOCABULARY,
    "hidden_size_per_layer_input": 8,
    "attn_layer_indices": [1],
    "attn_layer_period": 2,
    "attn_layer_offset": 1,
    "block_size": 4,
    "num_random_blocks": 1,
    "attention_dropout": 0.0,
    "dropout": 0.0,
}


#: Sizes of models of pictures and sounds.
_PICTURE: dict[str, Any] = {"image_size": 64, "patch_size": 16, "num_channels": 3, "in_channels": 3}
_SMALL |= {
    "depth": 2,
    "num_mel_bins": 16,
    "max_source_positions": 50,
    "max_target_positions": 64,
    "encoder_dim": 64,
    "encoder_attention_dim": 64,
    "projection_dim": 32,
    "num_labels": 3,
    "classifier_proj_size": 32,
}


class TooSlowError(BaseException):
    """A type took longer than it may."""


@dataclass
class Outcome:
    """The result of one type.

    Attributes:
        result: a word of the module's list.
        words: the reason, or what a warning says.
        tier: the way of the capture; None without one.
        sites: names of the tensors that can be captured.
        difference: the largest gap to eager attention by padding; None where no eager map has the shape.
        layers: number of captured layers by stack.
    """

    result: str
    words: str = ""
    tier: int | None = None
    sites: list[str] = field(default_factory=list)
    difference: dict[str, float | None] = field(default_factory=dict)
    layers: dict[str, int] = field(default_factory=dict)


def types(kind: str) -> dict[str, str]:
    """Return the names of an auto class's models by model type."""
    from transformers.models.auto import modeling_auto as auto

    names = getattr(auto, MAPPINGS[kind])
    return {name: model if isinstance(model, str) else model[0] for name, model in names.items()}


def classes(kind: str, name: str) -> tuple[Any, Any]:
    """Return the classes of the configuration and of the model of a type."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    return CONFIG_MAPPING[name], getattr(transformers, types(kind)[name])


def variants(config_class: Any) -> list[dict[str, Any]]:
    """Return choices of the small sizes that a configuration knows; some contradict others in some types."""
    default = config_class()
    names = set(vars(default)) | set(getattr(config_class, "attribute_map", {}))
    sizes = _sizes(default)
    widths = ("head_dim", "d_kv", "attention_head_size", "kv_channels")
    layers = ("num_hidden_layers", "num_layers", "n_layer", "n_layers")
    without = (
        (),
        widths,
        (*widths, "num_key_value_heads"),
        (*widths, "sliding_window", "attention_window", "window_size"),
        (*widths, *layers),
    )
    size_choices = [{name: value for name, value in sizes.items() if name not in left} for left in without]
    # hybrid stacks whose first layers all lack attention
    size_choices.append({**sizes, **dict.fromkeys(set(layers) & names, 8)})
    if hasattr(default, "image_size") or hasattr(default, "patch_sizes"):  # stages have sizes of their own
        size_choices.append({"num_labels": 3})
    if "num_key_value_heads" in names:  # compressed keys and values have as many heads as queries
        size_choices.append({**size_choices[1], "num_key_value_heads": 4})
    return size_choices


def _sizes(default: Any) -> dict[str, Any]:
    """Return the small sizes that a configuration knows, those of its parts as mappings."""
    names = set(vars(default)) | set(getattr(type(default), "attribute_map", {}))
    sizes = {name: value for name, value in _SMALL.items() if name in names}
    for part in getattr(default, "sub_configs", {}):
        config = getattr(default, part, None)
        if config is not None and hasattr(config, "to_dict"):
            sizes[part] = {"model_type": config.model_type, **_sizes(config)}
            if hasattr(config, "image_size"):
                sizes[part] |= {name: value for name, value in _PICTURE.items() if hasattr(config, name)}
    if hasattr(default, "image_size"):
        sizes |= {name: value for name, value in _PICTURE.items() if name in names}
    return sizes


def build(config_class: Any, model_class: Any) -> Any:
    """Return a tiny model that runs on tokens.

    Raises:
        ValueError: none of the variants builds and runs, with the reason of the first.
    """
    errors = []
    try:
        choices = variants(config_class)
    except Exception as error:
        raise ValueError(f"no default configuration: {error}") from error
    for options in choices:
        try:
            torch.manual_seed(0)
            config = config_class(**options)
            with torch.device("meta"):
                size = sum(p.numel() for p in model_class._from_config(config).parameters())
            if size > LARGEST:
                raise ValueError(f"{size} parameters")
            model = model_class._from_config(config_class(**options)).eval()
            eager = eager_copy(model)
            with torch.no_grad():  # some sizes suit one implementation alone
                copy.deepcopy(model)(**inputs_of(model, "none"))
                eager(**inputs_of(model, "none"))
        except Exception as error:  # noqa: BLE001  (the reason is reported)
            errors.append(f"{type(error).__name__}: {str(error)[:100]}")
        else:
            return model
    raise ValueError(errors[0])


def eager_copy(model: Any) -> Any:
    """Return the model built with eager attention: models without an interface only log when it is set."""
    eager = type(model)._from_config(copy.deepcopy(model.config), attn_implementation="eager").eval()
    eager.load_state_dict(model.state_dict())
    return eager


def inputs_of(model: Any, padding: str) -> dict[str, torch.Tensor]:
    """Return two texts of tokens; the second has padding on the given side."""
    generator = torch.Generator().manual_seed(1)
    if model.main_input_name != "input_ids":
        return _media(model, generator)
    ids = torch.randint(5, VOCABULARY, (2, TOKENS), generator=generator)
    mask = torch.ones_like(ids)
    cut = slice(0, 7) if padding == "left" else slice(TOKENS - 7, TOKENS)
    if padding != "none":
        mask[1, cut] = 0
    inputs = {"input_ids": ids, "attention_mask": mask}
    if getattr(model.config, "is_encoder_decoder", False):
        inputs["decoder_input_ids"] = torch.randint(5, VOCABULARY, (2, 11), generator=generator)
    return inputs


def _media(model: Any, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Return two pictures or sounds of noise."""
    config, main = model.config, model.main_input_name
    size = getattr(config, "image_size", 64)
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    bands, frames = getattr(config, "num_mel_bins", 16), 2 * getattr(config, "max_source_positions", 50)
    shape = {
        "pixel_values": (2, getattr(config, "num_channels", 3), height, width),
        "input_features": (2, bands, frames),
        "input_values": (2, getattr(config, "max_length", 0), bands)
        if hasattr(config, "frequency_stride")
        else (2, 8000),
    }.get(main, (2, 8000))
    inputs = {main: torch.randn(shape, generator=generator)}
    if module_tracing.takes(model, "decoder_input_ids"):
        inputs["decoder_input_ids"] = torch.randint(5, VOCABULARY, (2, 11), generator=generator)
    return inputs


def outcome(config_class: Any, model_class: Any) -> Outcome:
    """Return the outcome of one type."""
    try:
        model = build(config_class, model_class)
    except ValueError as error:
        return Outcome("not built", str(error))
    result = Outcome("equal")
    result.result, result.words = _captured(model, result)
    if result.tier is not None:
        result.sites = _sites(model)
    return result


def _sites(model: Any) -> list[str]:
    """Return the names of the layers' tensors that can be captured next to the maps."""
    inputs, names = inputs_of(model, "none"), []
    for site in SITES:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                with capture(model, sites=(site,)) as recording:
                    next(recording.run(**inputs))
            except (RuntimeError, ValueError, TypeError):
                continue
        names.append(site)
    return names


def _captured(model: Any, facts: Outcome) -> tuple[str, str]:
    """Return the outcome of a built model, and its words; the facts take tier, layers and differences."""
    sharpen(model, 3.0)
    reference = eager_copy(model)
    result = "equal"
    words: list[str] = []
    before = fingerprint(model)
    for padding in ("none", "left", "right") if model.main_input_name == "input_ids" else ("none",):
        inputs = inputs_of(model, padding)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                with capture(model) as recording:
                    layers = list(recording.run(**inputs))
            except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
                clear = str(error).startswith(("capture:", "run:")) and len(str(error)) > 40
                outcome = "refused" if clear else "crashed"
                changed = differing(before, fingerprint(model))
                if changed:
                    return "changed", f"{changed[:3]} ({outcome}: {error})"
                return outcome, f"{type(error).__name__}: {str(error)[:160]}"
            messages = [
                str(warning.message) for warning in caught if str(warning.message).startswith("capture:")
            ]
            if changed := differing(before, fingerprint(model)):
                return "changed", f"{changed[:3]}"
            facts.tier = recording.tier
            facts.layers = dict(Counter(layer.stack for layer in layers))
            problem, facts.difference[padding] = _compare(layers, reference, inputs, words)
            before = fingerprint(model)  # the reference may have drawn random numbers
        if problem:
            return problem[0], f"{padding} padding, tier {recording.tier}: {problem[1]}"
        if any("missing" in text for text in messages):
            result = "incomplete"
            words += [text[:160] for text in messages if "missing" in text]
        words += [text[:120] for text in messages if "missing" not in text]
    return result, f"tier {recording.tier} " + " | ".join(dict.fromkeys(words))


def _compare(
    layers: Any, reference: Any, inputs: Any, words: list[str]
) -> tuple[tuple[str, str] | None, float | None]:
    """Return what is wrong with captured layers, None if nothing is; and the largest gap to eager maps."""
    rows = [(layer.stack, layer.index, layer.call) for layer in layers]
    if len(set(rows)) < len(rows):
        return ("numbers", f"rows are there twice: {rows}"), None
    for layer in layers:
        if layer.cross or not layer._is_square():
            continue
        if (problem := disagreement(layer)) is not None:
            words_of_layer = f"{layer.stack} {layer.index}: {layer.visibility.name}: {problem}"
            return ("visibility", words_of_layer), None
        if layer.visibility.kind == "auto":
            words.append(f"auto: {layer.stack}")
    with torch.no_grad():
        # FSMT's decoder drops its causal mask where a cache is asked for
        options = {"use_cache": False} if module_tracing.takes(reference, "use_cache") else {}
        output = copy.deepcopy(reference)(**inputs, **options, output_attentions=True)
    maps = [
        tensor
        for name in output
        if name.endswith("attentions") and output[name] is not None
        for tensor in output[name]
        if torch.is_tensor(tensor) and tensor.ndim == 4
    ]
    largest, compared = None, 0
    for shape in {tuple(layer.tensors["attention"].shape) for layer in layers}:
        captured = [layer for layer in layers if layer.tensors["attention"].shape == shape]
        eager = [candidate for candidate in maps if candidate.shape == shape]
        # some models return the maps of each stage's last block alone
        for layer, gap in _pairs(captured, eager):
            largest, compared = max(largest or 0.0, gap), compared + 1
            if gap > 2e-5 * max(1.0, _scale(reference)):
                return ("different", f"{layer.stack} {layer.index}: {gap:.2g}"), largest
    if maps and not compared:
        words.append(f"none of {len(maps)} maps of eager attention has the shape of a captured one")
    return None, largest


def _pairs(captured: list[Any], eager: list[torch.Tensor]) -> Iterator[tuple[Any, float]]:
    """Yield layers and their gaps to the nearest eager maps: as many as there are of the fewer."""
    if len(eager) >= len(captured):
        rest = list(eager)
        for layer in captured:
            gaps = [_gap(layer.tensors["attention"], candidate, layer) for candidate in rest]
            del rest[gaps.index(min(gaps))]
            yield layer, min(gaps)
        return
    layers = list(captured)
    for candidate in eager:
        gaps = [_gap(layer.tensors["attention"], candidate, layer) for layer in layers]
        yield layers.pop(gaps.index(min(gaps))), min(gaps)


def _scale(reference: Any) -> float:
    """Return how far rounding may go: T5's scores are in the hundreds."""
    return 5.0 if "t5" in str(reference.config.model_type) else 1.0


def _gap(result: torch.Tensor, eager: torch.Tensor, layer: Any) -> float:
    """Return the largest gap at real queries; some eager maps leave a learned sink out."""
    if result.shape[-1] == result.shape[-2] and not layer.cross:
        real = layer.valid[:, None, :, None].expand_as(result)
    else:
        real = torch.ones_like(result, dtype=torch.bool)
    rescaled = result / result.sum(-1, keepdim=True).clamp_min(1e-30)
    gaps = [(maps_of_run.double() - eager.double())[real].abs() for maps_of_run in (result, rescaled)]
    return min(float(gap.nan_to_num().max()) if gap.numel() else 0.0 for gap in gaps)


def disagreement(layer: Any) -> str | None:
    """Return where a layer's support and its maps disagree: mass outside, or zeros in all heads and texts."""
    maps, lengths = layer.matrices(), layer.lengths.tolist()
    support, size = layer.visibility.support, maps.shape[-1]
    if isinstance(support, str):
        if support == "auto":
            return None
        rows = torch.ones(size, size).bool()
        support = rows.tril() if support == "causal" else rows
    support = support.expand(*maps.shape)
    inside, seen = torch.zeros(size, size).bool(), torch.zeros(size, size).bool()
    for text, length in enumerate(lengths):
        visible = support[text, :, :length, :length]
        maps_of_text = maps[text, :, :length, :length]
        if bool(
            ((maps_of_text != 0) & ~maps_of_text.isnan() & ~visible & visible.any(-1, keepdim=True)).any()
        ):
            return "mass outside"
        inside[:length, :length] |= visible.any(0)
        seen[:length, :length] |= (maps_of_text > 0).any(0)
    return None if bool((seen | ~inside).all()) else f"{int((inside & ~seen).sum())} zeros inside"


def stop(*_: Any) -> None:
    """Raise TooSlowError, as a handler of signals."""
    raise TooSlowError


def within_limit(
    kind: str, name: str, outcome: Callable[..., Result], late: Callable[[str, str], Result]
) -> Result:
    """Return the outcome of a type, which has a limited time, or what `late` makes of a result and its words.

    `stop` must answer SIGALRM.
    """
    pair = classes(kind, name)  # an import must not be interrupted
    signal.alarm(LIMIT)
    try:
        return outcome(*pair)
    except TooSlowError:
        return late("not built", f"more than {LIMIT} seconds")
    finally:
        signal.alarm(0)


def main() -> None:
    """Print the outcome of every type, and the counts; with `--store FILE` keep them in a support matrix."""
    import argparse
    import time
    from pathlib import Path

    parser = argparse.ArgumentParser()
    parser.add_argument("kinds", nargs="*", default=KINDS, help="KIND or KIND:TYPE,TYPE")
    parser.add_argument("--store", type=Path, help="support.json, whose rows of the same types are replaced")
    options = parser.parse_args()
    signal.signal(signal.SIGALRM, stop)
    for argument in options.kinds:
        kind, _, names = argument.partition(":")
        counts: Counter[str] = Counter()
        for name in names.split(",") if names else types(kind):
            start = time.time()
            result = within_limit(kind, name, outcome, Outcome)
            counts[result.result] += 1
            seconds = time.time() - start
            print(f"{kind}\t{name}\t{result.result}\t{seconds:.1f}s\t{result.words}", flush=True)
            if options.store:
                support_matrix.store(options.store, kind, name, asdict(result))
        print(kind, dict(counts), flush=True)


if __name__ == "__main__":
    main()
