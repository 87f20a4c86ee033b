# SPDX-License-Identifier: MIT
"""Tunes the demo's model in many ways from one start, and runs the study of weight changes over all of them.

    python -m attnscope.demo.tuning [DIRECTORY] [--seeds N] [--steps N] [--arms NAME,NAME]

Every arm starts from the demo model's last checkpoint with the same optimiser, steps and rate:

* `ce`: pretraining goes on, the control that separates the objective from the phase of training;
* `sft`, `dpo`: answers in capitals, by cross-entropy, and as preferred over the answer as it stands;
* `contrastive_K`: cross-entropy over the target and K negatives, on the tokens of `ce`;
* `noise`: random targets;
* `plain`, `white_in`, `white_out`, `white_both`: `ce` by gradient descent, before whose steps the named sides
  of each gradient are whitened by the start's moments. The model reads and computes the same; only what
  accumulates in its matrices is changed.

Models are ordinary folders, so that the study runs on them as on anyone's.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

from attnscope.demo.ready import demo_checkpoints
from attnscope.demo.texts import documentation, text_windows, training_batch
from attnscope.demo.tokenizer import VOCABULARY_SIZE, byte_tokenizer
from attnscope.demo.training import evaluate_loss
from attnscope.metrics.weights.moments import Moments

if TYPE_CHECKING:
    from attnscope.engine.results import Results

WHITENED = ("plain", "white_in", "white_out", "white_both")
ARMS = (
    "ce", "sft", "dpo", "contrastive_1", "contrastive_4", "contrastive_16", "contrastive_64",
    f"contrastive_{VOCABULARY_SIZE - 1}", "noise", *WHITENED,
)  # fmt: skip
STEPS, BATCH = 32, 16
RATE, PLAIN_RATE = 5e-4, 0.1
BETA = 0.1
#: Bytes of a beginning, and of an answer.
HALF = 40
_FLOOR = 1e-4
_SAMPLES_SEED = 7


def answers(batch: int, seed: int, step: int) -> tuple[Tensor, Tensor]:
    """Preferred and rejected texts [batch, 81]: 40 bytes of documentation, and the next 40 with letters
    raised to capitals, or as they are.

    >>> preferred, rejected = answers(2, seed=0, step=0)
    >>> preferred.shape, bool((preferred[:, :41] == rejected[:, :41]).all())
    (torch.Size([2, 81]), True)
    """
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
    corpus = torch.frombuffer(bytearray(documentation()[0].encode()), dtype=torch.uint8).long()
    starts = torch.randint(0, len(corpus) - 2 * HALF, (batch, 1), generator=generator)
    plain = corpus[starts + torch.arange(2 * HALF)]
    raised = plain.clone()
    small = (plain >= ord("a")) & (plain <= ord("z"))
    small[:, :HALF] = False
    raised[small] -= 32
    first = torch.zeros(batch, 1, dtype=torch.int64)
    return torch.cat([first, raised + 1], 1), torch.cat([first, plain + 1], 1)


def answer_likelihood(model: Any, ids: Tensor) -> Tensor:
    """Log p of each answer given its beginning, [batch]."""
    scores = model(input_ids=ids).logits[:, HALF:-1].log_softmax(-1)
    likelihood: Tensor = scores.gather(-1, ids[:, HALF + 1 :, None])[..., 0].sum(-1)
    return likelihood


def contrastive_loss(logits: Tensor, targets: Tensor, negatives: int, generator: torch.Generator) -> Tensor:
    """Cross-entropy over the target and so many distinct uniform negatives; all of them is cross-entropy.

    Args:
        logits: [tokens, V].
        targets: [tokens].
        negatives: 1 .. V − 1.
        generator: of the negatives.
    """
    order = torch.rand(logits.shape, generator=generator)
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
        self.model: Any = AutoModelForCausalLM.from_pretrained(start)
        self._reference: Any = AutoModelForCausalLM.from_pretrained(start).eval() if name == "dpo" else None
        self._generator = torch.Generator().manual_seed(seed)

    def loss(self, step: int) -> Tensor:
        """Of one step's batch."""
        if self.name in ("sft", "dpo"):
            preferred, rejected = answers(BATCH, self.seed + 1, step)
            if self.name == "sft":
                return -answer_likelihood(self.model, preferred).mean() / HALF
            with torch.no_grad():
                reference = [answer_likelihood(self._reference, ids) for ids in (preferred, rejected)]
            own = [answer_likelihood(self.model, ids) for ids in (preferred, rejected)]
            margin = (own[0] - reference[0]) - (own[1] - reference[1])
            return -functional.logsigmoid(BETA * margin).mean()
        ids = training_batch(BATCH, self.seed + 1, step)
        logits = self.model(input_ids=ids).logits[:, :-1].flatten(0, 1)
        targets = ids[:, 1:].flatten()
        if self.name == "noise":
            targets = torch.randint(1, VOCABULARY_SIZE, targets.shape, generator=self._generator)
        if self.name.startswith("contrastive_"):
            return contrastive_loss(logits, targets, int(self.name.split("_")[1]), self._generator)
        return functional.cross_entropy(logits, targets)

    def train(self, steps: int) -> Any:
        """The tuned model."""
        self.model.train()
        if self.name in WHITENED:
            self._descend(steps)
        else:
            optimiser = torch.optim.AdamW(self.model.parameters(), lr=RATE, weight_decay=0.0)
            for step in range(steps):
                optimiser.zero_grad(set_to_none=True)
                self.loss(step).backward()  # type: ignore[no-untyped-call]
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                optimiser.step()
        return self.model.eval()

    def _descend(self, steps: int) -> None:
        """Plain gradient descent on whitened gradients."""
        sides = {"white_in": ("in",), "white_out": ("out",), "white_both": ("in", "out")}.get(self.name, ())
        roots = _roots(self.model, self.seed, sides) if sides else {}
        for step in range(steps):
            self.model.zero_grad(set_to_none=True)
            self.loss(step).backward()  # type: ignore[no-untyped-call]
            with torch.no_grad():
                for name, parameter in self.model.named_parameters():
                    gradient = parameter.grad
                    for side, root in roots.get(name, {}).items():
                        gradient = gradient @ root if side == "in" else root @ gradient
                    parameter.sub_(PLAIN_RATE * gradient)


