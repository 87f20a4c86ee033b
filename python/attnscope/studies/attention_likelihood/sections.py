# SPDX-License-Identifier: MIT
"""Sections of the report: the replacements, the claims, then the numbers behind each."""

from __future__ import annotations

import math

import pandas as pd
from markupsafe import Markup

from attnscope.plots.figure import Results, optional
from attnscope.plots.selection import final, last_step
from attnscope.report.claims_table import claims_frame
from attnscope.report.report_tables import (
    Cells,
    count_cells,
    estimate_cells,
    interval_cells,
    layer_keys,
    number_cells,
    show,
    spread_cells,
    text_cells,
)
from attnscope.report.section import NamedSentence, Page, Section
from attnscope.studies.attention_likelihood.claims import (
    CLAIMS,
    layers_of,
    least_likely,
    strongest_association,
    swap_words,
)
from attnscope.studies.attention_likelihood.options import LikelihoodOptions
from attnscope.studies.checks import failed_checks
from attnscope.studies.overall import statistic_of
from attnscope.studies.stated_verdicts import claim_of, with_verdicts
from attnscope.studies.stored_options import stored_options
from attnscope.study_api.claims import CONTRADICTED, SUPPORTED, UNDECIDED, ClaimRow
from attnscope.study_api.number_text import counted, estimate_text, number
from attnscope.study_api.selection import where

SENTENCES = CLAIMS.sentences
TITLE = "Attention and likelihood of words"
INTERVALS = (
    "Intervals are 95 % over texts, or over pairs of texts that exchange words: studentised bootstrap, none "
    "below five; those of the size of a change leave one text out at a time. Layers and heads count from 0."
)

#: Example texts in the report, and characters of each side of the word.
EXAMPLES, AROUND = 5, 40


def findings(results: Results) -> list[str]:
    """Return the main numbers of each model in sentences, absent effects included."""
    associations = optional(results, "head_mean_associations")
    if associations is None:
        return []
    lines: list[str] = []
    for model, rows in last_step(associations).groupby("model", sort=False):
        exact = where(rows, protocol="exact")
        alpha = stored_options(results, LikelihoodOptions).alpha
        line = within_words(exact, alpha, claim_of(results, str(model), "C1"))
        lines.append(NamedSentence(model, with_verdicts(line, results, str(model), "C1")))
        lines += [NamedSentence(model, line) for line in _swap(results, str(model), exact)]
        lines += [NamedSentence(model, line) for line in _control(results, str(model), exact)]
    return lines


def within_words(associations: pd.DataFrame, alpha: float, claim: ClaimRow | None) -> str:
    """Return the correlation within texts in words, by the verdict on C1, then what single layers show.

    Args:
        associations: rows of a model's `head_mean_associations`.
        alpha: level of the tests of layers.
        claim: the row of C1; None where none is stored, so that layers are given alone.
    """
    rows = where(associations, design="within", predictor="log_likelihood")
    if rows["z"].isna().all():
        return "no text has three versions whose attention differs."
    best = strongest_association(rows)
    certain = rows[rows["p_adjusted"] <= alpha]
    up, down = certain[certain["estimate"] > 0], certain[certain["estimate"] < 0]
    layers = f"rises in {layers_of(up)} and falls in {layers_of(down)}"
    if certain.empty:
        layers = f"follows it in no layer beyond chance (largest |z| {abs(best.z):.1f})"
    strongest = (
        f"strongest: layer {best.layer}, ρ {number(best.estimate)}, {number(best.slope)} share per nat, "
        f"family-wise p {number(best.p_adjusted)}"
    )
    subject = "attention of a word to itself"
    if claim is None:
        return f"within texts, as its likelihood rises, {subject} {layers}; {strongest}."
    words = {
        SUPPORTED: f"within texts, {subject} rises with its likelihood",
        CONTRADICTED: f"within texts, {subject} falls with its likelihood",
        UNDECIDED: f"within texts, it is undecided whether {subject} rises with its likelihood",
    }.get(claim.verdict, f"whether {subject} rises with its likelihood is not testable here")
    estimate = estimate_text(claim.value, claim.low, claim.high)
    value = "" if math.isnan(claim.value) else f", mean over layers ρ {estimate}"
    return f"{words}{value}; by layer, it {layers}; {strongest}."


