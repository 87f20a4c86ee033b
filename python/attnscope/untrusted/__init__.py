# SPDX-License-Identifier: MIT
"""Documents, names and texts of unknown origin, and the limits that bound them."""
