# SPDX-License-Identifier: MIT
"""The command line `attnscope`, also as `python -m attnscope`."""

import sys

from attnscope._extras import EXTRA_OF


def main() -> None:
    """Run the command line; without the libraries that it needs, say in one line how to install them."""
    try:
        from attnscope.cli.application import main as run_command_line
    except ModuleNotFoundError as error:
        if error.name not in EXTRA_OF:
            raise
        print(f"attnscope: error: {error}", file=sys.stderr)
        sys.exit(2)
    run_command_line()


if __name__ == "__main__":
    main()
