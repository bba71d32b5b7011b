"""The path of an input is short: how many files it enters, printed and held.

`python -m pytest tests/test_paths.py -q -s` prints a line for each.
"""

import asyncio
from collections.abc import Callable, Iterable

from entered import files_entered, tracing
from net.link.harness import End, listening
from net.rpc.harness import Ask
from trainer.harness import Play
from worlds.dht import DhtWorld, DhtWorldConfig

from p2pswarm.net.rpc.link_rpc import LinkRpc
from p2pswarm.run.member_view import Incarnation
from p2pswarm.run.messages.step import Reduced
from p2pswarm.settings.config import BatchConfig, RunConfig
from p2pswarm.sim.loop import run
from p2pswarm.trainer.coordinator.coordinator import Coordinator
from p2pswarm.trainer.reports import actions as act
from p2pswarm.trainer.reports.reports import MemberJoined

WARM_REQUEST_FILES_MAX = 17
DHT_GET_FILES_MAX = 16


def show(capsys, name: str, entered: list[str]) -> None:
    """Print the number, past pytest's capture, as scripts read it."""
    with capsys.disabled():
        print(f"\n{name}: {len(entered)} files")


def test_a_function_of_another_file_is_seen():
    from p2pswarm.base.ids import PeerId  # noqa: PLC0415 - the subject of the test

    assert files_entered(lambda: PeerId(b"\1" * 32).__str__()) == ["base/ids.py"]


def test_a_request_on_a_warm_link(capsys):
    """A call whose handler is a task: both sides, from the caller to its reply.

    The first call brings the link up, the second one meets the answer to the other side's ping. A
    timer that comes due meanwhile is no part of a request, so the shortest of three counts.
    """

    async def echo(_peer, ask):
        return ask

    with asyncio.Runner() as runner:
        caller, server = runner.run(ends())
        rpc = LinkRpc(caller)
        LinkRpc(server).serve_unary(Ask, echo)
        to = server.contact
        for number in range(2):
            assert runner.run(rpc.call(to, Ask(number), 10.0)) == Ask(number)

        entered = min(
            (files_entered(lambda: runner.run(rpc.call(to, Ask(2), 10.0))) for _ in range(3)),
            key=len,
        )

        for end in (caller, server):
            runner.run(end.close())
    show(capsys, "warm request", entered)
    assert len(entered) <= WARM_REQUEST_FILES_MAX


async def ends() -> tuple[End, End]:
    """Two endpoints on loopback; the second one listens."""
    return End(), await listening(End())


def test_a_get_from_the_dht(capsys):
    """One value among 100 nodes, got by the node that is farthest from its key, which asks first.

    Counted is the whole get: at the node that asks, and at all that are asked. The simulated
    network itself (`sim/`) is left out, since it stands for sockets and kernels.
    """
    entered = dht_get(nodes=100)

    show(capsys, "dht get", entered)
    assert len(entered) <= DHT_GET_FILES_MAX, entered


def dht_get(nodes: int) -> list[str]:
    key = bytes(32)

    async def play() -> list[str]:
        world = DhtWorld(DhtWorldConfig(nodes=nodes, stale=0.0))
        await world.nodes[0].put(key, b"", b"value", 3600.0, republish=False)
        await asyncio.sleep(10)  # replicas that nobody waits for
        asker = max(world.nodes, key=lambda node: node.contact.peer.distance(key))
        with tracing() as entered:
            found = await asker.get(key)
        await world.close()
        assert key not in asker.store
        assert found[b""].value == b"value"
        return [path for path in entered if not path.startswith("sim/")]

    return run(play(), seed=1)


