# SPDX-License-Identifier: MIT
"""A study whose units do nothing for a while, to measure what is spent around units."""
