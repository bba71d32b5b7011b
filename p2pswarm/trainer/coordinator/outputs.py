"""All that the coordinator returns: actions for its trainer, and reports for people and logs."""

from p2pswarm.trainer.balance.balance_reports import BalanceReport
from p2pswarm.trainer.balance.stage_coverage import AnswerLeave, LastLeaves
from p2pswarm.trainer.reports import actions as act
from p2pswarm.trainer.reports.checkpoint_reports import CheckpointReport
from p2pswarm.trainer.reports.leadership_reports import LeadershipReport
from p2pswarm.trainer.reports.rollback_reports import RewindReport
from p2pswarm.trainer.step.sums import SumReport

Report = (
    act.MemberJoined
    | act.MemberReady
    | act.MemberLost
    | act.Replayed
    | act.Quarantined
    | act.NotFiniteThere
    | act.WrongResult
    | act.ResultsTied
    | act.StepDone
    | act.EvaluationDone
    | act.StagesUnserved
    | LastLeaves
    | act.WeightsSought
    | act.DigestsTied
    | act.BeganWrong
    | act.AveragingSlow
    | act.ServerFails
    | act.RoadBroken
    | act.RunBegun
    | act.Loaded
    | act.VersionsRefused
    | act.RunFinished
    | BalanceReport
    | CheckpointReport
    | RewindReport
    | LeadershipReport
    | SumReport
)
"""What a person may want to know."""

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
