"""A newcomer's state, piece by piece from several donors, while steps go on.

A newcomer receives every reduced gradient and commit, and the optimizer works on each element
alone. So it applies commit t to the pieces that it holds at version t, and asks for the others at
whatever version a donor has. Every piece has its own version; the state is whole when all are of
the current one. No donor holds anything still, and no gradient is kept whole.

    MISSING -> COMING -> HELD, and back to MISSING if it cannot follow, or was not what it should be

A piece that is COMING is of a version that nobody knows yet. So its part of every gradient that is
committed meanwhile is kept, and applied when the piece is here.

A piece is proved by the hashes of all pieces of its version, and those by their root, the digest
that the stage agrees on. It may be placed, and follow commits, before it is proved. Where the run
freezes weights, the last hash is the leaf of the stage's base (`tensors/state_tree.py`): who read
another base from files than the stage has can go no further, and who has none yet knows what to
fetch. That is a download of its own, of pieces that have no version: 0 in all that is said here.

Units:   seconds on the caller's clock; version v = state after v commits.
Errors:  ValueError for a commit out of order; a donor that gives what it should not is blamed.
Source:  docs/state.md.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from p2pswarm.tensors.state_tree import root_of


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadLimits:
    """How much a download may ask for, keep and wait."""

    donors: int = 3
    """Asked at a time: three fill most links, and a fourth would slow its own training too."""
    ahead: int = 2
    """Pieces asked of one donor at a time: one is on its way while it copies the next."""
    kept: int = 16
    """Commits whose part is kept for a piece that is coming: 32 MiB of float32 for each."""
    versions: int = 8
    """A donor may be so much further than the newcomer, whose reductions come late; one that is
    further yet, or says so, is asked again later."""
    piece_s: float = 120.0
    """A donor that gives nothing for so long has failed: 6 MiB at 0.4 Mbit/s. The time is doubled
    when one fails so, because the newcomer's own link may be slow, and gradients go first."""
    piece_max_s: float = 3600.0


@dataclass(frozen=True, slots=True)
class PieceWanted:
    """Ask a donor for a piece, of a version that is not below `at_least`."""

    donor: bytes
    piece: int
    at_least: int


@dataclass(frozen=True, slots=True)
class HashesWanted:
    """Ask a donor for the hashes of all pieces of a version."""

    donor: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Placement:
    """Put a piece in its place, and then apply its kept parts of these steps."""

    piece: int
    steps: range


@dataclass(frozen=True, slots=True)
class StepParts:
    """What to do with the reduced gradient of a committed step, piece by piece."""

    apply: tuple[int, ...]
    keep: tuple[int, ...]
    """Keep its part for these pieces, and of each at most `DownloadLimits.kept` parts."""


@dataclass(frozen=True, slots=True)
class DonorBlame:
    """A donor gave what it should not; it is not asked again."""

    donor: bytes
    reason: str


RETRY_S = 1.0  # until a donor that failed is asked again
KEPT = b""  # in the place of a donor: a former process of this node, which nobody need blame


@dataclass(frozen=True, slots=True)
class _Coming:
    donor: bytes
    asked: int
    usable: int
    """The first version that can still follow: `asked`, or later if parts are missing."""


@dataclass(frozen=True, slots=True)
class _Held:
    version: int
    unproved: "_Origin | None"


@dataclass(frozen=True, slots=True)
class _Origin:
    donor: bytes
    version: int
    hashed: bytes


