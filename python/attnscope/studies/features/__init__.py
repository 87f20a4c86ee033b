# SPDX-License-Identifier: MIT
"""A table of features for classifiers, over more texts than fit into one call."""
