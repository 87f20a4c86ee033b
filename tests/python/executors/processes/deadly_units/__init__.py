# SPDX-License-Identifier: MIT
"""A study whose units take as long as asked, and whose third text ends its process while a file says so."""
