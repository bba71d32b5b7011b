"""The rules of a link: when it pings, what silence means, when bulk is wanted, how it ends."""

import struct

import pytest
from net.link.harness import LinkPair, machine

from p2pswarm.base.errors import BadChunk, BadFrame, LinkLost
from p2pswarm.net.link.channel_demand import AGAIN_S
from p2pswarm.net.link.events import (
    BulkWanted,
    LinkEnded,
    LinkUp,
    PathBroken,
    PathWanted,
    StreamData,
    StreamOpened,
)
from p2pswarm.net.link.link import CLOSE_S, LinkMachine, LinkState
from p2pswarm.net.link.stream_scheduler import GATHERED_MAX, AnswerBatch
from p2pswarm.net.wire import frames


def ended_by(link: LinkMachine) -> str:
    """Why the link ended: its last event says it."""
    (event,) = link.events()
    assert isinstance(event, LinkEnded)
    assert event.error is link.error
    return str(event.error)


def tick(link: LinkMachine, until_s: float) -> None:
    """Let the time pass, deadline by deadline, on a link that hears and sends nothing."""
    while (at_s := link.next_deadline_s()) is not None and at_s <= until_s:
        link.on_deadline(at_s)
        while link.data_to_send(at_s):
            pass


# pings


def test_a_link_begins_with_its_event_and_a_ping():
    link = machine(dialled=True, now_s=3.0, idle_ping_s=5.0)
    link.start(3.0)

    assert link.drain() == [LinkUp()]
    assert link.data_to_send(3.0)
    assert link.next_deadline_s() == 8.0


def test_a_ping_measures_the_round_trip():
    pair = LinkPair(now_s=0.0)
    assert pair.dialler.life.rtt_s == 0.0

    pair.dialler.on_deadline(5.0)
    pair.carry(pair.dialler, pair.acceptor, 5.1)
    pair.carry(pair.acceptor, pair.dialler, 5.2)

    assert pair.dialler.life.rtt_s == pytest.approx(0.2 / 8)  # the first, in no time, was 0 s


@pytest.mark.parametrize("clock_s", [1e9, -1e9, float("nan"), float("inf")])
def test_a_pong_that_answers_no_ping_of_ours_measures_nothing(clock_s: float):
    pair = LinkPair()

    pair.acceptor.mux.say(frames.PONG, struct.pack(">d", clock_s))
    pair.settle(1.0)

    assert pair.dialler.life.rtt_s == 0.0
    assert pair.dialler.error is None


def test_a_link_that_hears_nothing_for_three_pings_is_over():
    pair = LinkPair(idle_ping_s=5.0, dead_after_s=15.0)
    tick(pair.dialler, 15.0)
    assert pair.dialler.error is None

    tick(pair.dialler, 20.0)

    assert "silent for 15 s" in ended_by(pair.dialler)
    assert pair.dialler.state is LinkState.ENDED


def test_whoever_is_heard_is_not_silent():
    pair = LinkPair(idle_ping_s=5.0, dead_after_s=15.0)

    for now_s in (5.0, 10.0, 15.0, 20.0, 25.0):
        pair.dialler.on_deadline(now_s)
        pair.settle(now_s)

    assert pair.dialler.error is None


def test_a_stall_of_our_own_is_not_the_peers():
    """Silent periods are counted: a loop that stood still for a minute has counted one."""
    pair = LinkPair(idle_ping_s=5.0, dead_after_s=15.0)

    pair.dialler.on_deadline(60.0)

    assert pair.dialler.error is None
    assert pair.dialler.next_deadline_s() == 65.0


def test_a_deadline_that_comes_early_does_nothing():
    pair = LinkPair(idle_ping_s=5.0)

    pair.dialler.on_deadline(4.9)

    assert pair.dialler.data_to_send(4.9) == b""
    assert pair.dialler.next_deadline_s() == 5.0


# bulk


@pytest.mark.parametrize(("rtt_s", "connections"), [(0.0, 1), (0.1, 2)])
def test_the_dialler_makes_bulk_connections_more_to_a_peer_that_is_far(rtt_s, connections):
    pair = LinkPair(bulk_connections=1, bulk_connections_far=2, far_s=0.01)
    pair.dialler.on_deadline(5.0)
    pair.carry(pair.dialler, pair.acceptor, 5.0)
    pair.carry(pair.acceptor, pair.dialler, 5.0 + 8 * rtt_s)

    assert pair.dialler.want_bulk(6.0)
    assert pair.dialler.drain() == [BulkWanted(connections)]
    assert not pair.dialler.want_bulk(6.0)
    assert pair.dialler.drain() == []


