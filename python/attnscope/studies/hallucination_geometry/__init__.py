# SPDX-License-Identifier: MIT
"""Study of knowing and saying: a model's states on questions that it cannot answer, and its output (arXiv
2603.13911).
"""
