# SPDX-License-Identifier: MIT
"""One small language model with several position encodings, trained by the demo's recipe.

python -m attnscope.demo.encodings [DIRECTORY] [--study absolute_position] [--steps N] [--seeds N] trains
them, runs a study over all of them (by default the wavelet study, over five) and prints the results.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from attnscope.arguments.scalars import at_least, flag
from attnscope.capture.visibility import float_mask
from attnscope.demo.texts import text_windows, write_texts
from attnscope.demo.training import Recipe, config_values, train

if TYPE_CHECKING:
    from attnscope.results.results import Results

#: RoPE at θ = 10,000, learned vectors, ALiBi, T5's bias, nothing; RoPE at θ = 10⁶, and with a window.
ENCODINGS = ("rope", "learned", "alibi", "t5", "none", "ntk", "window")
#: Those that the wavelet study compares.
WAVELET_ENCODINGS = ENCODINGS[:5]
NTK_THETA, WINDOW_KEYS = 1e6, 32
BUCKETS, MAX_DISTANCE = 32, 128
_SAMPLES_SEED = 1


class PositionsConfig(LlamaConfig):  # type: ignore[misc]
    """A Llama configuration with `position_encoding`, one of `ENCODINGS`."""

    model_type = "attnscope_positions"
    position_encoding: str = "rope"


class Unrotated(nn.Module):
    """A replacement of RoPE: rotation by 0."""

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosines of 1 and sines of 0.

        Args:
            x: any tensor of the model's dtype [b, n, width].
            position_ids: [b, n].
        """
        cosines = x.new_ones(*position_ids.shape, 1)
        return cosines, torch.zeros_like(cosines)


class LearnedPositions(nn.Embedding):
    """Token embeddings plus a learned vector for each absolute position, counted from the first token."""

    def __init__(self, tokens: int, positions: int, width: int, deviation: float) -> None:
        super().__init__(tokens, width)
        self.positions = nn.Parameter(torch.randn(positions, width) * deviation)

    def forward(self, input: Tensor) -> Tensor:
        """Return embeddings [..., n, width] of token ids [..., n].

        Args:
            input: token ids.
        """
        return super().forward(input) + self.positions[: input.shape[-1]]


class RelativeBias(nn.Module):
    """T5's learned bias of a bucket of distances per head, the same in every layer (Raffel et al. 2020)."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.buckets = nn.Parameter(torch.zeros(BUCKETS, heads))

    def forward(self, distance: Tensor) -> Tensor:
        """Return biases [heads, q, k].

        Args:
            distance: query minus key [q, k].
        """
        return self.buckets[distance_bucket(distance)].permute(2, 0, 1)


def distance_bucket(distance: Tensor) -> Tensor:
    """Return T5's bucket of a distance into the past: exact up to 15, logarithmic to 127, one for all
    beyond.

    >>> distance_bucket(torch.tensor([-3, 0, 15, 16, 127, 10_000])).tolist()
    [0, 0, 15, 16, 31, 31]
    """
    exact = BUCKETS // 2
    past = distance.clamp_min(0)
    ratio = past.clamp_min(exact).double().div(exact).log() / math.log(MAX_DISTANCE / exact)
    far = exact + (ratio * (BUCKETS - exact)).long()
    return torch.where(past < exact, past, far.clamp_max(BUCKETS - 1))


def alibi_slopes(heads: int) -> Tensor:
    """Return slopes of ALiBi for a power of two of heads: 2^(−8/h), 2^(−16/h), … (Press et al. 2022).

    >>> alibi_slopes(4).tolist()
    [0.25, 0.0625, 0.015625, 0.00390625]
    """
    return 2.0 ** (-8.0 / heads * torch.arange(1, heads + 1))


class PositionsForCausalLM(LlamaForCausalLM):  # type: ignore[misc]
    """A Llama model whose positions are encoded as its configuration says."""

    config_class = PositionsConfig

    def __init__(self, config: PositionsConfig) -> None:
        super().__init__(config)
        encoding = config.position_encoding
        if encoding not in ENCODINGS:
            raise ValueError(f"position_encoding must be one of {', '.join(ENCODINGS)}, got {encoding!r}")
        if encoding not in ("rope", "ntk", "window"):
            self.model.rotary_emb = Unrotated()
        if encoding == "learned":
            self.model.embed_tokens = LearnedPositions(
                config.vocab_size, config.max_position_embeddings, config.hidden_size, 0.02
            )
            nn.init.normal_(self.model.embed_tokens.weight, std=config.initializer_range)
        if encoding == "t5":
            self.model.relative_bias = RelativeBias(config.num_attention_heads)
        if encoding in ("alibi", "t5", "window"):
            for layer in self.model.layers:
                layer.self_attn.register_forward_pre_hook(self._biased, with_kwargs=True)

    def _biased(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Add the bias of the distance, or a window's edge, to a layer's mask, which logits are added to."""
        hidden = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
        n = hidden.shape[1]
        place = torch.arange(n, device=hidden.device)
        distance = place[:, None] - place
        if self.config.position_encoding == "t5":
            bias = self.model.relative_bias(distance)
        elif self.config.position_encoding == "window":
            bias = torch.zeros(1, n, n, device=hidden.device)
        else:
            slopes = alibi_slopes(self.config.num_attention_heads).to(hidden.device)
            bias = -slopes[:, None, None] * distance.clamp_min(0)
        mask = kwargs.get("attention_mask")
        if mask is None:
            mask = (distance >= 0)[None, None]
        if mask.dtype == torch.bool:
            mask = float_mask(mask, hidden.dtype)
        mask = mask + bias.to(hidden.dtype)
        if self.config.position_encoding == "window":
            mask = mask.masked_fill(distance >= WINDOW_KEYS, torch.finfo(hidden.dtype).min)
        return args, {**kwargs, "attention_mask": mask}


