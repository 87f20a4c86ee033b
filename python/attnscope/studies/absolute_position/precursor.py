# SPDX-License-Identifier: MIT
"""The rest of the precursor (*Once upon a token*, Ruscio 2025): its test, rotary bands, lengths of texts.

All of it reads windows without BOS. One unit holds every text, because the notebook's test draws texts from
all of them, and lengths are compared group by group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from attnscope.capture import Forward, forward
from attnscope.capture.sites import INTERFACE, TABLE
from attnscope.metrics.positions.position_profile import PositionProfile
from attnscope.metrics.positions.rope_bands import rope_bands, rotary_layout
from attnscope.protocols import ruscio2025once
from attnscope.protocols.ruscio2025once.leakage import MOST_TOKENS
from attnscope.protocols.ruscio2025once.softmax_statistics import TEMPERATURES
from attnscope.statistics.leakage import leakage_slope
from attnscope.studies.absolute_position.arms import Arm, imposed, token_ids
from attnscope.studies.absolute_position.encodings import rotary_dimensions
from attnscope.studies.absolute_position.leakage import PRODUCTS, has_products, products
from attnscope.studies.absolute_position.sums import softmax_of

if TYPE_CHECKING:
    from attnscope.capture import Layer
    from attnscope.study_api.stage_run import StageRun

BARE = Arm("leakage", kind="leakage", front="none")
#: What the notebook's procedure does to p-values, in the column `correction`.
RANK = "over the head's rank (no q-value)"


def significance(run: StageRun, options: Any, tier: int) -> None:
    """Write the notebook's test of every head, on texts drawn from all with replacement."""
    if not has_products(run, tier):
        return
    texts = [row for batch in run.batches() for row in token_ids(run, batch, BARE)]

    # blocks of other kinds have no attention, so that layers are no range
    heads = {layer.index: len(layer.heads) for layer in _ends(run, texts[0][None, :2], options)}
    if len(set(heads.values())) > 1:
        run.note(
            "absolute_position: no test of ruscio2025once: it takes layers of equal numbers of heads, got "
            f"{', '.join(map(str, heads.values()))}"
        )
        return

    def scores(ids: Tensor) -> Tensor:
        return torch.cat([products(layer) for layer in _ends(run, ids[None], options)])

    test = ruscio2025once.leakage_significance(
        lambda text: scores(texts[text][:MOST_TOKENS]),
        lambda text, shift: scores(texts[text][:MOST_TOKENS].roll(-shift)),
        texts=len(texts),
        samples=options.leakage_samples,
        seed=run.settings.seed,
    )
    for at, layer in enumerate(heads):
        run.write(
            "leakage_tests",
            layer=layer,
            head=np.arange(test.gap.shape[1]),
            protocol="ruscio2025once",
            gap=test.gap[at],
            gap_low=test.low[at],
            gap_high=test.high[at],
            p_value=test.p_value[at],
            p_adjusted=test.q_value[at],
            correction=RANK,
        )


def probes(run: StageRun, options: Any, tier: int) -> None:
    """Write the notebook's probe of the inputs and outputs of MLPs, means over texts, with that of white
    noise.
    """
    sites = ("mlp_input", "mlp_output")
    if not all(tier in TABLE[site].tiers for site in sites):
        run.note("absolute_position: no probes: the inputs and outputs of MLPs are out of reach")
        return
    sums: dict[tuple[int, str], list[Tensor]] = {}
    null = np.nan
    for batch in run.batches():
        ids = token_ids(run, batch, BARE)
        for layer in _layers(run, ids, options, tier, sites):
            for site in sites:
                if site not in layer.tensors:
                    continue
                probe = ruscio2025once.position_probe(layer.states(site))
                null = float(probe.null)
                sums.setdefault((layer.index, site), []).append(probe.r2)
    for (layer_index, site), values in sums.items():
        run.write(
            "probes",
            layer=layer_index,
            site=site,
            protocol="ruscio2025once",
            r2=float(torch.cat(values).mean()),
            null=null,
        )


def softmax(run: StageRun, options: Any, tier: int) -> None:
    """Write the notebook's entropies and largest probabilities over temperatures, means over texts."""
    sums: dict[int, list[Tensor]] = {}
    for batch in run.batches():
        for layer in _layers(run, token_ids(run, batch, BARE), options, tier, ()):
            statistics = ruscio2025once.softmax_statistics(softmax_of(layer)[0])
            sums.setdefault(layer.index, []).append(torch.stack(statistics).double().cpu())
    for index, values in sums.items():
        means = torch.cat(values, dim=1).mean(1)
        for head in range(means.shape[1]):
            columns: dict[str, Any] = dict(
                zip(("softmax_entropy", "top_1", "top_5", "margin"), means[:, head], strict=True)
            )
            run.write(
                "softmax_statistics",
                layer=index,
                head=head,
                temperature=list(TEMPERATURES),
                protocol="ruscio2025once",
                **columns,
            )


