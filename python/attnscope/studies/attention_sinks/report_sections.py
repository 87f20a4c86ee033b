# SPDX-License-Identifier: MIT
"""The report's sections of each analysis: of single maps first, then of layers, models and training.

Formulas are HTML of this file; nothing that comes from a run is put into them.
"""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
from markupsafe import Markup

from attnscope.metrics.information.sink_sets import PERCENTILES
from attnscope.report.numbers import ProtocolComparison
from attnscope.report.section import Page, Section, analysis
from attnscope.studies.attention_sinks import report_tables
from attnscope.studies.attention_sinks.figures import THRESHOLD


def _head_means(**labels: str | tuple[str, str]) -> tuple[ProtocolComparison, ...]:
    """Return columns of the head means, their labels in the report, and the published column if it
    differs.
    """
    labelled = ((column, (label,) if isinstance(label, str) else label) for column, label in labels.items())
    return tuple(
        ProtocolComparison("head_means", column, *label_and_other) for column, label_and_other in labelled
    )


def _table(make: Callable[..., pd.DataFrame | None], caption: str, names: int) -> Callable[[Page], None]:
    """Return a writer of a table that is computed from the stored tables."""
    return lambda page: page.frame(make.__name__, caption, make(page.tables), names=names)


ANALYSES: tuple[Section, ...] = (
    analysis(
        "sinks",
        "Attention sinks",
        tables=("heads", "ablation"),
        words="""A sink is a key, usually the first, that many queries attend to although it says little. How
            much a head attends to it means something only beside what uniform attention would give: a short
            sequence makes any first key look heavy.""",
        definition=Markup(
            """Attention to the first key: the mean over queries <i>i</i> of <i>A</i><sub><i>i</i>0</sub>.
            Uniform causal attention gives (1/<i>n</i>) Σ<sub><i>i</i>=1..<i>n</i></sub> 1/<i>i</i> =
            <i>H<sub>n</sub></i>/<i>n</i>, in a window of <i>w</i> tokens <i>H<sub>w</sub></i>/<i>n</i>.
            The usual bound of a sink is that queries which see the first key give it more than 0.3 (Gu et
            al., arXiv 2410.10781); in a window of nine tokens or fewer, uniform attention does. Every row
            has a largest entry, so a key is called a sink only when it receives from far queries more than
            any key would if the far entries of each row were exchangeable (chance 0.01 a map, Bernstein's
            inequality) and more than twice what uniform attention gives it; texts of fewer than 256 tokens
            are also judged together. Sink tokens by frequency follow another rule: keys that 40 % of the
            queries attend to strongly."""
        ),
        figures=("sink_emergence", "sink_maps", "ablation"),
        metrics=(
            *("sink_share", "sink_boost", "sink_rate", "sink_count", "sink_excess", "sink_count_frequency"),
            *("top_mass", "learned_sink_mass"),
        ),
        pairs=_head_means(
            sink_count_frequency=("sink tokens by frequency; published: of the top tenth", "sink_count"),
            top_mass=("mass of the top key; published: of the top tenth", "sink_concentration"),
        ),
        published="""The published concentration is the mass of the keys at or above the 90th percentile of
            column sums: a tenth of the keys by construction, whatever the model.""",
        published_causal="""Uniform causal attention already gives a tenth of the keys 0.31 to 0.32 (n = 20 to
            40), so “sinks take 30 to 40 %” is close to what no sink at all gives.""",
    ),
    analysis(
        "positions",
        "Over positions",
        tables=("position_profiles",),
        words="""Sinks, entropy and incoming attention over the positions of a text, measured from queries and
            keys: no attention map was computed, so the text may be as long as the model's context. A sink
            keeps its share where uniform attention falls; a head that searches the whole text has an entropy
            that grows with the logarithm of the position.""",
        definition=Markup(
            """Means over bins that are equally wide on a logarithmic axis. By query <i>i</i>:
            <i>A</i><sub><i>i</i>0</sub> and −Σ<sub><i>j</i></sub> <i>A<sub>ij</sub></i> log
            <i>A<sub>ij</sub></i> in nats. By key <i>j</i>: mean of <i>A<sub>ij</sub></i> over the queries
            that see it; the last keys are seen by few."""
        ),
        figures=("positions",),
    ),
    analysis(
        "information",
        "Entropy and agreement of heads",
        tables=("heads", "layers"),
        words="""Entropy says over how many keys a query spreads its attention; divided by its maximum it can
            be compared between positions. The divergence from the head mean says how much a head differs from
            its neighbours in the layer.""",
        definition=Markup(
            """−Σ<sub><i>j</i></sub> <i>A<sub>ij</sub></i> log <i>A<sub>ij</sub></i> in nats, mean over
            queries; normalised by log of the number of visible keys. Divergence: mean over queries of
            KL(<i>A<sup>h</sup><sub>i</sub></i> ‖ <i>Ā<sub>i</sub></i>)."""
        ),
        figures=("sink_removal", "divergence"),
        metrics=("entropy", "entropy_normalized", "head_divergence"),
        pairs=[
            ProtocolComparison("layers", f"kl_reduction_{at}", f"KL reduction, {at}th percentile")
            for at in PERCENTILES
        ],
        published="""In the published KL a row that loses all its keys becomes uniform; here it is left out
            and counted.""",
        published_causal="""The published sinks are the keys of the largest total mass over heads and queries:
            early keys are seen by more queries of a causal model and win by that alone.""",
    ),
    analysis(
        "graph",
        "Attention as a graph",
        tables=("heads", "graphs"),
        words="""Tokens are nodes and attention the weight of their links; the Fiedler value λ₂ says how hard
            the graph is to cut in two. Thresholded graphs show at which strength links, hubs and pieces
            appear.""",
        definition=Markup(
            """<i>W</i> = (<i>A</i> + <i>A</i>ᵀ)/2 with zero diagonal, <i>L</i> = <i>D</i> − <i>W</i>, λ₂ its
            second smallest eigenvalue; normalised: of <i>I</i> −
            <i>D</i><sup>−1/2</sup><i>W</i><i>D</i><sup>−1/2</sup>. Thresholded graph: a link where
            max(<i>A<sub>ij</sub></i>, <i>A<sub>ji</sub></i>) ≥ <i>t</i>, unweighted. A learned sink is no
            node."""
        ),
        figures=("thresholds",),
        metrics=("fiedler_value", "fiedler_value_normalized", "laplacian_gap"),
        pairs=[
            ProtocolComparison("head_mean_graphs", column, f"{label} at {THRESHOLD}", threshold=THRESHOLD)
            for column, label in (
                *(("graph_fiedler_value", "λ₂ of the graph"), ("density", "density")),
                *(("hub_share", "hub share"), ("gini", "Gini of degrees")),
                *(("centralization", "centralisation"), ("star_likeness", "star-likeness")),
            )
        ],
        published="""The published graph keeps self-loops and counts in-degrees over them, halves every
            one-way link (so λ₂ of a causal graph is half of the simple graph's), and lets the hub share
            exceed 1: n/(n − 1) for a star. Star-likeness is 0.3 hub share + 0.7 Gini: a full causal graph, no
            star at all, scores 0.54.""",
        caveats=Markup(
            """λ₂ of causal maps is capped: λ₂ ≤ <i>n</i>/(<i>n</i>−1) · smallest degree, about 0.5, because
            the last token is seen by no other query. Sink heads and diffuse heads reach the same cap, so a
            λ₂ near 0.5 tells them not apart; the normalised value beside it has no such cap.

            Uniform attention of a causal model without windows sits at the cap already. A falling λ₂ over
            training says that attention becomes selective, not that it becomes disconnected by meaning."""
        ),
    ),
    analysis(
        "random-matrices",
        "Spectra against random matrices",
        words=Markup(
            """The participation ratio counts the directions that carry a map: 1 for a pure sink, <i>n</i> for
            a permutation. The Kolmogorov-Smirnov distance says how far the spectrum is from that of random
            entries under the same mask."""
        ),
        definition=Markup(
            """Participation ratio: (Σ<i>e</i>)²/Σ<i>e</i>² over squared singular values <i>e</i> of <i>A</i>.
            Distance from the random law: rows are standardised over their visible keys, and the squared
            singular values over <i>n</i> are compared with the Marchenko-Pastur law (full maps), the
            triangular law of Dykema and Haagerup (causal maps, support [0, e]), or shuffled copies of the
            map's own rows (windows and other masks)."""
        ),
        figures=("spectra",),
        pairs=_head_means(
            participation_ratio="participation ratio",
            spectral_ratio="first over second value",
            stable_rank="stable rank",
            mp_ks=("distance from the null law; published: KL", "marchenko_pastur_deviation"),
        ),
        published_causal=Markup(
            """The published spectrum is |eigenvalues| of the attention matrix. Those of a causal map are its
            diagonal, the self-attentions A<sub>ii</sub>: their gap is the ratio of the two largest
            self-attentions, their participation ratio the evenness of self-attention. The first row
            attends to itself with 1, so untrained uniform attention gives a gap of exactly 2."""
        ),
        published="""Its Marchenko-Pastur deviation compares a histogram of ten eigenvalues with the law at
            aspect 0.99 by a KL that is infinite where a bin is empty; such samples are left out of the
            mean.""",
        metrics=(
            *("participation_ratio", "stable_rank", "effective_rank"),
            *("mp_ks", "mp_outliers", "mp_outlier_energy"),
        ),
        caveats=Markup(
            """A square Marchenko-Pastur law is wrong under a causal mask, so it is not used there.

            Random causal maps themselves show an outlier in 4, 10 and 14 % of cases at <i>n</i> = 64, 128,
            256 (3 % without a mask), and a distance of about 0.03 at <i>n</i> = 128.

            Uniform attention has no distance: all visible entries of a row are equal, and such rows are
            left out. An untrained model is close to it, so what is left of its rows after standardising is
            not random either, and its distance need not be small."""
        ),
    ),
    analysis(
        "topology",
        "Topology",
        tables=("heads", "bars"),
        words="""Persistent homology lowers a threshold on attention and watches pieces join (H0) and loops
            appear and fill (H1). A pure sink is a star, one piece without a loop; loops count links that go
            around.""",
        definition=Markup(
            """Weights <i>w</i> = max(<i>A<sub>ij</sub></i>, <i>A<sub>ji</sub></i>), distance 1 − <i>w</i>,
            Vietoris-Rips filtration over Z/2. β₀ and β₁ at a threshold <i>t</i> count components and loops
            of the clique complex of {<i>w</i> ≥ <i>t</i>}. A learned sink is no point."""
        ),
        figures=("persistence",),
        metrics=(
            *("bar_count_1", "total_persistence_0", "total_persistence_1", "max_persistence_1"),
            *(("betti_0", THRESHOLD), ("betti_1", THRESHOLD)),
        ),
        pairs=_head_means(
            bar_count_0="β₀, bars of the whole diagram",
            bar_count_1="β₁, bars of the whole diagram",
            mean_persistence_0="mean length of finite H0 bars",
            mean_persistence_1="mean length of finite H1 bars",
        ),
        published_causal=Markup(
            """The published β₀ is min(<i>n</i>, 30) and β₁ is 0 for every causal model whose kept tokens give
            themselves some attention, whatever else it attends to: the distance matrix is not symmetrised,
            its diagonal makes vertex <i>i</i> be born at 1 − A<sub>ii</sub>, and only entries above the
            diagonal, which are 1 − 0, are read as edges. The mean length of finite H0 bars is the mean
            self-attention of the tokens after the first. A query that gives itself nothing has no bar."""
        ),
        published="""Texts of more than 30 tokens are thinned to 30 rows and columns before the published
            topology, which removes most keys.""",
        caveats=Markup(
            "1 − <i>w</i> is no metric (no triangle inequality); none is needed for the bars to be defined."
        ),
    ),
    analysis(
        "values",
        "Attention and what it moves",
        tables=("heads", "layers"),
        words="""Alignment asks whether a head attends to tokens whose vectors point the same way. It is
            computed on the value vectors, which attention moves, and on the hidden states, over visible pairs
            only.""",
        definition=Markup(
            """Pearson correlation of <i>A<sub>ij</sub></i> with cos(<i>s<sub>i</sub></i>,
            <i>s<sub>j</sub></i>) over visible pairs <i>i</i> ≠ <i>j</i>. No sinks: the head's sinks by the
            test left out; of a head that has none it is the same number."""
        ),
        figures=("alignment",),
        metrics=(
            *("alignment_value", "alignment_value_without_sinks", "alignment_hidden"),
            *("alignment_hidden_without_sinks", "entropy_magnitude_correlation"),
        ),
        pairs=(
            *_head_means(alignment_hidden="alignment with states", entropy="entropy (nats)"),
            ProtocolComparison("layers", "transformation_magnitude", "change by the block"),
            *_head_means(
                entropy_magnitude_correlation="entropy with change", pca_correlation="PCA correlation"
            ),
        ),
        published_causal="""The published alignment runs over all ordered pairs, so the zeros above a causal
            diagonal enter. Cosines are the same both ways, so these zeros halve the covariance and add to the
            variance of attention: the published value is the exact one of the same map times a factor below
            1/√2 = 0.71 that depends on how uneven attention is. Its sign is that of the exact one, its size
            is not.""",
        published="""The last layer's change includes the final norm in the published numbers, because that is
            the state the library returns; signs of principal components are arbitrary.""",
    ),
    analysis(
        "reference",
        "Influence of the reference points",
        words="""What a query receives is a sum over keys; this splits it into the part that comes from the
            sinks and the rest. The questions are how large the part is, whether it points the way the whole
            does, and how far the whole would turn without it.""",
        definition=Markup(
            """<i>c<sub>R</sub></i> = Σ<sub><i>j</i>∈R</sub> <i>A<sub>ij</sub>v<sub>j</sub></i>, <i>c</i> the
            sum over all keys: ‖<i>c<sub>R</sub></i>‖/‖<i>c</i>‖, cos(<i>c<sub>R</sub></i>, <i>c</i>), 1 −
            cos(<i>c</i>, <i>c</i> − <i>c<sub>R</sub></i>), for queries outside R, the head's sinks by the
            test. A head without one has no such numbers."""
        ),
        figures=("reference",),
        metrics=("reference_magnitude", "reference_directional", "reference_information"),
        pairs=_head_means(
            reference_magnitude="magnitude",
            reference_directional="direction",
            reference_information="turn; published: distance",
        ),
        published=Markup(
            """The published magnitude is cut at 1, the direction is (cos + 1)/2, so that 0.5 means unrelated,
            and the information is the norm of <i>c<sub>R</sub></i> in the units of the states: it follows
            their norm over depth. Queries inside R enter with 0.5, 0.5 and 0."""
        ),
    ),
    analysis(
        "fisher",
        "Fisher information",
        tables=("fisher",),
        words="""The trace of the Fisher information says how strongly the loss depends on a group of
            parameters. Attention, MLP and norms are shown by block, what lies outside the blocks as a
            level.""",
        definition=Markup(
            """(1/N) Σ<sub>s</sub> ‖∇<sub>θ</sub>L<sub>s</sub>‖², L<sub>s</sub> the loss of a text, labels as
            written: the empirical Fisher. Labels drawn once a token from the model estimate the trace of
            the Fisher information itself, one draw a text."""
        ),
        figures=("fisher",),
        table=_table(report_tables.fisher, "Trace of the Fisher information by group of parameters.", 2),
        published="""The published loss counts padding and takes the input ids as labels, for encoders too;
            groups are found by parts of parameter names, which put what they do not know under “other”.""",
    ),
    analysis(
        "frames",
        "Reference frames",
        tables=("frames", "frame_evidence", "specialization"),
        words="""A frame is of the heads that have a sink: a test finds one in half of their texts, or in all
            of them together. It is centralized when one sink position rules every third of the layers,
            bidirectional when two special tokens share them, and distributed otherwise. The same is asked of
            token strings, because the two can disagree. Where fewer than a tenth of the tested heads have a
            sink there is none.""",
        definition="""Share of the most frequent sink over those heads and texts in the early, middle and late
            third of the layers; centralized from 0.8 in each. Probability: share of bootstrap samples of
            texts with the same verdict. By chance: its share in draws in which all sinks of a head are moved
            by a number of positions that is drawn for the head; where it is large, as of most distributed
            frames, heads need not share anything. Consistent heads have the same sink, by the test, in at
            least 30 % of at least five texts; they are counted among the heads with a sink in any.""",
        figures=("frames",),
        table=_table(report_tables.frames, "Reference frames and consistent heads.", 5),
        published="""The published reading is by token string: a tokenizer that prepends no BOS puts another
            word at the first position of every text, so a model whose heads all rest on the first key is
            called distributed.""",
    ),
    analysis(
        "training",
        "Over training",
        tables=("heads", "emergence"),
        words="""Every quantity at every checkpoint, averaged over heads, one line per input set or model.
            Dashed is uniform attention, dotted the model before training.""",
        definition="""Points are means over texts of the mean over layers and heads; bands are 95 % bootstrap
            intervals over texts, which are the unit of replication. Steps are sorted as numbers on an axis
            that starts with 0 and is logarithmic from 1. The table's step is the best split of the
            checkpoints into two levels, given only where it explains more than in 95 % of random orders of
            the checkpoints (Holm over the tested quantities of the run) with three checkpoints on each side,
            and more than a straight line over the checkpoints; trend: the line explains as much or more;
            too few to tell: no order of so few checkpoints could pass for so many quantities. Half-way is
            where half of the way from first to last is covered, which noise does somewhere too.""",
        figures=("emergence",),
        table=_table(report_tables.emergence, "Which quantities change during training.", 3),
        published="""The published change is the last step minus the first in the order of the steps' names as
            text, where 8 comes after 143000.""",
    ),
    analysis(
        "depth",
        "Over depth",
        words="""The same quantities by layer at the last checkpoint. The dotted profile is the untrained
            model, where the run has one.""",
        definition="Means over a layer's heads, then over texts; 95 % bootstrap intervals over texts.",
        figures=("depth",),
    ),
    analysis(
        "maps",
        "By layer and head",
        words="""Every quantity for every head at the last checkpoint, mean over texts. The mark on each
            colour scale is uniform attention.""",
        definition="Columns share the colour scale of their row, so input sets can be compared.",
        figures=("metric_maps",),
    ),
    analysis(
        "examples",
        "Single maps",
        tables=("examples",),
        words="""Whole attention maps of the last checkpoint beside what is computed from them. They are
            examples, not evidence.""",
        definition="""Attention on a logarithmic scale; the spectrum's distribution over the law of random
            entries with their largest gap; births and deaths of components and loops; Betti numbers while the
            threshold falls.""",
        figures=("examples",),
    ),
)
