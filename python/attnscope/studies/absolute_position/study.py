# SPDX-License-Identifier: MIT
"""Study of the sources of absolute position (Ruscio, Nanni, Silvestri, arXiv 2606.06160).

Rotary scores know the offset of a pair alone, yet attention at one offset changes along the text. The study
splits that change into what the causal mask does (a query sees i + 1 keys) and what the residual stream does
(queries and keys have become different), traces the second to position 0, and takes it away there.

Stages of a checkpoint: `checks` (identities that hold for any causal model; where one fails, the checkpoint
goes no further), `first_token` (tokens read alone), `passes` (sums over texts of every arm), `position`
(estimates from these sums), `precursor` (tests of leakage, bands, probes, lengths), `reads` (the arms that
need to know which heads read position 0, and the beginning token at other places), `removed`; at the end of
the run, `controls` (models with random weights), `depth` (encodings next to one another, and checkpoints),
`claims`.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attnscope.capture import Forward, forward, preflight
from attnscope.capture.sites import INTERFACE, TABLE
from attnscope.errors import ConfigError
from attnscope.metrics.positions.position_profile import PositionProfile
from attnscope.models import LoadError
from attnscope.studies.absolute_position import (
    anchors,
    claims,
    dynamics,
    emergence,
    encodings,
    estimates,
    first_position,
    leakage,
    mlp_shares,
    precursor,
    removals,
)
from attnscope.studies.absolute_position.arms import (
    FIXED,
    Arm,
    control_arms,
    first_arms,
    imposed,
    reading_arms,
    sets_first,
    token_ids,
)
from attnscope.studies.absolute_position.checks import check_model, require_checks
from attnscope.studies.absolute_position.options import CONTROLS, READS, PositionOptions
from attnscope.studies.absolute_position.sums import PROFILES, ROWS, softmax_of, store_profile, uniform_cut
from attnscope.studies.absolute_position.tables import SUMS, TABLES, Fingerprint
from attnscope.study_api.plan import megabytes
from attnscope.study_api.rows import rows_as
from attnscope.study_api.selection import where
from attnscope.study_api.stages import Stages
from attnscope.study_api.study import Study
from attnscope.study_api.units import Cut, Units

if TYPE_CHECKING:
    import pandas as pd

    from attnscope.capture import Layer
    from attnscope.models import Encoder
    from attnscope.study_api.forward import Batch
    from attnscope.study_api.plan import Plan
    from attnscope.study_api.stage_run import StageRun
    from attnscope.study_api.units import Unit
    from attnscope.texts.sentence import Sentence


#: Windows of a source where nothing is said of `samples`; null takes all.
WINDOWS = 256


STAGES = Stages()
#: Tables and sums that the passes over texts write.
OF_TEXTS = (*PROFILES, *SUMS, "trajectories", "reads", "leakage")
ESTIMATES = (
    "position",
    "layer_means",
    "offsets",
    "offset_means",
    "residual_maps",
    "trajectory",
    "fingerprints",
    "position_shares",
    "clocks",
    "checks",
    "sums",
    "overall",
)
PRECURSOR = (
    "leakage_tests",
    "bands",
    "probes",
    "softmax_statistics",
    "leakage_lengths",
    "leakage_slopes",
    "overall",
)
CONTROLS_OF_RUN = ("controls", "control_residuals", "control_overall")


def all_windows(units: Units, study: AbsolutePosition) -> Cut:
    """Return all windows of a checkpoint together."""
    return units.texts(block=10**9)


def blocks_and_controls(units: Units, study: AbsolutePosition) -> Cut:
    """Return blocks of windows, of the model and of each control."""
    controls = study.options.random_weights if study.options.nulls else 0
    return units.texts(variants=("random_weights",) if controls else (), seeds=max(controls, 1))


@STAGES.stage(lambda units, study: units.checkpoints(), name="checks", writes=("checks", "encodings"))
def check(study: AbsolutePosition, unit: Unit, run: StageRun) -> None:
    """Check identities of the model, and record how it tells positions apart."""
    tier_of(run)  # a model of pictures ends here, by its name
    try:
        check_model(run)
        encodings.record(run, imposed(study.options))
    except NotImplementedError as error:
        raise LoadError(str(error)) from None


@STAGES.stage(
    all_windows,
    name="first_token",
    reads=("checks",),
    writes=("ordinary_tokens", "dynamics", "overall"),
    within="checkpoint",
)
def follow_first_token(study: AbsolutePosition, unit: Unit, run: StageRun) -> None:
    """Draw the ordinary tokens that replace the first one, and follow each alone."""
    require_checks(run)
    dynamics.follow(run, study.options)


@STAGES.stage(
    blocks_and_controls,
    name="passes",
    reads=("checks", "ordinary_tokens"),
    writes=OF_TEXTS,
    within="checkpoint",
)
def measure_passes(study: AbsolutePosition, unit: Unit, run: StageRun) -> None:
    """Run every arm that needs no other arm's numbers; a check that fails ends the checkpoint's part."""
    require_checks(run)
    m = _early(unit)
    if unit.variant:
        arms = list(control_arms(run, study.options))
        dynamics.control(run, study.options)
    else:
        arms = list(first_arms(run, study.options, m))
    placing = unit.variant and anchors.reachable(tier_of(run)) and sets_first(run)
    for batch in run.batches():
        for arm in arms:
            add_pass(study, run, batch, arm)
        if placing:
            anchors.control(run, batch, study.options)
        if not unit.variant:
            for arm in arms:
                if arm.kind in ("base", "text") and arm.input == "windows":
                    first_position.trajectories(run, batch, arm, study.options)


@STAGES.stage(
    lambda units, study: units.checkpoints(),
    name="position",
    reads=("checks", *OF_TEXTS),
    writes=ESTIMATES,
    within="checkpoint",
)
def estimate_position(study: AbsolutePosition, unit: Unit, run: StageRun) -> None:
    """Write estimates with intervals and tests from the sums over texts."""
    estimates.position(run, study.options)
    first_position.trajectory(run)
    first_position.fingerprints(run, study.options)
    first_position.fingerprints_without_bos(run)
    first_position.shares(run)
    estimates.mlp_ratio(run)


@STAGES.stage(
    all_windows,
    name="precursor",
    reads=("leakage",),
    writes=PRECURSOR,
    within="checkpoint",
    when=lambda study: bool(study.options.leakage or study.options.bands or study.options.lengths),
)
def run_precursor(study: AbsolutePosition, unit: Unit, run: StageRun) -> None:
    """Run the precursor's tests, bands and lengths, from all texts at once."""
    tier = tier_of(run)
    if study.options.leakage:
        leakage.tests(run, study.options)
        if "ruscio2025once" in study.settings.protocols:
            precursor.significance(run, study.options, tier)
            precursor.probes(run, study.options, tier)
            precursor.softmax(run, study.options, tier)
    if study.options.bands:
        precursor.bands(run, study.options, tier)
    if study.options.lengths:
        precursor.lengths(run, study.options, tier)


