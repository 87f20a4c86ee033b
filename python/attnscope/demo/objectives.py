# SPDX-License-Identifier: MIT
"""The objectives that the demo's model is tuned by, all from one start with the same optimiser.

* `ce`: pretraining goes on, the control that separates the objective from the phase of training;
* `sft`, `dpo`: answers in capitals, by cross-entropy, and as preferred over the answer as it stands;
* `contrastive_K`: cross-entropy over the target and K negatives, on the tokens of `ce`;
* `noise`: random targets;
* `plain`, `white_in`, `white_out`, `white_both`: `ce` by gradient descent, before whose steps the named sides
  of each gradient are whitened by the start's moments. The model reads and computes the same; only what
  accumulates in its matrices is changed.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from attnscope._evaluation import evaluating
from attnscope.demo.texts import VOCABULARY_SIZE, byte_tokenizer, training_batch, training_bytes
from attnscope.demo.training import cached_folder, demo_checkpoints, descend, last_checkpoint, save_model
from attnscope.metrics.weights.moments import Moments
from attnscope.models.loading import without_progress_bars

WHITENED = ("plain", "white_in", "white_out", "white_both")
ARMS = (
    "ce",
    "sft",
    "dpo",
    "contrastive_1",
    "contrastive_4",
    "contrastive_16",
    "contrastive_64",
    f"contrastive_{VOCABULARY_SIZE - 1}",
    "noise",
    *WHITENED,
)
STEPS, BATCH = 32, 16
RATE, PLAIN_RATE = 5e-4, 0.1
BETA = 0.1
#: Bytes of a beginning, and of an answer.
HALF = 40
_FLOOR = 1e-4


def answers(batch: int, seed: int, step: int) -> tuple[Tensor, Tensor]:
    """Return preferred and rejected texts [batch, 81]: 40 bytes of documentation, and the next 40 with
    letters raised to capitals, or as they are.

    >>> preferred, rejected = answers(2, seed=0, step=0)
    >>> preferred.shape, bool((preferred[:, :41] == rejected[:, :41]).all())
    (torch.Size([2, 81]), True)
    """
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
    corpus = training_bytes()
    starts = torch.randint(0, len(corpus) - 2 * HALF, (batch, 1), generator=generator, device="cpu")
    plain = corpus[starts + torch.arange(2 * HALF, device="cpu")]
    raised = plain.clone()
    small = (plain >= ord("a")) & (plain <= ord("z"))
    small[:, :HALF] = False
    raised[small] -= 32
    first = torch.zeros(batch, 1, dtype=torch.int64, device="cpu")
    return torch.cat([first, raised + 1], 1), torch.cat([first, plain + 1], 1)


def answer_likelihood(model: Any, ids: Tensor) -> Tensor:
    """Return the log p of each answer given its beginning, [batch]."""
    scores = model(input_ids=ids).logits[:, HALF:-1].log_softmax(-1)
    return scores.gather(-1, ids[:, HALF + 1 :, None])[..., 0].sum(-1)


def contrastive_loss(logits: Tensor, targets: Tensor, negatives: int, generator: torch.Generator) -> Tensor:
    """Return cross-entropy over the target and so many distinct uniform negatives; all of them is cross-
    entropy.

    Args:
        logits: [tokens, V].
        targets: [tokens].
    """
    order = torch.rand(logits.shape, generator=generator, dtype=torch.float32, device="cpu")
    order.scatter_(1, targets[:, None], 2.0)
    chosen = order.topk(negatives + 1).indices  # the target first
    restricted = logits.gather(1, chosen)
    return functional.cross_entropy(restricted, torch.zeros_like(targets))


class Arm:
    """One objective, from one start.

    Args:
        name: of `ARMS`.
        start: folder of the start.
        seed: of everything that is drawn.
    """

    def __init__(self, name: str, start: Path, seed: int) -> None:
        from transformers import AutoModelForCausalLM

        self.name, self.seed = name, seed
        with without_progress_bars():
            self.model: Any = AutoModelForCausalLM.from_pretrained(start)
            self._reference: Any = (
                AutoModelForCausalLM.from_pretrained(start).eval() if name == "dpo" else None
            )
        self._start = {key: value.clone() for key, value in self.model.state_dict().items()}
        #: Step -> ‖ΔW‖ and weights, of the steps that were asked for.
        self.kept: dict[int, tuple[float, dict[str, Tensor]]] = {}
        #: Of the last step.
        self.last_loss = math.nan
        self._generator = torch.Generator().manual_seed(seed)

    def loss(self, step: int) -> Tensor:
        """Return the loss of one step's batch."""
        if self.name in ("sft", "dpo"):
            preferred, rejected = answers(BATCH, self.seed + 1, step)
            if self.name == "sft":
                return -answer_likelihood(self.model, preferred).mean() / HALF
            with torch.no_grad():
                reference = [answer_likelihood(self._reference, ids) for ids in (preferred, rejected)]
            likelihoods = [answer_likelihood(self.model, ids) for ids in (preferred, rejected)]
            margin = (likelihoods[0] - reference[0]) - (likelihoods[1] - reference[1])
            return -functional.logsigmoid(BETA * margin).mean()
        ids = training_batch(BATCH, self.seed + 1, step)
        logits = self.model(input_ids=ids).logits[:, :-1].flatten(0, 1)
        targets = ids[:, 1:].flatten()
        if self.name == "noise":
            targets = torch.randint(
                1, VOCABULARY_SIZE, targets.shape, generator=self._generator, device="cpu"
            )
        if self.name.startswith("contrastive_"):
            return contrastive_loss(logits, targets, int(self.name.split("_")[1]), self._generator)
        return functional.cross_entropy(logits, targets)

    def train(self, steps: int, keep: Sequence[int] = ()) -> Any:
        """Return the tuned model."""
        self.model.train()
        if self.name in WHITENED:
            self._descend(steps)
            return self.model.eval()
        optimiser = torch.optim.AdamW(self.model.parameters(), lr=RATE, weight_decay=0.0)
        for step in range(steps):
            loss = self.loss(step)
            descend(self.model, optimiser, loss)
            self.last_loss = float(loss.detach())
            if step + 1 in keep:
                weights = {key: value.clone() for key, value in self.model.state_dict().items()}
                self.kept[step + 1] = self.size(), weights
        return self.model.eval()

    def size(self) -> float:
        """Return ‖ΔW‖_F over all weights so far."""
        squares = (
            (value - self._start[key]).double().square().sum()
            for key, value in self.model.state_dict().items()
        )
        return math.sqrt(float(sum(squares)))

    def _descend(self, steps: int) -> None:
        """Run plain gradient descent on whitened gradients."""
        sides = {"white_in": ("in",), "white_out": ("out",), "white_both": ("in", "out")}.get(self.name, ())
        roots = _roots(self.model, self.seed, sides) if sides else {}
        for step in range(steps):
            self.model.zero_grad(set_to_none=True)
            loss = self.loss(step)
            loss.backward()  # type: ignore[no-untyped-call]
            self.last_loss = float(loss.detach())
            with torch.no_grad():
                for name, parameter in self.model.named_parameters():
                    gradient = parameter.grad
                    for side, root in roots.get(name, {}).items():
                        gradient = gradient @ root if side == "in" else root @ gradient
                    parameter.sub_(PLAIN_RATE * gradient)


