# SPDX-License-Identifier: MIT
"""The inputs of a model: texts of any kind, the arguments of a forward pass, and their longest length."""
