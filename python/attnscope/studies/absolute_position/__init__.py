# SPDX-License-Identifier: MIT
"""Study of the sources of absolute position: the causal mask and the residual stream (Ruscio et al.,
2606.06160).
"""
