# SPDX-License-Identifier: MIT
"""Effects of position on attention: offsets, the mask, the residual stream, rotary bands."""
