"""What dials by several ways may cost, and what they say when all fail."""

import pytest

from p2pswarm.base.errors import BadHandshake, Busy, DialFailed, LinkLost, NobodyThere
from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.net.cards.dial_outcome import check_attempts, dial_failure
from p2pswarm.net.config import TransportConfig

TO = Contact(PeerId(b"p" * 32), Address("8.8.8.8", 4000))
CONFIG = TransportConfig(dials_max=4)
REFUSED, WRONG, SILENT = NobodyThere("a: refused"), BadHandshake("b: wrong"), DialFailed("c: no")


def test_each_dials_first_way_may_be_tried_and_further_ones_while_there_is_room():
    for attempts in range(10):
        check_attempts(attempts, CONFIG, first=True)
    check_attempts(3, CONFIG, first=False)

    with pytest.raises(Busy, match="4 ways are being tried"):
        check_attempts(4, CONFIG, first=False)


@pytest.mark.parametrize(
    ("failures", "kind"),
    [
        ([REFUSED, REFUSED], NobodyThere),
        ([WRONG, WRONG], BadHandshake),
        ([REFUSED, WRONG], DialFailed),
        ([WRONG, SILENT], DialFailed),
        ([Busy("full", 1.0), LinkLost("x")], DialFailed),
    ],
)
def test_the_failure_is_as_bad_as_all_ways_agree(failures, kind):
    error = dial_failure(TO, failures)

    assert type(error) is kind
    assert all(str(each) in str(error) for each in failures)
    assert str(error).startswith(f"{TO.peer.short}: none of its {len(failures)} addresses")


def test_one_failure_is_itself_and_none_tells_what_to_wait_for():
    assert dial_failure(TO, [WRONG]) is WRONG
    assert "it has to announce one" in str(dial_failure(TO, []))
    assert str(dial_failure(Contact(None, TO.address), [REFUSED, SILENT])).startswith(
        "8.8.8.8:4000: "
    )
