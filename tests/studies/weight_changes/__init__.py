# SPDX-License-Identifier: MIT
"""What training changes in the weights: two checkpoints at a time, no text, no model in memory."""
