# SPDX-License-Identifier: MIT
"""The report's sections of the wavelet study's analyses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from markupsafe import Markup

from attnscope.plots.figure import optional
from attnscope.plots.selection import last_step
from attnscope.report.section import NamedSentence, Section, analysis
from attnscope.study_api.number_text import number
from attnscope.study_api.selection import where

if TYPE_CHECKING:
    from attnscope.plots.figure import Results

TITLE = "Attention as a signal"

SECTIONS: tuple[Section, ...] = (
    analysis(
        "spectra",
        "Frequencies of attention",
        tables=("heads", "spectra"),
        words="""A query's attention along the keys that it sees is a signal; a learned sink is no key and not
            in it. Its power spectrum says whether attention varies slowly, as over whole passages, or from
            key to key.""",
        definition=Markup(
            """<i>P<sub>k</sub></i> = |Σ<sub><i>t</i></sub> <i>w<sub>t</sub>a<sub>t</sub></i>
            e<sup>−2πi<i>kt</i>/<i>N</i></sup>|², Hann window, one-sided. Bands: below a quarter of the
            Nyquist frequency, up to three quarters, above. Selectivity is the share of the strongest bin."""
        ),
        figures=("power_spectra", "band_shares"),
        metrics=(
            *("low_band", "mid_band", "high_band"),
            *("spectral_selectivity", "spectral_flatness", "spectral_entropy"),
        ),
        caveats=Markup(
            """Uniform attention is a constant: through a Hann window it has 2/3 of its power in bin 0 and 1/3
            in bin 1, all of it in the low band, where the transform is as long as the signal. Transforms of
            other lengths are padded with zeros, which makes bins finer and the share of one smaller: the
            table's value of uniform attention is the mean over all of its rows, and below 2/3. A large low
            band and a large selectivity of an untrained model are the window's and the mask's, not the
            model's.

            One-hot attention is white: its bands hold 1/4, 1/2 and 1/4. A sharp head is broadband whatever
            it attends to.

            A sink column is an impulse at key 0; <code>options.drop_first</code> leaves it out."""
        ),
    ),
    analysis(
        "wavelets",
        "Scales of attention",
        tables=("heads", "signals"),
        words="""The Daubechies transform cuts a signal into a smooth part and details from coarse to fine,
            each with its place. The Morlet scalogram shows the same without a grid.""",
        definition=Markup(
            """db2 (two vanishing moments, four taps), periodised, floor(log₂(<i>n</i><sub>min</sub>/3))
            levels. Energies <i>p<sub>j</sub></i> = <i>E<sub>j</sub></i>/Σ<i>E</i>; wavelet entropy −Σ
            <i>p<sub>j</sub></i> log₂ <i>p<sub>j</sub></i>."""
        ),
        figures=("scalograms",),
        metrics=(
            *("wavelet_energy_0", "wavelet_energy_1", "wavelet_energy_2", "wavelet_energy_3"),
            *("wavelet_entropy", "reconstruction_error", "local_share"),
        ),
        caveats="""The reconstruction error of an orthogonal wavelet is rounding for every signal, random ones
            included (1e-16 in float64, 1e-7 in float32). It tests the transform and says nothing about
            attention.""",
    ),
    analysis(
        "uncertainty",
        "Uncertainty",
        tables=("heads", "uncertainty"),
        words="""No signal is sharp in position and in frequency at once. The figure shows how near heads come
            to the bounds that hold for every signal whatever.""",
        definition=Markup(
            """<i>ψ</i> = √<i>a</i>. Entropies: <i>H<sub>p</sub></i> + <i>H<sub>f</sub></i> ≥ log <i>m</i> for
            the unitary transform (Maassen and Uffink). Variances: σ<sub>t</sub>²σ<sub>ω</sub>² ≥ (1 −
            |<i>ψ̂</i>(π)|²)²/4 for sequences. ρ: Pearson correlation of <i>H<sub>p</sub></i> and
            <i>H<sub>s</sub></i> across the heads of a text, then the mean over texts."""
        ),
        figures=("uncertainty",),
        metrics=("position_entropy", "fourier_entropy", "uncertainty_product"),
        caveats=Markup(
            """σ<sub>t</sub>²σ<sub>ω</sub>² ≥ 1/4 belongs to functions on the line. Attention to one key has
            product 0, so for sequences it is no bound.

            A strong negative ρ is what the bound makes of any heads that differ in sharpness: compare it
            with shuffled rows and random weights, in the table <code>uncertainty_variants</code>."""
        ),
    ),
    analysis(
        "scale-sensitivity",
        "Longer texts",
        tables=("scale_sensitivity",),
        words="How much the wavelet description changes when only the beginning of a text is read.",
        definition=Markup("<i>S</i>(α) = 1 − cos(<i>W</i>(<i>x</i>), <i>W</i>(<i>x</i><sub>α</sub>))."),
        figures=("scale_sensitivity",),
        caveats=Markup(
            """Under a causal mask the beginning never sees the rest: its map is the leading block of the
            whole map, and <i>S</i> compares a map's queries with its own first ones."""
        ),
    ),
    analysis(
        "phases",
        "Over training",
        tables=("heads", "phases"),
        words="Every number at every checkpoint.",
        definition="Means over heads, then over texts; 95 % bootstrap intervals over texts.",
        figures=("phases",),
    ),
    analysis(
        "harmonics",
        "Harmonics of RoPE",
        tables=("harmonics",),
        words="""A model that reads one token again and again rotates the same query at every position. What
            its activation and its softmax make of that rotation are harmonics of RoPE's frequencies.""",
        definition=Markup(
            """Power at <i>m</i>θ<sub><i>k</i></sub> over power at θ<sub><i>k</i></sub> behind the model's own
            activation. Softmax: exp(<i>r</i> cos <i>x</i>) = Σ I<sub><i>n</i></sub>(<i>r</i>)
            e<sup>i<i>nx</i></sup>."""
        ),
        figures=("harmonics",),
        caveats="""SiLU, GELU and ReLU are x/2 plus an even function, so they make even harmonics only: odd
            ones are rounding and leakage, in every model.""",
    ),
)


