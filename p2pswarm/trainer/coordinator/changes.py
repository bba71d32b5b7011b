"""Effects of an input: the actions that it asks for, and the changes that rules depend on."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Flag, auto
from typing import Self

from p2pswarm.trainer.reports.actions import Action


class Change(Flag):
    """The things that an input can change.

    A part of the coordinator answers each input with its `Effects`. The coordinator then applies
    only the rules that depend on what changed.
    """

    NOTHING = 0
    JOINED = auto()
    """A server has a place, and is not ready."""
    READY = auto()
    """A member has become ready."""
    ENDED = auto()
    """An incarnation is over: its attempts are given up, and its sum is void or waits for it."""
    LEAVING = auto()
    """A member was asked to leave."""
    STATES = auto()
    """The stages' weights, as far as they are known, or a commit was applied."""
    BLAME = auto()
    """A failure was put down to a server, or to the model."""
    PAIRS = auto()
    """Pairs between which nothing passes, or the time when they matter."""
    MOVES = auto()
    """The moves that are being prepared."""
    ATTEMPTS = auto()
    """An attempt was given up, or a fence was answered."""
    WORK = auto()
    """A microbatch is done, so another may be launched, or the step may be complete."""
    SUMS = auto()
    """The sums that are parts of the step, or may become that."""
    PHASE = auto()
    """The phase, or the step."""
    BEGUN = auto()
    """The run has begun: from now on a stage without servers is waited for."""
    TIME = auto()
    """A time has passed that somebody waited for."""


@dataclass(slots=True)
class Effects:
    """The actions and the changes to which an input, or a rule, has led."""

    actions: list[Action] = field(default_factory=list)
    """In the order in which they are to be carried out."""
    changes: Change = Change.NOTHING

    def __add__(self, later: "Effects") -> "Effects":
        return Effects([*self.actions, *later.actions], self.changes | later.changes)

    def __iadd__(self, later: "Effects") -> Self:
        self.actions += later.actions
        self.changes |= later.changes
        return self


class Rule:
    """A consequence of certain changes, whichever input made them."""

    __slots__ = ("apply", "asked", "mask")

    def __init__(self, apply: Callable[[float], Effects | None], after: Change) -> None:
        """`apply` takes the time; `after`: all that it depends on."""
        self.apply = apply
        self.mask: int = after.value
        self.asked = True
        """True if it was never applied, or something that it depends on has changed since."""
