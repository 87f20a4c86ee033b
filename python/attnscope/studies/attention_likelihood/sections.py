# SPDX-License-Identifier: MIT
"""Sections of the report: the replacements, the claims, then the numbers behind each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from attnscope.plots.figure import Results, optional
from attnscope.plots.selection import final, last_step
from attnscope.report.claims_table import claims_frame, interval
from attnscope.report.numbers import number
from attnscope.report.section import NamedSentence, Page, Section
from attnscope.studies.attention_likelihood.claims import CLAIMS, layers_of, swap_words
from attnscope.studies.attention_likelihood.options import LikelihoodOptions
from attnscope.studies.stated_verdicts import claim_of, with_verdicts
from attnscope.studies.stored_options import stored_options
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
        lines += [
            NamedSentence(model, with_verdicts(line, results, str(model), "C1"))
            for line in _within(exact, alpha)
        ]
        lines += [NamedSentence(model, line) for line in _swap(results, str(model), exact)]
        lines += [NamedSentence(model, line) for line in _control(results, str(model), exact)]
    return lines


def _within(rows: pd.DataFrame, alpha: float) -> list[str]:
    rows = where(rows, design="within", predictor="log_likelihood")
    if rows["z"].isna().all():
        return ["no text has three versions whose attention differs."]
    best = rows.sort_values("z", key=abs, na_position="first").iloc[-1]
    if not (rows["p_adjusted"] <= alpha).any():
        return [
            "no layer's attention to itself follows likelihood beyond chance (largest |z| "
            f"{abs(best['z']):.1f}, family-wise p {number(best['p_adjusted'])})."
        ]
    certain = rows[rows["p_adjusted"] <= alpha]
    up, down = certain[certain["estimate"] > 0], certain[certain["estimate"] < 0]
    return [
        f"within texts, attention of a word to itself rises with its likelihood in {layers_of(up)} and falls "
        f"with it in {layers_of(down)} (strongest: layer {int(best['layer'])}, ρ {number(best['estimate'])}, "
        f"{number(best['slope'])} share per nat)."
    ]


def _swap(results: Results, model: str, rows: pd.DataFrame) -> list[str]:
    overall = optional(results, "overall")
    if overall is None:
        return []
    statistics = where(last_step(overall), model=model, protocol="exact").set_index("statistic")
    if "swap" not in statistics.index:
        return ["no two texts could exchange their words: expectation apart from identity is not tested."]
    swap, nats = statistics.loc["swap"], float(statistics.loc["swap_nats", "estimate"])
    value, low, high = (float(swap[name]) for name in ("estimate", "low", "high"))
    line = swap_words(value, low, high, nats, int(swap["n"]), claim_of(results, model, "C4"))
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
        return f"{number(means.min())} to {number(means.max())}" if len(means) else "–"

    return [
        f"with random weights ({rows_of_model['draw'].nunique()} initialisations) the paper's correlation "
        f"over texts, inner attention and likelihood, is {by_layer(plain, 'estimate')} by layer "
        f"({by_layer(plain, 'slope')} per nat), that within texts {by_layer(within, 'estimate')} "
        f"({by_layer(within, 'slope')} share per nat); swap gives {by_layer(swap, 'estimate')} of the "
        f"attention. "
        "Untrained models show this much; only more is evidence."
    ]


def _write_claims(page: Page) -> None:
    table = final(page.results, "claims")
    page.words(
        "The claims of the paper and what these texts and this model show of each. No correlation is given "
        "without its slope, because ranks of very small changes correlate as well as ranks of large ones."
    )
    claims_frame(page, table, SENTENCES)
    checks = optional(page.results, "checks")
    if checks is not None and not checks["holds"].all():
        failed = ", ".join(sorted(set(checks[~checks["holds"].astype(bool)]["check"])))
        page.notes([f"Checks that do not hold: {failed}."])


def _write_words(page: Page) -> None:
    words = final(page.results, "words")
    page.words(
        "One word of each text is replaced, piece by piece, by others that begin or go on in the same way, "
        "from the least likely to the likeliest. Length and place stay; the ids are never made from text "
        "again."
    )
    examples = _examples(page, words)
    page.frame("examples", "What was replaced.", examples, names=examples.shape[1])
    exact = where(words, protocol="exact")
    rows = exact.groupby(["model", "mode"], sort=False)
    means = rows[["log_likelihood", "per_piece", "place"]].mean()
    first = exact["replacement_ids"].map(lambda ids: int(ids[0]))
    count = {key: ids.value_counts() for key, ids in first.groupby([exact["model"], exact["mode"]])}
    means = means.sort_values(["model", "log_likelihood"], ascending=[True, False])
    columns = {
        "model": [str(key[0]) for key in means.index],
        "mode": [str(key[1]) for key in means.index],
        "L (nats)": [number(value) for value in means["log_likelihood"]],
        "per piece": [number(value) for value in means["per_piece"]],
        "place": [number(value) for value in means["place"]],
        "first pieces": [str(len(count.get(key, ()))) for key in means.index],
        "commonest": [
            f"{100 * count[key].max() / count[key].sum():.0f} %" if key in count else "–"
            for key in means.index
        ],
        "texts": [str(rows.size()[key]) for key in means.index],
    }  # fmt: skip
    page.frame("modes", "Likelihood of the words in the texts, by mode.", pd.DataFrame(columns), names=2)
    page.figure("dose")


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


def _layer_frame(rows: pd.DataFrame, several: bool, columns: dict[str, str]) -> pd.DataFrame:
    frame: dict[str, list[str]] = {"model": list(rows["model"])} if several else {}
    frame |= {"layer": [str(int(layer)) for layer in rows["layer"]]}
    frame |= {"estimate": [number(value) for value in rows["estimate"]]}
    frame |= {"95 %": [interval(*ends) for ends in zip(rows["low"], rows["high"], strict=True)]}
    for name, label in columns.items():
        frame[label] = [str(int(value)) if name == "n" else number(value) for value in rows[name]]
    return pd.DataFrame(frame)


def _write_within(page: Page) -> None:
    table = final(page.results, "head_mean_associations", protocol="exact")
    several = table["model"].nunique() > 1
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
    labels = {"slope": "share per nat", "z": "z", "p_adjusted": "family-wise p", "n": "texts"}
    page.frame(
        "within", "Correlation within texts, head mean.", _layer_frame(rows, several, labels),
        names=1 + several,
    )  # fmt: skip
    rows = where(table, design=["between", "between_partial"], mode="real")
    for predictor, measure, label in (
        ("per_piece", "boost", "likelihood per piece and boost (share over that of uniform attention)"),
        ("log_likelihood", "inner", "likelihood and mean attention inside the word"),
    ):
        rows_of_measure = where(rows, predictor=predictor, measure=measure)
        if len(rows_of_measure):
            caption = f"Correlation over texts of real words: {label}."
            page.frame(f"between-{measure}", caption, _between(rows_of_measure, several), names=1 + several)
    page.notes(
        [
            "That attention follows likelihood within a text does not say that it follows expectation: each "
            "version is another token. Only the exchange of words below tells the two apart.",
            "Given length, place and pieces: ranks less what these explain.",
        ]
    )


def _between(rows: pd.DataFrame, several: bool) -> pd.DataFrame:
    """Return both designs of one pair of quantities, one line a layer."""
    grid = rows.pivot_table(
        index=["model", "layer"], columns="design", values=["estimate", "slope"], sort=False
    )
    columns: dict[str, list[str]] = {"model": [str(key[0]) for key in grid.index]} if several else {}
    columns |= {"layer": [str(int(key[1])) for key in grid.index]}
    for design, label in (("between", ""), ("between_partial", ", given length, place, pieces")):
        for value, name in (("estimate", "ρ"), ("slope", "per nat")):
            if (value, design) in grid:
                columns[f"{name}{label}"] = [number(value) for value in grid[(value, design)]]
    return pd.DataFrame(columns)


def _write_swap(page: Page) -> None:
    table = final(page.results, "head_mean_associations", protocol="exact", design="swap")
    several = table["model"].nunique() > 1
    page.words(
        "Two texts exchange words of the same forms. Each token and each text is then once at home and "
        "once away; what share the words have at home beyond what they have away is due to word and text "
        "fitting "
        "each other: expectation, but also related words nearby."
    )
    page.figure("swap_depth")
    rows = where(table, measure="share")
    labels = {"p_value": "p", "p_adjusted": "p, Holm", "n": "pairs"}
    page.frame(
        "swap", "Share at home less share away, head mean.", _layer_frame(rows, several, labels),
        names=1 + several,
    )  # fmt: skip
    overall = optional(page.results, "overall")
    if overall is not None:
        least_nats = stored_options(page.results, LikelihoodOptions).least_nats
        rows = where(last_step(overall), statistic="swap_nats")
        page.notes(
            [
                NamedSentence(
                    model,
                    f"a word costs {number(nats)} {interval(low, high)} nats more away from home, over "
                    f"{pairs} pairs; below {least_nats:g} nats the exchange tests nothing.",
                )
                for model, nats, low, high, pairs in zip(
                    *(rows[name] for name in ("model", "estimate", "low", "high", "n")), strict=True
                )
            ]
        )
    page.figure("copy_or_context")


def _write_budget(page: Page) -> None:
    table = final(page.results, "shifts", protocol="exact")
    several = table["model"].nunique() > 1
    page.words(
        "What a word no longer gives to itself goes elsewhere: shares of the word, of special tokens and of "
        "the rest add up to its rows."
    )
    page.figure("attention_budget")
    lowest = table.loc[table.groupby("model")["log_likelihood_difference"].idxmin(), ["model", "mode"]]
    rows = table.merge(lowest, on=["model", "mode"])
    grid = rows.pivot_table(index=["model", "layer"], columns="measure", values=["difference", "low", "high"])
    columns: dict[str, list[str]] = {"model": [str(key[0]) for key in grid.index]} if several else {}
    columns |= {"layer": [str(int(key[1])) for key in grid.index]}
    for measure in ("share", "special", "context", "received"):
        if ("difference", measure) in grid:
            columns[measure] = [
                f"{number(value)} {interval(low, high)}"
                for value, low, high in zip(
                    *(grid[name, measure] for name in ("difference", "low", "high")), strict=True
                )
            ]
    page.frame(
        "budget", "The least likely words less the real ones, with 95 % intervals.", pd.DataFrame(columns),
        names=1 + several,
    )  # fmt: skip
    commonest = rows.groupby(["model", "mode"])["commonest"].first()
    page.notes(
        [
            NamedSentence(
                model,
                f"mode {mode} puts one and the same first piece into {100 * share:.0f} % of the texts; "
                "identity and likelihood cannot be told apart in this mode.",
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
    slopes = table[keys].fillna("").merge(within[[*keys, "slope"]], on=keys, how="left")["slope"]
    columns: dict[str, list[str]] = {
        "model": list(table["model"]),
        "protocol": list(table["protocol"]),
        "layer": [str(layer) for layer in table["layer"]],
        "mode": [str(mode) or "–" for mode in table["mode"].fillna("")],
        "ρ": [number(value) for value in table["rho"]],
        "share per nat": [number(value) for value in slopes],
        "layer, even texts": [str(layer) for layer in table["held_out_layer"]],
        "ρ, odd texts": [number(value) for value in table["held_out_rho"]],
        "likelihood, real": [_spread(table, at, "likelihood_real") for at in table.index],
        "replaced": [_spread(table, at, "likelihood_perturbed") for at in table.index],
        "inner, real": [_spread(table, at, "inner_real") for at in table.index],
        "inner, replaced": [_spread(table, at, "inner_perturbed") for at in table.index],
    }
    page.words(
        "The layer and mode of the largest correlation. Chosen and reported on the same texts it is too "
        "large; in the next columns the choice is made on texts of even number and reported on "
        "those of odd number. Exact: correlation within texts; ruscio2023: over texts, of mean probability "
        "at the word's own position and mean attention inside it."
    )
    page.frame("best", "Best layers.", pd.DataFrame(columns), names=2)


def _spread(table: pd.DataFrame, at: Any, name: str) -> str:
    value, spread = (float(table[f"{name}{end}"][at]) for end in ("", "_std"))
    return "–" if np.isnan(value) else f"{number(value)} (±{number(spread)})"


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
