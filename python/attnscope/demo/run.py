# SPDX-License-Identifier: MIT
"""The main job: train, measure every checkpoint on both kinds of input, draw, report, print the emergence."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope._progress import progress_bar
from attnscope.arguments.scalars import at_least, flag
from attnscope.demo.texts import GROUPS, inputs_by_group, write_texts
from attnscope.demo.training import Recipe, checkpoint_steps, train
from attnscope.results.files import atomic_file

if TYPE_CHECKING:
    from attnscope.results.results import Results

_SAMPLES_SEED = 1


def run_demo(
    directory: str | os.PathLike[str] = "runs/demo",
    *,
    samples: int = 12,
    recipe: Recipe | None = None,
    progress: bool = True,
    say: Callable[[str], Any] = print,
    steps_before: int = 0,
) -> Results:
    """Train a small language model and run the sink study over all its checkpoints.

    Finished work is kept: a finished training is not repeated, a stopped one goes on at its last
    checkpoint, and the study at its first missing unit.

    Args:
        directory: the run folder; gets `checkpoints/`, `inputs/`, `tables/`, `figures/`, `report.html`.
        samples: texts of each kind.
        recipe: what to train; None is the one that is known to grow a sink.
        progress: a bar on a terminal or in a notebook, a line every ten seconds elsewhere.
        steps_before: how many steps, such as those of a set-up, the three of this one are counted after.

    Raises:
        FileExistsError: the folder holds what no demo has written, or a demo of other texts.
        ConfigError: the folder holds a demo of another recipe, or one whose recipe is damaged.
    """
    from attnscope.config.run_config import RunConfig
    from attnscope.engine.engine import Engine
    from attnscope.engine.prepared_run import prepare

    progress = flag("run_demo", "progress", progress)
    samples = at_least("run_demo", "samples", samples, 1)
    recipe = recipe or Recipe()
    root = Path(directory).resolve()
    train_step, study_step, report_step = (
        f"[{steps_before + number}/{steps_before + 3}]" for number in range(1, 4)
    )
    foreign = {path.name for path in root.iterdir()} - {"inputs"} if root.is_dir() else set()
    if foreign and "recipe.json" not in foreign:
        raise FileExistsError(
            f"{root} exists, holds {min(foreign)!r:.80} and is no demo's folder; choose another folder"
        )
    texts = _write_inputs(root, samples)
    say(f"{train_step} training a small model, {recipe.steps} steps")
    checkpoints = train(root, recipe, progress=progress, label=f"{train_step} training")
    study = RunConfig(
        study="attention_sinks",
        name=root.name,
        output=str(root.parent),
        models={"path": str(checkpoints / "step*"), "label": "demo"},
        texts=texts,
        seed=recipe.seed,
    )
    say(f"{study_step} the sink study over its {len(checkpoint_steps(recipe.steps))} checkpoints")
    results = Engine(prepare(study), progress=progress, label=f"{study_step} study, units").run(resume=True)
    say(f"{report_step} figures and report")
    _store_examples(results)
    report = _draw(results, f"{report_step} figures", progress)
    for line in emergence_lines(results):
        say(line)
    say(f"report: {report}")
    return results


def _draw(results: Results, label: str, progress: bool) -> Path:
    """Draw every figure once, as files and in the report."""
    from attnscope.plots import LeftOut, draw_all, figures_of

    left_out: list[LeftOut] = []
    with progress_bar(len(figures_of(results)), label, show=progress) as bar:
        drawn = draw_all(results, left_out=left_out, say=lambda line: bar.update())
        bar.set_postfix_str("writing them and the report")
        results.figures(drawn=drawn, left_out=left_out)
        return Path(results.report(drawn=drawn, left_out=left_out))


def emergence_lines(results: Results) -> list[str]:
    """Return the results in words and a small table: attention to BOS by step, and by head at the end."""
    from attnscope.plots.selection import measured_heads

    heads = measured_heads(results)
    uniform = float(heads["sink_share_uniform"].mean())
    per_head = heads.groupby(["series", "step", "layer", "head"])["sink_share"].mean()
    lines = [
        f"attention to BOS, mean over queries and samples; uniform attention gives {uniform:.3f}",
        f"{'step':>6}  " + "  ".join(f"{f'{group}: head mean, strongest':>30}" for group in GROUPS),
    ]
    for step in sorted(heads["step"].unique()):
        cells = []
        for group in GROUPS:
            at = per_head.loc[group, step]
            layer, head = at.idxmax()
            cells.append(f"{at.mean():>14.3f} {at.max():>7.3f} (L{layer}H{head})")
        lines.append(f"{step:>6}  " + "  ".join(f"{cell:>30}" for cell in cells))
    last = int(heads["step"].max())
    for group in GROUPS:
        lines.append(f"step {last}, {group}, layer by layer:")
        table = per_head.loc[group, last].unstack("head")
        lines += [
            f"  layer {layer}  " + "  ".join(f"{value:.3f}" for value in row)
            for layer, row in table.iterrows()
        ]
    return [*lines, *_verdict(per_head, last, uniform)]


def _verdict(per_head: Any, last: int, uniform: float) -> list[str]:
    """Return one sentence per kind of input; 0.3 is the usual bound of a sink."""
    lines = []
    for group in GROUPS:
        final = per_head.loc[group, last]
        strong = final[final > 0.3].sort_values(ascending=False)
        if strong.empty:
            layer, head = final.idxmax()
            lines.append(
                f"{group}: no head gives BOS more than 0.3 (highest: L{layer}H{head}, {final.max():.3f}, "
                f"{final.max() / uniform:.1f} times uniform)"
            )
        else:
            names = ", ".join(f"L{layer}H{head} {value:.2f}" for (layer, head), value in strong.items())
            lines.append(f"{group}: {len(strong)} of {len(final)} heads rest on BOS: {names}")
    return lines


def _write_inputs(root: Path, samples: int) -> list[dict[str, str]]:
    """Return the sequences as files that the study reads like anyone's, as its settings name them."""
    folder = root / "inputs"
    folder.mkdir(parents=True, exist_ok=True)
    for group, texts in inputs_by_group(samples, _SAMPLES_SEED).items():
        write_texts(folder / f"{group}.jsonl", texts, root)
    return [{"path": str(folder / f"{group}.jsonl"), "group": group} for group in GROUPS]


