# SPDX-License-Identifier: MIT
"""The parts that a study is made of: options, tables, stages, units and the context of a stage."""
