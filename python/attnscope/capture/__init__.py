# SPDX-License-Identifier: MIT
"""A Hugging Face model in, one layer's tensors at a time out.

``capture`` is the public function; its runs yield a ``Layer`` each. transformers is imported when a model
arrives, never before.
"""

from attnscope.capture.editing import edit
from attnscope.capture.forward import Forward, forward
from attnscope.capture.gradient import Gradient
from attnscope.capture.layer import Layer
from attnscope.capture.recording import Recording, capture
from attnscope.capture.sites import SITES

__all__ = ["SITES", "Forward", "Gradient", "Layer", "Recording", "capture", "edit", "forward"]
