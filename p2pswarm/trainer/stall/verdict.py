"""The verdict on a stall: who waits for whom, from the trainer's view and the servers' own.

The order of the questions is that of what explains more. A server that says nothing explains why
others wait for it. A link between two servers that both answer explains what one has given and the
other has not got. A server that computes for too long explains its queue. Only what is left is a
server that has more to do than others.

Units:   seconds.
Source:  docs/slow.md, "When a step stalls".
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from p2pswarm.base.ids import PeerId
from p2pswarm.progress.printable import printable
from p2pswarm.run.messages.field_limits import Work
from p2pswarm.run.messages.waits import PieceKind, ServerWaits
from p2pswarm.trainer.reports.step_seconds import StallCause
from p2pswarm.trainer.stall.trainer_view import TrainerView
from p2pswarm.trainer.step.stalls import HeldMicrobatch
from p2pswarm.trainer.step.step import Phase

Answers = Mapping[bytes, ServerWaits | None]
"""What servers answered; None: one that was asked gave no answer."""
SILENT_S = 1.25  # two words are missing: a member says one each half second
SLOW = 3.0  # times what a microbatch usually takes there
SLOW_LEAST_S = 1.0  # below this a pause of the garbage collector or the kernel would count
APART_S = 1.0  # what was given so long ago has arrived, on a link that carries anything
PARTNERS_MIN = 2  # members that lack something of one: with fewer it is the link as well
WORKS = {Work.FORWARD: "", Work.BACKWARD: "the gradient of ", Work.EVALUATE: "held-out "}


@dataclass(frozen=True, slots=True)
class StallVerdict:
    """The cause of a stall."""

    cause: StallCause
    peers: tuple[bytes, ...]
    """Whom the run waits for; of a link both ends, the one that sends first."""
    stages: tuple[int, ...]
    why: str
    """Who waits for whom, in words that follow "step 12 takes 6 s: "."""

    @property
    def names(self) -> tuple[StallCause, tuple[bytes, ...], tuple[int, ...]]:
        """Return what has to change for people to be told again."""
        return self.cause, self.peers, self.stages


def verdict(view: TrainerView, answers: Answers) -> StallVerdict:
    """Return the likeliest cause."""
    averages = view.phase is Phase.REDUCING
    rules = (
        *(_unserved, _network, _silent, _votes),
        *((_partner,) if averages else (_link, _slow, _apart_by_both)),
        _deaf,
        *((_late_averaging, _own_work) if averages else (_full,)),
        _rest,
    )
    answers = {peer: said for peer, said in answers.items() if peer in view.stages}
    found = (rule(view, answers) for rule in rules)
    unknown = StallVerdict(StallCause.UNKNOWN, (), (), "nothing tells why")
    return next((one for one in found if one is not None), unknown)


def _unserved(view: TrainerView, _answers: Answers) -> StallVerdict | None:
    if not view.unserved:
        return None
    stages = ", ".join(map(str, view.unserved))
    return StallVerdict(
        StallCause.UNSERVED, (), view.unserved, f"nobody serves stage {stages}: start a server"
    )


def _network(view: TrainerView, answers: Answers) -> StallVerdict | None:
    """Nothing comes from anybody."""
    if len(view.unheard_s) < PARTNERS_MIN or any(answers.values()):
        return None
    since_s = min(view.unheard_s.values())
    if since_s < SILENT_S:
        return None
    return StallVerdict(
        StallCause.NETWORK,
        (),
        (),
        f"nothing comes from any of {len(view.unheard_s)} servers for {since_s:.1f} s: look at "
        "this trainer's own network",
    )


def _silent(view: TrainerView, answers: Answers) -> StallVerdict | None:
    """A server that the step waits for says nothing."""
    deaf = [
        peer
        for peer in view.suspects
        if answers.get(peer, peer) is None and view.unheard_s.get(peer, 0.0) >= SILENT_S
    ]
    waited = [peer for peer in deaf if _is_waited_for(view, peer)] or deaf
    if not waited:
        return None
    worst = max(waited, key=lambda peer: (view.unheard_s[peer], peer))
    here = [worst] + [peer for peer in waited if peer != worst]
    said_s = view.unheard_s[worst]
    also = len(here) - 1
    others = f"; nor do {also} others" if also > 1 else "; nor does another one" if also else ""
    return StallVerdict(
        StallCause.SILENT,
        tuple(here),
        tuple(view.stages[peer] for peer in here),
        f"{_who(view, worst)} does not answer, and was heard last {said_s:.1f} s ago"
        f"{_has(view, worst)}{others}{_as_others_say(answers, worst)}",
    )


def _as_others_say(answers: Answers, peer: bytes) -> str:
    """What servers that answer say of one that does not."""
    others = [said for said in answers.values() if said is not None]
    broken = sum(peer in said.broken for said in others)
    if broken:
        return f"; {broken} of {len(others)} other servers say that nothing comes from it"
    if others:
        return "; no other server says so: it may be its link to this trainer alone"
    return ""


def _deaf(view: TrainerView, answers: Answers) -> StallVerdict | None:
    """A server that the step waits for says its words, and does not hear the trainer's."""
    deaf = [peer for peer in view.suspects if answers.get(peer, peer) is None]
    waited = [peer for peer in deaf if _is_waited_for(view, peer)]
    if not waited:
        return None
    peer = waited[0]
    return StallVerdict(
        StallCause.LINK,
        (peer,),
        (view.stages[peer],),
        f"nothing gets from this trainer to {_who(view, peer)}, which is heard{_has(view, peer)}",
    )


