# SPDX-License-Identifier: MIT
"""A run folder on disk: files that are there whole or not at all, stored units, one writer."""
