# SPDX-License-Identifier: MIT
"""Files and folders of a run on disk: written whole or not at all, locked, and checked."""
