# SPDX-License-Identifier: MIT
"""What a model's matrices read and write while it runs, and what changes of them do."""