def _swap(results: Results, model: str, rows: pd.DataFrame) -> list[str]:
    overall = optional(results, "overall")
    if overall is None:
        return []
    statistics = where(last_step(overall), model=model, protocol="exact")
    swap, cost = statistic_of(statistics, "swap"), statistic_of(statistics, "swap_nats")
    if swap is None or cost is None:
        return ["no two texts could exchange their words: expectation apart from identity is not tested."]
    line = swap_words(swap, cost.estimate, claim_of(results, model, "C4"))
    return [with_verdicts(line, results, model, "C4")]


def _control(results: Results, model: str, rows: pd.DataFrame) -> list[str]:
    table = optional(results, "controls")
    if table is None:
        return []
    rows_of_model = where(table, model=model)
    plain = where(rows_of_model, design="between", predictor="log_likelihood")
    within, swap = (
        where(rows_of_model, design="within"),
        where(rows_of_model, design="swap"),
    )
    if plain.empty:
        return []

    def by_layer(rows: pd.DataFrame, column: str) -> str:
        means = rows.groupby("layer")[column].mean()
        return f"{number(means.min())} to {number(means.max())}"

    draws = counted(rows_of_model["draw"].nunique(), "initialisation")
    parts = [
        f"with random weights ({draws}) the paper's correlation over texts, inner attention and likelihood, "
        f"is {by_layer(plain, 'estimate')} by layer ({by_layer(plain, 'slope')} per nat)"
    ]
    if within["estimate"].notna().any():
        slopes = by_layer(within, "slope")
        parts.append(f"that within texts {by_layer(within, 'estimate')} ({slopes} share per nat)")
    if swap["estimate"].notna().any():
        parts.append(f"swap gives {by_layer(swap, 'estimate')} of the attention")
    return [f"{'; '.join(parts)}. Untrained models show this much; only more is evidence."]


def _write_claims(page: Page) -> None:
    table = final(page.results, "claims")
    page.words(
        "The claims of the paper and what these texts and this model show of each. No correlation is given "
        "without its slope, because ranks of very small changes correlate as well as ranks of large ones."
    )
    claims_frame(page, table, SENTENCES)
    checks = optional(page.results, "checks")
    failed = [] if checks is None else sorted({check.check for check in failed_checks(checks)})
    if failed:
        page.notes([f"Checks that do not hold: {', '.join(failed)}."])


def _write_words(page: Page) -> None:
    words = final(page.results, "words")
    page.words(
        "One word of each text is replaced, piece by piece, by others that begin or go on in the same way, "
        "from the least likely to the likeliest. Length and place stay; the ids are never made from text "
        "again."
    )
    examples = _examples(page, words)
    page.frame("examples", "What was replaced.", examples, names=examples.shape[1])
    show(
        page,
        "modes",
        "Likelihood of the words in the texts, by mode.",
        modes_of(where(words, protocol="exact")),
        ["model", "mode"],
        {
            "L (nats)": number_cells("log_likelihood"),
            "per piece": number_cells("per_piece"),
            "place": number_cells("place"),
            "first pieces": count_cells("first_pieces"),
            "commonest": lambda rows: [f"{100 * share:.0f} %" for share in rows["commonest"]],
            "texts": count_cells("texts"),
        },
    )
    page.figure("dose")


