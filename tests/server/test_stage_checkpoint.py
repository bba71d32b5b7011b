"""What a server does not do, whatever the trainer asks about checkpoints."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from p2pswarm.base.errors import NotSaved, OtherCheckpoint, Unusable
from p2pswarm.net.wire.message import decode, encode
from p2pswarm.run.messages.checkpoint import LoadState, SaveState
from p2pswarm.run.messages.field_limits import REASON_CHARS
from p2pswarm.run.messages.run import RunOrigin
from p2pswarm.server.member_session import SavingLimits
from p2pswarm.server.stage_checkpoint import (
    NotAllowed,
    ProgressNotes,
    failed,
    require_allowed,
    require_version,
    source_of,
)
from p2pswarm.settings.config import RunConfig

RUN = b"r" * 16
ORDER = SaveState(RUN, 7, b"", "checkpoints")
ORIGIN = RunOrigin(b"o" * 16, 7, b"m" * 32)


def context(*, allowed: bool = True):
    """As much of a server's context as the rules look at."""
    limits = SavingLimits(allowed=allowed, targets=("checkpoints", "s3://bucket/runs"))
    return SimpleNamespace(run_id=RUN, saving=limits)


def test_an_order_for_a_target_of_the_owners_is_carried_out():
    require_allowed(context(), ORDER)
    require_allowed(context(), replace(ORDER, target="s3://bucket/runs/one"))


@pytest.mark.parametrize(
    "target",
    [
        *("", "a\0b", "a\nb", "\x1b[2J", "elsewhere", "~/.ssh", "/etc", "checkpoints/../x"),
        *("simplecache::s3://bucket/runs", "s3://other", "http://10.0.0.1/x", "hf://owner/data"),
    ],
)
def test_a_target_that_the_owner_does_not_name_is_refused_with_the_remedy(target):
    with pytest.raises(NotAllowed, match=r"serve\.checkpoint_targets") as refused:
        require_allowed(context(), replace(ORDER, target=target))

    assert str(refused.value).isprintable()
    assert len(str(refused.value)) <= REASON_CHARS


def test_a_server_without_the_setting_opens_nothing_that_a_run_names():
    plain = SimpleNamespace(run_id=RUN, saving=SavingLimits())

    with pytest.raises(NotAllowed):
        require_allowed(plain, ORDER)
    with pytest.raises(OtherCheckpoint, match=r"serve\.checkpoint_targets"):
        source_of(LoadState(RUN, "t", "", ORIGIN), ORIGIN, RunConfig(), range(1), ())


def test_another_run_and_a_server_that_writes_nothing_are_refused():
    with pytest.raises(NotSaved, match="that run is not served here"):
        require_allowed(context(), replace(ORDER, run=b"R" * 16))
    with pytest.raises(NotSaved, match=r"serve\.checkpoints = false"):
        require_allowed(context(allowed=False), ORDER)


def test_a_version_that_has_passed_is_not_saved():
    require_version(SimpleNamespace(version=7), ORDER)
    with pytest.raises(NotSaved, match="the weights are of step 8 already"):
        require_version(SimpleNamespace(version=8), ORDER)


@pytest.mark.parametrize(
    ("target", "folder"),
    [("t", "../.."), ("t", "/etc"), ("t", "x"), ("a::b", ""), ("", ""), ("a\0", "")],
)
def test_only_a_checkpoint_is_opened_for_a_trainer(tmp_path, target, folder):
    order = LoadState(RUN, target and f"{tmp_path}/{target}", folder, ORIGIN)

    with pytest.raises(OtherCheckpoint):
        source_of(order, ORIGIN, RunConfig(), range(1), (f"{tmp_path}/t",))


def test_a_user_that_does_not_exist_is_no_crash():
    order = LoadState(RUN, "~nobody-has-this-name/x", "", ORIGIN)

    with pytest.raises(Unusable, match="there is no such user"):
        source_of(order, ORIGIN, RunConfig(), range(1), ("t",))


@pytest.mark.parametrize("origin", [None, ORIGIN])
def test_a_checkpoint_of_another_run_is_not_opened_unless_the_run_began_from_it(tmp_path, origin):
    other = replace(ORIGIN, run=b"R" * 16, checkpoint=b"x" * 32)
    order = LoadState(RUN, str(tmp_path), "", other)

    with pytest.raises(OtherCheckpoint, match="that the run did not begin from"):
        source_of(order, origin, RunConfig(), range(1), (str(tmp_path),))


def test_progress_is_told_at_most_once_a_second():
    notes = ProgressNotes(ORDER, size=100)

    told = [notes.done(share, 5.0 + share) for share in (0.0, 0.5, 0.9, 1.0)]

    assert [note and note.written for note in told] == [0, None, None, 100]
    assert all(note is None or decode(encode(note)) == note for note in told)


def test_a_reason_of_any_length_fits_its_note():
    note = failed(ORDER, "x" * 1_000)

    assert note.failed == "x" * REASON_CHARS
    assert decode(encode(note)) == note
