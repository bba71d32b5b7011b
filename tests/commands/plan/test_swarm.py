"""`p2pswarm plan --from`: where the servers of a living swarm would serve best."""

import functools
import math
import re

import pytest
from node.harness import RUN, Town, identity_of, manifest_of, play, put

from p2pswarm import cli
from p2pswarm.base.errors import NotServing, Unusable
from p2pswarm.commands.plan.swarm import ANSWERS_MAX, capacities, living_lines, living_plan
from p2pswarm.net.wire.message import BYTES_MAX, decode, encode
from p2pswarm.node.progress.answers import LatestBalance
from p2pswarm.plan.capacity import Measured
from p2pswarm.plan.moves import Decision
from p2pswarm.run.messages.balance import (
    CAPACITIES_TOLD_MAX,
    AskCapacities,
    Capacity,
    RunCapacities,
    ServerCapacity,
)
from p2pswarm.run.messages.field_limits import MEMBERS_MAX
from p2pswarm.settings.config import ModelConfig, RunConfig
from p2pswarm.trainer.balance.balance_reports import (
    BalanceAsked,
    KnownServer,
)

FULL = Capacity(*(0.1,) * 7, 2**62, 2**62)
SMALL = RunConfig(stages=2, model=ModelConfig(d_model=64, layers=6, heads=2, sequence_length=64))


def peer(number: int) -> bytes:
    return number.to_bytes(32)


def asked(count: int, stages: int = 2) -> BalanceAsked:
    servers = (
        KnownServer(peer(one), one % stages, ready=True, capacity=FULL) for one in range(count)
    )
    return BalanceAsked(Decision(), (), 1, tuple(servers))


def latest_of(run: bytes, *reports: BalanceAsked) -> LatestBalance:
    latest = LatestBalance(run, "priced")
    for report in reports:
        latest.on_report(report, 1.0)
    return latest


def measured(seconds: float, **more) -> Capacity:
    return Capacity.of(Measured(forward_s=seconds / 3, backward_s=2 * seconds / 3, **more))


def test_a_whole_run_fits_into_answers_and_none_is_over_what_a_message_may_have():
    run = b"r" * 16
    latest = latest_of(run, asked(MEMBERS_MAX))
    known = []
    while len(known) < MEMBERS_MAX:
        answer = latest.capacities(AskCapacities(run, len(known)), {peer(5): 0.25})
        assert decode(encode(answer)) == answer
        assert len(encode(answer)) < BYTES_MAX
        assert (len(answer.servers), answer.total) == (CAPACITIES_TOLD_MAX, MEMBERS_MAX)
        known += answer.servers

    assert [one.peer for one in known] == [peer(number) for number in range(MEMBERS_MAX)]
    assert known[5].rtt_s == 0.25
    assert known[6].rtt_s is None


def test_another_run_is_not_served_and_before_the_first_step_nothing_is_known():
    latest = latest_of(b"r" * 16)

    assert latest.capacities(AskCapacities(b"r" * 16), {}) == RunCapacities((), 0)
    with pytest.raises(NotServing):
        latest.capacities(AskCapacities(b"x" * 16), {})


def answering(stack, latest: LatestBalance) -> None:
    def answer(peer_id, question: AskCapacities) -> RunCapacities:
        del peer_id
        return latest.capacities(question, {})

    stack.rpc.serve_unary(AskCapacities, answer)


def test_servers_of_the_only_run_are_asked_for_in_parts():
    async def story() -> None:
        town = Town()
        async with town.node() as trainer, town.node() as asking:
            await put(trainer, manifest_of(trainer))
            answering(trainer, latest_of(identity_of().run, asked(600, RUN.stages)))
            offer, servers = await capacities(asking, "")

            assert offer.config.name == RUN.name
            assert [one.peer for one in servers] == [peer(number) for number in range(600)]

    play(story())