AutoConfig.register(PositionsConfig.model_type, PositionsConfig, exist_ok=True)
AutoModelForCausalLM.register(PositionsConfig, PositionsForCausalLM, exist_ok=True)


@dataclass(frozen=True)
class PositionsRecipe(Recipe):
    """The demo's recipe, a third as long, with a position encoding."""

    steps: int = 256
    encoding: str = "rope"

    def build(self) -> Any:
        """Return the untrained model, from the recipe's seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            config = PositionsConfig(**config_values(self), position_encoding=self.encoding)
            if self.encoding == "ntk":
                config.rope_parameters = {"rope_type": "default", "rope_theta": NTK_THETA}
            return PositionsForCausalLM(config).train()


def compare_encodings(
    directory: str | os.PathLike[str] = "runs/encodings",
    *,
    study: str = "wavelet_heads",
    samples: int | None = None,
    steps: int = 256,
    seeds: int = 1,
    progress: bool = True,
    options: Mapping[str, Any] | None = None,
) -> Results:
    """Train the models and run a study over their last checkpoints.

    Finished work is kept, as in `run_demo`. Both studies read only held-out text: copying sequences
    change their statistics in the middle.

    Args:
        directory: gets a folder of checkpoints per encoding and the run `study`.
        study: "wavelet_heads", over five encodings, or "absolute_position", over all.
        samples: texts that the study reads; None: 24, or 128 windows of 64 tokens.
        seeds: trainings of each encoding; from two on the study compares encodings by their spread.
        progress: a bar on a terminal, a line every ten seconds elsewhere.
    """
    from attnscope.config.run_config import RunConfig
    from attnscope.engine.engine import Engine
    from attnscope.engine.prepared_run import prepare

    progress = flag("compare_encodings", "progress", progress)
    if study not in ("wavelet_heads", "absolute_position"):
        raise ValueError(
            f"compare_encodings: study must be wavelet_heads or absolute_position, got {study!r}"
        )
    windows = study == "absolute_position"
    default = 128 if windows else 24
    count = default if samples is None else at_least("compare_encodings", "samples", samples, 1)
    steps, seeds = (
        at_least("compare_encodings", name, value, 1) for name, value in (("steps", steps), ("seeds", seeds))
    )
    root = Path(directory).resolve()
    root.mkdir(parents=True, exist_ok=True)
    texts = root / "text.jsonl"
    write_texts(texts, text_windows(count, _SAMPLES_SEED), root / "study")
    models = []
    for encoding, seed in product(ENCODINGS if windows else WAVELET_ENCODINGS, range(seeds)):
        recipe = PositionsRecipe(steps=steps, encoding=encoding, seed=seed)
        label = encoding if seed == 0 else f"{encoding}-{seed}"
        checkpoints = train(root / label, recipe, progress=progress)
        models.append({"path": str(checkpoints / f"step{steps}"), "label": label})
    settings: dict[str, Any] = {"texts": {"path": str(texts)}, "options": {"nulls": ["row_permutation"]}}
    if windows:
        settings = {
            "texts": {"path": str(texts), "per": "window", "samples": count},
            "max_tokens": 64,
            "options": {"arms": ["no_bos"], "nulls": []},
        }
    settings["options"] |= dict(options or {})
    run_settings = RunConfig(study=study, name="study", output=str(root), models=models, **settings)
    results = Engine(prepare(run_settings), progress=progress).run(resume=True)
    results.figures()
    results.report()
    return results


def residual_summary(results: Results) -> list[str]:
    """Return a line per encoding: mean residual of early queries by layer, text windows and shuffled ones."""
    means = results.table("layer_means")
    means = means[(means["queries"] == "early") & (means["arm"] == "base")]
    lines = [f"{'':8}  residual by layer (nats²): windows; shuffled tokens; p of layer 0, shuffled"]
    position = results.table("position")
    first = position[(position["layer"] == 0) & (position["input"] == "shuffled")]
    first = first[(first["queries"] == "early") & (first["arm"] == "base")]
    for encoding in dict.fromkeys(means["model"]):
        means_of_encoding = means[means["model"] == encoding].sort_values("layer")
        parts = [
            "  ".join(
                f"{value:8.4f}" for value in means_of_encoding[means_of_encoding["input"] == kind]["residual"]
            )
            for kind in ("windows", "shuffled")
        ]
        least = first[first["model"] == encoding]["p_value"].min()
        lines.append(f"{encoding:8}  {parts[0]}; {parts[1]}; {least:.4f}")
    return lines


def summary(results: Results, directory: str | os.PathLike[str]) -> list[str]:
    """Return a table of the main numbers, one line per encoding."""
    phases = results.table("phases")
    columns = (
        "low_band",
        "high_band",
        "spectral_selectivity",
        "spectral_entropy",
        "wavelet_entropy",
        "position_entropy",
        "local_share",
        "rho",
        "scale_sensitivity_energy_0.5",
    )
    lines = [f"{'':8} {'loss':>14}  " + "  ".join(f"{name[-17:]:>17}" for name in columns)]
    for encoding in WAVELET_ENCODINGS:
        phases_of_encoding = phases[phases["model"] == encoding].set_index("metric")["mean"]
        record = json.loads(
            (Path(directory) / encoding / "training.jsonl").read_text("utf-8").splitlines()[-1]
        )
        losses = f"{record['loss_text']:.2f} / {record['loss_copying']:.2f}"
        cells = "  ".join(f"{float(phases_of_encoding.get(name, math.nan)):>17.3f}" for name in columns)
        lines.append(f"{encoding:8} {losses:>14}  {cells}")
    return lines


if __name__ == "__main__":
    # the module's classes must be those of the package, not of __main__, for stored models to find them
    from attnscope.demo import encodings

    parser = argparse.ArgumentParser(prog="python -m attnscope.demo.encodings", description=__doc__)
    parser.add_argument("directory", nargs="?", default="runs/encodings")
    parser.add_argument("--study", choices=("wavelet_heads", "absolute_position"), default="wavelet_heads")
    parser.add_argument("--steps", type=int, default=256)
    parser.add_argument("--seeds", type=int, default=1)
    arguments = parser.parse_args()
    study_results = encodings.compare_encodings(
        arguments.directory, study=arguments.study, steps=arguments.steps, seeds=arguments.seeds
    )
    wavelet = arguments.study == "wavelet_heads"
    for line in (
        encodings.summary(study_results, arguments.directory)
        if wavelet
        else encodings.residual_summary(study_results)
    ):
        print(line)