def _is_waited_for(view: TrainerView, peer: bytes) -> bool:
    holds = any(one.holder.peer == peer for one in view.held)
    return holds or peer in view.averaging or peer in view.promises or peer in view.owing


def _votes(view: TrainerView, _answers: Answers) -> StallVerdict | None:
    if view.phase is not Phase.DECIDING:
        return None
    return StallVerdict(
        StallCause.VOTES, (), (), "all have averaged, and the step's record lacks votes"
    )


def _partner(view: TrainerView, answers: Answers) -> StallVerdict | None:
    """A member of a stage, or a link within it, holds up the averaging."""
    lacks = {peer: missing for peer in view.averaging if (missing := _missing(answers, peer))}
    first = min((_kind(answers, peer) for peer in lacks), default=0)
    # who owes an earlier kind holds up all others
    lacks = {peer: missing for peer, missing in lacks.items() if _kind(answers, peer) == first}
    wanted = Counter(peer for missing in lacks.values() for peer in missing if peer in view.stages)
    if not wanted:
        return None
    most = max(wanted, key=lambda peer: (wanted[peer], peer))
    if wanted[most] < PARTNERS_MIN:
        return _road(view, answers, lacks, most)
    word = _own_word(answers, most) or "; it answers nobody in time"
    return StallVerdict(
        StallCause.AVERAGING,
        (most,),
        (view.stages[most],),
        f"{wanted[most]} servers of stage {view.stages[most]} wait for {_who(view, most)} in the "
        f"averaging{word}",
    )


def _missing(answers: Answers, peer: bytes) -> tuple[bytes, ...]:
    said = answers.get(peer)
    return () if said is None or said.averaging is None else said.averaging.missing


def _kind(answers: Answers, peer: bytes) -> int:
    """What a server lacks in an averaging."""
    said = answers.get(peer)
    return len(PieceKind) if said is None or said.averaging is None else said.averaging.lacks


def _road(
    view: TrainerView, answers: Answers, lacks: Mapping[bytes, Sequence[bytes]], source: bytes
) -> StallVerdict:
    """One member alone lacks something of another: it is the link between the two."""
    target = next(peer for peer in lacks if source in lacks[peer])
    both = target in lacks.get(source, ())
    way = "between" if both else "from"
    to = "and" if both else "to"
    return StallVerdict(
        StallCause.LINK,
        (source, target),
        (view.stages[source], view.stages[target]),
        f"little or nothing gets {way} {_who(view, source)} {to} {_who(view, target)} in the "
        f"averaging{_own_word(answers, target)}; both answer the trainer",
    )


def _late_averaging(view: TrainerView, answers: Answers) -> StallVerdict | None:
    """A member that answers does not average, though it was told to."""
    for peer in view.averaging:
        said = answers.get(peer)
        if said is None or said.averaging is not None:
            continue
        if (computing := _computing(view, answers, peer)) is not None:
            return computing
        return StallVerdict(
            StallCause.AVERAGING,
            (peer,),
            (view.stages[peer],),
            f"{_who(view, peer)} has not begun to average{_own_word(answers, peer)}",
        )
    return None


