# SPDX-License-Identifier: MIT
"""Studies: a config in, stored results out."""
