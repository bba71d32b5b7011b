"""The codecs of each boundary, by what its links carry and what the stages compute.

The wish of each step is the mildest rung with which the links of a boundary carry somewhat more
than the slowest stage computes. It becomes the choice when the last steps agree, and not often.

Units:   the pace is microbatches a second; a way is a boundary, by the stage below it, and a
         direction.
Source:  docs/codecs.md, "The choice".
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from p2pswarm.models.compute.bundle_spec import boundary_above, boundary_codecs, bundle_spec
from p2pswarm.plan.codec_costs import codec_of
from p2pswarm.progress.events import Report
from p2pswarm.run.chain.chain import CodecTable
from p2pswarm.run.messages.step import NearbyCodecs
from p2pswarm.settings.codec_ladder import (
    MILDEST,
    BoundaryCodecs,
    CodecChoices,
    boundary_ladder,
    codecs_of,
)
from p2pswarm.settings.config import CODEC_LADDER, RunConfig
from p2pswarm.tensors.codecs.edge_codecs import EdgeCodecs

CARRIES = 1.15  # times what the slowest stage computes: links are not always full
FINER = 1.3  # as much before a milder rung is taken again: a link that jitters changes nothing
GAIN = 0.05  # of a step's time, for which a coarser rung is worth its rounding
FASTER_MOST = 4.0  # times the lower median of a stage
AGREEING = 10  # steps in a row that wish the same way
PAUSE = 50  # steps between two changes of a way
BYTES_A_VALUE = {name: codec_of(name).bytes_per_value for rung in CODEC_LADDER for name in rung}


@dataclass(frozen=True, slots=True)
class ServerRates:
    """What one server has measured of itself; None: not yet."""

    seconds: float | None = None
    """That it computes a microbatch for."""
    up_bytes_per_s: float | None = None
    """What its links to the stage above carry while it sends."""
    down_bytes_per_s: float | None = None


Measurements = Sequence[Sequence[ServerRates]]
"""Of each stage, of its ready servers."""


def pace_of(stages: Measurements) -> float | None:
    """What the slowest stage computes; None if a stage has measured nothing.

    Servers that have not measured count as the usual one of their stage. One that says that it is
    much faster than most does not make its stage so.
    """
    paces = []
    for servers in stages:
        known = sorted(1.0 / one.seconds for one in servers if one.seconds)
        if not known:
            return None
        most = FASTER_MOST * known[(len(known) - 1) // 2]
        paces.append(sum(min(pace, most) for pace in known) / len(known) * len(servers))
    return min(paces, default=None)


def capacity_of(rates: Sequence[float | None]) -> float | None:
    """What the links of one direction carry together; None if fewer than half are measured.

    Each counts as the upper median. So one slow peer, which routers pass by, and one that says what
    is not so among three, do not matter.
    """
    known = sorted(rate for rate in rates if rate is not None and 0.0 < rate < math.inf)
    if not known or 2 * len(known) < len(rates):
        return None
    return known[len(known) // 2] * len(rates)


@dataclass(slots=True)
class _Way:
    """One direction of one boundary."""

    names: tuple[str, ...]
    """The codecs that are allowed, the mildest first."""
    nbytes: tuple[float, ...]
    """Of a microbatch, with each of them."""
    rung: int
    """The last that was chosen."""
    changed: int | None
    """The step in which it was; None: never."""
    wishes: deque[int] = field(default_factory=lambda: deque(maxlen=AGREEING))
    """Of the last steps."""
    capacity: float | None = None
    """What its links carry, as measured last."""

    def wish(self, pace: float) -> int:
        """The mildest rung with which its links carry that pace; the present one if unmeasured."""
        if self.capacity is None:
            return self.rung
        for rung, nbytes in enumerate(self.nbytes):
            spare = FINER if rung < self.rung else CARRIES
            if self.capacity >= spare * pace * nbytes:
                return rung
        return len(self.nbytes) - 1

    def agreed(self, step: int) -> int:
        """The rung that the last steps agree on, the nearest to the present one of theirs."""
        if self.changed is not None and step < self.changed + PAUSE:
            return self.rung
        if len(self.wishes) < AGREEING:
            return self.rung
        if min(self.wishes) > self.rung:
            return min(self.wishes)
        return min(self.rung, max(self.wishes))

    def seconds(self, rung: int) -> float:
        """For a microbatch; 0 where nothing is measured."""
        return 0.0 if self.capacity is None else self.nbytes[rung] / self.capacity


@dataclass(frozen=True, slots=True)
class BoundaryState:
    """A boundary as it was measured, and its codecs."""

    stage: int
    """Below it."""
    codecs: BoundaryCodecs
    up_bytes_per_s: float | None
    down_bytes_per_s: float | None
    up_s: float
    """For a microbatch with these codecs; 0 where nothing is measured."""
    down_s: float
    compute_s: float | None
    """Of the slowest stage, for a microbatch, all its servers together."""

    @property
    def why(self) -> str:
        """The reason for these codecs, in words."""
        if self.compute_s is None or None in (self.up_bytes_per_s, self.down_bytes_per_s):
            return "its links or a stage are not measured yet"
        if max(self.up_s, self.down_s) > self.compute_s:
            return "its links are slower than every stage, and this is what may be chosen by now"
        if self.codecs == MILDEST:
            return "its links carry more than the slowest stage computes"
        return "the mildest with which its links carry what is computed"


class CodecRule(Protocol):
    """Chooses codecs at the end of each step."""

    def choose(self, step: int, stages: Measurements) -> CodecTable:
        """The codes that the record of `step` names, which ends."""
        ...

    def why(self, stage: int) -> str:
        """Why the boundary above a stage has these codecs, in words."""
        ...

    def boundaries(self) -> "Sequence[BoundaryState]":
        """The boundaries as of the last step, for people."""
        ...


CodecRules = Callable[[RunConfig, CodecTable, int], CodecRule]
"""Makes a rule that goes on from the last choice, in some step."""


class MeasuredCodecs:
    """The rule of `codecs.choice = "measured"`."""

    def __init__(self, run: RunConfig, present: CodecTable, version: int) -> None:
        """`present`: the last choice, as the records say; what was before is not known."""
        self._run = run
        self._pace: float | None = None
        self._ways = [
            _ways(run, stage, present[stage] if present else b"", version)
            for stage in range(run.stages - 1)
        ]

    def choose(self, step: int, stages: Measurements) -> CodecTable:
        """The codes that the record of `step` names, which ends."""
        self._pace = pace_of(stages)
        for stage, (up, down) in enumerate(self._ways):
            up.capacity = capacity_of([one.up_bytes_per_s for one in stages[stage]])
            down.capacity = capacity_of([one.down_bytes_per_s for one in stages[stage + 1]])
        ways = [way for both in self._ways for way in both]
        if self._pace is not None:
            pace = min(self._pace, *(_most(way) for way in ways))
            for way in ways:
                way.wishes.append(way.wish(pace))
            self._change(ways, [way.agreed(step) for way in ways], step)
        return self._table()

    def why(self, stage: int) -> str:
        """Why the boundary above a stage has these codecs, in words."""
        return self.boundaries()[stage].why

    def boundaries(self) -> list[BoundaryState]:
        """The boundaries, as of the last step, for people."""
        compute_s = None if self._pace is None else 1.0 / self._pace
        states = []
        for stage, (up, down) in enumerate(self._ways):
            rates = up.capacity, down.capacity
            times_s = up.seconds(up.rung), down.seconds(down.rung)
            states.append(BoundaryState(stage, _codecs(up, down), *rates, *times_s, compute_s))
        return states

    def _change(self, ways: list[_Way], agreed: list[int], step: int) -> None:
        """Take what is agreed: all that is milder, and what is coarser if the step gains by it."""
        assert self._pace is not None, "nothing is agreed without it"
        compute_s = 1.0 / self._pace
        pairs = list(zip(ways, agreed, strict=True))
        before_s = max(compute_s, *(way.seconds(way.rung) for way in ways))
        after_s = max(compute_s, *(way.seconds(rung) for way, rung in pairs))
        gains = after_s <= (1.0 - GAIN) * before_s
        for way, rung in pairs:
            if rung < way.rung or (rung > way.rung and gains):
                way.rung, way.changed = rung, step
                way.wishes.clear()

    def _table(self) -> CodecTable:
        return (*(_codecs(up, down).codes for up, down in self._ways), b"")


def _most(way: _Way) -> float:
    """The pace that its links carry with the fewest bytes: no other way need carry more."""
    return math.inf if way.capacity is None else way.capacity / way.nbytes[-1]


def _codecs(up: _Way, down: _Way) -> BoundaryCodecs:
    return BoundaryCodecs(up.names[up.rung], down.names[down.rung])


def _ways(run: RunConfig, stage: int, codes: bytes, version: int) -> tuple[_Way, _Way]:
    """Both directions above a stage, which have the codecs of these codes."""
    ladder = boundary_ladder(run.codecs, run.stages, stage)
    bundle = bundle_spec(boundary_above(run, stage))
    edges = [boundary_codecs(run, stage, bundle, rung.codes) for rung in ladder]
    now = codecs_of(run.codecs, codes)
    up = {rung.activation: _bytes(edge) for rung, (edge, _) in zip(ladder, edges, strict=True)}
    down = {rung.gradient: _bytes(edge) for rung, (_, edge) in zip(ladder, edges, strict=True)}
    return _way(up, now.activation, version), _way(down, now.gradient, version)


def _way(nbytes: dict[str, float], now: str, version: int) -> _Way:
    names = tuple(nbytes)
    rung = names.index(now)
    return _Way(names, tuple(nbytes.values()), rung, version if rung else None)


def _bytes(edge: EdgeCodecs) -> float:
    total = 0.0
    for name, key in zip(edge.names, edge.spec.keys, strict=True):
        values = math.prod(key.layout.shape)
        total += BYTES_A_VALUE[name] * values if name in BYTES_A_VALUE else key.layout.raw_bytes
    return total


@dataclass(frozen=True, slots=True)
class BoundaryRates(Report):
    """Codecs of all boundaries, and what their links carry, at the end of a step."""

    states: tuple[BoundaryState, ...]


@dataclass(frozen=True, slots=True)
class CodecsChosen(Report):
    """A record chooses other codecs for a boundary."""

    step: int
    """From which on they hold; people count steps from 1."""
    stage: int
    """Below it."""
    codecs: BoundaryCodecs
    why: str

    @property
    def text(self) -> str:
        """The codecs, since when, and why."""
        names = f"{self.codecs.activation} up and {self.codecs.gradient} down"
        stages = f"stages {self.stage} and {self.stage + 1}"
        return f"from step {self.step + 1} on {stages} exchange {names}: {self.why}"


class CodecTables:
    """The codecs of the steps that members are told of: the present one, and those chosen for.

    A choice that is proposed counts when it is decided.
    """

    def __init__(self, run: RunConfig, present: Sequence[CodecTable], rule: CodecRule) -> None:
        """`present`: of this step and of the next ones."""
        self._codecs = run.codecs
        mildest = (b"",) * run.stages
        self._tables = [table or mildest for table in present]
        self._proposed = mildest
        self.rule = rule

    def on_step_end(self, step: int, stages: Measurements) -> CodecTable:
        """All of a step is averaged: what its record chooses."""
        self._proposed = self.rule.choose(step, stages)
        return self._proposed

    def on_decision(self, step: int) -> list[BoundaryRates | CodecsChosen]:
        """The record of a step is decided; what is known, and which codecs it changes."""
        before, after = self._tables[-1], self._proposed
        self._tables = [*self._tables[1:], after]
        since, rule = step + len(self._tables), self.rule
        changes = [
            CodecsChosen(since, stage, codecs_of(self._codecs, codes), rule.why(stage))
            for stage, codes in enumerate(after)
            if codes != before[stage]
        ]
        return [BoundaryRates(tuple(rule.boundaries())), *changes]

    def nearby(self, stage: int) -> tuple[NearbyCodecs, ...]:
        """What a server of a stage is told of the present step and of the next ones."""
        return tuple(
            NearbyCodecs(table[stage - 1] if stage else b"", table[stage]) for table in self._tables
        )


def codec_tables(
    run: RunConfig, version: int, present: Sequence[CodecTable], rule: CodecRules
) -> CodecTables | None:
    """The codecs of a run from step `version` on, if its records choose them.

    `present`: of this step and of the next ones, as they have chosen; empty: nothing yet.
    """
    if run.codecs.choice == "fixed" or run.stages == 1:
        return None
    known: list[CodecTable] = [*present] or [()] * CodecChoices.of(run).after
    return CodecTables(run, known, rule(run, known[-1], version))
