# SPDX-License-Identifier: MIT
"""Logits of every text, beside random weights; then the texts of each checkpoint against each other."""

from __future__ import annotations

import torch

from attnscope.study_api.stages import Stage
from attnscope.study_api.study import Options, Study
from attnscope.study_api.tables import Column, Table

CHECKPOINT = ("model", "revision", "step")


class LikelihoodOptions(Options):
    """How many random draws a rank is made from."""

    draws: int = 50


class TokenLikelihood(Study):
    """`tokens` with a log-likelihood each, `ranks` of each text among a checkpoint's texts."""

    name = "token_likelihood"
    Options = LikelihoodOptions
    tables = (
        Table(
            "tokens",
            keys=(*CHECKPOINT, "sample", "position"),
            columns=(
                Column("log_likelihood", label="log-likelihood", symbol="log p", high=0.0),
                Column("token", dtype="string", kind="text"),
            ),
        ),
        Table(
            "ranks",
            keys=(*CHECKPOINT, "sample"),
            columns=(Column("mean", high=0.0), Column("share_below", kind="ratio", low=0.0, high=1.0)),
        ),
        Table("best", keys=("sample",), columns=(Column("revision_of_best", dtype="string", kind="text"),)),
    )

    def stages(self, units):
        """Texts, with random weights as control; then every checkpoint; then the run."""
        return [
            Stage(
                "tokens",
                units.texts(variants=("random_weights",), seeds=2),
                self.measure,
                writes=("tokens",),
            ),
            Stage(
                "ranks",
                units.checkpoints(),
                self.rank,
                reads=("tokens",),
                writes=("ranks",),
                within="checkpoint",
            ),
            Stage("best", units.once(), self.best, reads=("ranks",), writes=("best",)),
        ]

    def measure(self, unit, run):
        """log p of every token given those before it; the first one has none."""
        for batch in run.batches():
            with torch.no_grad():
                logits = run.model().model(**run.inputs(batch)).logits.double().log_softmax(-1)
            for row, (sample, ids) in enumerate(zip(batch.samples, batch.token_ids, strict=True)):
                log_probabilities = logits[row, : len(ids) - 1].gather(-1, torch.tensor(ids[1:])[:, None])[
                    :, 0
                ]
                values = torch.cat([torch.tensor([torch.nan]).double(), log_probabilities])
                keys = {"sample": sample, "position": range(len(ids))}
                run.write("tokens", **keys, log_likelihood=values, token=list(batch.tokens[row]))

    def rank(self, unit, run):
        """Each text's mean, and the share of random draws of tokens of this checkpoint below it."""
        tokens = run.read("tokens")
        likelihoods = tokens["log_likelihood"].dropna().to_numpy()
        for sample, likelihoods_of_text in tokens.groupby("sample")["log_likelihood"]:
            drawn = (
                run.rng("ranks", int(sample))
                .choice(likelihoods, (self.options.draws, len(likelihoods_of_text)))
                .mean(1)
            )
            mean = likelihoods_of_text.mean()
            run.write("ranks", sample=int(sample), mean=mean, share_below=(drawn < mean).mean())

    def best(self, unit, run):
        """The checkpoint that finds each text most likely."""
        ranks = run.read("ranks")
        for sample, group in ranks.groupby("sample"):
            best = group.sort_values("mean").iloc[-1]
            run.write("best", sample=int(sample), revision_of_best=best["revision"])


STUDY = TokenLikelihood
