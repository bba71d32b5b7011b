"""When a run is saved, by whom, and when a checkpoint is whole."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.errors import BadMessage
from p2pswarm.base.ids import PeerId
from p2pswarm.checkpoint.names import stage_file_name
from p2pswarm.checkpoint.writer import saved_by
from p2pswarm.progress.events import Checkpointed, CheckpointFailed
from p2pswarm.run.member_view import Incarnation
from p2pswarm.run.messages.checkpoint import Saved, Saving
from p2pswarm.trainer.coordinator_io.checkpoints import (
    PROGRESS_EVERY_S,
    QUIET_S,
    SECOND_COPY_S,
    AskToSave,
    Checkpoints,
    SaveHere,
    WriteManifest,
)
from p2pswarm.trainer.reports.reports import CheckpointProgress, StateFetched

RUN = b"r" * 16
HEAD = b"h" * 32
CUT = (range(2), range(2, 5))


def member(stage: int, number: int) -> Incarnation:
    return Incarnation(bytes([stage, number]) * 16, 10 * stage + number)


OWN = PeerId(b"o" * 32)
REPORT = Saved(RUN, 10, 0, 0, 2, b"d" * 32, 3, b"f" * 32, 2, b"p" * 64)
HOLDERS = [[member(stage, number) for number in range(3)] for stage in range(len(CUT))]
FIRST = [[member(0, 0)], [member(1, 0)]]


@dataclass
class Play:
    """The rules, and the clock."""

    rules: Checkpoints = field(default_factory=lambda: Checkpoints(CUT, 10, 1000))
    now_s: float = 0.0

    def seen(self, kind: type) -> list:
        return [action for action in self.rules.drain() if isinstance(action, kind)]

    def decided(self, version: int, holders=HOLDERS) -> list:
        self.rules.on_decision(version, HEAD, holders, self.now_s)
        return self.seen(AskToSave)

    def begun(self, holders=HOLDERS) -> None:
        self.decided(10, holders)

    def wrote(self, by: Incarnation, version: int = 10, digest: bytes = b"d" * 32, **changes):
        stage = by.peer[0]
        blocks = CUT[stage]
        values = {"stage": stage, "first_block": blocks.start, "end_block": blocks.stop}
        report = Saved(
            run=RUN,
            step=version,
            state_digest=digest,
            size=3,
            sha256=b"f" * 32,
            piece_bytes=2,
            pieces=b"p" * 64,
            **(values | changes),
        )
        self.rules.on_file(by, report, self.now_s)

    def heard(
        self,
        by: Incarnation,
        written: int = 1,
        failed: str = "",
        version: int = 10,
        *,
        refused: bool = False,
    ):
        note = Saving(RUN, version, written, 9, failed, refused)
        self.rules.on_progress(by, note, self.now_s)

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        due_s = self.rules.next_deadline_s()
        if due_s is not None and self.now_s >= due_s:
            self.rules.on_deadline(self.now_s)


def name(by: Incarnation) -> str:
    return stage_file_name(by.peer[0], len(CUT), PeerId(by.peer).short)


def test_two_members_of_each_stage_are_asked_after_every_so_many_steps():
    play = Play()

    asked = {version: play.decided(version) for version in range(1, 11)}

    assert [version for version, orders in asked.items() if orders] == [10]
    assert [order.writer for order in asked[10]] == [h for of in HOLDERS for h in of[:2]]
    assert {(order.version, order.head) for order in asked[10]} == {(10, HEAD)}
    assert not play.rules.idle


def test_the_last_step_is_saved_whenever_it_is():
    play = Play(Checkpoints(CUT, 10, last=7))

    assert not play.decided(6)
    assert len(play.decided(7)) == 4


def test_a_checkpoint_is_whole_when_every_writer_has_its_file():
    play = Play()
    play.begun()
    for writer in (member(0, 0), member(1, 1), member(0, 1)):
        play.wrote(writer)
        assert not play.seen(WriteManifest)

    play.wrote(member(1, 0))

    (order,) = play.seen(WriteManifest)
    assert (order.version, order.head) == (10, HEAD)
    assert [set(saved.names) for saved in order.stages] == [
        {name(member(stage, 0)), name(member(stage, 1))} for stage in range(2)
    ]
    assert play.rules.saved == 0


def test_a_version_is_saved_when_the_manifest_is_there():
    play = Play()
    play.begun(FIRST)
    play.pass_time(3.0)
    play.wrote(member(0, 0))
    play.wrote(member(1, 0))
    assert play.rules.next_deadline_s() is None  # while the manifest is written
    play.rules.on_deadline(play.now_s + 1000)

    play.rules.on_manifest(10, "there", play.now_s)

    assert play.seen(Checkpointed) == [Checkpointed(10, "there", 3.0)]
    assert (play.rules.saved, play.rules.idle) == (10, True)


def test_a_manifest_that_cannot_be_written_costs_the_checkpoint_and_no_more():
    play = Play()
    play.begun(FIRST)
    play.wrote(member(0, 0))
    play.wrote(member(1, 0))

    play.rules.on_manifest_failure(10, "the disk is full", play.now_s)

    assert play.seen(CheckpointFailed) == [CheckpointFailed(10, "the disk is full")]
    assert (play.rules.saved, play.rules.idle) == (0, True)
    assert play.decided(20)


def test_copies_are_waited_for_a_little():
    play = Play()
    play.begun()
    play.wrote(member(0, 0))
    play.wrote(member(1, 0))
    play.pass_time(SECOND_COPY_S - 0.1)
    assert not play.seen(WriteManifest)

    play.pass_time(0.2)

    (order,) = play.seen(WriteManifest)
    assert [saved.names for saved in order.stages] == [(name(h[0]),) for h in HOLDERS]


def test_one_writer_of_a_stage_may_die_or_fail():
    play = Play()
    play.begun()
    play.wrote(member(0, 0))
    play.wrote(member(1, 0))
    play.rules.on_end(member(0, 1), play.now_s)
    play.rules.on_end(member(0, 0), play.now_s)  # its file is there all the same
    play.rules.on_end(member(0, 2), play.now_s)
    assert not play.seen(WriteManifest)

    play.heard(member(1, 1), failed="the disk is full")

    (order,) = play.seen(WriteManifest)
    assert [saved.names for saved in order.stages] == [(name(h[0]),) for h in HOLDERS]


def test_a_stage_that_nobody_can_save_ends_the_checkpoint_with_the_reasons():
    play = Play()
    play.begun()
    play.rules.on_end(member(1, 0), play.now_s)
    play.heard(member(1, 1), failed="the disk is full")

    (failed,) = play.seen(CheckpointFailed)
    assert failed.reason == "stage 1 was not saved: its server is lost; the disk is full"
    assert play.rules.idle
    play.wrote(member(0, 0))  # late words about it are nothing
    play.heard(member(0, 1))
    play.rules.on_end(member(0, 0), play.now_s)
    assert play.rules.drain() == []


def test_where_a_writers_owner_forbids_it_another_member_of_the_stage_is_asked():
    play = Play()
    play.begun()
    play.seen(AskToSave)

    play.heard(member(0, 0), failed="not here", refused=True)
    play.heard(member(1, 0), failed="the disk is full")  # the copy is enough then

    assert [order.writer for order in play.seen(AskToSave)] == [member(0, 2)]
    for writer in (member(0, 1), member(0, 2), member(1, 1)):
        play.wrote(writer)
    assert play.seen(WriteManifest)
    play.rules.on_manifest(10, "there", play.now_s)
    asked = [order.writer for order in play.decided(20)]
    assert asked == [member(0, 1), member(0, 2), member(1, 0), member(1, 1)]


def test_a_stage_that_no_server_may_write_is_saved_here():
    play = Play()
    play.begun(FIRST)
    play.wrote(member(1, 0))
    play.heard(member(0, 0), failed="not here", refused=True)
    assert play.seen(SaveHere) == [SaveHere(0, 10, HEAD)]

    play.rules.on_own_file(10, saved_by(REPORT, OWN, len(CUT)), play.now_s)

    (order,) = play.seen(WriteManifest)
    assert order.stages[0].names == (stage_file_name(0, len(CUT), OWN.short),)
    play.rules.on_manifest(10, "there", play.now_s)
    assert not [order for order in play.decided(20, FIRST) if order.writer == member(0, 0)]


def test_people_hear_once_that_the_state_of_a_stage_is_fetched():
    play = Play()
    play.begun(FIRST)
    play.heard(member(0, 0), failed="not here", refused=True)
    assert play.seen(StateFetched) == [StateFetched(0)]
    assert play.rules.on_later_version(10, play.now_s)

    play.rules.save(11, HEAD, FIRST, play.now_s)

    assert play.rules.drain() == [SaveHere(0, 11, HEAD), AskToSave(member(1, 0), 11, HEAD)]


def test_a_stage_that_cannot_be_saved_here_either_ends_the_checkpoint():
    play = Play()
    play.begun(FIRST)
    play.heard(member(0, 0), failed="not here", refused=True)

    play.rules.on_own_failure(10, 0, "the disk is full", play.now_s)

    (failed,) = play.seen(CheckpointFailed)
    assert failed.reason == "stage 0 was not saved: not here; the disk is full"
    assert play.rules.idle


def test_a_stage_without_servers_is_named():
    play = Play()

    play.rules.on_decision(10, HEAD, [HOLDERS[0], []], 0.0)

    (failed,) = play.seen(CheckpointFailed)
    assert failed.reason == "stage 1 was not saved: no server holds it"


def test_a_file_that_does_not_grow_is_given_up():
    play = Play()
    play.begun(FIRST)
    play.pass_time(QUIET_S - 1)
    play.heard(member(0, 0), written=1)
    play.heard(member(1, 0), written=0)  # says something, and has written nothing
    assert play.rules.next_deadline_s() == QUIET_S

    play.pass_time(2)

    (failed,) = play.seen(CheckpointFailed)
    assert failed.reason == f"stage 1 was not saved: its file has not grown for {QUIET_S:g} s"


def test_a_checkpoint_that_falls_due_while_another_is_written_is_left_out():
    play = Play()
    play.begun()

    assert not play.decided(20)
    play.rules.on_decision(30, HEAD, HOLDERS, 0.0)

    (failed,) = play.seen(CheckpointFailed)
    assert failed.reason == "that of step 10 is still being written"


def test_one_that_somebody_asks_for_follows_the_one_that_is_written():
    play = Play()
    play.begun(FIRST)
    play.seen(AskToSave)
    play.rules.save(13, HEAD, FIRST, 0.0)
    play.rules.save(10, HEAD, FIRST, 0.0)  # is being written
    assert not play.seen(AskToSave)
    play.wrote(member(0, 0))
    play.wrote(member(1, 0))

    play.rules.on_manifest(10, "there", 1.0)

    assert [order.version for order in play.seen(AskToSave)] == [13, 13]
    play.rules.save(10, HEAD, FIRST, 0.0)
    assert not play.seen(AskToSave)


def test_what_the_run_began_with_is_not_saved_again():
    play = Play(Checkpoints(CUT, 10, 1000, first=10))

    play.rules.save(10, HEAD, HOLDERS, 0.0)

    assert play.rules.idle
    assert play.rules.saved == 10


def test_who_waits_is_told_how_far_it_is():
    play = Play()
    play.begun(FIRST)
    play.heard(member(0, 0), written=5)
    assert not play.seen(CheckpointProgress)

    play.rules.watch()
    play.heard(member(1, 0), written=3)
    play.heard(member(1, 0), written=4)  # in the same second
    play.now_s = PROGRESS_EVERY_S
    play.wrote(member(0, 0))

    assert play.seen(CheckpointProgress) == [
        CheckpointProgress(10, 8, 18, 0, 2),
        CheckpointProgress(10, 13, 18, 1, 2),
    ]


def test_files_that_differ_make_no_checkpoint():
    play = Play()
    play.begun()
    for writer, digest in ((member(0, 0), b"a" * 32), (member(0, 1), b"b" * 32)):
        play.wrote(writer, digest=digest)
    play.wrote(member(1, 0))
    play.wrote(member(1, 1))

    (failed,) = play.seen(CheckpointFailed)
    assert failed.reason.startswith("two servers of stage 0 wrote different files")


@pytest.mark.parametrize(
    "changes", [{"stage": 1}, {"first_block": 1}, {"end_block": 3}], ids=lambda c: next(iter(c))
)
def test_a_report_of_other_blocks_is_a_breach_of_the_protocol(changes):
    play = Play()
    play.begun()

    with pytest.raises(BadMessage, match="not those of stage 0"):
        play.wrote(member(0, 0), **changes)


@pytest.mark.parametrize("by", [member(0, 2), member(7, 7)], ids=["not asked", "unknown"])
def test_a_word_of_one_that_was_not_asked_is_nothing(by):
    play = Play()
    play.begun()
    play.seen(AskToSave)

    play.rules.on_file(by, Saved(RUN, 10, 0, 0, 2, HEAD, 3, HEAD, 2, b"p" * 64), 0.0)
    play.heard(by, failed="no")
    play.wrote(member(0, 0), version=9)

    assert play.rules.drain() == []


WORDS = st.lists(
    st.tuples(
        st.sampled_from(["step", "wrote", "fails", "dies", "says", "wait", "written", "refused"]),
        st.integers(0, 1),
        st.integers(0, 2),
    ),
    max_size=60,
)


@given(WORDS)
def test_whatever_happens_a_version_is_saved_only_whole_and_the_rules_come_to_rest(words):
    """A manifest has a file of each stage, of its version; and no checkpoint lasts for ever."""
    play, version, asked, manifest = Play(), 0, {}, None
    for what, stage, number in [*words, *[("wait", 0, 2)] * 10]:
        by = member(stage, number)
        match what:
            case "step":
                version += 5
                play.rules.on_decision(version, HEAD, HOLDERS, play.now_s)
            case "wrote" if by in asked:
                play.wrote(by, version=asked[by])
            case "fails" if by in asked:
                play.heard(by, failed="no", version=asked[by])
            case "says" if by in asked:
                play.heard(by, written=int(play.now_s) + 1, version=asked[by])
            case "dies":
                play.rules.on_end(by, play.now_s)
            case "wait":
                play.pass_time(QUIET_S * number)
            case "written" | "refused" if manifest is not None:
                end = play.rules.published if what == "written" else play.rules.not_published
                end(manifest.version, "x", play.now_s)
                manifest = None
            case _:
                pass
        for action in play.rules.drain():
            match action:
                case AskToSave():
                    assert manifest is None, "one at a time"
                    asked[action.writer] = action.version
                case WriteManifest():
                    manifest = action
                    assert len(action.stages) == len(CUT)
                    assert action.version % 10 == 0
                case Checkpointed():
                    assert play.rules.saved == action.step
                case _:
                    pass
        assert play.rules.saved <= version

    assert play.rules.idle or manifest is not None


def test_what_a_writer_has_said_once_it_cannot_take_back():
    play = Play()
    play.begun(FIRST)
    play.wrote(member(0, 0), digest=b"a" * 32)

    play.wrote(member(0, 0), digest=b"b" * 32)
    play.heard(member(0, 0), failed="no")
    play.wrote(member(1, 0))

    (order,) = play.seen(WriteManifest)
    assert order.stages[0].state_digest == b"a" * 32
