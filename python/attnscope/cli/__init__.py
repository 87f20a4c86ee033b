# SPDX-License-Identifier: MIT
"""The command line and the functions of its commands."""