def modes_of(words: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each model and mode: mean likelihoods, and how varied the first pieces are."""
    words = words.assign(first=words["replacement_ids"].map(lambda ids: int(ids[0])))
    modes = words.groupby(["model", "mode"], sort=False).agg(
        log_likelihood=("log_likelihood", "mean"),
        per_piece=("per_piece", "mean"),
        place=("place", "mean"),
        first_pieces=("first", "nunique"),
        commonest=("first", lambda ids: ids.value_counts(normalize=True).max()),
        texts=("first", "size"),
    )
    return modes.sort_values(["model", "log_likelihood"], ascending=[True, False]).reset_index()


def _examples(page: Page, words: pd.DataFrame) -> pd.DataFrame:
    """Return a few texts with their word and its replacements."""
    samples = page.tables["samples"].drop_duplicates("sample").set_index("sample")["text"]
    rows = where(words, protocol="exact", model=words["model"].iloc[0])
    chosen = [sample for sample in dict.fromkeys(rows["sample"]) if sample in samples.index][:EXAMPLES]
    modes = [mode for mode in ("highest", "nats:3", "mid", "lowest", "swap") if (rows["mode"] == mode).any()]
    replaced = rows.pivot_table(index="sample", columns="mode", values="replacement", aggfunc="first")
    columns: dict[str, list[str]] = {"text": [], "word": []}
    for sample in chosen:
        row = where(rows, sample=sample, mode="real").iloc[0]
        columns["text"].append(_around(str(samples[sample]), str(row["word"])))
        columns["word"].append(str(row["word"]))
    columns |= {mode: [str(cell) for cell in replaced[mode].reindex(chosen).fillna("–")] for mode in modes}
    return pd.DataFrame(columns)


def _around(text: str, word: str) -> str:
    """Return the word with the text around it."""
    at = text.find(word)
    if at < 0:
        return text[: 2 * AROUND]
    low, high = max(0, at - AROUND), at + len(word) + AROUND
    before = f"{'…' if low else ''}{text[low:at]}"
    return f"{before}[{word}]{text[at + len(word) : high]}{'…' if high < len(text) else ''}"


#: Cells of an association in a layer.
ESTIMATE = {"estimate": number_cells("estimate"), "95 %": interval_cells()}


def _write_within(page: Page) -> None:
    table = final(page.results, "head_mean_associations", protocol="exact")
    page.words(
        "Between texts length, place and number of pieces differ, and attention inside a word depends on all "
        "of them by construction. Within a text they are the same for every version of the word."
    )
    page.definition(
        Markup(
            "<i>r<sub>s</sub></i>: Spearman's correlation of log-likelihood <i>L</i> and share over the "
            "versions of text <i>s</i>; its variance under permutation is 1/(<i>k<sub>s</sub></i> − 1), so "
            "that <i>z</i> = Σ<i>r<sub>s</sub></i>/√Σ 1/(<i>k<sub>s</sub></i> − 1). Share: what the word's "
            "tokens give each other, mean over its rows. Slope: least squares with text effects."
        )
    )
    for name in ("likelihood_depth", "likelihood_map", "likelihood_heads"):
        page.figure(name)
    rows = where(table, design="within", predictor="log_likelihood")
    cells = {
        "share per nat": number_cells("slope"),
        "z": number_cells("z"),
        "family-wise p": number_cells("p_adjusted"),
        "texts": count_cells("n"),
    }
    show(
        page, "within", "Correlation within texts, head mean.", rows, layer_keys(rows), {**ESTIMATE, **cells}
    )
    rows = where(table, design=["between", "between_partial"], mode="real")
    for predictor, measure, label in (
        ("per_piece", "boost", "likelihood per piece and boost (share over that of uniform attention)"),
        ("log_likelihood", "inner", "likelihood and mean attention inside the word"),
    ):
        caption = f"Correlation over texts of real words: {label}."
        _show_between(page, f"between-{measure}", caption, where(rows, predictor=predictor, measure=measure))
    page.notes(
        [
            "That attention follows likelihood within a text does not say that it follows expectation: each "
            "version is another token. Only the exchange of words below tells the two apart.",
            "Given length, place and pieces: ranks less what these explain.",
        ]
    )


def _show_between(page: Page, name: str, caption: str, rows: pd.DataFrame) -> None:
    """Write both designs of one pair of quantities, one line a layer."""
    values = ["estimate", "slope"]
    grid = rows.pivot_table(index=["model", "layer"], columns="design", values=values, sort=False)
    cells: dict[str, Cells] = {}
    for design, label in (("between", ""), ("between_partial", ", given length, place, pieces")):
        for value, symbol in (("estimate", "ρ"), ("slope", "per nat")):
            if (value, design) in grid:
                cells[f"{symbol}{label}"] = number_cells(f"{value} {design}")
    grid.columns = [" ".join(column) for column in grid.columns]
    grid = grid.reset_index()
    show(page, name, caption, grid, layer_keys(grid), cells)


def _write_swap(page: Page) -> None:
    table = final(page.results, "head_mean_associations", protocol="exact", design="swap")
    page.words(
        "Two texts exchange words of the same forms. Each token and each text is then once at home and "
        "once away; what share the words have at home beyond what they have away is due to word and text "
        "fitting "
        "each other: expectation, but also related words nearby."
    )
    page.figure("swap_depth")
    rows = where(table, measure="share")
    cells = {"p": number_cells("p_value"), "p, Holm": number_cells("p_adjusted"), "pairs": count_cells("n")}
    caption = "Share at home less share away, head mean."
    show(page, "swap", caption, rows, layer_keys(rows), {**ESTIMATE, **cells})
    overall = optional(page.results, "overall")
    if overall is not None:
        least_nats = stored_options(page.results, LikelihoodOptions).least_nats
        rows = where(last_step(overall), statistic="swap_nats")
        page.notes(
            [
                NamedSentence(
                    model,
                    f"a word costs {estimate_text(nats, low, high)} nats more away from home, over "
                    f"{counted(pairs, 'pair')}; below {least_nats:g} nats the exchange tests nothing.",
                )
                for model, nats, low, high, pairs in zip(
                    *(rows[name] for name in ("model", "estimate", "low", "high", "n")), strict=True
                )
            ]
        )
    page.figure("copy_or_context")


def _write_budget(page: Page) -> None:
    table = final(page.results, "shifts", protocol="exact")
    page.words(
        "What a word no longer gives to itself goes elsewhere: shares of the word, of special tokens and of "
        "the rest add up to its rows."
    )
    page.figure("attention_budget")
    table = table[table["log_likelihood_difference"].notna()]
    if table.empty:  # a model whose predictions are not finite
        return
    rows = pd.concat(
        [where(shifts, mode=least_likely(shifts)) for _, shifts in table.groupby("model", sort=False)]
    )
    grid = rows.assign(text=estimate_cells("difference")(rows)).pivot(
        index=["model", "layer"], columns="measure", values="text"
    )
    cells = {
        measure: text_cells(measure)
        for measure in ("share", "special", "context", "received")
        if measure in grid
    }
    grid = grid.reset_index()
    caption = "The least likely words less the real ones, with 95 % intervals."
    show(page, "budget", caption, grid, layer_keys(grid), cells)
    commonest = rows.groupby(["model", "mode"])["commonest"].first()
    page.notes(
        [
            NamedSentence(
                model,
                f"mode {mode} puts one and the same first piece into {100 * share:.0f} % of the texts; "
                "among these its identity and its likelihood cannot be told apart.",
            )
            for model, mode, share in commonest.reset_index().to_numpy().tolist()
        ]
    )


def _write_published(page: Page) -> None:
    table = final(page.results, "best_layers")
    associations = final(page.results, "head_mean_associations")
    within = where(associations, design="within", protocol="exact", predictor="log_likelihood").assign(
        mode=""
    )
    keys = ["model", "protocol", "layer", "mode"]
    best = table.assign(mode=table["mode"].fillna("")).merge(within[[*keys, "slope"]], on=keys, how="left")
    page.words(
        "The layer and mode of the largest correlation. Chosen and reported on the same texts it is too "
        "large; in the next columns the choice is made on texts of even number and reported on "
        "those of odd number. Exact: correlation within texts; ruscio2023: over texts, of mean probability "
        "at the word's own position and mean attention inside it."
    )
    cells = {
        "layer": text_cells("layer"),
        "mode": text_cells("mode"),
        "ρ": number_cells("rho"),
        "share per nat": number_cells("slope"),
        "layer, even texts": text_cells("held_out_layer"),
        "ρ, odd texts": number_cells("held_out_rho"),
        "likelihood, real": spread_cells("likelihood_real"),
        "replaced": spread_cells("likelihood_perturbed"),
        "inner, real": spread_cells("inner_real"),
        "inner, replaced": spread_cells("inner_perturbed"),
    }
    show(page, "best", "Best layers.", best, ["model", "protocol"], cells)


SECTIONS: tuple[Section, ...] = (
    Section("words", "What was replaced", ("words", "targets", "versions"), _write_words),
    Section("claims", "Claims", ("claims", "checks"), _write_claims),
    Section(
        "within",
        "Attention and likelihood",
        ("head_mean_associations", "associations", "spans", "head_mean_spans", "controls", "surveys"),
        _write_within,
    ),
    Section("swap", "Expectation apart from the token", ("overall", "control_overall"), _write_swap),
    Section("budget", "Where the attention goes", ("shifts",), _write_budget),
    Section("published", "As published", ("best_layers",), _write_published),
)
