# SPDX-License-Identifier: MIT
"""Encodings of position of the models, and the growth of moved attention with depth under each.

One trained model differs from another in everything at once. Encodings are compared between trainings that
differ in nothing else, several of each: the unit is the training.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch

from attnscope.capture import Forward, forward, preflight
from attnscope.capture.sites import INTERFACE
from attnscope.plots.selection import last_step
from attnscope.statistics.comparisons import welch_test
from attnscope.study_api.claims import ClaimSet, Estimate, Untestable, above
from attnscope.study_api.number_text import rounded
from attnscope.study_api.selection import where, without

if TYPE_CHECKING:
    from attnscope.study_api.stage_run import StageRun

CLAIMS = ClaimSet()
#: What a model is but for its encoding.
SHAPE = ("layers", "heads", "width")
#: What is followed over depth.
MEASURES = ("moved_l2", "felt")


def rotary_dimensions(model: Any) -> int | None:
    """Return the number of dimensions of a head that a model rotates; None where it has no rotary
    frequencies.
    """
    frequencies = [buffer for name, buffer in model.named_buffers() if name.endswith("inv_freq")]
    return 2 * len(frequencies[0]) if frequencies else None


def encoding_of(model: Any) -> str:
    """Return how a model tells positions apart: alibi, rope, learned, what its configuration says, or
    other.
    """
    config = model.config.get_text_config()
    # BLOOM has nothing else; MPT says it of its attention; Falcon keeps a rotation that it then does not use
    parts = (config, getattr(config, "attn_config", None))
    if config.model_type == "bloom" or any(getattr(part, "alibi", False) for part in parts):
        return "alibi"
    if rotary_dimensions(model) or getattr(config, "rotary_dim", None):
        return "rope"
    if named := getattr(config, "position_encoding", ""):
        return str(named)
    tokens = model.get_input_embeddings()
    tables = [
        name
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Embedding) and module is not tokens
    ]
    return "learned" if any("pos" in name or name.endswith("wpe") for name in tables) else "other"


def record(run: StageRun, edits: tuple[Any, ...] = ()) -> None:
    """Write the table `encodings`: positions in a model's configuration and in its mask."""
    model = run.model().model
    config = model.config.get_text_config()
    encoding = encoding_of(model)
    rotary = rotary_dimensions(model) if encoding == "rope" else None
    run.write(
        "encodings",
        encoding=encoding,
        **rotation(config if rotary else None),
        rotary_dimensions=rotary or 0,
        windows=", ".join(_visible(run, edits)),
        sets_bos=run.encoder.bos_id is not None,
        layers=int(config.num_hidden_layers),
        heads=int(config.num_attention_heads),
        width=int(config.hidden_size),
    )


def rotation(config: Any) -> dict[str, Any]:
    """Return the type, base and factor of a configuration's rotation; NaN for numbers that kinds of layers
    differ in, whose type says them.
    """
    parameters = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    kinds = {name: part for name, part in parameters.items() if isinstance(part, dict)} or {"": parameters}
    if config is None:
        kinds = {}
    stored = getattr(config, "rope_theta", None)
    types = [str(part.get("rope_type", "default")) for part in kinds.values()]
    thetas = [part.get("rope_theta", stored) for part in kinds.values()]
    bases = [np.nan if base is None else float(base) for base in thetas]
    factors = [float(part.get("factor", 1.0)) for part in kinds.values()]
    if len(set(bases)) > 1 or len(set(factors)) > 1:
        types = [
            f"{name} {kind} {base:g}" + (f" / {factor:g}" if factor != 1 else "")
            for name, kind, base, factor in zip(kinds, types, bases, factors, strict=True)
        ]
    common = {"rope_theta": bases, "rope_factor": factors}
    numbers = {name: values[0] if len(set(values)) == 1 else np.nan for name, values in common.items()}
    return {"rope_type": ", ".join(types), **numbers}


def _visible(run: StageRun, edits: tuple[Any, ...]) -> list[str]:
    """Return the visibility of a text's queries at the study's length, each kind once: causal, window 32,
    …
    """
    model = run.model().model
    longest = getattr(model.config.get_text_config(), "max_position_embeddings", None) or 64
    n = min(run.settings.max_tokens or 64, longest)
    ids = torch.ones(1, n, dtype=torch.long, device=run.model().device)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    try:
        plan = preflight.plan_for(model, inputs)
    except RuntimeError:
        return []
    in_reach = plan is not None and plan.tier == INTERFACE
    with forward(model, inputs, Forward(("lse" if in_reach else "attention",), edits=edits)) as layers:
        names = list(dict.fromkeys(layer.visibility.name for layer in layers))
    return names if in_reach else []


