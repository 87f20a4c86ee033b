# SPDX-License-Identifier: MIT
"""The inputs and outputs of a model's matrices while it runs, and the effects of changing a matrix."""