@STAGES.stage(
    lambda units, study: units.texts(),
    name="reads",
    reads=("fingerprints", "checks", "ordinary_tokens"),
    writes=(*PROFILES, "placements"),
    within="checkpoint",
)
def measure_reads(study: AbsolutePosition, unit: Unit, run: StageRun) -> None:
    """Run the arms in which heads do not read position 0, and the beginning token at other places."""
    require_checks(run)
    tier = tier_of(run)
    if "fingerprints" not in run.stored.tables():
        run.note("absolute_position: nothing tells which heads read position 0; unread, hidden are left out")
        return
    table = run.read("fingerprints")
    table = where(table, arm="base")
    readers = table[(table["a0"] > study.options.reader) & (table["a0_low"] > table["uniform"])]
    chosen = [(reader.layer, reader.head) for reader in rows_as(Fingerprint, readers)]
    arms = list(reading_arms(chosen, heads_by_layer(table), run, study.options))
    placing = anchors.reachable(tier) and sets_first(run)
    for batch in run.batches():
        for arm in arms:
            try:
                add_pass(study, run, batch, arm)
            except NotImplementedError as error:
                run.note(f"absolute_position: {arm.name} is left out: {error}")
        if placing:
            anchors.measure(run, batch, chosen, study.options)


@STAGES.stage(
    lambda units, study: units.checkpoints(),
    name="removed",
    reads=(*PROFILES, "placements"),
    writes=("removed", "removed_arms", "overall"),
    within="checkpoint",
)
def remove(study: AbsolutePosition, unit: Unit, run: StageRun) -> None:
    """Write the share of the base arm's residual that each arm removes, and the statistics of the
    placements.
    """
    removals.removals(run, study.options)
    if "placements" in run.stored.tables():
        anchors.overall(run, run.read("placements"), study.options)