def test_the_acceptor_asks_the_dialler_and_waits_as_long_as_a_dial_may_take():
    pair = LinkPair(dial_s=1.0, handshake_s=2.0)

    assert pair.acceptor.want_bulk(0.5)
    pair.settle(0.5)

    assert pair.dialler.drain() == [BulkWanted(1)]
    assert pair.acceptor.next_deadline_s() == 3.5
    pair.acceptor.on_deadline(3.5)
    assert "no bulk connection in 3 s" in ended_by(pair.acceptor)


def test_a_bulk_connection_in_time_ends_the_wait():
    pair = LinkPair(dial_s=1.0, handshake_s=2.0)
    pair.acceptor.want_bulk(0.5)

    pair.acceptor.bulk.on_join(0, 1.0)

    assert pair.acceptor.next_deadline_s() == 5.0
    assert not pair.acceptor.want_bulk(1.0)


def test_only_the_dialler_may_be_asked_for_bulk():
    pair = LinkPair()

    pair.dialler.mux.say(frames.ASK_BULK)
    pair.settle()

    assert isinstance(pair.acceptor.error, BadFrame)


def test_a_bulk_connection_that_ends_is_replaced_by_who_dialled_it_and_costs_no_link():
    pair = LinkPair()
    pair.dialler.want_bulk(0.0)
    pair.dialler.drain()
    number = pair.dialler.bulk.take_number()
    assert pair.acceptor.bulk.claim(number)
    for side in (pair.dialler, pair.acceptor):
        side.bulk.on_join(number, 0.5)

        side.on_channel_loss(LinkLost("reset"), 3.0)
        tick(side, 3.0)

    assert pair.dialler.drain() == [BulkWanted(1)]
    assert pair.acceptor.drain() == []
    assert pair.dialler.error is pair.acceptor.error is None


def test_a_bulk_connection_that_ends_at_once_is_replaced_after_a_pause():
    pair = LinkPair()
    pair.dialler.want_bulk(0.0)
    pair.dialler.drain()
    pair.dialler.bulk.on_join(pair.dialler.bulk.take_number(), 3.0)

    pair.dialler.on_channel_loss(LinkLost("reset"), 3.1)

    assert pair.dialler.next_deadline_s() == 3.0 + AGAIN_S


def test_a_bulk_connection_that_broke_the_protocol_ends_the_link_at_once():
    pair = LinkPair()

    pair.dialler.on_channel_loss(BadChunk("outside"), 1.0)

    assert ended_by(pair.dialler) == "outside"


# answers that leave together


def test_answers_are_gathered_in_eights_until_all_have_run():
    gathering = AnswerBatch()

    assert gathering.begin()
    assert not gathering.begin()
    held = [gathering.waits() for _ in range(2 * GATHERED_MAX)]

    assert [at for at, wait in enumerate(held, 2) if not wait] == [GATHERED_MAX, 2 * GATHERED_MAX]
    gathering.end()
    assert not gathering.count


# the end


def test_a_link_that_both_have_left_closes_when_its_streams_have_finished():
    pair = LinkPair()
    stream = pair.dialler.mux.open(b"question", ended=True, priority=0)
    pair.dialler.leave()
    pair.settle()
    assert (pair.dialler.state, pair.acceptor.state) == (LinkState.LEAVING, LinkState.LEFT)

    pair.acceptor.leave()
    pair.settle()
    assert {pair.dialler.state, pair.acceptor.state} == {LinkState.DRAINING}
    assert not pair.acceptor.close_if_quiet(1.0, bulk_busy=False)

    pair.acceptor.mux.send(stream, b"answer", ended=True)
    pair.settle()

    assert pair.dialler.events() == [StreamData(stream, b"answer", True)]
    assert not pair.dialler.close_if_quiet(1.0, bulk_busy=True)
    assert pair.dialler.close_if_quiet(1.0, bulk_busy=False)
    assert "replaced" in ended_by(pair.dialler)


def test_a_peer_that_does_not_agree_to_leave_has_as_long_as_a_silent_one():
    pair = LinkPair(dead_after_s=15.0)
    pair.dialler.leave()
    pair.settle()
    assert not pair.dialler.close_if_quiet(0.0, bulk_busy=False)
    stream = pair.acceptor.mux.open(b"one more", ended=True, priority=0)
    pair.settle()
    assert not pair.dialler.close_if_quiet(15.0, bulk_busy=False), "a stream is open"
    pair.dialler.mux.send(stream, b"answer", ended=True)
    pair.settle()

    assert not pair.dialler.close_if_quiet(16.0, bulk_busy=False)
    assert not pair.dialler.close_if_quiet(30.0, bulk_busy=True)
    assert not pair.dialler.close_if_quiet(31.0, bulk_busy=False)
    assert pair.dialler.close_if_quiet(46.0, bulk_busy=False)
    assert not pair.acceptor.close_if_quiet(100.0, bulk_busy=False), "it has not left"


