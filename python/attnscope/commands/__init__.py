# SPDX-License-Identifier: MIT
"""The command line and what stands behind its commands."""