def _store_examples(results: Results) -> None:
    """Keep a few whole maps of the last checkpoint, with their bars, for the figures that need one.

    They are: the head that rests most on the first key when copying, on one sequence of each kind, and the
    head that does so least.
    """
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq
    import torch

    import attnscope
    from attnscope.plots.selection import last_step, measured_heads
    from attnscope.results.schema import CHECKPOINT_KEYS
    from attnscope.view.captured import captured_sentence

    heads = last_step(measured_heads(results))
    mean = heads[heads["group"] == "copying"].groupby(["layer", "head"])["sink_share"].mean()
    strongest, weakest = mean.idxmax(), mean.idxmin()
    first = heads.groupby("group")["sample"].min()
    examples = [(first["copying"], strongest), (first["text"], strongest), (first["copying"], weakest)]

    rows, bars = [], []
    for sample, (layer, head) in examples:
        maps = captured_sentence(results, sample)
        row = maps[(maps["layer"] == layer) & (maps["head"] == head)].iloc[0]
        keys = {**row[[*CHECKPOINT_KEYS, "sample", "layer", "head"]], "protocol": "exact"}
        n = row["n_tokens"]
        rows.append({**keys, "n_tokens": n, "attention": row["attention"].tolist()})
        codes = attnscope.persistence(torch.tensor(row["attention"], device="cpu").reshape(n, n))
        for dimension, birth, death in zip(codes.dimension, codes.birth, codes.death, strict=True):
            bars.append({**keys, "dimension": int(dimension), "birth": float(birth), "death": float(death)})
    for name, table in (("examples", rows), ("bars", bars)):
        stored = pa.Table.from_pandas(pd.DataFrame(table), preserve_index=False).replace_schema_metadata()
        with atomic_file(Path(results.path or ".") / "tables" / f"{name}.parquet") as file:
            pq.write_table(stored, file)
