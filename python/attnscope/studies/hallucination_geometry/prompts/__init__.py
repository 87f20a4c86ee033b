# SPDX-License-Identifier: MIT
"""Questions that can be answered, that cannot be, and about what nobody knows; own texts."""
