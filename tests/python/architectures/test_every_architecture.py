# SPDX-License-Identifier: MIT
"""Every type of model that transformers' auto classes know and a tiny configuration builds, captured once.

`tests/support/sweep.py` says what is compared, and prints the outcome of each type when it is run by itself.
"""

from collections import Counter

import pytest

from support import sweep

#: Outcomes that a capture must never have.
WRONG = {"different", "visibility", "changed", "numbers", "crashed"}
#: Of each kind a few types, for a look at a time: the whole list takes most of an hour.
QUICK = ("openai-gpt", "gpt_neo")


def parameters():
    for kind in sweep.KINDS:
        for name in sweep.types(kind):
            few = kind == "causal" and name in QUICK
            yield pytest.param(kind, name, marks=() if few else pytest.mark.slow)


@pytest.mark.parametrize(("kind", "name"), parameters())
def test_what_comes_of_a_type(kind, name):
    """Maps equal eager's, or the type is refused by name; visibility, numbers and the model are right."""
    outcome = sweep.outcome(*sweep.classes(kind, name))
    if outcome.result == "not built":
        pytest.skip(f"{name} is not built from a tiny configuration: {outcome.words}")
    assert outcome.result not in WRONG, f"{name}: {outcome.words}"


@pytest.mark.slow
def test_most_types_are_built():
    """A sweep that builds nothing would find nothing."""
    outcomes = Counter()
    for name in list(sweep.types("causal"))[:20]:
        try:
            sweep.build(*sweep.classes("causal", name))
        except ValueError:
            outcomes["not built"] += 1
        else:
            outcomes["built"] += 1
    assert outcomes["built"] >= 15, outcomes
