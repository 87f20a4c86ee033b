# SPDX-License-Identifier: MIT
"""Where the units of a plan are done: in this process, in shards of a job array, on a Ray cluster."""
