# SPDX-License-Identifier: MIT
"""What comes from elsewhere: documents, names and texts of unknown origin, and the limits that bound them."""
