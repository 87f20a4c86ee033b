# SPDX-License-Identifier: MIT
"""The settings of a run, the files that hold them, and the folders of the studies that they name."""
