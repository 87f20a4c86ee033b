# SPDX-License-Identifier: MIT
"""What attention owes to where its queries stand: offsets, the mask, the residual stream, rotary bands."""
