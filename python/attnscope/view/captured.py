# SPDX-License-Identifier: MIT
"""The attention of one sentence: of a model and a text, or of a stored sentence captured again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from attnscope.capture import capture
from attnscope.capture.anatomy import text_argument
from attnscope.engine.results import Results
from attnscope.engine.schema import CHECKPOINT_KEYS, ResultsError
from attnscope.models.tokens import Encoder
from attnscope.view.measured import Stack

if TYPE_CHECKING:
    import pandas as pd

    from attnscope.engine.config import Settings


def stacks_of_model(model: Any, text: Any, tokenizer: Any) -> list[Stack]:
    """Every layer's attention of one sentence; of an encoder-decoder its three kinds."""
    config = getattr(model, "config", None)
    if text is None:
        raise ValueError('view: a model needs a text: view(model, "a sentence", tokenizer=tokenizer)')
    both = bool(getattr(config, "is_encoder_decoder", False))
    texts = text if both and isinstance(text, (tuple, list)) and len(text) == 2 else [text]
    if both and len(texts) != 2:
        raise ValueError("view: an encoder-decoder needs two texts: (for the encoder, for the decoder)")
    ids = [_ids(one, tokenizer).to(getattr(model, "device", None)) for one in texts]
    inputs = {"input_ids": ids[0]} | ({"decoder_input_ids": ids[1]} if both else {})
    names = [Encoder(tokenizer).names(one[0].tolist()) for one in ids]
    kinds: dict[str, list[torch.Tensor]] = {}
    with capture(model) as recording, torch.no_grad():
        for layer in recording.run(**inputs):
            kind = "cross" if layer.cross else "decoder" if both and "decoder" in layer.stack else "encoder"
            kinds.setdefault(kind if both else "", []).append(layer.attention[0].float().cpu())
    if not kinds:
        raise ValueError(f"view: {type(model).__name__} gave no attention")
    own = dict.fromkeys(kinds, names[0]) | {"decoder": names[-1]}
    return [
        Stack(kind, maps, own[kind], names[-1] if kind == "cross" else None) for kind, maps in kinds.items()
    ]


def _ids(text: Any, tokenizer: Any) -> torch.Tensor:
    """Token ids [1, n] of one sentence."""
    if isinstance(text, str):
        if tokenizer is None:
            raise ValueError("view: a sentence needs a tokenizer: view(model, text, tokenizer=tokenizer)")
        text = tokenizer(text_argument("view", "text", text))
    ids = torch.as_tensor(text["input_ids"] if hasattr(text, "keys") else text)
    if not ids.numel():
        raise ValueError(f"view: want at least one token, got shape {tuple(ids.shape)}")
    if ids.is_floating_point() or not 1 <= ids.ndim <= 2 or (ids.ndim == 2 and len(ids) != 1):
        raise ValueError(f"view: want token ids of one sentence, got shape {tuple(ids.shape)} of {ids.dtype}")
    return ids.reshape(1, -1)


def captured_sentence(
    results: Results, sample: int, model: Any = None, *, trust_remote_code: bool = False
) -> pd.DataFrame:
    """Return every head's matrix of one sentence, at the last checkpoint that read it.

    Results of `analyze` remember their model while that is alive. Python code that comes with a model of the
    stored study runs with `trust_remote_code` only.
    """
    import pandas as pd

    from attnscope.engine.config import ConfigError, Study, refuse_stored_trust
    from attnscope.engine.forward import self_attention

    samples = results.table("samples")
    rows = samples[samples["sample"] == sample]
    if rows.empty:
        raise ResultsError(f"view: the run has no sample {sample}, only 0 to {samples['sample'].max()}")
    model = results.model() if model is None and results.model is not None else model
    if not results.study and model is None:
        raise ResultsError(
            "view: these results name no study and their model is gone: view(results, sample=0, model=model)"
        )
    row = rows.sort_values(["model", "step", "revision"], kind="stable").iloc[-1]
    wanted = tuple(row[[*CHECKPOINT_KEYS]])
    layers = None
    if model is None:
        study = Study(**results.study)
        if not trust_remote_code:
            try:
                refuse_stored_trust(study, "view")
            except ConfigError as error:
                raise ResultsError(str(error)) from error
        model, layers = _loaded(study, wanted), study.layers or None
    ids = torch.tensor([list(row["token_ids"])], device=model.device)
    found = [
        {"layer": number, "head": head, "attention": matrix.numpy().ravel()}
        for number, layer in self_attention(model, {"input_ids": ids}, layers=layers)
        for head, matrix in zip(layer.heads, layer.attention[0].float().cpu(), strict=True)
    ]
    return pd.DataFrame(found).assign(**row[[*CHECKPOINT_KEYS, "sample"]], n_tokens=ids.shape[1])


def _loaded(study: Settings, wanted: tuple[str, str, int]) -> Any:
    """The model of a checkpoint of a run."""
    from attnscope.models import LoadError, find_checkpoints, load_model

    try:
        for source in study.models:
            for one in find_checkpoints(source.path, source.revisions, source.label):
                if (one.model, one.revision, one.step) == wanted:
                    return load_model(
                        one, dtype=source.dtype, trust_remote_code=source.trust_remote_code
                    ).model
        raise LoadError(f"no checkpoint of it has revision {wanted[1]!r} and step {wanted[2]}")
    except (FileNotFoundError, LoadError) as error:
        raise ResultsError(
            f"view: the model {wanted[0]} of the run cannot be loaded again: {error}"
        ) from error
