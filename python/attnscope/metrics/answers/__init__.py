# SPDX-License-Identifier: MIT
"""Measures of an answer, the tokens [start, stop) behind a prompt, that detectors of made-up answers use."""
