# SPDX-License-Identifier: MIT
"""Tuning of the demo's model in many ways from one start, and the study of weight changes over all results.

    python -m attnscope.demo.tuning [DIRECTORY] [--seeds N] [--steps N] [--arms NAME,NAME]
                                   [--processes N]

The arms are those of `attnscope.demo.objectives`: every one starts from the demo model's last checkpoint with
the same optimiser, steps and rate. Arms by AdamW are kept twice, after all steps, and (`NAME_matched`) at the
step at which ‖ΔW‖ is nearest to that of the arm that moved least, since a larger change is not a more
concentrated one. Models are ordinary folders, so that the study runs on them as on anyone's. The arm
`pretraining` is the change from the first checkpoint to the start.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch

from attnscope._system import processor_count
from attnscope.arguments.scalars import at_least, flag
from attnscope.demo.objectives import ARMS, STEPS, WHITENED, Arm
from attnscope.demo.texts import byte_tokenizer, text_windows, write_texts
from attnscope.demo.training import demo_checkpoints, evaluate_loss, last_checkpoint, one_thread, save_model
from attnscope.results.files import remove

if TYPE_CHECKING:
    from attnscope.config.run_config import RunConfig
    from attnscope.engine.executors.shards import ShardDone
    from attnscope.results.results import Results

MATCHED = "_matched"
PRETRAINING = "pretraining"
_SAMPLES_SEED = 7
#: Role, side and subspace of the columns of the summary.
_COLUMNS = (
    *((role, "in", "inputs") for role in ("q", "k", "v", "o", "down")),
    *((role, "out", "prediction") for role in ("o", "down")),
)
#: What a smaller model of the same kind gave: three layers of width 96, three seeds, arms of 30 steps.
STAND_IN = {
    "C1c": "dpo − ce at equal size −0.58 [−1.10, −0.07] octaves: contradicted",
    "C2b": "−1.07 [−1.25, −0.90] octaves: contradicted",
    "C3": "supported on both sides, at losses of 1.405, 1.408 and 1.406",
    "C4": "supported",
    "C5": "−0.01 [−0.05, 0.02] octaves for each doubling of K: not seen",
}


def tune(
    directory: str | os.PathLike[str] = "runs/tuning",
    *,
    start: str | os.PathLike[str] | None = None,
    arms: Sequence[str] = ARMS,
    seeds: int = 3,
    steps: int = STEPS,
    samples: int = 32,
    progress: bool = True,
    processes: int | None = None,
) -> Results:
    """Train the missing arms and run the study over all of them.

    Args:
        directory: gets a folder for each arm and seed, with `arm.json` in it, and the run `study`.
        start: a model folder; None takes the demo model's last checkpoint, trained when there is none.
        processes: that train and measure, each on one thread; None takes one for each processor. With more
            than one, a script that calls this needs `if __name__ == "__main__":`. Tables do not depend on it.
    """
    from attnscope.config.run_config import RunConfig

    progress = flag("tune", "progress", progress)
    if unknown := [arm for arm in arms if arm not in ARMS]:
        raise ValueError(f"tune: arms must be among {', '.join(ARMS)}, got {unknown[0]!r}")
    numbers = {"seeds": seeds, "steps": steps, "samples": samples}
    seeds, steps, samples = (at_least("tune", name, value, 1) for name, value in numbers.items())
    processes = processor_count() if processes is None else at_least("tune", "processes", processes, 1)
    root = Path(directory).resolve()
    root.mkdir(parents=True, exist_ok=True)
    texts = root / "text.jsonl"
    write_texts(texts, text_windows(samples, _SAMPLES_SEED), root / "study")
    base = Path(start) if start is not None else last_checkpoint(demo_checkpoints(progress=progress))
    labels = _train_all(root, base, arms, seeds, steps, progress, processes)
    models = [{"path": str(base), "label": "start"}]
    models += [{"path": str(root / label), "label": label} for label in labels]
    first = base.with_name("step0")
    if first.is_dir() and first != base:
        # the change of pretraining with its sign turned, which no fraction sees
        labels[PRETRAINING] = PRETRAINING
        models.append({"path": str(first), "label": PRETRAINING})
    study = RunConfig(
        study="pretraining_writes",
        name="study",
        output=str(root),
        models=models,
        texts={"path": str(texts)},
        options={
            "arms": labels,
            "nulls": ["other_layer", "weights"],
            "rank_one": {"directions": 8, "texts": 8},
        },
    )
    results = _measured(study, processes, progress)
    results.figures()
    results.report()
    return results


def _pool(processes: int) -> ProcessPoolExecutor:
    """Return processes of one thread each: a second thread gains nothing on matrices of this size."""
    return ProcessPoolExecutor(
        processes, multiprocessing.get_context("spawn"), initializer=torch.set_num_threads, initargs=(1,)
    )


def _train_all(
    root: Path, base: Path, arms: Sequence[str], seeds: int, steps: int, progress: bool, processes: int
) -> dict[str, str]:
    """Train every seed's missing arms; return label -> arm of all of them."""
    by_adam = [arm for arm in arms if arm not in WHITENED]
    matched = [f"{arm}{MATCHED}" for arm in by_adam if len(by_adam) > 1]
    trained_arms = _trained_arms(root)
    jobs: list[tuple[list[str], int]] = []
    for seed in range(seeds):
        missing = [arm for arm in arms if f"{arm}-{seed}" not in trained_arms]
        if any(f"{name}-{seed}" not in trained_arms for name in matched):
            missing = [arm for arm in arms if arm in missing or arm in by_adam]
        # arms that are stopped at one size are trained together; each other one is a job of its own
        jobs.append(([arm for arm in missing if arm in by_adam], seed))
        jobs += [([arm], seed) for arm in missing if arm not in by_adam]
    jobs = sorted((job for job in jobs if job[0]), key=lambda job: -len(job[0]))
    if processes == 1 or len(jobs) < 2:
        with one_thread():
            for job in jobs:
                _train(root, base, *job, steps, progress)
    else:
        with _pool(min(processes, len(jobs))) as pool:
            for done in [pool.submit(_train, root, base, *job, steps, progress) for job in jobs]:
                done.result()
    return {f"{name}-{seed}": name for seed in range(seeds) for name in (*arms, *matched)}


