"""A stage whose state moves on, its donors, and a newcomer that does what its download says."""

import hashlib
import random

from p2pswarm.run.state.piece_download import DownloadLimits, HashesWanted, PieceDownload
from p2pswarm.tensors.state_tree import root_of

PIECES = 7
HONEST = "honest"
LIES = ("bad bytes", "old version", "future version", "bad hashes", "no hashes")


def true(piece, version):
    """The bytes of a piece of a version, as a value."""
    return ("state", piece, version)


def applied(content, step):
    """What a commit makes of a piece; of one that it does not follow, rubbish."""
    kind, piece, version = content
    return true(piece, step + 1) if (kind, version) == ("state", step) else ("rubbish", content, 0)


def hash_of(content):
    return hashlib.sha256(repr(content).encode()).digest()


def hashes_of(version):
    return [hash_of(true(piece, version)) for piece in range(PIECES)]


def digest_of(version):
    return root_of(hashes_of(version))


class Swarm:
    """Messages under way are delivered in any order; donors die, lie and move on."""

    def __init__(self, donors, rng, since=0, **limits):
        self.rng, self.donors = rng, dict(donors)
        self.version = since
        self.limits = DownloadLimits(**limits)
        self.download = PieceDownload(PIECES, since, self.limits)
        self.download.donors(sorted(self.donors))
        self.under_way = []
        self.waiting = []  # commits that the newcomer has not been told of
        self.contents = {}
        self.kept = {}
        self.placed = 0
        self.now_s = 0.0
        self.blamed = []

    def commit(self):
        """The stage goes on to its next version; donors are there at once."""
        self.waiting.append(self.version)
        self.version += 1

    def hear(self, *, missed=False):
        """The newcomer hears of the next commit, with its reduction or without."""
        step = self.waiting.pop(0)
        self.download.agreed(step, digest_of(step))
        if missed:
            self.download.missed(step)
            return
        parts = self.download.committed(step)
        for piece in parts.apply:
            self.contents[piece] = applied(self.contents[piece], step)
        for piece in parts.keep:
            self.kept.setdefault(piece, []).append(step)
        self.ask()

    def ask(self):
        wanted = self.download.wanted(self.now_s)
        for one in wanted:
            if not isinstance(one, HashesWanted):
                self.kept[one.piece] = []
        self.under_way += wanted

    def deliver(self):
        """One request that is under way reaches its donor, and the answer comes back."""
        one = self.under_way.pop(self.rng.randrange(len(self.under_way)))
        kind = self.donors.get(one.donor)
        if kind is None:
            self.download.donor_failed(one.donor, self.now_s)
        elif isinstance(one, HashesWanted):
            self.tell_hashes(one, kind)
        else:
            self.give(one, kind)
        self.blamed += self.download.blames()
        self.ask()

    def tell_hashes(self, one, kind):
        if kind == "no hashes" or (one.version > self.version and kind == HONEST):
            self.download.hashes_failed(one.donor, one.version)
            return
        hashes = hashes_of(one.version)
        if kind == "bad hashes":
            hashes[self.rng.randrange(PIECES)] = b"x" * 32
        self.download.hashes_came(one.donor, one.version, hashes)

    def give(self, one, kind):
        version = self.version
        content = true(one.piece, version)
        if kind == "bad bytes":
            content = ("flipped", one.piece, version)
        told = {"old version": one.at_least - 1, "future version": version + 3}.get(kind, version)
        place = self.download.piece_came(one.donor, one.piece, told, hash_of(content), self.now_s)
        if place is None:
            return
        self.placed += 1
        kept = self.kept.pop(one.piece)
        for step in place.steps:
            assert step in kept, "a part that the newcomer has not kept"
            content = applied(content, step)
        self.contents[one.piece] = content

    def restart(self, damaged=0):
        """The newcomer's process dies; the next one has on disk what was in memory, or less.

        Returns how many pieces it took from there.
        """
        disk, versions = self.contents, self.download.held
        self.under_way, self.waiting, self.kept, self.contents = [], [], {}, {}
        self.download = PieceDownload(PIECES, self.version, self.limits)
        self.download.donors(sorted(self.donors))
        for piece, version in versions.items():
            content = disk[piece] if piece >= damaged else ("damaged", piece, version)
            if self.download.restored(piece, version, hash_of(content)) is not None:
                self.contents[piece] = content
        return len(self.contents)

    def settle(self):
        """Nothing changes any more: deliver all until the state is whole."""
        while self.waiting:
            self.hear()
        self.download.agreed(self.version, digest_of(self.version))
        self.ask()
        for _ in range(50 * PIECES):
            if self.download.complete:
                return
            if self.under_way:
                self.deliver()
                continue
            due_s = self.download.next_deadline_s()
            assert due_s is not None, "nothing is under way, and nothing will be"
            self.now_s = max(self.now_s, due_s)
            self.download.on_deadline(self.now_s)
            self.ask()
        raise AssertionError("it does not end")

    @property
    def whole(self):
        """Whether every piece is that of the stage's version."""
        version = self.download.version
        return self.contents == {piece: true(piece, version) for piece in range(PIECES)}


def calm(*names, seed=1, **limits):
    """Honest donors only."""
    return Swarm(dict.fromkeys(names, HONEST), random.Random(seed), **limits)
