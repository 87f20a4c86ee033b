# SPDX-License-Identifier: MIT
"""Texts with the answers that a model writes to them, to be read again in one pass.

Every prompt is generated from by itself, without padding, so that its answer does not depend on the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from attnscope.analysis.prepared_texts import PreparedTexts
from attnscope.models import Encoded
from attnscope.models.inputs.written_answers import check_generation, write_answers
from attnscope.study_api.units import Input


def append_answers(
    function: str, model: Any, texts: PreparedTexts, options: Mapping[str, Any]
) -> PreparedTexts:
    """Return the texts with what the model writes behind each of them.

    Args:
        function: whose name errors begin with.
        model: of transformers, a decoder.
        texts: the prompts, token ids alone.
        options: of the model's `generate`. Several sequences per prompt become further texts.

    Returns:
        New texts, numbered from 0; `answer_starts` holds the number of tokens of each one's prompt. An answer
        ends with its end-of-sequence token.

    Raises:
        ValueError: a model that does not generate, or writes into a decoder, inputs besides tokens, an option
            that is set here.
    """
    check_generation(function, model, options)
    if texts.groups:
        raise ValueError(
            f"{function}: generate takes texts or token ids, got inputs with {', '.join(texts.names)} too"
        )
    inputs: list[Input] = []
    starts: dict[int, int] = {}
    for prompt in texts.inputs:
        ids = prompt.encoded.ids.tolist()
        for tokens in write_answers(model, ids, options, texts.encoder.pad_id):
            sample = len(inputs)
            sentence = replace(prompt.sentence, sample=sample)
            encoded = Encoded(
                np.asarray(tokens, dtype=np.int32), prompt.encoded.truncated, prompt.encoded.starts_with_bos
            )
            inputs.append(Input(sentence, encoded))
            starts[sample] = len(ids)
    return replace(texts, inputs=inputs, plain=range(len(inputs)), answer_starts=starts)
