# SPDX-License-Identifier: MIT
"""Stored results: tables with their schema, and the files and folders that hold them."""
