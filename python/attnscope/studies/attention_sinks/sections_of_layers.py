# SPDX-License-Identifier: MIT
"""What the report says of layers, models and training: what attention moves, Fisher information, frames.

The texts are our own HTML; nothing that comes from a run is put into them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pandas as pd

from attnscope.report.numbers import Wanted
from attnscope.report.section import Page, Section, analysis
from attnscope.studies.attention_sinks import small_tables


def _table(
    make: Callable[[Mapping[str, pd.DataFrame]], pd.DataFrame | None], caption: str, names: int
) -> Callable[[Page], None]:
    """Writes a table that is made of the stored ones."""
    return lambda page: page.frame(make.__name__, caption, make(page.tables), names=names)


SECTIONS: tuple[Section, ...] = (
    analysis(
        "values",
        "Attention and what it moves",
        tables=("heads", "layers"),
        words=(
            "Alignment asks whether a head attends to tokens whose vectors point the same way. It is "
            "computed on the value vectors, which attention moves, and on the hidden states, over visible "
            "pairs only."
        ),
        definition=(
            "Pearson correlation of <i>A<sub>ij</sub></i> with cos(<i>s<sub>i</sub></i>, "
            "<i>s<sub>j</sub></i>) over visible pairs <i>i</i> ≠ <i>j</i>. No sinks: the head's sinks by the "
            "test left out; of a head that has none it is the same number."
        ),
        figures=("alignment",),
        metrics=(
            "alignment_value",
            "alignment_value_without_sinks",
            "alignment_hidden",
            "alignment_hidden_without_sinks",
            "entropy_magnitude_correlation",
        ),
        pairs=(
            Wanted("head_means", "alignment_hidden", "alignment with states"),
            Wanted("head_means", "entropy", "entropy (nats)"),
            Wanted("layers", "transformation_magnitude", "change by the block"),
            Wanted("head_means", "entropy_magnitude_correlation", "entropy with change"),
            Wanted("head_means", "pca_correlation", "PCA correlation"),
        ),
        published_causal=(
            "The published alignment runs over all ordered pairs, so the zeros above a causal "
            "diagonal enter. Cosines are the same both ways, so these zeros halve the covariance and "
            "add to the variance of attention: the published value is the exact one of the same map "
            "times a factor below 1/√2 = 0.71 that depends on how uneven attention is. Its sign is "
            "that of the exact one, its size is not.",
        ),
        published=(
            "The last layer's change includes the final norm in the published numbers, because that is the "
            "state the library returns; signs of principal components are arbitrary.",
        ),
    ),
    analysis(
        "reference",
        "Influence of the reference points",
        tables=("heads",),
        words=(
            "What a query receives is a sum over keys; this splits it into the part that comes from the "
            "sinks and the rest. The questions are how large the part is, whether it points the way "
            "the whole does, and how far the whole would turn without it."
        ),
        definition=(
            "<i>c<sub>R</sub></i> = Σ<sub><i>j</i>∈R</sub> <i>A<sub>ij</sub>v<sub>j</sub></i>, <i>c</i> the "
            "sum over all keys: ‖<i>c<sub>R</sub></i>‖/‖<i>c</i>‖, cos(<i>c<sub>R</sub></i>, <i>c</i>), 1 − "
            "cos(<i>c</i>, <i>c</i> − <i>c<sub>R</sub></i>), for queries outside R, the head's sinks by the "
            "test. A head without one has no such numbers."
        ),
        figures=("reference",),
        metrics=("reference_magnitude", "reference_directional", "reference_information"),
        pairs=(
            Wanted("head_means", "reference_magnitude", "magnitude"),
            Wanted("head_means", "reference_directional", "direction"),
            Wanted("head_means", "reference_information", "turn; published: distance"),
        ),
        published=(
            "The published magnitude is cut at 1, the direction is (cos + 1)/2, so that 0.5 means "
            "unrelated, and the information is the norm of <i>c<sub>R</sub></i> in the units of the "
            "states: it follows their norm over depth. Queries inside R enter with 0.5, 0.5 and 0.",
        ),
    ),
    analysis(
        "fisher",
        "Fisher information",
        tables=("fisher",),
        words=(
            "The trace of the Fisher information says how strongly the loss depends on a group of "
            "parameters. Attention, MLP and norms are shown by block, what lies outside the blocks "
            "as a level."
        ),
        definition=(
            "(1/N) Σ<sub>s</sub> ‖∇<sub>θ</sub>L<sub>s</sub>‖², L<sub>s</sub> the loss of a "
            "text, labels as written: the empirical Fisher. Labels drawn once a token from the model "
            "estimate the trace of the Fisher information itself, one draw a text."
        ),
        figures=("fisher",),
        table=_table(small_tables.fisher, "Trace of the Fisher information by group of parameters.", 2),
        published=(
            "The published loss counts padding and takes the input ids as labels, for encoders too; "
            "groups are found by parts of parameter names, which put what they do not know under “other”.",
        ),
    ),
    analysis(
        "frames",
        "Reference frames",
        tables=("frames", "frame_evidence", "specialization"),
        words=(
            "A frame is of the heads that have a sink: a test finds one in half of their texts, or in all of "
            "them together. It is centralized when one sink position rules every third of the layers, "
            "bidirectional when two special tokens share them, and distributed otherwise. The same "
            "is asked of token strings, because the two can disagree. Where fewer than a tenth of the tested "
            "heads have a sink there is none."
        ),
        definition=(
            "Share of the most frequent sink over those heads and texts in the early, middle and late third "
            "of the layers; centralized from 0.8 in each. Probability: share of bootstrap samples of texts "
            "with the same verdict. Consistent heads have the same sink, by the test, in at least 30 % of at "
            "least five texts; they are counted among the heads with a sink in any."
        ),
        figures=("frames",),
        table=_table(small_tables.frames, "Reference frames and consistent heads.", 5),
        published=(
            "The published reading is by token string: a tokenizer that prepends no BOS puts another "
            "word at the first position of every text, so a model whose heads all rest on the "
            "first key is called distributed.",
        ),
    ),
    analysis(
        "training",
        "Over training",
        tables=("heads", "emergence"),
        words=(
            "Every quantity at every checkpoint, averaged over heads, one line per input set or "
            "model. Dashed is uniform attention, dotted the model before training."
        ),
        definition=(
            "Points are means over texts of the mean over layers and heads; bands are 95 % bootstrap "
            "intervals over texts, which are the unit of replication. Steps are sorted as numbers on an "
            "axis that starts with 0 and is logarithmic from 1. The table's step is the best split of the "
            "checkpoints into two levels, given only where it explains more than in 95 % of random orders of "
            "the checkpoints (Holm over the tested quantities of the run) with three checkpoints on "
            "each side; too few to tell: no order of so few checkpoints could pass for so many quantities. "
            "Half-way is where half of the way from first to last is covered, which noise does somewhere too."
        ),
        figures=("emergence",),
        table=_table(small_tables.emergence, "Which quantities change during training.", 3),
        published=(
            "The published change is the last step minus the first in the order of the steps' names "
            "as text, where 8 comes after 143000.",
        ),
    ),
    analysis(
        "depth",
        "Over depth",
        tables=("heads",),
        words=(
            "The same quantities by layer at the last checkpoint. The dotted profile is the "
            "untrained model, where the run has one."
        ),
        definition="Means over a layer's heads, then over texts; 95 % bootstrap intervals over texts.",
        figures=("depth",),
    ),
    analysis(
        "maps",
        "By layer and head",
        tables=("heads",),
        words=(
            "Every quantity for every head at the last checkpoint, mean over texts. The mark on each "
            "colour scale is uniform attention."
        ),
        definition="Columns share the colour scale of their row, so input sets can be compared.",
        figures=("metric_maps",),
    ),
    analysis(
        "examples",
        "Single maps",
        tables=("examples",),
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
    ),
)