def compare(run: StageRun, options: Any) -> None:
    """Write the table `depth_slopes` of the run, and the claim that encodings differ."""
    if "layer_means" not in run.stored.tables():
        return  # no model went beyond its checks
    means = last_step(run.read("layer_means"))
    facts = last_step(run.read("encodings"))
    checks = run.read("checks")
    failed = without(checks, holds=True)["model"]
    facts = without(where(facts, model=means["model"]), model=failed)
    if facts.empty:
        return
    means = where(means, queries="early", arm="base", input="windows").dropna(subset=["moved_l2"])
    slopes = _slopes(facts, means)
    run.write("depth_slopes", **{str(name): slopes[name].to_numpy() for name in slopes})
    models = facts["model"].unique()
    only = facts.iloc[0] if len(models) == 1 else None
    keys: dict[str, Any] = {"model": "all models", "revision": "", "step": -1}
    if only is not None:
        keys = {"model": only["model"], "revision": only["revision"], "step": int(only["step"])}
    CLAIMS.write(run, {"": (facts, slopes)}, options, **keys)


def _slopes(facts: pd.DataFrame, means: pd.DataFrame) -> pd.DataFrame:
    """Return the slope on depth, the first layer 0 and the last 1, by model and measure; of two layers or
    more.
    """
    rows = []
    for encoding in facts.to_dict("records"):
        rows_of_model = where(means, model=encoding["model"]).sort_values("layer")
        depth = rows_of_model["layer"].to_numpy(dtype=float) / max(1, encoding["layers"] - 1)
        for measure in MEASURES:
            values = rows_of_model[measure].to_numpy(dtype=float)
            is_finite = np.isfinite(values)
            slope = np.polyfit(depth[is_finite], values[is_finite], 1)[0] if is_finite.sum() >= 2 else np.nan
            rows.append(
                {"model": encoding["model"], "encoding": label(encoding), "measure": measure, "slope": slope}
            )
    return pd.DataFrame(rows, columns=["model", "encoding", "measure", "slope"])


def label(facts: Any) -> str:
    """Return an encoding in a few words: rope 10000, rope 10000 window 32, learned, …"""
    name = str(facts["encoding"])
    if np.isfinite(facts["rope_theta"]):
        name += f" {facts['rope_theta']:g}"
    elif isinstance(kinds := facts.get("rope_type"), str) and kinds:  # of layers, with bases of their own
        name += f" ({kinds})"
    windows = [window for window in str(facts["windows"]).split(", ") if window.startswith("window")]
    return " ".join([name, *windows])


@CLAIMS.claim(
    "C7",
    "encodings differ in how position grows with depth",
    "slope of moved attention on depth: the smaller difference of window to plain rotation and of plain "
    "rotation "
    "to a larger base",
)
def order_of_encodings(evidence: tuple[pd.DataFrame, pd.DataFrame], options: Any) -> Estimate | Untestable:
    """Measure both differences between trainings; the claim needs each to be above 0."""
    facts, slopes = evidence
    needs_twins = "one trained model differs from another in everything at once; "
    if len(facts[list(SHAPE)].drop_duplicates()) > 1:
        return Untestable(needs_twins + "the run's models are not of one shape")
    rotary = where(facts, encoding="rope")
    rotary = rotary.assign(label=[label(row) for row in rotary.to_dict("records")])
    windowed = rotary["windows"].str.contains("window")
    plain = rotary[~windowed].sort_values("rope_theta")
    bases = list(dict.fromkeys(plain["label"]))
    if len(bases) < 2 or not windowed.any():
        return Untestable(
            needs_twins + "models of one shape with plain rotation, a larger base and a window are needed"
        )
    groups = [
        where(slopes, encoding=name, measure="moved_l2")["slope"].dropna().to_numpy()
        for name in (bases[-1], bases[0], rotary[windowed]["label"].iloc[0])
    ]
    if min(map(len, groups)) < 2:
        return Untestable(needs_twins + "two trainings or more of each are needed")
    steps = [welch_test(groups[at + 1], groups[at]) for at in range(2)]
    words = "; ".join(
        f"{name} {rounded(values.mean(), '.2g')}"
        for name, values in zip(("larger base", "plain", "window"), groups, strict=True)
    )
    return Estimate(
        min(step.difference for step in steps),
        float(np.min([step.low for step in steps])),  # none where either has none
        float(np.min([step.high for step in steps])),
        region=above(0.0),
        words=f"mean slopes: {words}",
    )