def _own_work(view: TrainerView, answers: Answers) -> StallVerdict | None:
    """Nobody lacks anything of anybody: who is left works by itself."""
    for peer in view.averaging:
        said = answers.get(peer)
        if said is not None and said.averaging is not None and not said.averaging.missing:
            return StallVerdict(
                StallCause.AVERAGING,
                (peer,),
                (view.stages[peer],),
                f"{_who(view, peer)} has all that it averages, and is not done",
            )
    return None


def _apart_by_both(view: TrainerView, answers: Answers) -> StallVerdict | None:
    """Two servers beside each other say of each other that nothing comes from there."""
    for peer, said in answers.items():
        for other in () if said is None else said.broken:
            there = answers.get(other)
            if other in view.stages and there is not None and peer in there.broken:
                return _broken(view, answers, *sorted((peer, other), key=lambda p: view.stages[p]))
    return None


def _link(view: TrainerView, answers: Answers) -> StallVerdict | None:
    """What a server has given does not get to the next, though both answer."""
    found = (_link_of(view, answers, one) for one in view.held)
    return next((one for one in found if one is not None), None)


def _link_of(view: TrainerView, answers: Answers, one: HeldMicrobatch) -> StallVerdict | None:
    """The trainer says that `one.holder` has it.

    Either it is done with it, and its receiver has nothing; or it has nothing itself, and its giver
    still gives.
    """
    said = answers.get(one.holder.peer)
    if said is None or (_has_work(said) and not one.waits):
        return None
    if (found := _given(view, answers, one.holder.peer)) is not None:
        return found
    broken = [peer for peer in said.broken if peer in view.stages]
    if broken:
        return _broken(view, answers, one.holder.peer, broken[0])
    if one.giver is None or one.waits:
        return None
    return _given(view, answers, one.giver.peer, one.holder.peer)


def _given(
    view: TrainerView, answers: Answers, source: bytes, target: bytes | None = None
) -> StallVerdict | None:
    """What a server gives for long, to one that answers and has nothing; `target`: to this one."""
    said = answers.get(source)
    for gives in () if said is None else said.gives:
        there = answers.get(gives.peer)
        if target not in (None, gives.peer) or there is None or gives.for_s < APART_S:
            continue
        if not _has_work(there):
            return _apart(view, answers, source, gives.peer, gives.microbatches, gives.for_s)
    return None


def _apart(
    view: TrainerView, answers: Answers, source: bytes, target: bytes, count: int, for_s: float
) -> StallVerdict:
    """What one gives, the other does not have."""
    return StallVerdict(
        StallCause.LINK,
        (source, target),
        tuple(view.stages.get(peer, 0) for peer in (source, target)),
        f"little or nothing gets from {_who(view, source)} to {_who(view, target)}: it gives "
        f"{_microbatches(count)} for {for_s:.1f} s{_nothing_came(answers, target)}; both answer "
        "the trainer",
    )


def _broken(view: TrainerView, answers: Answers, source: bytes, target: bytes) -> StallVerdict:
    """One finds that the other does not answer it, and both answer the trainer."""
    there = answers.get(target)
    says = "both say" if there is not None and source in there.broken else "the first says"
    answer = "both answer" if there is not None else "the first answers"
    return StallVerdict(
        StallCause.LINK,
        (source, target),
        (view.stages[source], view.stages[target]),
        f"nothing passes between {_who(view, source)} and {_who(view, target)}, as {says}; "
        f"{answer} the trainer",
    )


def _slow(view: TrainerView, answers: Answers) -> StallVerdict | None:
    """A server that has a microbatch computes one for far longer than usual."""
    found = (_computing(view, answers, one.holder.peer) for one in view.held)
    return next((one for one in found if one is not None), None)


def _computing(view: TrainerView, answers: Answers, peer: bytes) -> StallVerdict | None:
    """A server computes for far longer than usual."""
    said = answers.get(peer)
    if said is None or (now := said.computing) is None:
        return None
    usual_s = now.usual_s
    if now.for_s < max(SLOW_LEAST_S, SLOW * (usual_s or 0.0)):
        return None
    usually = "" if usual_s is None else f" (usually {usual_s:.2g})"
    what = f"{WORKS[Work(now.work)]}microbatch {now.microbatch}"
    queue = f", and {_queue(said)}" if said.queued else ""
    return StallVerdict(
        StallCause.COMPUTING,
        (peer,),
        (view.stages[peer],),
        f"{_who(view, peer)} computes {what} for {now.for_s:.1f} s{usually}{queue}",
    )


