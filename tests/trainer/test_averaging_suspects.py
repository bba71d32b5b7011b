"""A stage's gradient that is not finite: it may be one server's lie, and not the training."""

from trainer.harness import Play

from p2pswarm.run.member_view import Incarnation
from p2pswarm.run.messages.step import Reduce
from p2pswarm.settings.config import BatchConfig, RunConfig
from p2pswarm.trainer.members.averaging_suspects import AveragingSuspects
from p2pswarm.trainer.reports import actions as act
from p2pswarm.trainer.reports.reports import RunFinished, StepDone

THREE = RunConfig(stages=1, steps=3, batch=BatchConfig(microbatches=3, evaluate_every=0))
ANN, BOB, CAT = (Incarnation(name * 32, number) for number, name in enumerate((b"a", b"b", b"c")))


def trusted(*_peer: bytes) -> bool:
    return True


class Spoiled(Play):
    """A play in which members do all that is asked, and one or some give sums of NaN."""

    def __init__(self, *liars: str) -> None:
        super().__init__(THREE)
        self.liars = [name.encode() * 32 for name in liars]
        self.orders: list[Reduce] = []

    def go_on(self, seconds: float) -> None:
        """Answer fences, count what is launched, and average, for so long."""
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            for action in self.seen(object):
                self.answer(action)
            self.wait(0.1)

    def answer(self, action: object) -> None:
        members = self.coordinator.members
        match action:
            case act.SendFence(incarnation=one):
                self.promise(one)
            case act.Launch(microbatch=microbatch, attempt=attempt):
                ready = [member.incarnation for member in members.ready()]
                if ready:
                    by = ready[microbatch % len(ready)]
                    self.count(by, microbatch, step=microbatch // 3, attempt=attempt)
            case act.Evict(incarnation=one):
                back = self.join(one.peer[:1].decode(), stage=0, version=0, digest=b"w0")
                self.ready(back)
            case act.SendReduce(incarnation=one, message=order):
                self.orders.append(order)
                spoiled = any(peer in self.liars for peer in order.group)
                self.told_reduced(one, order.generation, norm=None if spoiled else 1.0)
            case StepDone() | RunFinished():
                self.ends.append(action)

    @property
    def ends(self) -> list[object]:
        return self.__dict__.setdefault("_ends", [])


def test_a_server_whose_sum_is_not_finite_is_left_out_and_the_step_is_done():
    for liar in "abc":
        play = Spoiled(liar)
        for name in "abc":
            play.serve(name)

        play.go_on(8.0)

        assert isinstance(play.ends[0], StepDone), liar
        assert liar.encode() * 32 not in play.orders[-1].group


def test_servers_that_lie_together_are_left_out_though_one_alone_is_honest():
    play = Spoiled("b", "c")
    for name in "abc":
        play.serve(name)

    play.go_on(8.0)

    assert isinstance(play.ends[0], StepDone)
    assert play.orders[-1].group == (b"a" * 32,)


def test_a_gradient_that_is_not_finite_with_any_of_them_ends_the_run():
    play = Spoiled("a", "b", "c")
    for name in "abc":
        play.serve(name)

    play.go_on(30.0)

    (ended,) = play.ends
    assert isinstance(ended, RunFinished)
    assert "lower the learning rate" in ended.reason


def test_those_are_left_out_first_that_are_trusted_least():
    suspects = AveragingSuspects()
    assert suspects.next(0, [ANN, BOB, CAT], lambda peer: peer != BOB.peer) == BOB
    assert suspects.on_decision() == []

    first = suspects.next(0, [ANN, BOB, CAT], trusted)
    second = suspects.next(0, [ANN, CAT], trusted)

    assert (first, second) == (BOB, CAT), "it was before; and then who came last"
    assert suspects.on_decision() == [BOB.peer]


def test_the_last_one_is_left_out_alone_and_then_it_is_nobody():
    suspects = AveragingSuspects()
    tried = [suspects.next(0, group, trusted) for group in ([ANN, BOB], [ANN])]
    back = suspects.cleared(0)

    assert tried == [BOB, ANN]
    assert back == [BOB.peer]
    assert suspects.left_out(ANN.peer)
    assert not suspects.left_out(BOB.peer)
    assert suspects.next(0, [BOB], trusted) is None


def test_a_stage_with_one_server_has_nobody_to_leave_out():
    suspects = AveragingSuspects()

    assert suspects.next(0, [ANN], trusted) is None
    assert suspects.on_decision() == []
