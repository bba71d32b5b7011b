"""All that the coordinator returns: actions for its trainer, and reports for people and logs."""

from p2pswarm.progress.events import Report
from p2pswarm.trainer.balance.stage_coverage import AnswerLeave
from p2pswarm.trainer.reports import actions as act

Action = (
    act.Assign
    | act.Decline
    | act.Publish
    | AnswerLeave
    | act.Launch
    | act.CancelLaunch
    | act.SendFence
    | act.SendReduce
    | act.SendCommit
    | act.Decide
    | act.SeekCopy
    | act.GoBack
    | act.Evict
    | act.Probe
    | Report
)