def _full(view: TrainerView, answers: Answers) -> StallVerdict | None:
    """A server that computes as usual has more to do than it gets done: the longest queue."""
    holders = sorted({one.holder.peer for one in view.held})
    said = {peer: word for peer in holders if (word := answers.get(peer)) and _has_work(word)}
    if not said:
        return None
    peer = max(said, key=lambda one: said[one].queued)
    computing = said[peer].computing
    usual_s = None if computing is None else computing.usual_s
    each = "" if usual_s is None else f", {usual_s:.2g} s each"
    return StallVerdict(
        StallCause.QUEUE,
        (peer,),
        (view.stages[peer],),
        f"{_who(view, peer)} computes{each}, and {_queue(said[peer])}",
    )


def _rest(view: TrainerView, answers: Answers) -> StallVerdict | None:
    """Nobody computes what is left: a word, a promise or a sum is waited for."""
    for peers, what in (
        (view.promises, "has not said that it gives up what was sent elsewhere"),
        (view.owing, "has not applied the last commit"),
        (view.averaging, "has not averaged"),
    ):
        here = [peer for peer in peers if peer in view.stages]
        if here:
            return StallVerdict(
                StallCause.COMMIT if peers is view.owing else StallCause.UNKNOWN,
                (here[0],),
                (view.stages[here[0]],),
                f"{_who(view, here[0])} {what}{_own_word(answers, here[0])}",
            )
    if view.sums:
        return StallVerdict(
            StallCause.SUM, (), (), "a server is lost, and may come back with its sum of the step"
        )
    if view.held:
        one = view.held[0]
        return StallVerdict(
            StallCause.UNKNOWN,
            (one.holder.peer,),
            (one.stage,),
            f"microbatch {one.microbatch} is with {_who(view, one.holder.peer)} for "
            f"{one.for_s:.1f} s{_own_word(answers, one.holder.peer)}",
        )
    return None


def _has_work(said: ServerWaits) -> bool:
    return said.computing is not None or said.queued > 0


def _who(view: TrainerView, peer: bytes) -> str:
    stage = view.stages.get(peer)
    return PeerId(peer).short + ("" if stage is None else f" of stage {stage}")


def _has(view: TrainerView, peer: bytes) -> str:
    """What waits at a server that does not answer."""
    if peer in view.averaging:
        return "; the averaging waits for it"
    count = sum(one.holder.peer == peer for one in view.held)
    return f"; it has {_microbatches(count)}" if count else ""


def _queue(said: ServerWaits) -> str:
    """What waits at a server to be computed, in words."""
    if not said.queued:
        return "nothing waits there"
    return f"{_microbatches(said.queued)} wait{'s' if said.queued == 1 else ''} there"


def _microbatches(count: int) -> str:
    return "1 microbatch" if count == 1 else f"{count} microbatches"


def _nothing_came(answers: Answers, peer: bytes) -> str:
    """The other end's own words about what came."""
    said = answers.get(peer)
    if said is None:
        return ""
    if said.came_ago_s is None:
        return ", and the other says that nothing came yet"
    return f", and the other says that nothing came for {said.came_ago_s:.1f} s"


def _own_word(answers: Answers, peer: bytes) -> str:
    """A server's own words about itself."""
    said = answers.get(peer)
    if said is None:
        return ""
    says = f"; {PeerId(peer).short} says that it"
    if said.averaging is not None:
        missing = _names(said.averaging.missing)
        lacks = f"lacks something of {missing}" if missing else "lacks nothing"
        return f"{says} averages for {said.averaging.for_s:.1f} s and {lacks}"
    if said.computing is not None:
        return f"{says} computes, and that {said.queued} wait"
    waits = f", waits for gradients of {_names([said.gradients[0].peer])}" if said.gradients else ""
    return f"{says} {printable(said.state)} and has nothing to do{waits}"


def _names(peers: Iterable[bytes]) -> str:
    shown = [PeerId(peer).short for peer in peers]
    more = f" and {len(shown) - 3} more" if len(shown) > 3 else ""  # noqa: PLR2004  three fit a line
    return ", ".join(shown[:3]) + more
