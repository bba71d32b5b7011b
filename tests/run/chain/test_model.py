"""Every interleaving of a small world: none breaks the chain, and each mutant of the rules does."""

import itertools
from dataclasses import replace

import pytest
from run.chain.harness import genesis
from run.chain.model import Plan, Violation, check

from p2pswarm.run.chain.acceptor import ChainAcceptor, Register
from p2pswarm.run.chain.chain import Genesis
from p2pswarm.run.chain.leader import Leader
from p2pswarm.run.chain.messages import Promise
from p2pswarm.run.chain.record import RecordKind
from p2pswarm.server.commit_log import CommitLog

SAME = ("abc",)
CHANGE = ("abc", "abd")


@pytest.mark.parametrize(
    ("plan", "states"),
    [
        pytest.param(Plan(changes=(SAME,), begun=False), 1_000, id="two elections"),
        pytest.param(Plan(changes=(SAME, CHANGE)), 15_000, id="a voter is replaced"),
        pytest.param(Plan(trainers="aba", changes=(SAME,)), 5_000, id="three leaders"),
        pytest.param(
            Plan(trainers="ab", voters="abc", genesis=genesis("ab", "a"), changes=(("abc",), SAME)),
            1_000,
            id="one voter becomes three",
        ),
        pytest.param(
            Plan(changes=(SAME, CHANGE), also=(1,)),
            40_000,
            id="only the voters change, or a step is decided",
        ),
        pytest.param(
            Plan(trainers="ab", voters="abc", changes=(("a", "abc"), ("abc", "a"))),
            1_000,
            id="three voters become one",
        ),
        pytest.param(
            Plan(trainers="aba", changes=(SAME,), members=2),
            10_000,
            id="three leaders, each of which has the step reduced",
        ),
    ],
)
def test_no_interleaving_breaks_the_chain(plan, states):
    seen, decisions = check(plan)

    assert seen > states
    assert decisions > 100


class OnlyNewVotersDecide(Leader):
    def _is_decided(self, record):
        return 2 * sum(v in self._accepted for v in record.voters) > len(record.voters)


class OnlyOldVotersDecide(Leader):
    def _is_decided(self, record):
        voters = record.voters_before
        return 2 * sum(v in self._accepted for v in voters) > len(voters)


class OldVotersDecideWhoVotes(OnlyOldVotersDecide):
    """It takes a record that only changes the voters for a matter of those who vote already."""

    def _is_decided(self, record):
        steps = record.kind != RecordKind.VOTERS
        return Leader._is_decided(self, record) if steps else super()._is_decided(record)


class OnlyTheHeadsVotersPromise(Leader):
    def _electorates(self, record):
        return super()._electorates(record if self.pending else None)


class BeginsWithoutLooking(Leader):
    def _best(self):
        return None


class TakesTheHighestRecord(Leader):
    """It does not ask under which term a record was accepted."""

    def _best(self):
        accepted = [p.accepted for p in self._promises.values() if p.accepted]
        beyond = [record for record in accepted if record.height >= self.head.height]
        return max(beyond, key=lambda record: (record.height, -record.term), default=None)


class ForgetsItsPromise(ChainAcceptor):
    """The promise was not on the disk when the voter was started again."""

    def __init__(self, voter, chain, register):
        super().__init__(voter, chain, replace(register, promised=register.accepted_term))


class KeepsNoTermApart(ChainAcceptor):
    """It promises a term twice, and accepts two records in one place of it."""

    def _prepared(self, sender, message, now_s):
        self.register = replace(self.register, promised=0)
        return super()._prepared(sender, message, now_s)

    def _proposed(self, sender, message, now_s):
        if self.register.rank == (message.term, message.record.height):
            self.register = replace(self.register, accepted=None)
        return super()._proposed(sender, message, now_s)


class KeepsSilentOfWhatItAccepted(ChainAcceptor):
    def _prepared(self, sender, message, now_s):
        answer = super()._prepared(sender, message, now_s)
        if isinstance(answer, Promise):
            return replace(answer, accepted_term=0, accepted=None)
        return answer


class LosesItsDisk(ChainAcceptor):
    """The file is gone, and the voter says that it is the same as before."""

    def __init__(self, voter, chain, register):
        super().__init__(voter, chain, Register())


class KeepsTheLastReductionOnly(CommitLog):
    def reduction_over(self, round_, reduced):
        self._reduced.clear()
        super().reduction_over(round_, reduced)


class KeepsTheFirstReductionOnly(CommitLog):
    def reduction_over(self, round_, reduced):
        super().reduction_over(round_, reduced)
        self._reduced = dict(itertools.islice(self._reduced.items(), 1))


def grown() -> Genesis:
    return genesis("ab", "a")


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(
            Plan(
                genesis=grown(),
                voters="abc",
                changes=(("abc",), SAME),
                leader_class=OnlyNewVotersDecide,
            ),
            id="counts a majority of the new voters only",
        ),
        pytest.param(
            Plan(changes=(CHANGE, CHANGE), leader_class=OnlyOldVotersDecide),
            id="counts a majority of the old voters only",
        ),
        pytest.param(
            Plan(
                genesis=grown(),
                voters="abc",
                trainers="aba",
                changes=(("abc",), SAME),
                leader_class=OnlyTheHeadsVotersPromise,
            ),
            id="asks the voters of its head only",
        ),
        pytest.param(
            Plan(changes=(SAME, CHANGE), also=(1,), leader_class=OldVotersDecideWhoVotes),
            id="lets the old voters alone say who votes",
        ),
        pytest.param(Plan(leader_class=BeginsWithoutLooking), id="ignores what was accepted"),
        pytest.param(
            Plan(trainers="aba", changes=(SAME, SAME), leader_class=TakesTheHighestRecord),
            id="takes the highest record of any term",
        ),
        pytest.param(Plan(acceptor_class=ForgetsItsPromise), id="keeps no promise on its disk"),
        pytest.param(
            Plan(terms=(1, 1), begun=False, changes=(CHANGE,), acceptor_class=KeepsNoTermApart),
            id="promises a term twice",
        ),
        pytest.param(Plan(acceptor_class=KeepsSilentOfWhatItAccepted), id="hides what it accepted"),
        pytest.param(Plan(acceptor_class=LosesItsDisk), id="forgets everything"),
        pytest.param(
            Plan(
                trainers="aba",
                changes=(SAME,),
                members=2,
                log_class=KeepsTheLastReductionOnly,
            ),
            id="members forget a reduction when the step is reduced again",
        ),
        pytest.param(
            Plan(
                trainers="aba",
                changes=(SAME,),
                members=1,
                log_class=KeepsTheFirstReductionOnly,
            ),
            id="members do not keep the reduction of a later term",
        ),
    ],
)
def test_a_broken_rule_is_found(plan):
    with pytest.raises(Violation):
        check(plan)