def _roots(model: Any, seed: int, sides: Sequence[str]) -> dict[str, dict[str, Tensor]]:
    """By tensor, the inverse roots of the start's moments of each matrix on some sides."""
    from attnscope.capture.weights.second_moments import second_moments
    from attnscope.models.architecture import weight_map

    model.eval()
    found = weight_map(model)
    texts = [ids for step in range(2) for ids in training_batch(BATCH, seed + 100, step)]
    moments = second_moments(model, texts, map=found, gradients="out" in sides, skip_first=False)
    model.train()
    return {
        entry.tensor: {
            side: inverse_root(moments, entry.layer, entry.role, side).to(torch.float32) for side in sides
        }
        for entry in found
        if entry.layer >= 0
    }


def inverse_root(moments: Moments, layer: int, role: str, side: str) -> Tensor:
    """S^{-1/2} of a moment scaled to a mean eigenvalue of 1, eigenvalues floored at 1e-4 of the largest.

    >>> moments = Moments()
    >>> moments.add(torch.diag(torch.tensor([2.0, 1.0])), layer=0, role="q")
    >>> inverse_root(moments, 0, "q", "in").diagonal().square().sort().values.round(decimals=3).tolist()
    [0.625, 2.5]
    """
    second = moments.second(layer, role, side)
    values, vectors = torch.linalg.eigh(second / second.diagonal().mean())
    values = values.clamp_min(_FLOOR * values[-1])
    root: Tensor = vectors * values.rsqrt() @ vectors.mT
    return root


