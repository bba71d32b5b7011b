"""A trainer's reports of trouble as sentences for people, each with what can be done about it."""

import functools

from p2pswarm.base.ids import PeerId
from p2pswarm.run.view import Incarnation
from p2pswarm.trainer.balance.stage_coverage import LastLeaves
from p2pswarm.trainer.reports import actions as act
from p2pswarm.trainer.reports.leadership_reports import VotesLacking
from p2pswarm.trainer.reports.rollback_reports import CannotGoBack, NewestCopy
from p2pswarm.trainer.step.sums import SumKept, SumReport, SumVoided

TroubleReport = (
    act.VersionsRefused
    | LastLeaves
    | act.WeightsSought
    | act.DigestsTied
    | act.BeganWrong
    | act.AveragingSlow
    | act.ServerFails
    | act.RoadBroken
    | act.Quarantined
    | act.NotFiniteThere
    | act.WrongResult
    | act.ResultsTied
    | VotesLacking
    | NewestCopy
    | CannotGoBack
    | SumReport
)


@functools.singledispatch
def trouble_text(report: TroubleReport) -> str:
    """What a report of trouble means to people; one function for each kind of report."""
    raise AssertionError(f"no text for {report}")


@trouble_text.register
def _(report: act.VersionsRefused) -> str:
    who = "1 server speaks" if report.servers == 1 else f"{report.servers} servers speak"
    many = "s" if len(report.versions) > 1 else ""
    versions = ", ".join(map(str, report.versions))
    return (
        f"{who} version{many} {versions} of runs, this trainer {report.ours}: "
        "install the same release on both sides"
    )


@trouble_text.register
def _(report: LastLeaves) -> str:
    what = (
        f"the last server of stage {report.stage}, {_short(report.incarnation)}, leaves in "
        f"{report.stays_s:.0f} s at most"
    )
    if not report.saved:
        return (
            f"{what}: without another server by then, version {report.version} of its weights is "
            "lost, and no checkpoint.target is set"
        )
    return (
        f"{what}: a checkpoint of step {report.version} is being written; "
        "start another server of this stage"
    )


@trouble_text.register
def _(report: act.WeightsSought) -> str:
    return (
        f"the weights of stage {report.stage} (version {report.version}) were last at server "
        f"{_short(report.last)}, {report.address}: start it again if it stands still"
    )


@trouble_text.register
def _(report: NewestCopy) -> str:
    many = "stages" if len(report.stages) > 1 else "stage"
    lost = f"no server has brought back the weights of {many} {', '.join(map(str, report.stages))}"
    if report.saved is not None:
        age = "" if report.age_s is None else f", {report.age_s:.0f} s old"
        copy = f"the newest copy is the checkpoint of step {report.saved}{age}, in {report.place}"
    elif report.place:
        copy = f"there is no checkpoint yet in {report.place}"
    else:
        copy = "the run has no checkpoints (checkpoint.target)"
    if report.rewind_s is not None:
        back = "it" if report.saved is not None else "its first weights"
        return f"{lost}: {copy}; the run goes back to {back} in {report.rewind_s:.0f} s"
    if report.saved is None:
        return f"{lost}: {copy}; the run waits for a server that has them"
    return f"{lost}: {copy}; to go on from there, stop this trainer and start it with --resume"


@trouble_text.register
def _(report: CannotGoBack) -> str:
    return f"no checkpoint to go back to: {report.reason}"


@trouble_text.register
def _(report: act.DigestsTied) -> str:
    return (
        f"the servers of stage {report.stage} disagree about version {report.version}, as many on "
        "each side; the first goes on: a third server would tell which is wrong"
    )


@trouble_text.register
def _(report: act.BeganWrong) -> str:
    return (
        f"stage {report.stage} began with other weights than its run begins with: a server made "
        "them wrong, and was alone; begin the run again for the right ones"
    )


@trouble_text.register
def _(report: act.AveragingSlow) -> str:
    return (
        f"averaging step {report.step} took longer than {report.took_s:g} s; the next try may take "
        f"{report.limit_s:g} s"
    )


@trouble_text.register
def _(report: VotesLacking) -> str:
    names = ", ".join(
        PeerId(peer).short + (f" at {address}" if address else "")
        for peer, address in report.voters
    )
    return (
        f"nothing can be decided without an answer of {names}: start them again with their `state` "
        "folders, or go on from a checkpoint with `p2pswarm train --resume`"
    )


@trouble_text.register
def _(report: act.ServerFails) -> str:
    who = f"server {_short(report.incarnation)} of stage {report.stage}"
    failed = f"{who} failed {report.failures} times in a row ({report.reason})"
    if report.pause_s is None:
        return f"{failed} and no other serves its stage: start another"
    return f"{failed}: it gets no work for {report.pause_s:g} s"


@trouble_text.register
def _(report: act.RoadBroken) -> str:
    if report.lower is not None:
        lower = f"server {_short(report.lower)} of stage {report.stage - 1}"
    else:
        lower = f"stage {report.stage - 1}" if report.stage else "the trainer"
    upper = f"server {_short(report.upper)} of stage {report.stage}"
    return (
        f"microbatches do not get through between {lower} and {upper}, "
        f"{report.failures} times in a row ({report.reason}): look at their network"
    )


@trouble_text.register
def _(report: act.Quarantined) -> str:
    if report.held_out:
        return f"a held-out batch has no loss ({report.reason})"
    return (
        f"microbatch {report.microbatch} of step {report.step + 1} is not finite on any server "
        f"({report.reason}): it counts as zeros"
    )


@trouble_text.register
def _(report: act.NotFiniteThere) -> str:
    named = [f"server {_short(one)} of stage {stage}" for one, stage in report.suspects]
    who = named[0] if len(named) == 1 else "one of " + ", ".join(named)
    return (
        f"microbatch {report.microbatch} of step {report.step + 1} was not finite with {who} "
        f"({report.reason}), and was with others: look at that machine if it comes again"
    )


@trouble_text.register
def _(report: act.WrongResult) -> str:
    found = (
        f"server {_short(report.incarnation)} of stage {report.stage} computes wrong "
        f"(microbatch {report.microbatch}: {report.reason}); the step is done again"
    )
    if report.pause_s is None:
        return f"{found}, and no other serves its stage: start another, and look at that machine"
    return f"{found}, and it gets no work for {report.pause_s:g} s: look at that machine"


@trouble_text.register
def _(report: act.ResultsTied) -> str:
    names = ", ".join(map(_short, report.servers))
    return (
        f"the servers {names} of stage {report.stage} make different results of microbatch "
        f"{report.microbatch}: a third server would tell which is wrong"
    )


@trouble_text.register
def _(report: SumKept) -> str:
    return (
        f"server {_short(report.incarnation)} of stage {report.stage} is back: what it had "
        f"counted of the step stands ({report.microbatches})"
    )


@trouble_text.register
def _(report: SumVoided) -> str:
    return (
        f"server {_short(report.incarnation)} of stage {report.stage}: {report.reason}; its "
        f"{report.microbatches} microbatches count anew"
    )


def _short(incarnation: Incarnation) -> str:
    return PeerId(incarnation.peer).short
