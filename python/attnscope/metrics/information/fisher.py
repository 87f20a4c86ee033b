# SPDX-License-Identifier: MIT
"""The sensitivity of a model's loss: the trace of its Fisher information, by layer and kind."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from attnscope._evaluation import differentiable, evaluating
from attnscope.arguments import scalars
from attnscope.arguments.modules import module_argument
from attnscope.arguments.tokenizers import tokenizer_argument

if TYPE_CHECKING:
    import pandas as pd

#: Of every sample what is known of it, its loss, and what the squares of the gradient are per.
Losses = Iterator[tuple[dict[str, int], Tensor, int]]

_LAYER = re.compile(r"(?:^|\.)(?:layers?|h|blocks?)\.(\d+)\.")
_ATTENTION = re.compile(r"attn|attention", re.IGNORECASE)


def fisher_trace(
    model: nn.Module,
    texts: Sequence[str] | Sequence[Mapping[str, Tensor]],
    *,
    tokenizer: Any = None,
    max_tokens: int | None = None,
    labels: Literal["data", "sampled"] = "data",
    mask_share: float = 0.15,
    draws: int = 1,
    seed: int = 0,
    per_sentence: bool = False,
) -> pd.DataFrame:
    """Return the trace of the Fisher information of each group of parameters, per token or of the data's
    labels.

    With labels "sampled" it is (1/ΣT) Σ_t tr F_t over all predicted tokens, F_t = E[∇ log p(y) ∇ log p(y)ᵀ]
    with y drawn from the model's prediction at t. It is estimated from one gradient a sentence and draw:
    labels are drawn for every token by itself, gradients of different tokens are then uncorrelated and of
    mean 0, so that ‖∇_g Σ_t log p(y_t)‖² has the expectation Σ_t tr F_t. Sentences of different length agree.

    With labels "data" it is (1/N) Σ_s ‖∇_g L_s‖², L_s the mean loss over the predicted tokens of a sentence:
    the squared gradient of training, which falls with the length of a sentence. Padding is not predicted.
    Models for masked language are scored on masked tokens only. Groups are layer x {attention, mlp, norm,
    embedding}; a module outside the layers has layer −1, an output head counts as embedding.

    Args:
        model: a Hugging Face model with a language-model head, float32 or float64. Its gradients, mode and
            requires_grad flags are left as they are.
        texts: sentences, or what the tokenizer makes of each: mappings with input_ids [1, n].
        tokenizer: for sentences, and for the mask token of masked-language models.
        max_tokens: sentences are cut there.
        labels: "data", the sentence's own tokens, or "sampled", drawn from the model's own predictions.
        mask_share: of the tokens of a masked-language model, at least one a sentence.
        draws: of sampled labels, of which the mean is taken.
        seed: of the draws and masks. Text number i draws from a generator of its own, with seed + i, so that
            what it gives does not depend on the other texts.
        per_sentence: one row for each sentence and group instead of the mean.

    Returns:
        A DataFrame with layer (int), group, parameters (count), trace, trace_per_parameter and n; with
        `per_sentence` columns sample and tokens, and trace is of that sentence; with sampled labels the mean
        over sentences weighs each by its tokens. A sentence of one token predicts nothing and is left out.

    Raises:
        ValueError: unknown labels, draws below 1, a model in half precision, text without a tokenizer, no
            sentence long enough.

    Example:
        >>> import torch
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> import attnscope as asc
        >>> config = LlamaConfig(vocab_size=16, hidden_size=16, intermediate_size=8, num_hidden_layers=2,
        ...                      num_attention_heads=2)
        >>> traces = asc.fisher_trace(LlamaForCausalLM(config), [{"input_ids": torch.arange(6)[None]}])
        >>> sorted(traces["layer"].unique().tolist())
        [-1, 0, 1]

    References:
        Fisher, Theory of statistical estimation, 1925. Kunstner et al., Limitations of the empirical Fisher
        approximation, 2019.
    """
    model = module_argument("fisher_trace", model)
    if labels not in ("data", "sampled"):
        raise ValueError(f"fisher_trace: labels must be 'data' or 'sampled', got {labels!r}")
    if not 0.0 < float(mask_share) <= 1.0:
        raise ValueError(f"fisher_trace: mask_share must lie in (0, 1], got {mask_share!r}")
    draws, sampled = scalars.at_least("fisher_trace", "draws", draws, 1), labels == "sampled"
    seed = scalars.at_least("fisher_trace", "seed", seed, 0)
    device = next(model.parameters()).device
    tokenizer_argument("fisher_trace", tokenizer)

    def losses() -> Losses:
        text: Any
        for sample, text in enumerate(texts):
            if isinstance(text, str):
                if tokenizer is None:
                    raise ValueError("fisher_trace: texts that are strings need a tokenizer")
                text = tokenizer(text, return_tensors="pt")
            inputs = {name: value[:, :max_tokens].to(device) for name, value in dict(text).items()}
            generator = torch.Generator().manual_seed(seed + sample)
            for _ in range(draws if sampled else 1):
                chosen, targets = _scored(model, inputs, tokenizer, mask_share, generator)
                if not (tokens := len(targets)):
                    continue
                if sampled:
                    shares = chosen.detach().softmax(-1).cpu()
                    targets = torch.multinomial(shares, 1, generator=generator).squeeze(-1).to(device)
                loss = nn.functional.cross_entropy(chosen, targets, reduction="sum" if sampled else "mean")
                # of the sum over tokens per token, or of the mean over tokens
                yield {"sample": sample, "tokens": tokens}, loss, tokens if sampled else 1

    return trace_table("fisher_trace", losses(), model, group_parameters(model), per_sentence, labels)


def gradient_squares(
    loss: Tensor, model: nn.Module, places: Mapping[str, tuple[int, str]]
) -> dict[tuple[int, str], float]:
    """Squared norm of the gradient of a loss, summed over each group's parameters; others are left out."""
    placed = {name: parameter for name, parameter in model.named_parameters() if name in places}
    gradients = torch.autograd.grad(loss, list(placed.values()), allow_unused=True)
    squares: dict[tuple[int, str], float] = defaultdict(float)
    for name, gradient in zip(placed, gradients, strict=True):
        squares[places[name]] += 0.0 if gradient is None else float(gradient.double().square().sum())
    return squares


