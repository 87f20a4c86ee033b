# SPDX-License-Identifier: MIT
"""Texts of a run: read from files and data sets, encoded for every model, told of in the table `samples`."""