def _train(root: Path, base: Path, arms: Sequence[str], seed: int, steps: int, progress: bool) -> None:
    """Train some arms of one seed, and those by AdamW once more to the size of the smallest change."""
    # a change grows with the steps, so the arm that moved least is met late on the way of the others
    keep = range(max(1, steps // 4), steps + 1, 1 if steps < 16 else 2)
    arms_by_adam: dict[str, Arm] = {}
    for arm in arms:
        trained = Arm(arm, base, seed)
        trained.train(steps, () if arm in WHITENED else keep)
        _store(root, f"{arm}-{seed}", trained, steps, progress)
        if trained.kept:
            arms_by_adam[arm] = trained
    if len(arms_by_adam) < 2:
        return
    smallest = min(trained.kept[max(trained.kept)][0] for trained in arms_by_adam.values())
    for arm, trained in arms_by_adam.items():
        step = min(trained.kept, key=lambda step_number: abs(trained.kept[step_number][0] - smallest))
        trained.model.load_state_dict(trained.kept[step][1])
        _store(root, f"{arm}{MATCHED}-{seed}", trained, step, progress)


def _store(root: Path, label: str, arm: Arm, steps: int, progress: bool) -> None:
    """Write a model folder with `arm.json` in it."""
    facts = {
        "loss": evaluate_loss(arm.model)["text"],
        "objective": arm.last_loss,
        "size": arm.size(),
        "steps": steps,
    }
    remove(root / label)
    save_model(root / label, arm.model, byte_tokenizer(), arm=facts)
    if progress:
        print(
            f"{label}: {steps} steps, loss on held-out text {facts['loss']:.3f}, ‖ΔW‖ {facts['size']:.2f}",
            flush=True,
        )


def _trained_arms(root: Path) -> dict[str, dict[str, float]]:
    """Return loss, size and steps of every trained arm."""
    return {file.parent.name: json.loads(file.read_text("utf-8")) for file in root.glob("*/arm.json")}


def _measured(study: RunConfig, processes: int, progress: bool) -> Results:
    """Return the study, its units shared out among processes."""
    from attnscope.engine.engine import Engine
    from attnscope.engine.executors.shards import gather
    from attnscope.engine.prepared_run import prepare

    if processes == 1:
        with one_thread():
            return Engine(prepare(study), progress=progress).run(resume=True)
    with _pool(processes) as pool:
        stored = -1
        while True:
            shards = [
                pool.submit(_share, study.to_dict(), f"{at + 1}/{processes}") for at in range(processes)
            ]
            done = [shard.result() for shard in shards]
            # a stage waits for the tables of the stage before it, in any share
            before, stored = stored, sum(shard_result.stored for shard_result in done)
            if stored == before or not any(shard_result.left for shard_result in done):
                break
    return gather([done[0].run], progress=progress)


def _share(settings: dict[str, Any], shard: str) -> ShardDone:
    from attnscope.config.run_config import RunConfig
    from attnscope.engine.executors.shards import run_shard

    return run_shard(RunConfig(**settings), shard, progress=False, say=lambda text: None)


def summary(results: Results, directory: str | os.PathLike[str]) -> list[str]:
    """Return the lines that the run prints: every arm's fractions and losses, then the claims."""
    return [*_arm_lines(results, _trained_arms(Path(directory))), "", *_claim_lines(results.table("claims"))]


def _arm_lines(results: Results, trained_arms: dict[str, dict[str, float]]) -> Iterator[str]:
    """Yield fractions over isotropic, 2^mean log2 over layers, seeds in order."""
    table = results.table("fractions")
    table = table[table["tested"].astype(bool) & (table["layer"] >= 0) & (table["relative"] > 0)]
    arms: dict[str, str] = dict(results.study["options"]["arms"])
    titles = [f"{role} {'in' if side == 'in' else 'prediction'}" for role, side, _ in _COLUMNS]
    yield "  ".join([f"{'arm':24}", *(f"{title:>16}" for title in titles), "loss, ‖ΔW‖"])
    for arm in dict.fromkeys(arms.values()):
        models = [model for model, arm_of_model in arms.items() if arm_of_model == arm]
        cells = []
        for role, side, subspace in _COLUMNS:
            rows = table[(table["role"] == role) & (table["side"] == side) & (table["subspace"] == subspace)]
            means = [_mean_log2(rows[rows["model"] == model]["relative"]) for model in models]
            cells.append(" ".join(f"{value:.1f}" for value in means))
        losses = [
            f"{trained_arms[model]['loss']:.3f} {trained_arms[model]['size']:.1f}"
            for model in models
            if model in trained_arms
        ]
        yield "  ".join([f"{arm:24}", *(f"{cell:>16}" for cell in cells), "; ".join(losses)])


def _mean_log2(values: Any) -> float:
    return float(2 ** np.log2(values).mean()) if len(values) else float("nan")


def _claim_lines(claims: pd.DataFrame) -> Iterator[str]:
    of_arms = claims["model"].str.startswith("all arms")
    for model, rows in claims[of_arms].groupby("model", sort=False):
        yield f"{model}:"
        for _, row in rows.iterrows():
            yield (
                f"  {row['claim']:4} {row['verdict']:18} {row['value']:.2f} [{row['low']:.2f}, "
                f"{row['high']:.2f}]  {': '.join(row[['statistic', 'reason']].dropna())}"
            )
            if row["claim"] in STAND_IN:
                yield f"       a smaller stand-in: {STAND_IN[row['claim']]}"
    yield "each pair:"
    claims_of_pairs = claims[~of_arms & claims["claim"].isin(["C1", "C1b", "C2"])]
    for model, rows in claims_of_pairs.groupby("model", sort=False):
        values = ", ".join(
            f"{row['claim']} {row['value']:.2f} {row['verdict']}" for _, row in rows.iterrows()
        )
        yield f"  {model:24} {values}"


def main(arguments: Sequence[str]) -> None:
    """Run the command line."""
    import argparse

    parser = argparse.ArgumentParser(prog="python -m attnscope.demo.tuning")
    parser.add_argument("directory", nargs="?", default="runs/tuning")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--arms", default=",".join(ARMS))
    parser.add_argument("--processes", type=int, help="one for each processor by default")
    chosen = parser.parse_args(arguments)
    results = tune(
        chosen.directory,
        arms=chosen.arms.split(","),
        seeds=chosen.seeds,
        steps=chosen.steps,
        processes=chosen.processes,
    )
    print("\n".join(summary(results, chosen.directory)))


if __name__ == "__main__":
    main(sys.argv[1:])
