# SPDX-License-Identifier: MIT
"""What a model makes of its positions: the same text read at other places, and with keys hidden."""
