# SPDX-License-Identifier: MIT
"""Features of attention as a transformer of scikit-learn: texts in, numbers out."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from attnscope.analysis.features import features
from attnscope.arguments.scalars import flag
from attnscope.metrics.request import Metrics

#: Tokens of the text that names are read off, and the answer in it.
_TOKENS, _ANSWER = 12, (4, 10)


class AttentionFeatures(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """A transformer of scikit-learn that measures a model's attention on texts.

    `fit` reads the names of the features off the model and learns nothing of the texts, so a pipeline that
    is fitted on a training part knows nothing of the rest. Numbers that are undefined are NaN: put
    `SimpleImputer()` behind it. In a search over a classifier's settings the texts are measured again for
    each setting; `attnscope.features` measures them once.

    Args:
        model: a folder or hub id, or a transformers model in evaluation mode, which copies share and which
            cannot be pickled.
        tokenizer: of the model; None for a folder or hub id takes its own.
        metrics: as `features` takes them.
        answers: entries of X are mappings with `text` and `answer`, instead of texts.
        answer_unit: "tokens" or "characters".
        answer_only: measure the block of the answer's queries and keys as it is.
        generate: entries of X are prompts, whose answers the model writes with these options, one for each.
            Not together with `answers`.
        layers: only these layers.
        options: of the metrics, as a mapping.

    Attributes:
        feature_names_: names of the columns, once fitted.

    Returns:
        from `transform`: an array [texts, features], float64.

    Example:
        >>> import torch, attnscope as asc
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> config = LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        ...                      num_attention_heads=2)
        >>> transformer = asc.AttentionFeatures(LlamaForCausalLM(config).eval(), metrics=["stable_rank"])
        >>> transformer.fit_transform([[1, 2, 3, 4], [5, 6, 7]]).shape
        (2, 3)
        >>> transformer.get_feature_names_out().tolist()
        ['stable_rank__l00h00', 'stable_rank__l00h01', 'stable_rank__l00mean']
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        metrics: Metrics | None = None,
        *,
        answers: bool = False,
        answer_unit: str = "tokens",
        answer_only: bool = False,
        generate: Mapping[str, Any] | None = None,
        layers: Sequence[int] | int | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.metrics = metrics
        self.answers = answers
        self.answer_unit = answer_unit
        self.answer_only = answer_only
        self.generate = generate
        self.layers = layers
        self.options = options

    def fit(self, X: Any = None, y: Any = None) -> AttentionFeatures:
        """Read the names of the features off the model; X and y are not looked at.

        Raises:
            ValueError: answers of X and of `generate`.
        """
        if flag("AttentionFeatures", "answers", self.answers) and self.generate is not None:
            raise ValueError("AttentionFeatures: answers are in X, generate writes them; give one")
        answers = [_ANSWER] if self.answers or self.generate is not None else None
        ids = [np.arange(1, 1 + _TOKENS).tolist()]
        self.feature_names_ = list(self._measure(ids, answers, "tokens").X)
        return self

    def transform(self, X: Any) -> Any:
        """Return the features of texts, [texts, features] float64.

        Raises:
            ValueError: entries without an answer, and as `features`.
        """
        check_is_fitted(self, "feature_names_")
        texts, answers = X, None
        if flag("AttentionFeatures", "answers", self.answers):
            rows = X.to_dict("records") if hasattr(X, "to_dict") else list(X)
            for number, row in enumerate(rows):
                if not isinstance(row, Mapping) or not {"text", "answer"} <= set(row):
                    raise ValueError(
                        f"AttentionFeatures: entry {number} must hold text and answer, got {row!r:.60}"
                    )
            texts, answers = [row["text"] for row in rows], [row["answer"] for row in rows]
        elif isinstance(texts, np.ndarray):
            texts = texts.tolist()
        table = self._measure(texts, answers, self.answer_unit, self.generate)
        return table.X.reindex(columns=self.feature_names_).to_numpy(np.float64)

    def get_feature_names_out(self, input_features: Any = None) -> Any:
        """Return the names of the features, an array of texts."""
        check_is_fitted(self, "feature_names_")
        return np.asarray(self.feature_names_, dtype=object)

    def _measure(self, texts: Any, answers: Any, unit: str, generate: Mapping[str, Any] | None = None) -> Any:
        return features(
            self.model,
            texts,
            self.metrics,
            answers=answers,
            answer_unit=unit,
            answer_only=self.answer_only,
            generate=generate,
            layers=self.layers,
            tokenizer=self.tokenizer,
            progress=False,
            **(self.options or {}),
        )

    def __sklearn_clone__(self) -> AttentionFeatures:
        """Return an unfitted copy that shares a live model."""
        return type(self)(**self.get_params(deep=False))

    def __getstate__(self) -> Any:
        """Return the state to pickle; TypeError for a live model."""
        if not isinstance(self.model, (str, os.PathLike)):
            raise TypeError(
                f"AttentionFeatures: a {type(self.model).__name__} in memory is not pickled; save it with "
                "save_pretrained(FOLDER) and pass the folder as model"
            )
        return super().__getstate__()

    def __sklearn_tags__(self) -> Any:
        """Return what scikit-learn should know: the input is no matrix of numbers."""
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.string = True
        tags.requires_fit = True
        return tags
