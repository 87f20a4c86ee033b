# SPDX-License-Identifier: MIT
"""A Hugging Face model in, one layer's tensors at a time out.

``capture`` is the only door; ``Layer`` is what comes through it. transformers is imported when a model
arrives, never before.
"""

from attnscope.capture.editing import edit
from attnscope.capture.forward import Forward, forward
from attnscope.capture.gradient import Gradient
from attnscope.capture.layer import Layer
from attnscope.capture.sites import SITES
from attnscope.capture.tape import Tape, capture

__all__ = ["SITES", "Forward", "Gradient", "Layer", "Tape", "capture", "edit", "forward"]