class RunUnderWay(Play):
    """A coordinator in the middle of its second step: three stages of three servers each.

    Each input is traced with the actions that it leads to. What its shell asks beside that, the
    next deadline, is asked after each input and is not traced.
    """

    def __init__(self) -> None:
        batch = BatchConfig(microbatches=96, evaluate_every=0)
        super().__init__(RunConfig(stages=3, steps=9, batch=batch), Coordinator)
        self.left: dict[int, act.Launch] = {}
        """The microbatches that were launched, and are not counted by every stage."""
        self.entered: dict[str, None] = {}
        members = [self.join(name, stage=place % 3) for place, name in enumerate("abcdefghi")]
        for place, member in enumerate(members):
            self.ready(member, digest=b"w%d" % (place % 3))
        self.stages = [members[stage::3] for stage in range(3)]
        self.take(self.coordinator.drain())
        for order in self.finish_step():
            if isinstance(order, act.SendCommit):
                self.commit(order.incarnation, b"v", order.message.step)
        self.count_until(left=40)

    def take(self, actions: Iterable) -> None:
        """Hand out what is launched, stage by stage."""
        for launch in actions:
            if isinstance(launch, act.Launch):
                self.left[launch.microbatch] = launch
                for member in self.path(launch.microbatch):
                    self.hand(member, launch.microbatch, launch.attempt, launch.step)

    def path(self, microbatch: int) -> list[Incarnation]:
        """The servers that a microbatch goes through, from the first stage to the last."""
        return [servers[microbatch % 3] for servers in self.stages]

    def trace(self, act: Callable[[], object]) -> list:
        """Carry out an input; what it asks for. The files that it enters are written down."""
        self.now_s += 0.001
        drained: list = []
        entered = files_entered(lambda: (act(), drained.extend(self.coordinator.drain())))
        self.entered |= dict.fromkeys(entered)
        self.coordinator.next_deadline_s()
        return drained

    def files(self) -> list[str]:
        """The files that were entered since this was asked last."""
        files, self.entered = list(self.entered), {}
        return files

    def count_one(self, microbatch: int, stage: int) -> list:
        by, step = self.path(microbatch)[stage], self.left[microbatch].step
        return self.trace(lambda: self.count(by, microbatch, step=step))

    def count_in_all_stages(self, microbatch: int) -> list:
        """The gradient comes down from the last stage to the first."""
        actions = [a for stage in (2, 1, 0) for a in self.count_one(microbatch, stage)]
        del self.left[microbatch]
        return actions

    def count_until(self, left: int) -> None:
        """Count the oldest microbatches until so many are under way or wait."""
        done = 96 * (self.coordinator.step + 1) - left
        while min(self.left) < done:
            self.take(self.count_in_all_stages(min(self.left)))
        self.files()

    def finish_step(self) -> list:
        """All that is left of the step, until the next one begins; what is asked then."""
        while len(self.left) > 1:
            self.take(self.count_in_all_stages(min(self.left)))
        (last,) = self.left
        for stage in (2, 1):
            self.count_one(last, stage)
        self.files()
        actions = self.count_one(last, 0)
        del self.left[last]
        while not any(isinstance(action, act.Launch) for action in actions):
            actions = [later for action in actions for later in self.answer(action)]
            assert actions, "the next step begins"
        self.take(actions)
        return actions

    def answer(self, action: object) -> list:
        """What follows once an order was carried out."""
        match action:
            case act.SendReduce(to, message):
                answer = Reduced(b"g", 1.0, state=self.states[to])
                return self.trace(
                    lambda: self.coordinator.on_reduction(
                        to, message.generation, answer, self.now_s
                    )
                )
            case act.Decide():
                return self.trace(lambda: self.coordinator.on_decision(action.step, self.now_s))
        return []


def test_a_count_asks_those_alone_that_it_is_about(capsys):
    """It is the longest of its kind: the microbatch is done with it, and another is launched."""
    run = RunUnderWay()
    oldest = min(run.left)
    run.count_one(oldest, 2)
    run.count_one(oldest, 1)
    in_one_stage = run.files()

    launched = run.count_one(oldest, 0)

    counted = run.files()
    assert any(isinstance(action, act.Launch) for action in launched)
    assert set(in_one_stage) <= set(counted)
    assert len(counted) <= 11
    show(capsys, "counted", counted)


def test_a_join_asks_for_a_place_and_for_weights(capsys):
    run = RunUnderWay()

    actions = run.trace(lambda: run.coordinator.on_join(b"x" * 32, run.join_message(), run.now_s))

    joined = run.files()
    assert [type(action) for action in actions] == [act.Assign, MemberJoined, act.Publish]
    assert len(joined) <= 12
    show(capsys, "join", joined)


def test_the_end_of_a_step_from_its_last_count_to_the_next_launch(capsys):
    """Whether servers should move is asked every two seconds at most, and was just before."""
    run = RunUnderWay()

    run.finish_step()

    end = run.files()
    assert run.coordinator.step == 2
    assert len(end) <= 26  # one of them only tells where the step's seconds went
    show(capsys, "step end", end)
