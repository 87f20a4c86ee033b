# SPDX-License-Identifier: MIT
"""The engine: what runs studies and stores their results; it knows no paper."""
