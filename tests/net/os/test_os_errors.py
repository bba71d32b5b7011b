"""What the system's errors are called, whatever form they come in."""

import errno

import pytest

from p2pswarm.net.os.os_errors import reason_of


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed ('::1', 1)"), "refused"),
        (OSError(errno.ENETUNREACH, "Network is unreachable"), "Network is unreachable"),
        (OSError("no number"), "no number"),
        (TimeoutError(), "TimeoutError"),
    ],
)
def test_an_error_has_one_line_without_the_address(error: OSError, reason: str):
    assert reason in reason_of(error)
    assert "::1" not in reason_of(error)
