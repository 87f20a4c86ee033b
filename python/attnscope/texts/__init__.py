# SPDX-License-Identifier: MIT
"""Texts of a run: read from files and data sets, encoded for every model, listed in the table `samples`."""
