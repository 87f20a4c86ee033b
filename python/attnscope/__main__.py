# SPDX-License-Identifier: MIT
"""`python -m attnscope` is `attnscope`."""

from attnscope.commands.cli import main

if __name__ == "__main__":
    main()
