"""Commit logs of newcomers and holders, and the steps that they go through."""

from p2pswarm.run.averaging.base import AveragedGradient
from p2pswarm.run.averaging.round import RoundId
from p2pswarm.run.messages.step import Commit, Reduce
from p2pswarm.server.commit_log import CommitDecision, CommitLog, ReducedGradient

RUN = b"r" * 16
OUTCOME = AveragedGradient(b"d", 1.0)


def reduce(step, generation=1):
    return Reduce(RUN, step, generation, 5, b"", (), ())


def commit(step, generation=1):
    return Commit(RUN, step, generation, 5, 1.0, 0.1)


def reduced(step, generation=1):
    round_ = RoundId(step, generation)
    return ReducedGradient(round_, f"sums of {round_}", OUTCOME)


def average(log, step, generation=1, *, fails=False):
    """A whole reduction, from its order to its end."""
    log.reduction_begun(reduce(step, generation))
    result = None if fails else reduced(step, generation)
    log.reduction_over(RoundId(step, generation), result)


def newcomer(since=3, **limits):
    log = CommitLog(**limits)
    log.begin(since, keep=False)
    return log


def holder(version=3, **limits):
    log = newcomer(version, **limits)
    log.became(version)
    log.hashed(b"w%d" % version)
    return log


def make(log, step, generation=1):
    """A whole step: the reduction, and its commit applied."""
    average(log, step, generation)
    assert log.committed(commit(step, generation)) is CommitDecision.APPLY
    log.take(commit(step, generation))
    log.applied(commit(step, generation))
    log.hashed(b"w%d" % (step + 1))
