# SPDX-License-Identifier: MIT
"""The parts of the sink study, a file for each: both protocols, nulls, runs of the model, summaries."""