def test_leaving_twice_says_so_once():
    pair = LinkPair()
    pair.dialler.leave()
    pair.settle()

    pair.dialler.leave()

    assert pair.dialler.data_to_send(0.0) == b""
    assert not pair.dialler.close_if_quiet(0.0, bulk_busy=False)


def test_a_peer_that_leaves_twice_changes_nothing():
    pair = LinkPair()
    pair.dialler.mux.say(frames.GOAWAY)
    pair.dialler.mux.say(frames.GOAWAY)
    pair.settle()

    assert pair.acceptor.state is LinkState.LEFT


def test_what_is_queued_leaves_before_a_link_closes():
    pair = LinkPair()
    pair.dialler.mux.open(b"last words", ended=True, priority=0)

    pair.dialler.close(2.0)
    pair.settle(2.0)

    assert "closed by us" in ended_by(pair.dialler)
    assert pair.acceptor.events() == [StreamOpened(1, b"last words", True)]
    assert pair.dialler.next_deadline_s() == 2.0 + CLOSE_S


def test_a_closing_link_ends_when_its_time_is_up_or_its_connection_is_gone():
    late, gone = LinkPair(), LinkPair()
    late.dialler.close(2.0)
    gone.dialler.close(2.0)

    late.dialler.on_deadline(2.5)
    assert late.dialler.state is LinkState.CLOSING
    late.dialler.on_deadline(2.0 + CLOSE_S)
    gone.dialler.on_path_loss(LinkLost("closed"), 2.5)

    assert late.dialler.state is gone.dialler.state is LinkState.ENDED
    assert late.dialler.next_deadline_s() is gone.dialler.next_deadline_s() is None
    assert len(gone.dialler.events()) == 1


def test_a_link_that_failed_sends_and_says_nothing_more():
    pair = LinkPair()
    pair.acceptor.mux.open(b"unheard", ended=True, priority=0)
    pair.dialler.mux.open(b"unsent", ended=True, priority=0)
    pair.dialler.want_bulk(0.0)

    pair.dialler.fail(LinkLost("cut"))
    pair.dialler.fail(LinkLost("again"))
    pair.dialler.close(0.0)
    pair.dialler.resume_writing()
    pair.settle()

    assert ended_by(pair.dialler) == "cut"
    assert pair.dialler.events() == pair.dialler.drain() == pair.acceptor.events() == []
    assert not pair.dialler.want_bulk(0.0)
    with pytest.raises(LinkLost, match="has ended: cut"):
        pair.dialler.check_up()


def test_what_came_with_the_frames_that_broke_the_link_is_not_told():
    pair = LinkPair()
    pair.acceptor.mux.open(b"well", ended=True, priority=0)
    good = pair.acceptor.data_to_send(0.0)

    pair.dialler.on_data(good + pair.acceptor.records.seal(bytes(12), 0.0), 0.0)

    assert "kind 0" in ended_by(pair.dialler)


def test_what_came_before_bytes_that_broke_the_path_is_told_and_the_link_goes_on():
    pair = LinkPair()
    pair.acceptor.mux.open(b"well", ended=True, priority=0)
    good = pair.acceptor.data_to_send(0.0)
    pair.acceptor.mux.open(b"later", ended=True, priority=0)
    late = pair.acceptor.data_to_send(0.0)

    pair.dialler.on_data(good + late[:-1] + bytes([late[-1] ^ 1]), 0.0)

    assert [event.data for event in pair.dialler.events()] == [b"well"]
    assert pair.dialler.drain() == [PathBroken()]
    assert pair.dialler.error is None


def test_bytes_that_prove_nothing_are_no_sign_of_life():
    """A length that was altered leaves us waiting for a record that never comes whole."""
    pair = LinkPair(idle_ping_s=5.0, path_silent_s=10.0, dead_after_s=15.0)
    pair.dialler.on_data((60_000).to_bytes(4), 0.0)
    wanted_s = None
    while wanted_s is None:
        at_s = pair.dialler.next_deadline_s()
        pair.dialler.on_deadline(at_s)
        pair.dialler.on_data(bytes(48), at_s)
        if any(isinstance(news, PathWanted) for news in pair.dialler.drain()):
            wanted_s = at_s

    assert wanted_s == 15.0


def test_a_crowded_connection_is_given_nothing_until_it_takes_more():
    pair = LinkPair()
    pair.dialler.check_up()
    pair.dialler.mux.open(b"later", ended=True, priority=0)

    pair.dialler.pause_writing()
    assert pair.dialler.data_to_send(0.0) == b""
    pair.dialler.resume_writing()

    assert pair.carry(pair.dialler, pair.acceptor, 0.0) == 1