def _roots(model: Any, seed: int, sides: Sequence[str]) -> dict[str, dict[str, Tensor]]:
    """Return, by tensor, the inverse roots of the start's moments of each matrix on some sides."""
    from attnscope.capture.weights.second_moments import second_moments
    from attnscope.models.architecture import weight_map

    entries = weight_map(model)
    texts = [ids for step in range(2) for ids in training_batch(BATCH, seed + 100, step)]
    with evaluating(model):
        moments = second_moments(model, texts, map=entries, gradients="out" in sides, skip_first=False)
    return {
        entry.tensor: {
            side: inverse_root(moments, entry.layer, entry.role, side).to(torch.float32) for side in sides
        }
        for entry in entries
        if entry.layer >= 0
    }


def inverse_root(moments: Moments, layer: int, role: str, side: str) -> Tensor:
    """Return S^{-1/2} of a moment scaled to a mean eigenvalue of 1, eigenvalues floored at 1e-4 of the
    largest.

    >>> moments = Moments()
    >>> moments.add(torch.diag(torch.tensor([2.0, 1.0])), layer=0, role="q")
    >>> inverse_root(moments, 0, "q", "in").diagonal().square().sort().values.round(decimals=3).tolist()
    [0.625, 2.5]
    """
    second = moments.second(layer, role, side)
    values, vectors = torch.linalg.eigh(second / second.diagonal().mean())
    values = values.clamp_min(_FLOOR * values[-1])
    return vectors * values.rsqrt() @ vectors.mT


def demo_arm(name: str, *, steps: int = 16, seed: int = 0, runs: str | os.PathLike[str] = "runs") -> Path:
    """Return the folder of the demo's model tuned by one objective, trained once, kept in the cache."""
    start = last_checkpoint(demo_checkpoints(runs))
    with cached_folder(name, name, steps, seed, str(start.resolve())) as folder:
        if not folder.is_dir():
            save_model(folder, Arm(name, start, seed).train(steps), byte_tokenizer())
    return folder
