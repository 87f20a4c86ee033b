# SPDX-License-Identifier: MIT
"""What the machine of a benchmark can do and what else it does: rates, load, and where a call's time goes."""
