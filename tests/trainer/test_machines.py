"""The trainer's machines keep the contract of `base/machine.py`, whatever they are about."""

import pytest
from trainer.harness import CONFIG, RUN

from p2pswarm.base.ids import PeerId
from p2pswarm.base.machine import Machine
from p2pswarm.run.member_view import Incarnation
from p2pswarm.run.messages.membership import Assigned, Join
from p2pswarm.trainer.coordinator.coordinator import Coordinator
from p2pswarm.trainer.coordinator_io.checkpoints import Checkpoints
from p2pswarm.trainer.coordinator_io.connections import Connections
from p2pswarm.trainer.coordinator_io.server_reports import VersionRefusals
from p2pswarm.trainer.coordinator_io.views import Views

ANN = Incarnation(b"a" * 32, 1)


def coordinator_with_a_member() -> Coordinator:
    coordinator = Coordinator(CONFIG, RUN)
    coordinator.on_join(ANN.peer, Join(RUN, "h:1", None, None, b"", ()), 0.0)
    return coordinator


def checkpoint_under_way() -> Checkpoints:
    checkpoints = Checkpoints([range(2)], every_steps=2, last=8)
    checkpoints.on_decision(2, b"h" * 32, [[ANN]], 0.0)
    return checkpoints


def refusals_of_two() -> VersionRefusals:
    refusals = VersionRefusals(ours=1)
    for number in (1, 2):
        refusals.on_notice(PeerId(number.to_bytes(32)), 2, 0.0)
    return refusals


def a_member_that_hears_nothing() -> Connections:
    connections = Connections(Views(1))
    connections.open(ANN.peer)
    connections.assign(ANN, Assigned(0, ANN.number, 0, keep=True))
    return connections


@pytest.mark.parametrize(
    "begun",
    [coordinator_with_a_member, checkpoint_under_way, refusals_of_two, a_member_that_hears_nothing],
)
def test_a_machine_hands_out_once_and_moves_its_deadline_when_it_has_come(begun):
    machine: Machine = begun()

    assert machine.drain()
    assert not machine.drain()

    due_s = machine.next_deadline_s()
    assert due_s is not None
    for _ in range(3):
        machine.on_deadline(due_s)
    later_s = machine.next_deadline_s()
    assert later_s is None or later_s > due_s


@pytest.mark.parametrize(
    "begun", [coordinator_with_a_member, checkpoint_under_way, refusals_of_two]
)
def test_a_deadline_that_comes_too_early_does_no_harm(begun):
    machine: Machine = begun()
    machine.drain()
    due_s = machine.next_deadline_s()

    machine.on_deadline(due_s / 2)

    assert not machine.drain()
    assert machine.next_deadline_s() == due_s
