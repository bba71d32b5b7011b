"""The command of `make chaos`, called in this process."""

import sys
from collections.abc import Callable

import pytest
from chaos.__main__ import main


@pytest.fixture
def command(monkeypatch, capsys) -> Callable[..., tuple[int, str, str]]:
    """Calls it with flags; returns its exit code, what it says and what it complains of."""

    def call(*flags: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["tests.chaos", *flags])
        try:
            code = main()
        except SystemExit as end:  # argparse's
            code = end.code
        said = capsys.readouterr()
        return code, said.out, said.err

    return call
