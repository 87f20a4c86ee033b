# SPDX-License-Identifier: MIT
"""Where absolute position comes from: the causal mask and the residual stream (Ruscio et al., 2606.06160)."""
