# SPDX-License-Identifier: MIT
"""The main job on a fresh machine: a small language model, trained here, and the sink study over it."""

from attnscope.demo.run import run_demo
from attnscope.demo.training import Recipe, build_model, checkpoint_steps, train

__all__ = ["Recipe", "build_model", "checkpoint_steps", "run_demo", "train"]
