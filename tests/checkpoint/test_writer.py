"""What servers have written becomes a checkpoint, if it is one."""

import dataclasses

import pytest
from checkpoint.harness import CUT, OTHER_WRITER, RUN_ID, WRITER, save_stages
from checkpoint.test_checkpoint_manifest import stages

from p2pswarm.base.errors import BadMessage, NotSaved
from p2pswarm.checkpoint.digests import PIECES_MAX, FileDigest
from p2pswarm.checkpoint.names import stage_file_name
from p2pswarm.checkpoint.targets import LocalFolder
from p2pswarm.checkpoint.writer import joined, report_of, saved_by
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.wire.message import decode, encode

PEER = Identity.generate(b"server").peer_id


async def test_files_of_one_stage_are_copies(tmp_path):
    reports = await save_stages(LocalFolder(tmp_path, WRITER), writers=(WRITER, OTHER_WRITER))

    whole = joined([*reports, reports[0]], CUT)

    assert [saved.stage for saved in whole] == [0, 1]
    assert whole[0].names == tuple(stage_file_name(0, 2, w) for w in (WRITER, OTHER_WRITER))


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (lambda s: s[:1], "no server has written stage 1"),
        (lambda s: [s[1]], "no server has written stage 0"),
        (
            lambda s: [*s, dataclasses.replace(s[0], state_digest=b"x" * 32)],
            "two servers of stage 0 wrote different files",
        ),
        (lambda s: [dataclasses.replace(s[0], end_block=3), s[1]], "another cut"),
    ],
)
def test_what_is_no_whole_checkpoint_is_named(change, part):
    with pytest.raises(NotSaved, match=part):
        joined(change(stages()), CUT)


def test_a_report_comes_as_it_was_sent():
    name = stage_file_name(1, 2, PEER.short)
    saved = dataclasses.replace(stages()[1], names=(name,))

    report = decode(encode(report_of(saved, RUN_ID, 7)))

    assert saved_by(report, PEER, 2) == saved
    assert (report.run, report.step) == (RUN_ID, 7)


def test_the_report_of_the_largest_file_fits_a_message():
    digest = FileDigest(PIECES_MAX << 30, b"f" * 32, 1 << 30, (b"p" * 32,) * PIECES_MAX)

    report = report_of(dataclasses.replace(stages()[0], digest=digest), RUN_ID, 7)

    assert decode(encode(report)) == report


@pytest.mark.parametrize("stages_now", [1, 300])
def test_a_report_of_a_stage_that_is_not_is_refused(stages_now):
    report = report_of(stages()[1], RUN_ID, 7)

    with pytest.raises(BadMessage, match="a stage that was saved"):
        saved_by(report, PEER, stages_now)


def test_a_report_without_blocks_or_with_too_few_digests_is_refused():
    report = report_of(stages()[0], RUN_ID, 7)

    with pytest.raises(BadMessage, match=r"has blocks 0\.\.0"):
        saved_by(dataclasses.replace(report, end_block=0), PEER, 2)
    with pytest.raises(ValueError, match="32 bytes of digests for 100 bytes"):
        dataclasses.replace(report, pieces=b"p" * 32)
