# SPDX-License-Identifier: MIT
"""How likely a model finds each token, and what a second stage makes of it."""