@STAGES.stage(
    lambda units, study: units.once(),
    name="controls",
    reads=(*PROFILES, "uniform_cut", "mlp_states", "contractions", "anchor_reads", "checks"),
    writes=CONTROLS_OF_RUN,
    when=lambda study: bool(study.options.nulls and study.options.random_weights),
)
def estimate_controls(study: AbsolutePosition, unit: Unit, run: StageRun) -> None:
    """Write the same estimates of models with random weights."""
    estimates.controls(run, study.options)


@STAGES.stage(
    lambda units, study: units.once(),
    name="depth",
    reads=("layer_means", "encodings", "checks"),
    writes=("depth_slopes", "emergence", "claims"),
)
def compare_encodings(study: AbsolutePosition, unit: Unit, run: StageRun) -> None:
    """Compare the encodings, and the checkpoints of each model."""
    encodings.compare(run, study.options)
    emergence.write(run)


@STAGES.stage(
    lambda units, study: units.once(),
    name="claims",
    reads=(
        *ESTIMATES[:-2],
        "dynamics",
        "removed",
        "removed_arms",
        "placements",
        "overall",
        "leakage_tests",
        "leakage_slopes",
        "softmax_statistics",
        *CONTROLS_OF_RUN,
    ),
    writes=("claims",),
)
def decide_claims(study: AbsolutePosition, unit: Unit, run: StageRun) -> None:
    """Write the table `claims`."""
    claims.write(run, study.options)


def heads_by_layer(fingerprints: pd.DataFrame) -> list[int]:
    """Return the number of heads of every layer up to the last one that was measured.

    A layer that was left out has as many as the others; none where these differ.
    """
    counts = fingerprints.groupby("layer")["head"].max() + 1
    common = int(counts.iloc[0]) if counts.nunique() == 1 else 0
    return [int(counts.get(layer, common)) for layer in range(int(counts.index.max()) + 1)]


def require_windows(windows: int, groups: int) -> None:
    """Raise ConfigError where there are too few windows for sizes between groups of them."""
    least = 4 * groups
    if windows < least:
        raise ConfigError(
            f"absolute_position: {groups} groups need {least} windows, the texts give "
            f"{windows}; add texts or set options.groups"
        )


