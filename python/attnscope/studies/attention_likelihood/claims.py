# SPDX-License-Identifier: MIT
"""placeholder until written"""
def write(run, options): pass
