# SPDX-License-Identifier: MIT
"""The sweep's tiny models while they write: the rows of all steps put together, against one forward pass.

    cd tests; python -m support.generation --store integration/support.json

equal · steps differ (so do the model's own logits, without capture: its queries see later tokens, or its
cache is another computation) · different (in float64 too) · refused (an error of capture names the reason) ·
not generated (there is no `generate`, or that of transformers fails) · not built
"""

from __future__ import annotations

import re
import signal
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from attnscope.capture import capture
from models import sharpen
from support import matrix as support_matrix
from support import sweep

KINDS = ("causal", "seq2seq", "image-text", "speech")
STEPS = 4
#: Largest difference of maps that are equal but for rounding.
TOLERANCE = 1e-4
#: How errors of capture begin.
_OWN_WORDS = re.compile(r"^(capture|generate|assembled|run|edit)\b.*: ")


def outcome(config_class: Any, model_class: Any) -> dict[str, Any]:
    """Return the outcome of one type as the support matrix has it."""
    try:
        model = sweep.build(config_class, model_class)
    except ValueError as error:
        return {"result": "not built", "words": str(error)}
    if not (callable(getattr(model, "generate", None)) and model.can_generate()):
        return {"result": "not generated", "words": f"{type(model).__name__} does not generate"}
    sharpen(model)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            gap = largest_difference(model)
    except sweep.TooSlowError:
        raise
    except Exception as error:  # noqa: BLE001  (the reason is reported)
        words = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
        return {"result": "refused" if _OWN_WORDS.match(str(error)) else "not generated", "words": words}
    result = {"difference": float(f"{gap:.1g}")}
    if gap <= TOLERANCE:
        return {"result": "equal", **result}
    gap_of_logits = own_difference(model)
    if gap_of_logits > TOLERANCE:
        gap_in_words = f"differ by {gap_of_logits:.1g} between its steps and one pass"
        words = f"the model's own logits {gap_in_words}, without capture"
        return {"result": "steps differ", "words": words, **result}
    if largest_difference(model.double()) < 1e-8:  # rounding, where scores are large
        return {"result": "equal", **result}
    return {"result": "different", "words": f"by {gap:.1g} from one forward pass", **result}


def own_difference(model: Any) -> float:
    """Return how far the logits of a model's steps are from those of one pass, without any capture."""
    prompt, options = prompt_of(model)
    with torch.no_grad():
        written = model.generate(**prompt, **options, output_logits=True, return_dict_in_generate=True)
        single = model(**together_of(model, prompt, written.sequences[:, :-1]), use_cache=False)
    stepwise = torch.stack(written.logits, 1)
    return float((stepwise - single.logits[:, -STEPS:]).abs().max())


def prompt_of(model: Any) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Return the prompts of a model, and the options of its `generate`."""
    inputs = sweep.inputs_of(model, "none")
    prompt = {name: value for name, value in inputs.items() if not name.startswith("decoder_")}
    options = {"max_new_tokens": STEPS, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    options["num_beams"] = 1  # FSMT has 5 by default
    if getattr(model.config, "is_encoder_decoder", False):
        options["decoder_start_token_id"] = 0
    return prompt, options


def together_of(model: Any, prompt: dict[str, torch.Tensor], written: torch.Tensor) -> dict[str, Any]:
    """Return the inputs of one pass over what was written."""
    if getattr(model.config, "is_encoder_decoder", False):
        return {**prompt, "decoder_input_ids": written}
    return {"input_ids": written, "attention_mask": torch.ones_like(written)}


def largest_difference(model: Any) -> float:
    """Return how far the assembled maps of a generation are from those of one pass over all tokens."""
    prompt, options = prompt_of(model)
    with capture(model) as recording:
        list(recording.run(**sweep.inputs_of(model, "none")))
        for _ in recording.generate(**prompt, **options):
            pass
        assembled = {place_of(layer): layer.attention for layer in recording.assembled()}
        single_pass = together_of(model, prompt, recording.output[:, :-1])
        together = {place_of(layer): layer.attention for layer in recording.run(**single_pass)}
    if assembled.keys() != together.keys():
        raise ValueError(f"assembled: {len(assembled)} layers, one pass has {len(together)}")
    gaps = [float((assembled[place] - together[place]).abs().nan_to_num().max()) for place in assembled]
    return max(gaps)


def place_of(layer: Any) -> tuple[str, int, int]:
    """Return what tells a layer from the others of a pass."""
    return layer.stack, layer.index, layer.call


def main() -> None:
    """Print the outcome of every type; with `--store FILE` keep them in the rows of a support matrix."""
    import argparse

    parser = argparse.ArgumentParser()
    parser.add_argument("kinds", nargs="*", default=KINDS, help="KIND or KIND:TYPE,TYPE")
    parser.add_argument("--store", type=Path, help="support.json, whose rows get the key generation")
    options = parser.parse_args()
    signal.signal(signal.SIGALRM, sweep.stop)
    for argument in options.kinds:
        kind, _, names = argument.partition(":")
        counts: Counter[str] = Counter()
        for name in names.split(",") if names else sweep.types(kind):
            start = time.time()
            result = sweep.within_limit(
                kind, name, outcome, lambda result, words: dict(result=result, words=words)
            )
            counts[result["result"]] += 1
            print(f"{kind}\t{name}\t{result}\t{time.time() - start:.1f}s", flush=True)
            if options.store:
                support_matrix.extend(options.store, kind, name, "generation", result)
        print(kind, dict(counts), flush=True)


if __name__ == "__main__":
    main()