class PieceDownload:
    """The pieces of one stage's state at one newcomer."""

    def __init__(
        self,
        pieces: int,
        since: int,
        limits: DownloadLimits | None = None,
        base: Sequence[bytes] | None = (),
        root: Callable[[Sequence[bytes]], bytes] = root_of,
    ) -> None:
        """`since`: the first step whose reduction and commit reach the newcomer.

        `base`: the leaf of the frozen weights here, if the run has some; None: any may come.
        `root`: makes the digest that is agreed on from the hashes.
        """
        self.version = since
        """The version that whole pieces are of: all commits before it were told."""
        self.pieces = pieces
        self.base = None if base is None else tuple(base)
        """The hashes behind those of the pieces; None until they are proved."""
        self.other_base = False
        """True if the stage agrees on another base than lies here."""
        self._limits = limits or DownloadLimits()
        self._root = root
        self._coming: dict[int, _Coming] = {}
        self._held: dict[int, _Held] = {}
        self._donors: tuple[bytes, ...] = ()
        self._bad: dict[bytes, DonorBlame] = {}
        self._blames: list[DonorBlame] = []
        self._retry_s: dict[bytes, float] = {}
        self._due_s: dict[bytes, float] = {}
        self._digests: dict[int, bytes] = {}
        self._proved: dict[int, tuple[bytes, ...]] = {}
        self._claims: dict[int, dict[bytes, tuple[bytes, ...]]] = {}
        self._hashes_asked: dict[tuple[int, bytes], bool] = {}
        self._dropped: list[bytes] = []
        self._gave: set[bytes] = set()
        """The donors of which something came."""
        self._piece_s = self._limits.piece_s
        self._averaging = False

    @property
    def hash_count(self) -> int:
        """How many hashes a version has."""
        return self.pieces + (1 if self.base is None else len(self.base))

    @property
    def proved(self) -> frozenset[int]:
        """The pieces that are here, whose bytes are known to be right."""
        return frozenset(piece for piece, held in self._held.items() if held.unproved is None)

    @property
    def begun(self) -> bool:
        """Return whether a piece is here: what the memory held before is whole no more."""
        return bool(self._held)

    @property
    def held(self) -> dict[int, int]:
        """The version of each piece that is here."""
        return {piece: held.version for piece, held in self._held.items()}

    @property
    def worth_keeping(self) -> dict[int, int]:
        """As `held`; none while the stage averages: the commit that follows changes all of them."""
        return {} if self._averaging else self.held

    @property
    def whole(self) -> bool:
        """Return whether every piece is here and of the current version, proved or not."""
        current = [held for held in self._held.values() if held.version == self.version]
        return len(current) == self.pieces

    @property
    def provable(self) -> bool:
        """Return whether the digest of the current version is known, which proves what is of it."""
        return self.version in self._digests

    @property
    def complete(self) -> bool:
        """Return whether every piece is here, proved, and of the current version."""
        whole = [h for h in self._held.values() if h.version == self.version and not h.unproved]
        return len(whole) == self.pieces

    def blames(self) -> list[DonorBlame]:
        """The donors to name to the user; drained by reading."""
        drained, self._blames = self._blames, []
        return drained

    def is_bad(self, donor: bytes) -> bool:
        """Return whether a donor gave what it should not."""
        return donor in self._bad

    def forget(self) -> None:
        """The memory failed: no piece is what it was."""
        self._held = {}

    def dropped(self) -> list[bytes]:
        """The donors from which nothing more is expected for now; drained by reading."""
        drained, self._dropped = self._dropped, []
        return drained

    def rejoined(self, since: int) -> bool:
        """Go on in another session, whose first reduction is that of step `since`.

        Returns False if the stage has gone back to an older version: all begins anew then.
        """
        for donor in {coming.donor for coming in self._coming.values()}:
            self._stop(donor)
        self._averaging = False
        while self.version < since:
            self.missed(self.version)
        return self.version == since

    def averaging(self, *, now: bool) -> None:
        """Whether the stage averages now: no piece is asked for meanwhile, gradients go first."""
        self._averaging = now

    def donors(self, donors: Sequence[bytes]) -> None:
        """The members that can be asked now; those asked first that come first.

        One that has given nothing yet, and is no member any more, may be dead: others are asked.
        """
        if donors:
            for gone in sorted(self._asked().difference(donors, self._gave)):
                self._stop(gone)
        self._donors = tuple(donors)

    def committed(self, step: int) -> StepParts:
        """A commit is here, with its reduction; all before it were told."""
        self._require_next(step)
        apply = tuple(k for k, held in sorted(self._held.items()) if held.version == step)
        for k in apply:
            self._held[k] = replace(self._held[k], version=step + 1)
        oldest = step + 1 - self._limits.kept
        for k, coming in self._coming.items():
            self._coming[k] = replace(coming, usable=max(coming.usable, oldest))
        self._moved_to(step + 1)
        return StepParts(apply, tuple(sorted(self._coming)))

    def missed(self, step: int) -> None:
        """A step was committed, and its reduction did not come: what is of it cannot follow."""
        self._require_next(step)
        for k in [k for k, held in self._held.items() if held.version == step]:
            del self._held[k]
        for k, coming in self._coming.items():
            self._coming[k] = replace(coming, usable=max(coming.usable, step + 1))
        self._moved_to(step + 1)

    def agreed(self, version: int, digest: bytes) -> None:
        """The digest of the stage's state of a version, from the record of its step."""
        self._digests[version] = digest
        for donor, hashes in self._claims.pop(version, {}).items():
            self._judge_hashes(donor, version, hashes)

    def hashes_came(self, donor: bytes, version: int, hashes: Sequence[bytes]) -> None:
        """A donor has told the hashes of all pieces of a version."""
        if self._hashes_asked.get((version, donor)) is not True:
            return  # nobody asked, or the version is of no use any more
        self._hashes_asked[version, donor] = False
        if version in self._digests:
            self._judge_hashes(donor, version, tuple(hashes))
        else:
            self._claims.setdefault(version, {})[donor] = tuple(hashes)

    def hashes_failed(self, donor: bytes, version: int) -> None:
        """A donor does not know the hashes of a version; of one that it gave, it must."""
        if self._hashes_asked.get((version, donor)) is not True:
            return
        self._hashes_asked[version, donor] = False
        if donor in self._givers(version):
            self._blame(donor, f"it gave a piece of version {version}, and does not know its hash")

    def piece_came(
        self, donor: bytes, piece: int, version: int, hashed: bytes, now_s: float
    ) -> Placement | None:
        """A piece is here in memory of its own, with the SHA-256 of its bytes.

        Returns where it goes; None if it is of no use, and its memory and kept parts can go.
        """
        coming = self._coming.get(piece)
        if coming is None or coming.donor != donor:
            return None
        del self._coming[piece]
        self._gave.add(donor)
        self._due_s[donor] = now_s + self._piece_s
        if version < coming.asked:
            reason = f"piece {piece} of version {version} where {coming.asked} was asked for"
            self._blame(donor, reason)
            return None
        if version > self.version + self._limits.versions:
            self.donor_failed(donor, now_s)
            return None
        if version < coming.usable:
            return None
        origin = _Origin(donor, version, hashed)
        if (proved := self._proved.get(version)) is not None and proved[piece] != hashed:
            self._blame(donor, f"piece {piece} of version {version} is not what it should be")
            return None
        if self._hashes_asked.get((version, donor)) is False:
            del self._hashes_asked[version, donor]  # it may have refused before it had the version
        self._held[piece] = _Held(max(version, self.version), origin if proved is None else None)
        return Placement(piece, range(version, self.version))

    def restored(self, piece: int, version: int, hashed: bytes) -> Placement | None:
        """A piece that a former process of this node had, with the SHA-256 of its bytes.

        It is proved like any other. None if it is of no use: nobody has the gradients any more that
        would bring an older one forward.
        """
        if version != self.version or piece in self._held or piece in self._coming:
            return None
        proved = self._proved.get(version)
        if proved is not None and proved[piece] != hashed:
            return None
        origin = _Origin(KEPT, version, hashed)
        self._held[piece] = _Held(version, origin if proved is None else None)
        return Placement(piece, range(version, version))

    def donor_failed(self, donor: bytes, now_s: float) -> None:
        """A donor is gone, or has refused: what it was to send is missing again."""
        self._stop(donor)
        self._retry_s[donor] = now_s + RETRY_S

    def wanted(self, now_s: float) -> list[PieceWanted | HashesWanted]:
        """Return what to ask for now; drained by reading."""
        usable = [d for d in self._donors if d not in self._bad]
        rested = [d for d in usable if now_s >= self._retry_s.get(d, now_s)]
        donors = rested[: self._limits.donors]
        self._give_up_unprovable()
        answering = self._asked()
        found: list[PieceWanted | HashesWanted] = [*self._hashes_wanted(rested)]
        for wanted in found:
            if wanted.donor not in answering:
                self._due_s[wanted.donor] = now_s + self._piece_s
        here = self._held.keys() | self._coming.keys()
        missing = [k for k in range(self.pieces) if k not in here and not self._averaging]
        for _ in range(self._limits.ahead):
            for donor in donors:
                busy = sum(coming.donor == donor for coming in self._coming.values())
                if missing and busy < self._limits.ahead:
                    piece = missing.pop(0)
                    self._coming[piece] = _Coming(donor, self.version, self.version)
                    if not busy and donor not in answering:
                        self._due_s[donor] = now_s + self._piece_s
                    found.append(PieceWanted(donor, piece, self.version))
        return found

    def next_deadline_s(self) -> float | None:
        """Return when to call `on_deadline`, or `wanted` again."""
        asked = self._asked()
        due = [due_s for donor, due_s in self._due_s.items() if donor in asked]
        return min([*due, *self._retry_s.values()], default=None)

    def on_deadline(self, now_s: float) -> None:
        """Give up donors that give nothing; ask those again that failed a while ago."""
        for donor in [d for d, retry_s in self._retry_s.items() if now_s >= retry_s]:
            del self._retry_s[donor]
        for donor in sorted(self._asked()):
            if now_s >= self._due_s[donor]:
                self._piece_s = min(2 * self._piece_s, self._limits.piece_max_s)
                self.donor_failed(donor, now_s)

    def _asked(self) -> set[bytes]:
        """The donors that owe an answer."""
        telling = {donor for (_, donor), open_ in self._hashes_asked.items() if open_}
        return telling | {coming.donor for coming in self._coming.values()}

    def _require_next(self, step: int) -> None:
        if step != self.version:
            raise ValueError(f"the commit of step {step} to version {self.version}")

    def _moved_to(self, version: int) -> None:
        self.version = version
        first = min((coming.usable for coming in self._coming.values()), default=version)
        needed = {*self._unproved_versions(), *range(first, version)}

        def live(v: int) -> bool:
            return v in needed or v >= version

        self._digests = {v: digest for v, digest in self._digests.items() if live(v)}
        self._proved = {v: hashes for v, hashes in self._proved.items() if live(v)}
        self._claims = {v: claims for v, claims in self._claims.items() if live(v)}
        self._hashes_asked = {key: on for key, on in self._hashes_asked.items() if live(key[0])}

    def _judge_hashes(self, donor: bytes, version: int, hashes: tuple[bytes, ...]) -> None:
        """Prove the pieces of a version by their hashes, if those have the agreed root."""
        if len(hashes) != self.hash_count or self._root(hashes) != self._digests[version]:
            self._blame(donor, f"its hashes of version {version} do not have the agreed digest")
            return
        behind = hashes[self.pieces :]
        if self.base is None:
            self.base = behind
        elif self.base != behind:
            self.other_base = True
            return
        self._proved[version] = hashes
        for k, held in sorted(self._held.items()):
            origin = held.unproved
            if origin is None or origin.version != version:
                continue
            if origin.hashed == hashes[k]:
                self._held[k] = replace(held, unproved=None)
            else:
                del self._held[k]
                if origin.donor != KEPT:
                    reason = f"piece {k} of version {version} is not what it should be"
                    self._blame(origin.donor, reason)

    def _blame(self, donor: bytes, reason: str) -> None:
        self._stop(donor)
        if donor not in self._bad:
            self._bad[donor] = DonorBlame(donor, reason)
            self._blames.append(self._bad[donor])

    def _stop(self, donor: bytes) -> None:
        """Nothing more is expected of a donor."""
        self._dropped.append(donor)
        self._coming = {k: coming for k, coming in self._coming.items() if coming.donor != donor}
        self._due_s.pop(donor, None)
        self._hashes_asked = {
            key: on for key, on in self._hashes_asked.items() if not on or key[1] != donor
        }

    def _unproved_versions(self) -> list[int]:
        return sorted({held.unproved.version for held in self._held.values() if held.unproved})

    def _givers(self, version: int) -> set[bytes]:
        """The donors of pieces of a version that are not proved."""
        origins = [held.unproved for held in self._held.values() if held.unproved]
        return {origin.donor for origin in origins if origin.version == version}

    def _hashes_wanted(self, donors: Sequence[bytes]) -> list[HashesWanted]:
        """For each version that is to be proved, the next donor: first those that gave of it."""
        found = []
        for version in self._unproved_versions():
            asked = any(on for (v, _), on in self._hashes_asked.items() if v == version)
            if asked or version in self._claims:
                continue
            givers = self._givers(version)
            for donor in sorted(donors, key=lambda donor: donor not in givers):
                if (version, donor) not in self._hashes_asked:
                    self._hashes_asked[version, donor] = True
                    found.append(HashesWanted(donor, version))
                    break
        return found

    def _give_up_unprovable(self) -> None:
        """Pieces of a version whose hashes all donors have refused are missing again."""
        able = [d for d in self._donors if d not in self._bad]
        for version in self._unproved_versions():
            refused = all(self._hashes_asked.get((version, d)) is False for d in able)
            if not able or not refused or version in self._claims:
                continue
            for k, held in list(self._held.items()):
                if held.unproved and held.unproved.version == version:
                    del self._held[k]
            asked = self._hashes_asked
            self._hashes_asked = {key: on for key, on in asked.items() if key[0] != version}
