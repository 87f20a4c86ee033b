# SPDX-License-Identifier: MIT
"""What the report says about each analysis: two sentences, the definition, and what not to read into it.

The texts are our own HTML; nothing that comes from a run is put into them.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Section:
    """One analysis: its words, its figures by name, and the columns whose numbers stand in its table."""

    id: str
    title: str
    words: str
    definition: str
    figures: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    caveats: tuple[str, ...] = ()
    captions: dict[str, str] = field(default_factory=dict)


SECTIONS: tuple[Section, ...] = (
    Section(
        id="sinks",
        title="Attention sinks",
        words=(
            "A sink is a key, usually the first, that many queries attend to although it says little. How "
            "much a head rests on it means something only beside what uniform attention would give: a "
            "short sequence makes any first key look heavy."
        ),
        definition=(
            "Attention to the first key: the mean over queries <i>i</i> of <i>A</i><sub><i>i</i>0</sub>. "
            "Uniform causal attention gives (1/<i>n</i>) Σ<sub><i>i</i>=1..<i>n</i></sub> 1/<i>i</i> = "
            "<i>H<sub>n</sub></i>/<i>n</i>. A head counts as a sink head when its first key receives more "
            "than 0.3 (Gu et al., arXiv 2410.10781)."
        ),
        figures=("sink_emergence", "sink_maps"),
        metrics=("sink_share", "sink_boost", "sink_rate", "sink_count", "top_mass"),
        captions={
            "sink_emergence": (
                "Attention to the first key over training, one line per head, coloured by layer. The "
                "strongest heads are bold, with their 95 % interval over samples; the dashed line is "
                "uniform attention."
            ),
            "sink_maps": (
                "Attention to the first key per layer and head, one row per input set. The mark on the "
                "colour scale is uniform attention."
            ),
        },
    ),
    Section(
        id="information",
        title="Entropy and agreement of heads",
        words=(
            "Entropy says over how many keys a query spreads its attention; divided by its maximum it can be "
            "compared between positions. The divergence from the head mean says how much a head differs from "
            "its neighbours in the layer."
        ),
        definition=(
            "−Σ<sub><i>j</i></sub> <i>A<sub>ij</sub></i> log <i>A<sub>ij</sub></i> in nats, mean over "
            "queries; normalised by log of the number of visible keys. Divergence: mean over queries of "
            "KL(<i>A<sup>h</sup><sub>i</sub></i> ‖ <i>Ā<sub>i</sub></i>)."
        ),
        metrics=("entropy", "entropy_normalized", "head_divergence", "kl_reduction"),
    ),
    Section(
        id="graph",
        title="Attention as a graph",
        words=(
            "Tokens are nodes and attention the weight of their links; the Fiedler value λ₂ says how hard "
            "the graph is to cut in two. Thresholded graphs show at which strength links, hubs and pieces "
            "appear."
        ),
        definition=(
            "<i>W</i> = (<i>A</i> + <i>A</i>ᵀ)/2 with zero diagonal, <i>L</i> = <i>D</i> − <i>W</i>, λ₂ its "
            "second smallest eigenvalue; normalised: of <i>I</i> − <i>D</i><sup>−1/2</sup><i>W</i>"
            "<i>D</i><sup>−1/2</sup>. Thresholded graph: a link where max(<i>A<sub>ij</sub></i>, "
            "<i>A<sub>ji</sub></i>) ≥ <i>t</i>, unweighted."
        ),
        figures=("thresholds",),
        metrics=("fiedler_value", "fiedler_value_normalized", "laplacian_gap"),
        caveats=(
            "λ₂ of causal maps is capped: λ₂ ≤ <i>n</i>/(<i>n</i>−1) · smallest degree, about 0.5, "
            "because the last token is seen by no other query. Sink heads and diffuse heads reach the "
            "same cap, so a λ₂ near 0.5 tells them not apart; the normalised value beside it has no such "
            "cap.",
            "Uniform attention of a causal model sits at the cap already. A falling λ₂ over training says "
            "that attention becomes selective, not that it becomes disconnected by meaning.",
        ),
        captions={
            "thresholds": (
                "The graph over its threshold at the last checkpoint: mean over layers and heads, 95 % "
                "interval over samples; dashed: uniform attention of the same lengths. λ₂ here belongs to "
                "the unweighted thresholded graph and reaches <i>n</i> for the complete one."
            )
        },
    ),
    Section(
        id="random-matrices",
        title="Spectra against random matrices",
        words=(
            "The participation ratio counts the directions that carry a map: 1 for a pure sink, <i>n</i> "
            "for a permutation. The Kolmogorov-Smirnov distance says how far the spectrum is from that of "
            "random entries under the same mask."
        ),
        definition=(
            "Participation ratio: (Σ<i>e</i>)²/Σ<i>e</i>² over squared singular values <i>e</i> of <i>A</i>. "
            "Distance from the random law: rows are standardised over their visible keys, and the squared "
            "singular values over <i>n</i> are compared with the Marchenko-Pastur law (full maps) or the "
            "triangular law of Dykema and Haagerup (causal maps, support [0, e])."
        ),
        metrics=(
            "participation_ratio",
            "stable_rank",
            "effective_rank",
            "mp_ks",
            "mp_outliers",
            "mp_outlier_energy",
        ),
        caveats=(
            "A square Marchenko-Pastur law is wrong under a causal mask, so it is not used there.",
            "Random causal maps themselves show an outlier in 4, 10 and 14 % of cases at <i>n</i> = 64, "
            "128, 256 (3 % without a mask), and a distance of about 0.03 at <i>n</i> = 128.",
            "Uniform attention has no distance: all visible entries of a row are equal, and such rows are "
            "left out. An untrained model is close to it, so what is left of its rows after standardising "
            "is not random either, and its distance need not be small.",
        ),
    ),
    Section(
        id="topology",
        title="Topology",
        words=(
            "Persistent homology lowers a threshold on attention and watches pieces join (H0) and loops "
            "appear and fill (H1). A pure sink is a star, one piece without a loop; loops count links "
            "that go around."
        ),
        definition=(
            "Weights <i>w</i> = max(<i>A<sub>ij</sub></i>, <i>A<sub>ji</sub></i>), distance 1 − <i>w</i>, "
            "Vietoris-Rips filtration over Z/2. β₀ and β₁ at a threshold <i>t</i> count components and loops "
            "of the clique complex of {<i>w</i> ≥ <i>t</i>}."
        ),
        metrics=(
            "bar_count_1",
            "total_persistence_0",
            "total_persistence_1",
            "max_persistence_1",
            "betti_0",
            "betti_1",
        ),
        caveats=(
            "1 − <i>w</i> is no metric (no triangle inequality); none is needed for the bars to be defined.",
        ),
    ),
    Section(
        id="values",
        title="Attention and what it moves",
        words=(
            "Alignment asks whether a head attends to tokens whose vectors point the same way. It is "
            "computed on the value vectors, which attention moves, and on the hidden states, over visible "
            "pairs only."
        ),
        definition=(
            "Pearson correlation of <i>A<sub>ij</sub></i> with cos(<i>s<sub>i</sub></i>, "
            "<i>s<sub>j</sub></i>) over visible pairs <i>i</i> ≠ <i>j</i>."
        ),
        figures=("values",),
        captions={"values": "Divergence from the head mean, and alignment, by layer at the last checkpoint."},
        metrics=(
            "alignment_value",
            "alignment_hidden",
            "relative_magnitude",
            "directional",
            "information_change",
        ),
    ),
    Section(
        id="training",
        title="Over training",
        words=(
            "Every quantity at every checkpoint, averaged over heads, one line per input set. Dashed is "
            "uniform attention, dotted the model before training."
        ),
        definition=(
            "Points are means over samples of the mean over layers and heads; bands are 95 % bootstrap "
            "intervals over samples, which are the unit of replication. Steps are sorted as numbers on an "
            "axis that starts with 0 and is logarithmic from 1."
        ),
        figures=("emergence",),
        captions={"emergence": "Emergence of every metric; the mean over heads hides single strong heads."},
    ),
    Section(
        id="depth",
        title="Over depth",
        words=(
            "The same quantities by layer at the last checkpoint. The dotted profile is the untrained model, "
            "where the run has one."
        ),
        definition="Means over a layer's heads, then over samples; 95 % bootstrap intervals over samples.",
        figures=("depth",),
        captions={"depth": "Depth profiles at the last checkpoint."},
    ),
    Section(
        id="maps",
        title="By layer and head",
        words=(
            "Every quantity for every head at the last checkpoint, mean over samples. The mark on each "
            "colour scale is uniform attention."
        ),
        definition="Columns share the colour scale of their row, so input sets can be compared.",
        figures=("metric_maps",),
        captions={"metric_maps": "Layer by head, one column per input set."},
    ),
    Section(
        id="examples",
        title="Single maps",
        words=(
            "Whole attention maps of the last checkpoint beside what is computed from them. They are "
            "examples, not evidence."
        ),
        definition=(
            "Attention on a logarithmic scale; the spectrum's distribution over the law of random entries "
            "with their largest gap; births and deaths of components and loops; Betti numbers while the "
            "threshold falls."
        ),
        figures=("examples",),
        captions={"examples": "Each row a head; attention on a log scale, white under 0.001."},
    ),
)

RUSCIO2025 = (
    "The numbers that the authors' published notebooks compute, quirks included, on the head mean.",
    "β₀ = min(<i>n</i>, 30) and β₁ = 0 for every causal model whose kept tokens give themselves some "
    "attention, whatever else it attends to; the mean length of finite H0 bars is the mean self-attention.",
    "“Eigenvalues” of a causal map are its diagonal; their gap says nothing about sinks.",
    "Alignment over all ordered pairs is driven by the zeros above the diagonal of causal maps.",
    "Frames by token string and by position disagree where a tokenizer prepends no BOS.",
)
"""What stands above numbers of the published protocol."""