def bands(run: StageRun, options: Any, tier: int) -> None:
    """Write the contribution of each band of rotary frequencies, means over texts, in the measured
    pairing.
    """
    model = run.model().model
    rotary = rotary_dimensions(model)
    if tier != INTERFACE or rotary is None:
        why = "the model rotates no queries" if rotary is None else "its queries are out of reach"
        run.note(f"absolute_position: no bands: {why}")
        return
    count = min(options.bands, rotary // 2)
    if count < options.bands:
        run.note(f"absolute_position: {rotary // 2} pairs are rotated, so there are {count} bands")
    batches = list(run.batches())
    repeated = token_ids(run, batches[0], BARE)[:1, :1].repeat(1, max(batches[0].lengths))
    layouts: dict[int, Any] = {}
    try:
        for layer in _ends(run, repeated, options):
            # learned sinks tell later layers how many keys a query sees, so that their content changes
            earlier = next(iter(layouts.values())) if layouts and layer.sink_logits is not None else None
            layouts[layer.index] = earlier or rotary_layout(*_heads(layer), rotary=rotary)
    except ValueError as error:
        run.note(f"absolute_position: no bands: {error}")
        return
    sums: dict[tuple[int, str], list[Tensor]] = {}
    for batch in batches:
        for layer in _ends(run, token_ids(run, batch, BARE), options):
            seen = layer.visibility.support
            for text, (query, key) in enumerate(zip(*_heads(layer), strict=True)):
                support = seen[text] if isinstance(seen, Tensor) and seen.ndim == 4 else seen
                if "exact" in run.settings.protocols:
                    shares = rope_bands(
                        query,
                        key,
                        bands=count,
                        layout=layouts[layer.index],
                        rotary=rotary,
                        scaling=scaling_of(model, layer.index, query.shape[-1]),
                        softcap=getattr(model.config, "attn_logit_softcapping", None),
                        support=support if isinstance(seen, Tensor) else "causal",
                        sink_logit=layer.sink_logits,
                    )
                    sums.setdefault((layer.index, "exact"), []).append(torch.stack(shares))
                if "ruscio2025once" in run.settings.protocols:
                    parts = (
                        ruscio2025once.band_shares(query, key, bands=options.bands),
                        ruscio2025once.band_ablation(query, key, bands=options.bands),
                    )
                    sums.setdefault((layer.index, "ruscio2025once"), []).append(torch.stack(parts))
    for (index, protocol), values in sums.items():
        layout = layouts[index] if protocol == "exact" else "interleaved"
        _write_bands(run, index, protocol, layout, torch.stack(values).mean(0))


def _write_bands(run: StageRun, layer: int, protocol: str, layout: str, means: Tensor) -> None:
    """Write the bands of every head of a layer; `means` are [number, head, band]."""
    names = ("share", "norm_share", "kl", "tv") if protocol == "exact" else ("norm_share", "kl")
    places = {"layer": layer, "band": np.arange(means.shape[-1]), "protocol": protocol, "layout": layout}
    for head in range(means.shape[1]):
        columns: dict[str, Any] = {name: means[at, head] for at, name in enumerate(names)}
        run.write("bands", head=head, **places, **columns)


def lengths(run: StageRun, options: Any, tier: int) -> None:
    """Write the leakage share at several lengths: every window is cut into pieces, so a group keeps its
    tokens.
    """
    profiles = {n: PositionProfile(n, groups=options.groups) for n in options.lengths}
    for batch in run.batches():
        windows = token_ids(run, batch, BARE)
        for n, profile in profiles.items():
            pieces = windows.shape[1] // n
            ids = windows[:, : pieces * n].reshape(-1, n)
            groups = [
                sample * options.groups // run.samples for sample in batch.samples for _ in range(pieces)
            ]
            for layer in _layers(run, ids, options, tier, ()):
                scores = softmax_of(layer)[0]
                profile.add(scores, groups, layer=layer.index, sink_logit=layer.sink_logits)
    slopes = leakage_slope(list(profiles.values()))
    layers = next(iter(profiles.values())).layers
    for at, n in enumerate(slopes.lengths):
        run.write(
            "leakage_lengths",
            layer=layers,
            tokens=n,
            texts=profiles[n].texts,
            leakage_share=slopes.share.estimate[at],
            leakage_share_low=slopes.share.low[at],
            leakage_share_high=slopes.share.high[at],
        )
    slope = {f"slope{end}": values for end, values in zip(("", "_low", "_high"), slopes.slope, strict=True)}
    run.write("leakage_slopes", layer=layers, **slope)
    overall = dict(zip(("estimate", "low", "high"), slopes.overall, strict=True))
    run.write(
        "overall", statistic="leakage_slope", n=len(layers), **{k: float(v) for k, v in overall.items()}
    )


def scaling_of(model: Any, layer: int, d: int) -> float:
    """Return the factor of a layer's scores that its attention module names, otherwise d^(−1/2)."""
    modules = (module for module in model.modules() if getattr(module, "layer_idx", None) == layer)
    return next(
        (float(module.scaling) for module in modules if isinstance(getattr(module, "scaling", None), float)),
        d**-0.5,
    )


def _ends(run: StageRun, ids: Tensor, options: Any) -> Any:
    """Return layers with queries and keys behind the rotation."""
    return _layers(run, ids, options, INTERFACE, PRODUCTS)


def _heads(layer: Layer) -> tuple[Tensor, Tensor]:
    """Return queries and keys [B, h, n, d], a key for every query head."""
    return layer.tensors["query"], layer.tensors["key"][:, layer.kv_heads]


def _layers(run: StageRun, ids: Tensor, options: Any, tier: int, sites: tuple[str, ...]) -> Any:
    """Yield the layers of one pass over texts of one length."""
    sites = sites or (("scores",) if tier == INTERFACE else ("attention",))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    spec = Forward(sites=sites, layers=list(run.settings.layers) or None, edits=imposed(options))
    with forward(run.model().model, inputs, spec) as captured:
        yield from captured
