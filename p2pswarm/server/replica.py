"""The weights of a stage on this server: they change one commit after another, under one lock.

Units:   seconds; version v = state after v commits.
Errors:  those of `commit_log` and of the memory; WeightsLost for a commit that is not applied, or a
         hash that fails.
Source:  docs/state.md.
"""

import asyncio
import contextlib
import functools
import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from p2pswarm.base.errors import BadMessage, SwarmError
from p2pswarm.base.signal import Signal
from p2pswarm.base.tasks import to_its_end
from p2pswarm.models.compute.base import Engine, StateMemory, Update, part_sizes
from p2pswarm.run.averaging.base import AveragedGradient, Compute, Sums
from p2pswarm.run.averaging.round import RoundId
from p2pswarm.run.averaging.stage_averaging import StageAveraging
from p2pswarm.run.messages.run import RunOrigin
from p2pswarm.run.messages.step import Commit, Reduce, Reduced, TiedReduced
from p2pswarm.run.state.base import BackgroundThread, Snapshot, at_once
from p2pswarm.run.state.frozen_state import FrozenState
from p2pswarm.run.state.piece_download import DownloadLimits, PieceDownload, Placement
from p2pswarm.run.state.version_reader import WINDOW_BYTES, VersionReader
from p2pswarm.server.commit_log import (
    ClosedSum,
    CommitDecision,
    CommitLog,
    FirstWeights,
    HeldWeights,
    ReducedGradient,
    WeightsLost,
    lost_by,
)
from p2pswarm.server.version_digest import VersionDigest
from p2pswarm.tensors.codecs.base import Tensor
from p2pswarm.tensors.state_tree import base_leaves, piece_hash, root_of

LATE_REDUCTION_S = 30.0  # a commit is answered by then; the trainer waits twice as long


@dataclass(frozen=True, slots=True)
class _KeptPart:
    """A piece's part of a reduced gradient, and how to apply it."""

    gradient: Tensor
    update: Update


