# SPDX-License-Identifier: MIT
"""Whether a model's states tell what it cannot know, and whether its output uses that (arXiv 2603.13911)."""