def trace_table(
    function: str,
    losses: Losses,
    model: nn.Module,
    places: Mapping[str, tuple[int, str]],
    per_sentence: bool,
    labels: str = "data",
) -> pd.DataFrame:
    """Return the traces of every loss, or their mean over samples, with the groups' sizes."""
    import pandas as pd

    per_sentence = scalars.flag(function, "per_sentence", per_sentence)
    if half := {parameter.dtype for parameter in model.parameters()} - {torch.float32, torch.float64}:
        raise ValueError(
            f"{function}: the model must be float32 or float64, got {half.pop()}: gradients of half "
            "precision under- and overflow; call model.float() first"
        )
    with evaluating(model), differentiable(model, model.parameters()), torch.enable_grad():
        rows = [
            {**sample_columns, "layer": layer, "group": group, "trace": square / per}
            for sample_columns, loss, per in losses
            for (layer, group), square in gradient_squares(loss, model, places).items()
        ]
    if not rows:
        raise ValueError(f"{function}: texts hold no sentence of two tokens or more")
    sizes: dict[tuple[int, str], int] = defaultdict(int)
    for name, parameter in model.named_parameters():
        if name in places:
            sizes[places[name]] += parameter.numel()
    table = pd.DataFrame(rows)
    by = ["layer", "group"]
    if labels == "sampled":
        # the mean over the draws of each sentence, then over tokens
        table = table.groupby(["sample", "tokens", *by], as_index=False, sort=False)["trace"].mean()
    if not per_sentence:
        weight = table["tokens"] if labels == "sampled" else 1
        table = table.assign(n=1, trace=table["trace"] * weight, weight=weight)
        table = table.groupby(by, as_index=False)[["trace", "weight", "n"]].sum()
        table["trace"] /= table["weight"]
    table["parameters"] = [sizes[key] for key in zip(table["layer"], table["group"], strict=True)]
    table["trace_per_parameter"] = table["trace"] / table["parameters"]
    columns = ("sample", "tokens", "layer", "group", "parameters", "trace", "trace_per_parameter", "n")
    return table[[column for column in columns if column in table]]


def group_parameters(model: nn.Module) -> dict[str, tuple[int, str]]:
    """Map parameter name -> (layer, group), by the modules that hold it; layer −1 is outside the layers."""
    modules = dict(model.named_modules())
    places: dict[str, tuple[int, str]] = {}
    for name, _ in model.named_parameters():
        owner, layer_match = modules[name.rpartition(".")[0]], _LAYER.search(name)
        if "norm" in type(owner).__name__.lower():
            group = "norm"
        elif isinstance(owner, nn.Embedding):
            group = "embedding"
        elif layer_match and _ATTENTION.search(name[layer_match.end() :]):
            group = "attention"
        else:
            group = "mlp" if layer_match else "embedding"
        places[name] = (int(layer_match[1]) if layer_match else -1, group)
    return places


def _scored(
    model: nn.Module, inputs: dict[str, Tensor], tokenizer: Any, mask_share: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Logits of the tokens of a sentence that are scored, and these tokens; none of a single token."""
    ids = inputs["input_ids"]
    real = inputs.get("attention_mask", torch.ones_like(ids)).bool()
    if "MaskedLM" in type(model).__name__:
        mask_token = getattr(tokenizer, "mask_token_id", None)
        if mask_token is None:
            raise ValueError("fisher_trace: a masked-language model needs a tokenizer with a mask token")
        chance = torch.rand(ids.shape, generator=generator, device="cpu").to(ids.device)
        chance = torch.where(real, chance, 2.0)
        scored = (chance < mask_share) | (chance == chance.min())
        logits = model(**{**inputs, "input_ids": torch.where(scored, mask_token, ids)}).logits
        targets = ids
    else:
        if int(real.sum()) < 2:
            return ids[:0], ids[:0]
        scored = (real[:, 1:] & real[:, :-1]).to(ids.device)
        logits, targets = model(**inputs).logits[:, :-1], ids[:, 1:]
    return logits[scored], targets[scored]
