# SPDX-License-Identifier: MIT
"""The main job on a fresh machine: a small language model, trained here, and the sink study over it."""

from attnscope.demo.objectives import demo_arm
from attnscope.demo.run import run_demo
from attnscope.demo.shipped import demo_model
from attnscope.demo.texts import copying_sequences, text_windows
from attnscope.demo.training import Recipe, demo_checkpoints, train

__all__ = [
    "Recipe",
    "copying_sequences",
    "demo_arm",
    "demo_checkpoints",
    "demo_model",
    "run_demo",
    "text_windows",
    "train",
]


def __dir__() -> list[str]:
    return [*__all__]