def findings(results: Results) -> list[str]:
    """Return the main numbers of the run in sentences that are true of any run."""
    if "phases" not in results.tables():
        return []
    table = results.table("phases")
    lines: list[str] = []
    nulls, samples = results.variants(), optional(results, "samples")
    for model, phases_of_model in last_step(table).groupby("model", sort=False):
        last = phases_of_model.set_index("metric")["mean"]
        sets = 1 if samples is None else where(samples, model=model)["group"].nunique()
        # phases are of all texts, tables and figures of each input set
        over = f"over the texts of all {sets} input sets, " if sets > 1 else ""
        if "low_band" in last:
            sentence = (
                f"{over}{number(last['low_band'])} of the power lies in the low band, selectivity "
                f"{number(last['spectral_selectivity'])}, spectral entropy "
                f"{number(last['spectral_entropy'])} bits."
            )
            lines.append(NamedSentence(model, sentence))
        if "rho" in last:
            rho = number(last["rho"])
            line = f"{over}position and spectral entropy of a sentence's heads correlate at {rho}"
            if len(nulls):
                kinds = {"row_permutation": "shuffled rows", "random_weights": "random weights"}
                # random weights belong to the whole series, shuffled rows to their own checkpoint
                revisions = [phases_of_model["revision"].iloc[0], ""]
                nulls_of_rho = where(nulls, model=model, metric="rho", revision=revisions)
                null_means = nulls_of_rho.groupby("variant")["value"].mean()
                line += "".join(f"; {kinds[str(kind)]} {number(value)}" for kind, value in null_means.items())
            lines.append(NamedSentence(model, f"{line}."))
    return lines