class Loading:
    """Implements `StateInDownload` on the memory of a stage."""

    def __init__(
        self,
        engine: Engine,
        compute: Compute,
        aside: BackgroundThread,
        lock: asyncio.Lock,
        changing: Callable[[], AbstractAsyncContextManager[None]],
        overwrites: Callable[[], None],
        since: int,
        base: Sequence[bytes] | None,
    ) -> None:
        """`lock` is the replica's; `changing` keeps out those who read its memory.

        `overwrites` is called before a piece takes the place of what the memory holds. `base`: as
        `PieceDownload` has it.
        """
        self._state = state = engine.state
        self.rules = PieceDownload(state.pieces, since, base=base)
        self.moved = Signal()
        self._compute, self._aside = compute, aside
        self._lock, self._changing = lock, changing
        self._limits = DownloadLimits()
        self._kept: dict[int, list[_KeptPart]] = {}
        self._overwrites = overwrites

    def is_enough(self) -> bool:
        """Return whether the pieces can be worked with: all are here, proved as far as possible."""
        rules = self.rules
        if rules.base is None:  # what is frozen is fetched next, and only a proof names it
            return False
        return rules.complete or (rules.whole and not rules.provable)

    def piece_bytes(self, piece: int) -> int:
        """The size of a piece."""
        return sum(part_sizes(self._state, piece))

    def agreed(self, version: int, digest: bytes) -> None:
        """The stage agrees on the digest of a version."""
        if digest:
            self.rules.agreed(version, digest)
            self.moved.fire()

    def averaging(self, *, now: bool) -> None:
        """The stage averages now, or no longer."""
        self.rules.averaging(now=now)
        self.moved.fire()

    def missed(self, step: int) -> None:
        """A step is committed without a reduction here."""
        while self.rules.version <= step:
            self.rules.missed(self.rules.version)
        self.moved.fire()

    async def committed(self, step: int, reduced: Sums, update: Update) -> None:
        """Let the pieces that are here follow a commit; the replica's lock is held."""
        self.missed(step - 1)
        if step < self.rules.version:
            return
        parts, state = self.rules.committed(step), self._state

        def follow() -> dict[int, Tensor]:
            for piece in parts.apply:
                state.follow(piece, state.gradient(reduced, piece), update)
            return {piece: state.gradient(reduced, piece) for piece in parts.keep}

        with self._writing():
            async with self._changing():
                gradients = await self._compute(follow)
        self._kept = {
            piece: [*self._kept.get(piece, []), _KeptPart(gradient, update)][-self._limits.kept :]
            for piece, gradient in gradients.items()
        }
        self.moved.fire()

    async def on_piece(self, donor: bytes, piece: int, version: int, data: memoryview) -> None:
        """Put a piece that a donor has given in its place, if it can follow the commits."""
        hashed = await self._aside(lambda: hashlib.sha256(data).digest())
        async with self._lock:
            now_s = asyncio.get_running_loop().time()
            placement = self.rules.piece_came(donor, piece, version, hashed, now_s)
            if placement is not None:
                await to_its_end(self._place(placement, data))
        self.moved.fire()

    async def restored(self, piece: int, version: int, data: memoryview, hashed: bytes) -> bool:
        """Put a piece of a former process in its place; returns whether it is of use."""
        async with self._lock:
            placement = self.rules.restored(piece, version, hashed)
            if placement is not None:
                await to_its_end(self._place(placement, data))
        self.moved.fire()
        return placement is not None

    async def copy(self, piece: int) -> tuple[int, memoryview] | None:
        """A piece that is here, and its version; None if it is not."""
        state = self._state
        async with self._lock:  # who changes the memory holds it
            version = self.rules.held.get(piece)
            if version is None:
                return None
            data = await self._aside(
                lambda: b"".join(state.read(tensor, piece) for tensor in range(state.tensors))
            )
        return version, memoryview(data)

    async def _place(self, placement: Placement, data: memoryview) -> None:
        piece, state = placement.piece, self._state
        kept = {part.update.number - 1: part for part in self._kept.pop(piece, [])}
        self._overwrites()

        def place() -> None:
            state.write(piece, parts_of(data, part_sizes(state, piece)), placement.steps.start)
            for step in placement.steps:
                state.follow(piece, kept[step].gradient, kept[step].update)

        with self._writing():
            async with self._changing():
                await self._compute(place)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Guard a change of the memory: if it fails, nobody knows what the pieces are any more."""
        try:
            yield
        except BaseException:
            self.rules.forget()
            raise


def pieces_of(data: memoryview, state: StateMemory) -> Iterator[list[memoryview]]:
    """The parts of each piece of a whole state, which lies tensor after tensor."""
    sizes = [part_sizes(state, piece) for piece in range(state.pieces)]
    by_tensor = list(zip(*sizes, strict=True))
    if len(data) != sum(map(sum, sizes)):
        raise BadMessage(f"a state of {len(data)} bytes does not fit this stage")
    tensors = parts_of(data, [sum(each) for each in by_tensor])
    parts = [parts_of(whole, each) for whole, each in zip(tensors, by_tensor, strict=True)]
    yield from map(list, zip(*parts, strict=True))


def parts_of(data: memoryview, sizes: Sequence[int]) -> list[memoryview]:
    """The parts that lie one after another in `data`; the last one may be cut short."""
    stops = list(itertools.accumulate(sizes))
    return [data[stop - size : stop] for stop, size in zip(stops, sizes, strict=True)]


class Replica:
    """One stage's weights; it outlives the sessions of the server.

    `commit_log` decides what a commit means; this file computes and waits. Weights and version
    change together: nothing cuts a change short, be it a lost link, a deadline, or the end of the
    session. Weights in memory may be the last of their stage. So they are kept, whatever fails,
    until others take their place or they are known to be damaged: a stale copy is brought up to
    date.

    The weights of a newcomer come piece by piece, and follow the commits meanwhile:
    `run/state/piece_download.py` decides, and `Loading` writes into the memory. It outlives the
    sessions of the server: pieces that are here, and missed no commit, are not fetched again.

    The digest of a version is computed in the background (`version_digest.py`), and whatever
    changes the weights waits for it.
    """

    def __init__(
        self,
        stage: int,
        engine: Engine,
        compute: Compute,
        aside: BackgroundThread = at_once,
        background: Compute | None = None,
        window_bytes: int = WINDOW_BYTES,
        origin: RunOrigin | None = None,
    ) -> None:
        """`aside`: a thread that reads the weights for others, while the first one computes.

        `background`: where digests are computed, beside `compute`; None: they take turns.
        `window_bytes`: the most memory for copies of a version that is being read.
        `origin`: what the run began from; None: first weights, which are drawn.
        """
        self._drawn = origin is None
        self._updates_before = 0 if origin is None else origin.before
        self.stage = stage
        self.engine = engine
        self._compute = compute
        self._background = background or compute
        self._aside = aside
        self.base = None if engine.base is None else FrozenState(engine.base, aside)
        """What is frozen, if the run has some."""
        self.log = CommitLog()
        """The version in memory, and what may follow it."""
        self._lock = asyncio.Lock()
        self._changed = Signal()
        self._digest = VersionDigest(self.log, engine.weights, self._background, self._changed)
        self.reader = VersionReader(
            engine.state, lambda: self.version, aside, window_bytes // max(1, engine.part_bytes_max)
        )
        """Reads the weights between two commits, for newcomers and checkpoints."""
        self.loading: Loading | None = None
        """The weights that are on their way, or have come and were not committed to yet."""
        self.era = 0
        """The number of times that the run had gone back, when this server was told last."""

    @property
    def version(self) -> int | None:
        """The version of the weights; None while they are not here."""
        return self.log.version

    @property
    def digest(self) -> bytes:
        """The digest of the weights in memory; empty without any, and until it is known."""
        return self.log.digest

    @property
    def pieces(self) -> int:
        """The number of pieces that a newcomer fetches."""
        return self.engine.state.pieces

    @property
    def weights_share(self) -> float:
        """The share of the weights that is here, frozen ones too, counted in pieces."""
        if self.version is not None:
            return 1.0
        pieces, here = self.pieces, 0 if self.loading is None else len(self.loading.rules.held)
        if (frozen := self.base) is not None:
            pieces += frozen.pieces
            here += frozen.pieces if frozen.whole else len(frozen.rules.held)
        return here / pieces if pieces else 0.0

    async def held(self) -> HeldWeights | None:
        """The weights in memory, and what could be applied to them, once no change is under way.

        They are `named`, by their digest or by what they were made of a moment ago. Raises
        WeightsLost if their digest cannot be computed just now; they are kept.
        """
        async with self._lock:
            held = self.log.held
            if held is not None and held.named and self._digest.under_way:
                return held
            await self._digest.settled()
            if self.log.held is not None and not self.log.digest:
                self._digest.compute()
                await self._digest.known()
            return self.log.held

    async def enter(self, era: int, *, keep: bool) -> None:
        """Take part in an era; unless they are kept, weights of another one are forgotten."""
        async with self._lock:
            if era != self.era:
                await self._digest.settled()
                self._digest.forget()
                self.era = era
                self.log.other_era(keep=keep)
                if not keep:
                    self.loading = None
        self._changed.fire()
        self.reader.moved()

    async def begin(
        self, since: int, *, keep: bool, keep_sum: bool = False, agreed: bytes = b""
    ) -> ClosedSum | None:
        """Start a session from version `since`: keep, draw or fetch the weights; empty the sum.

        Returns the sum if it is kept. `agreed`: the digest of that version, if known.
        """
        async with self._lock:
            if not keep:
                await self._digest.settled()
            kept = self.log.keep_sum(since) if keep_sum else None
            draws = self._drawn and self.engine.draws
            first = self.log.begin(since, keep=keep, draws=draws)
            draw = first is FirstWeights.DRAWN
            await to_its_end(self._reset(since, draw=draw, keep=keep, keep_sum=keep_sum))
            self._load_from(since, agreed, fetched=first is FirstWeights.FETCHED)
        self._changed.fire()
        self.reader.moved()
        return kept

    async def install(self, snapshot: Snapshot) -> bool:
        """Take a whole state, from a checkpoint; False if another version is needed by now.

        Raises BadMessage for one that is damaged, or does not fit; nothing is changed then.
        """
        async with self._lock:
            loading, pieces = self.loading, list(pieces_of(snapshot.data, self.engine.state))
            if loading is None or snapshot.version != loading.rules.version:
                return False
            hashes = await self._background(lambda: [piece_hash(parts) for parts in pieces])
            base = base_leaves(self.engine.weights.base_roots)
            if root_of([*hashes, *base]) != snapshot.digest:
                raise BadMessage(f"the weights of version {snapshot.version} are damaged")
            await to_its_end(self._install(snapshot.version, pieces))
        self._changed.fire()
        self.reader.moved()
        return True

    def donors_changed(self) -> None:
        """Wake the download: other members can be asked than before."""
        if self.loading is not None:
            self.loading.moved.fire()

    async def loaded(self) -> None:
        """Work with the pieces that have come: all are here, and of one version."""
        async with self._lock:
            if self.loading is None or not self.loading.is_enough():
                return
            self.log.became(self.loading.rules.version)
            self._digest.compute()
        self._changed.fire()
        self.reader.moved()

    async def reduce(self, order: Reduce, averaging: StageAveraging) -> AveragedGradient:
        """Average the gradient sum of a step with the others of the stage; keep the result.

        Applies its commit, if that has come before; raises WeightsLost where that cannot be done.
        """
        weights = self.engine.weights
        reduction = functools.partial(weights.reduction, order.step)
        sums = await self._compute(reduction) if weights.spread else reduction()
        round_, reduced = RoundId(order.step, order.generation), None
        self.log.reduction_begun(order)
        overlaps = self.engine.odd is not None  # a step long: pieces would never be asked for
        if (loading := self.loading) is not None and not overlaps:
            loading.averaging(now=True)
        try:
            outcome = await averaging.average(order, sums)
            reduced = ReducedGradient(round_, sums, outcome)
        finally:
            self.log.reduction_over(round_, reduced)
            if loading is not None:
                loading.averaging(now=self.log.averages)
            self._changed.fire()
            if (noted := self.log.noted(round_)) is not None:
                self._require_whole(noted, await self._decide(noted, patient=False))
        return outcome

    async def commit(self, order: Commit) -> bool:
        """Apply a reduction, or keep it until the weights are here.

        Returns whether the weights hold it now. Raises WeightsLost where they cannot follow.
        """
        late_s = asyncio.get_running_loop().time() + LATE_REDUCTION_S
        if self.loading is not None:
            self.loading.agreed(order.step, order.state)
        while (decision := await self._decide(order)) is CommitDecision.WAIT:
            try:
                async with asyncio.timeout_at(late_s):
                    await self._changed.wait()
            except TimeoutError:
                decision = await self._decide(order, patient=False)
                break
        self._require_whole(order, decision)
        return self.log.holds(order.step)

    async def committed_before(self, step: int) -> None:
        """Wait until every reduction of an earlier step has its commit."""
        while self.log.must_commit_before(step):
            await self._changed.wait()

    async def reached(self, version: int) -> None:
        """Wait until the weights are of `version` or later."""
        while self.version is None or self.version < version:
            await self._changed.wait()

    async def piece(self, piece: int) -> tuple[int, memoryview]:
        """Copy a piece for a newcomer: its version, and its bytes."""
        return await self.reader.piece(piece)

    async def hashes(self, version: int) -> tuple[bytes, ...] | None:
        """The hash of each piece of one of the last versions; None if it is not known."""
        if self.version == version:
            await self._digest.known()
        return self._digest.pieces(version)

    async def state_of(self, version: int) -> bytes:
        """The digest of the weights, once it is known; empty if they are of another version."""
        if self.version == version:
            await self._digest.known()
        return self.digest if self.version == version else b""

    async def answer(self, step: int, outcome: AveragedGradient) -> Reduced:
        """The trainer's news of the reduction of a step, once the digests are known."""
        state = await self.state_of(step)
        tied = None
        if (ends := outcome.tied) is not None:
            tied = TiedReduced(ends.digest, ends.squared_norm, self._digest.tied(step))
        return Reduced(outcome.digest, outcome.squared_norm, outcome.bytes_per_s, state, tied)

    async def digest_of(self, version: int) -> bytes:
        """The digest of one of the last versions, once it is known; empty if it is not kept."""
        hashes = await self.hashes(version)
        return b"" if hashes is None else root_of(hashes)

    async def hashed(self, other_than: int | None) -> tuple[int, bytes]:
        """Wait for weights of a version `other_than` that one, and for their digest."""
        await self._digest.known()
        while (version := self.version) in (None, other_than) or not self.digest:
            await self._changed.wait()
            await self._digest.known()
        assert version is not None, "weights that are not here have no version"
        return version, self.digest

    def _require_whole(self, order: Commit, decision: CommitDecision) -> None:
        if decision is CommitDecision.LOST:
            held, what = self.log.held, f"step {order.step}, generation {order.generation}"
            kept = "" if held is None else f"; the weights of version {held.version} are kept"
            raise WeightsLost(f"no reduction of {what} is here{kept}")

    async def _decide(self, order: Commit, *, patient: bool = True) -> CommitDecision:
        """Decide about a commit, and apply it if it is to be applied."""
        async with self._lock:
            if not self.log.holds(order.step):
                await self._digest.known()
            decision = self.log.committed(order, patient=patient)
            if decision is CommitDecision.APPLY:
                try:
                    await to_its_end(self._apply(order, self.log.take(order)))
                except SwarmError as error:
                    raise lost_by(error, f"step {order.step} was not applied") from error
                finally:
                    self._changed.fire()
            elif self.loading is not None and self.version is None:
                await to_its_end(self._follow(self.loading, order, decision))
        if decision is not CommitDecision.WAIT:
            self._changed.fire()
        return decision

    async def _reset(self, since: int, *, draw: bool, keep: bool, keep_sum: bool) -> None:
        stage, weights = self.engine.stage, self.engine.weights

        def reset() -> None:
            stage.drop(None)
            if not keep_sum:
                weights.reset(draw=draw)

        async with contextlib.AsyncExitStack() as blocks:
            if draw:
                await blocks.enter_async_context(self.reader.changing())
                blocks.enter_context(self.log.changing())
            await self._compute(reset)
            if keep:
                await self._digest.check()
            elif draw:
                self.log.became(since)
        if draw:
            self._digest.compute()

    def _load_from(self, since: int, agreed: bytes, *, fetched: bool) -> None:
        """Begin a download, or go on with the one of the session before."""
        if not fetched:
            self.loading = None
            return
        if self.loading is None or not self.loading.rules.rejoined(since):
            self.loading = Loading(
                self.engine,
                self._compute,
                self._aside,
                self._lock,
                self.reader.changing,
                self.log.overwritten,
                since,
                self._base_leaf(),
            )
        self.loading.agreed(since, agreed)

    def _base_leaf(self) -> tuple[bytes, ...] | None:
        """The leaf of what is frozen here, if the run has some; None: it is not here yet."""
        if self.base is not None and not self.base.whole:
            return None
        return base_leaves(self.engine.weights.base_roots)

    async def _install(self, version: int, pieces: list[list[memoryview]]) -> None:
        def write() -> None:
            for piece, parts in enumerate(pieces):
                self.engine.state.write(piece, parts, version)

        self.log.overwritten()
        async with self.reader.changing():
            await self._compute(write)
        self.log.became(version)
        self._digest.compute()

    async def _follow(self, loading: Loading, order: Commit, decision: CommitDecision) -> None:
        """Let the pieces that are here follow a commit, or enter that they cannot."""
        if decision is CommitDecision.FOLLOW:
            update = self._update_of(order)
            await loading.committed(order.step, self.log.take(order), update)
        elif decision is CommitDecision.MISSED:
            loading.missed(order.step)

    def _update_of(self, order: Commit) -> Update:
        return Update(order.step + 1, order.scale, order.learning_rate, self._updates_before)

    async def _apply(self, order: Commit, sums: Sums) -> None:
        update = self._update_of(order)

        def step() -> None:
            if self.engine.odd is None:
                self.engine.stage.drop(None)  # no graph of the old weights outlives them
            self.engine.weights.apply(sums, update)

        self.loading = None  # the weights go on by themselves
        before = self.log.held
        assert before is not None, "a commit is applied to weights that are here"
        async with self.reader.changing():
            try:
                with self.log.changing():
                    await self._compute(step)
                    self.log.applied(order)
            except SwarmError:
                hashes = await self._background(self.engine.weights.hashes)
                self.log.untouched(before, root_of(hashes))
                raise
        self._digest.compute()
