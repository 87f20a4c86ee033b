# SPDX-License-Identifier: MIT
"""The command line as tests of the package call it."""

import pytest

from attnscope.commands import cli


@pytest.fixture
def call(capsys):
    def made(*arguments):
        with pytest.raises(SystemExit) as end:
            cli.main([str(one) for one in arguments])
        out, err = capsys.readouterr()
        return end.value.code or 0, out, err

    return made
