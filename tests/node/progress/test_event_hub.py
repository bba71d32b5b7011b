"""The events of one node on their way: numbered once, seen by all, and a server's own."""

from p2pswarm.base.ids import PeerId
from p2pswarm.node.progress.event_hub import EventHub, numbers_of
from p2pswarm.node.progress.server_events import ServerEvents
from p2pswarm.progress.events import Begun, Note, Peers, Serving, Started
from p2pswarm.run.messages.membership import Load
from p2pswarm.settings.config import RunConfig

ME = PeerId(bytes(32))


def test_all_who_listen_get_the_same_events_with_the_same_numbers():
    hub, first, second = EventHub(numbers_of(b"r" * 16, ME)), [], []

    hub.listen(first.append)
    hub.tell(Started(1))
    end = hub.listen(second.append)
    hub.tell(Note("a"))
    end()
    hub.tell(Note("b"))

    assert [one.n for one in first] == [1, 2, 3]
    assert second == first[1:2]
    assert {(one.run, one.by) for one in first} == {((b"r" * 16).hex()[:12], ME.short)}
    assert [one["text"] for one in hub.view.events()][-2:] == ["a", "b"]


def test_a_listener_that_ends_itself_costs_no_other_an_event():
    hub, told, ends = EventHub(numbers_of(b"", ME)), [], []
    ends.append(hub.listen(lambda _told: ends.pop()()))
    hub.listen(told.append)

    hub.tell(Note("a"))
    hub.tell(Note("b"))

    assert len(told) == 2


def test_a_server_tells_of_itself_under_the_run_that_it_takes_part_in():
    hub, told = EventHub(numbers_of(b"", ME)), []
    hub.listen(told.append)
    events = ServerEvents(hub, ME.short, "attic", "0.1.0")

    events.on_line("joining run 'a'")
    events.on_run(b"r" * 16, RunConfig(name="a", stages=2, steps=9))
    events.on_stage(1)
    events.on_load(1, Load(2, 0.0, 0.0, 3.5, 0))

    run = (b"r" * 16).hex()[:12]
    assert [one.run for one in told] == ["", "", run, run, run]
    first, _, begun, serving, peers = (one.event for one in told)
    assert first == Begun("", "stage", "attic", "0.1.0")
    assert (begun.run_name, begun.role, begun.stages) == ("a", "stage", 2)
    assert serving == Serving(ME.short, 1, "attic")
    assert isinstance(peers, Peers)
    shown = hub.view.to_json(told[-1].at)
    assert shown["servers"][ME.short]["rate_per_s"] == 3.5
    assert [row["ready"] for row in shown["stages"]] == [0, 1]