def add_pass(study: AbsolutePosition, run: StageRun, batch: Batch, arm: Arm) -> None:
    """Run one pass and add its sums by group of texts."""
    unit, options = run.unit, study.options
    assert unit.checkpoint is not None
    is_whole = arm.kind in ("base", "text")
    about_0 = is_whole and arm.input == "windows" and not unit.variant
    filtered = arm.kind == "base" and arm.input == "windows"
    groups = [sample * options.groups // run.samples for sample in batch.samples]
    profile = PositionProfile(max(batch.lengths), groups=options.groups)
    sites = first_position.SITES if about_0 else mlp_shares.SITES if filtered else ()
    if arm.kind == "leakage":
        sites = leakage.PRODUCTS if "ruscio2025once" in study.settings.protocols else ()
        for layer in layers_of_pass(study, run, batch, arm, sites):
            leakage.add(run, layer, tier_of(run), input=arm.input, samples=batch.samples)
        return
    for layer in layers_of_pass(study, run, batch, arm, sites):
        scores, _ = softmax_of(layer)
        profile.add(scores, groups, layer=layer.index, sink_logit=layer.sink_logits)
        if unit.variant and is_whole:
            keys = {"model": unit.checkpoint.model, "seed": unit.seed, "layer": layer.index}
            run.reduce("uniform_cut", uniform_cut(layer), **keys)
        if filtered:
            mlp_shares.add(run, layer, groups)
        if about_0:
            first_position.add(run, batch, arm, layer, groups, options)
    if profile.left_out:
        run.note(f"absolute_position: {profile.left_out} maps of the arm {arm.label} are not finite")
    profiles = PROFILES if is_whole else tuple(name for name in PROFILES if name not in ("cut", "rows"))
    store_profile(
        run,
        profile,
        {
            "model": unit.checkpoint.model,
            "variant": unit.variant,
            "seed": unit.seed,
            "tokens": profile.n,
            "arm": arm.name,
            "draw": arm.draw,
            "kind": arm.kind,
            "input": arm.input,
            "position": arm.position,
        },
        names=profiles if arm.draw <= 0 else ("counts", "residual"),
    )


def layers_of_pass(
    study: AbsolutePosition, run: StageRun, batch: Batch, arm: Arm, sites_wanted: tuple[str, ...]
) -> Iterator[Layer]:
    """Yield the layers of a pass, as far as the model lets them be captured."""
    inputs = run.inputs(batch)
    inputs["input_ids"] = token_ids(run, batch, arm)
    tier = tier_of(run)
    sites: tuple[str, ...] = ("scores", "lse") if tier == INTERFACE else ("attention",)
    sites += tuple(site for site in sites_wanted if site not in sites and tier in TABLE[site].tiers)
    edits = (*imposed(study.options), *arm.edits)
    spec = Forward(sites=sites, layers=list(study.settings.layers) or None, edits=edits)
    with forward(run.model().model, inputs, spec) as captured:
        yield from captured


class AbsolutePosition(Study):
    """The study; its stages are the functions above."""

    name = "absolute_position"
    Options = PositionOptions
    causal = True
    protocols = ("exact", "ruscio2025once")
    tables = TABLES
    declared_stages = STAGES

    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        if any(source.per != "window" for source in settings.texts):
            raise ConfigError(
                "texts.per: absolute_position reads windows: a text that starts where it was cut makes "
                "content depend on position; --set texts.per=window"
            )
        if settings.bos != "keep":
            raise ConfigError(
                f"bos: absolute_position has an arm without BOS; leave bos at keep, got {settings.bos!r}"
            )
        first, least = self.options.queries[0], 2 * self.options.queries[0] + 2
        if settings.max_tokens is not None and settings.max_tokens < least:
            raise ConfigError(
                f"max_tokens: early queries from {first} on are in the first half of a window, which needs "
                f"{least} tokens, got {settings.max_tokens}"
            )
        if self.options.lengths and settings.max_tokens is None:
            raise ConfigError(
                f"options.lengths: windows are cut into pieces of {self.options.lengths} tokens, which needs "
                "max_tokens, got null"
            )
        if uneven := [n for n in self.options.lengths if settings.max_tokens % n]:
            raise ConfigError(
                f"options.lengths: each must divide max_tokens, {settings.max_tokens}, so that every length "
                f"reads the same tokens; got {uneven}"
            )

    @classmethod
    def resolve_options(cls, values: Mapping[str, Any], options_known: Container[str]) -> dict[str, Any]:
        """Return the values with texts as windows, the first `WINDOWS` of a source, unless they set it
        themselves.
        """
        resolved = super().resolve_options(values, options_known)
        texts = resolved.get("texts") or []
        sources = [
            {"path": source} if isinstance(source, str) else source
            for source in (texts if isinstance(texts, list) else [texts])
        ]
        usual = {"per": "window", "samples": WINDOWS}
        windows = [{**usual, **source} if isinstance(source, Mapping) else source for source in sources]
        return {**resolved, "texts": windows} if windows else resolved

    def prepare_texts(
        self, sentences: Sequence[Sentence], encoder: Encoder, model: str, plan: Plan
    ) -> Sequence[Sentence]:
        """Return the windows that are read differently, numbered from 0.

        Sizes are products of different groups of texts: a window that is in two of them would bring its noise
        into the product.

        Raises:
            ConfigError: they are too few for the groups.
        """
        set_around = sum(map(len, encoder.frame()))
        first: dict[Sequence[int], Sentence] = {}
        for window in sentences:
            ids = window.token_ids or ()
            first.setdefault(ids[: max(0, len(ids) - set_around)], window)
        if repeated := len(sentences) - len(first):
            plan.notes.append(
                f"{model}: {repeated} of {len(sentences)} windows repeat an earlier one and are left out"
            )
        require_windows(len(first), self.options.groups)
        return [replace(window, sample=number) for number, window in enumerate(first.values())]

    def describe_plan(self, plan: Plan) -> list[str]:
        """Return the passes over the windows, and the size of their sums on disk."""
        passes = self._passes()
        lines = []
        for model in plan.heads:
            units = [unit for unit in plan.units if unit.source == model]
            texts = sum(len(unit.inputs) for unit in units if unit.stage == "passes" and not unit.variant)
            size = sum(self.stored_bytes(unit, plan) for unit in units)
            name = plan.settings.models[model].label or plan.settings.models[model].path
            controls = self.options.random_weights if self.options.nulls else 0
            of_each = passes["control"] + len(anchors.CONTROL_PLACEMENTS)
            of_controls = (
                f"{of_each} passes over them of each of {controls} models with random weights; "
                if controls
                else ""
            )
            lines.append(
                f"{name}: {sum(passes.values()) - passes['control']} passes over {texts} windows, up to "
                f"{passes['reads']} of them where heads read position 0; {of_controls}"
                f"up to about {megabytes(size)} of sums on disk; "
                "texts.samples sets the number of windows of a source, null: all"
            )
        return lines

    def stored_bytes(self, unit: Unit, plan: Plan) -> int:
        """Return the bytes of sums over pairs of early positions in every pass, and over states by
        position.
        """
        if unit.stage not in ("passes", "reads"):
            return 0
        passes, m, heads = self._passes(), _early(unit), plan.heads[unit.source]
        pairs = m * (m - 1) // 2
        of_whole_profile = 3 * pairs + (len(ROWS) + 2) * m
        of_mlps = 2 * m * min(plan.widths[unit.source][0], mlp_shares.WIDTH)
        layers, placed = plan.layers[unit.source], 0
        if unit.variant:
            numbers = heads * (of_whole_profile + 2 * pairs * (passes["control"] - 1)) + of_mlps
            placed = len(anchors.CONTROL_PLACEMENTS) * (2 * layers * heads + 1)
        elif unit.stage == "reads":
            numbers = heads * pairs * 2 * passes["reads"]
        else:
            of_edits = pairs * (2 * passes["edited"] + passes["drawn"])
            of_states = len(first_position.STATES) * m * plan.widths[unit.source][0]
            numbers = heads * (of_whole_profile * passes["whole"] + of_edits) + of_states + of_mlps
        return 8 * (layers * plan.groups(unit, self.options.groups) * numbers + placed)

    def _passes(self) -> dict[str, int]:
        """Return the number of passes by their sums: whole profiles, edited and drawn ones, reads, no
        sums.
        """
        options = self.options
        bare = ("no_bos" in options.arms) * (len(options.inputs) - ("shuffled" in options.inputs))
        single = sum(arm in options.arms for arm in ("zero", "mean", "special"))
        return {
            "whole": len(options.inputs) + bare,
            "edited": single + 2 * sum(arm in options.arms for arm in CONTROLS),
            "drawn": sum(options.vectors for arm in ("token", "gaussian") if arm in options.arms),
            "reads": sum(arm in options.arms for arm in READS) * (2 + options.matched),
            "leakage": 2 * options.leakage,
            "placements": len(anchors.PLACEMENTS),
            "control": 1 + sum(name in options.arms for name in FIXED),
        }


def tier_of(run: StageRun) -> int:
    """Return the tier of capture of the model's attention; only the first gives the softmax's argument."""
    model = run.model().model
    try:
        plan = preflight.plan_for(model)
    except RuntimeError as error:
        raise LoadError(str(error)) from None
    if plan is None:
        raise LoadError(f"{type(model).__name__} takes no token ids")
    return plan.tier


def _early(unit: Unit) -> int:
    """Return the number of early queries: half of the windows' length."""
    return max(text.n_tokens for text in unit.inputs) // 2


STUDY = AbsolutePosition