def tune(
    directory: str | os.PathLike[str] = "runs/tuning",
    *,
    start: str | os.PathLike[str] | None = None,
    arms: Sequence[str] = ARMS,
    seeds: int = 3,
    steps: int = STEPS,
    samples: int = 32,
    progress: bool = True,
) -> Results:
    """Trains the arms that are not there yet and runs the study over them.

    Args:
        directory: gets a folder for each arm and seed, `losses.json` and the run `study`.
        start: a model folder; None takes the demo model's last checkpoint, trained when there is none.
        arms: of `ARMS`.
        seeds: training runs of each arm.
        steps: of each.
        samples: windows of held-out text that the study reads.
        progress: say what is being trained.

    Raises:
        ValueError: an unknown arm.
    """
    from attnscope.engine.config import Study
    from attnscope.engine.run import Engine

    if unknown := [arm for arm in arms if arm not in ARMS]:
        raise ValueError(f"tune: arms must be among {', '.join(ARMS)}, got {unknown[0]!r}")
    root = Path(directory).resolve()
    root.mkdir(parents=True, exist_ok=True)
    base = Path(start) if start is not None else _last_of(demo_checkpoints())
    labels, losses = {}, _losses(root)
    for arm in arms:
        for seed in range(seeds):
            label = f"{arm}-{seed}"
            labels[label] = arm
            if (root / label).is_dir() and label in losses:
                continue
            model = Arm(arm, base, seed).train(steps)
            losses[label] = evaluate_loss(model)["text"]
            model.save_pretrained(root / label)
            byte_tokenizer().save_pretrained(root / label)
            (root / "losses.json").write_text(json.dumps(losses, indent=1), encoding="utf-8")
            if progress:
                print(f"{label}: loss on held-out text {losses[label]:.3f}", flush=True)
    texts = root / "text.jsonl"
    lines = [json.dumps({"text": window}) for window in text_windows(samples, _SAMPLES_SEED)]
    texts.write_text("\n".join(lines) + "\n", encoding="utf-8")
    models = [{"path": str(base), "label": "start"}]
    models += [{"path": str(root / label), "label": label} for label in labels]
    study = Study(
        study="pretraining_writes", name="study", output=str(root), models=models, texts={"path": str(texts)},
        options={"arms": labels, "nulls": ["other_layer", "weights"]},
    )  # fmt: skip
    results = Engine(study, progress=progress).run(resume=True)
    results.figures()
    results.report()
    return results


def _last_of(checkpoints: Path) -> Path:
    return max(checkpoints.glob("step*"), key=lambda folder: int(folder.name.removeprefix("step")))


def _losses(root: Path) -> dict[str, float]:
    file = root / "losses.json"
    return json.loads(file.read_text("utf-8")) if file.is_file() else {}


def summary(results: Results, directory: str | os.PathLike[str]) -> list[str]:
    """The claims with their verdicts as computed, and the loss of every arm."""
    claims = results.table("claims")
    lines = []
    for _, row in claims[claims["model"] == "all arms"].iterrows():
        interval = f"{row['value']:.2f} [{row['low']:.2f}, {row['high']:.2f}]"
        lines.append(
            f"{row['claim']:4} {row['verdict']:18} {interval:24} {row['statistic']}: {row['reason']}"
        )
    own = claims[(claims["model"] != "all arms") & claims["claim"].isin(["C1", "C2"])]
    losses = _losses(Path(directory))
    for model, rows in own.groupby("model", sort=False):
        values = ", ".join(
            f"{row['claim']} {row['value']:.2f} {row['verdict']}" for _, row in rows.iterrows()
        )
        lines.append(f"{model:18} loss {losses.get(str(model), float('nan')):.3f}  {values}")
    return lines


def main(arguments: Sequence[str]) -> None:
    """The command line."""
    import argparse

    parser = argparse.ArgumentParser(prog="python -m attnscope.demo.tuning")
    parser.add_argument("directory", nargs="?", default="runs/tuning")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--arms", default=",".join(ARMS))
    chosen = parser.parse_args(arguments)
    results = tune(chosen.directory, arms=chosen.arms.split(","), seeds=chosen.seeds, steps=chosen.steps)
    print("\n".join(summary(results, chosen.directory)))


if __name__ == "__main__":
    main(sys.argv[1:])