@pytest.mark.parametrize(
    ("known", "says"),
    [
        (latest_of(identity_of().run), "nothing is known of the servers of the run .* before its"),
        (None, "no trainer of the run .* answers: p2pswarm status may tell why"),
    ],
)
def test_a_swarm_that_tells_nothing_is_one_line_with_what_to_do(known, says):
    async def story() -> None:
        town = Town()
        async with town.node() as trainer, town.node() as asking:
            await put(trainer, manifest_of(trainer))
            if known is not None:
                answering(trainer, known)
            with pytest.raises(Unusable, match=says) as caught:
                await capacities(asking, "")

            assert "\n" not in str(caught.value)

    play(story())


def test_who_answers_with_nothing_but_a_large_number_is_not_asked_for_ever():
    async def story() -> None:
        town = Town()
        questions = []

        def answer(peer_id, question: AskCapacities) -> RunCapacities:
            del peer_id
            questions.append(question)
            one = ServerCapacity(peer(1), 0, True, None, FULL)
            return RunCapacities((one,) * (3 - len(questions)), MEMBERS_MAX)

        async with town.node() as trainer, town.node() as asking:
            await put(trainer, manifest_of(trainer))
            trainer.rpc.serve_unary(AskCapacities, answer)
            _, servers = await capacities(asking, "")

            assert len(servers) == 1
            assert [question.first for question in questions] == [0, 2, 3]

    play(story())


def test_who_tells_one_server_at_a_time_is_not_asked_for_all_that_there_may_be():
    async def story() -> None:
        town = Town()
        questions = []

        def answer(peer_id, question: AskCapacities) -> RunCapacities:
            del peer_id
            questions.append(question)
            one = ServerCapacity(peer(len(questions)), 0, True, None, FULL)
            return RunCapacities((one,), MEMBERS_MAX)

        async with town.node() as trainer, town.node() as asking:
            await put(trainer, manifest_of(trainer))
            trainer.rpc.serve_unary(AskCapacities, answer)
            await capacities(asking, "")

            assert len(questions) == ANSWERS_MAX

    play(story())


def test_a_fast_server_in_the_crowded_stage_is_planned_where_it_helps():
    slow = functools.partial(measured, link_bytes_per_s=1e9)
    told = [
        ServerCapacity(peer(1), 0, True, 0.001, slow(1.0)),
        ServerCapacity(peer(2), 0, True, 0.001, slow(1.0)),
        ServerCapacity(peer(3), 0, True, None, Capacity()),
        ServerCapacity(peer(4), 1, True, 0.001, Capacity(forward_s=8.0)),
    ]
    found = living_plan(SMALL, told, 0.3, 1)

    assert found.answer.plan.seconds < found.now.seconds
    assert sum(found.answer.run.cut) == 8
    text = "\n".join(living_lines(found))
    assert re.match(
        r"4 servers as they are now: [\d.]+ s a step by this reckoning; the plan: [+]", text
    )
    assert "of 1 servers: the computing is not measured yet" in text
    assert "of 4 servers: the memory is not known" in text


def test_a_stage_that_has_lost_all_its_servers_stops_no_plan():
    told = [ServerCapacity(peer(one), 0, True, 0.001, measured(1.0)) for one in range(3)]

    found = living_plan(SMALL, told, 0.2, 1)

    assert found.now.seconds == math.inf
    assert found.answer.plan.seconds < math.inf
    assert "+inf" not in living_lines(found)[0]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--from", "h:1", "file.toml"], "--from plans a living swarm: leave out the file"),
        (["--from", "h:1", "--objective", "dtfm"], "leave out the file, --matrix and dtfm"),
        (["--from", "h"], "h"),
        (["--run", "x"], "--run names a run of a living swarm: give --from HOST:PORT, too"),
    ],
)
def test_flags_that_contradict_each_other_say_which(capsys, flags, says):
    assert cli.main(["plan", *flags]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1
