"""ReplyBudget: a bound on what peers make us hold by open streams and by replies left unread.

Source:  Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet switches"
         (1998), with alpha 1.
"""

STREAM_BYTES = 1024  # about what a stream costs that does nothing
LINK_BYTES_FREE = 16 * 1024  # a few streams, however many others there are: 16 MiB on 1,024 links
LINK_BYTES_MAX = 4 * 1024 * 1024  # the session's window: more cannot be sent in one round trip
SUM_BYTES_MAX = 16 * 1024 * 1024  # twice for copies in sockets, and 1,024 links of 45 KB: 78 MB


class ReplyBudget:
    """The sum of what all links of a node hold.

    A link may hold as much as is free, LINK_BYTES_MAX at most and LINK_BYTES_FREE in any case. So
    however many links are greedy, each of them and each honest one get equal shares, and the sum
    is bounded. A link that would hold more is *crowded*: it takes no more openings, and its peer
    is told that we are busy. A reply larger than what a link may hold in any case is sent only
    while the sum has room for it, however little its own link holds: else one on each of a
    thousand links would be beyond the sum by as much as a reply may be long. What streams add all
    the same is bounded by ending a link at twice the sum. What was sent and is not acknowledged
    (`control_records.py`) is in the same sum: a reply that nobody reads lies there, and once more
    in the socket's buffer.
    """

    def __init__(self) -> None:
        self.held_bytes = 0


class LinkReplyBudget:
    """The part of one link, as its mux counts it: the count itself is on the hot path."""

    def __init__(self, of_all: ReplyBudget | None = None) -> None:
        """`of_all`: the sum that this link is a part of."""
        self._all = of_all or ReplyBudget()
        self._told_bytes = 0  # our part of the sum

    def crowded(self, held_bytes: int) -> bool:
        """Return whether the link should take no more; call this before anything is added."""
        if held_bytes <= LINK_BYTES_FREE:
            return False
        self.update(held_bytes)
        return held_bytes > min(LINK_BYTES_MAX, SUM_BYTES_MAX - self._all.held_bytes)

    def takes(self, held_bytes: int, reply_bytes: int) -> bool:
        """Return whether a reply may be added to what the link holds; if so, it counts from now on.

        It counts until the link says at its next reply or ping that it holds less again. Without a
        reply (0 bytes) this tells whether the link should take anything.
        """
        if held_bytes > LINK_BYTES_FREE and self.crowded(held_bytes):
            return False
        if self._told_bytes:
            self.update(held_bytes)
        if held_bytes + reply_bytes <= LINK_BYTES_FREE or not reply_bytes:
            return True
        self.update(held_bytes)
        if self._all.held_bytes + reply_bytes > SUM_BYTES_MAX:
            return False
        self.update(held_bytes + reply_bytes)
        return True

    def unbearable(self, held_bytes: int) -> bool:
        """Return whether the link must end: handlers have added too much to what is unread."""
        if held_bytes <= LINK_BYTES_FREE:
            return False
        self.update(held_bytes)
        return self._all.held_bytes > 2 * SUM_BYTES_MAX

    def update(self, held_bytes: int) -> None:
        """Bring the sum up to date."""
        self._all.held_bytes += held_bytes - self._told_bytes
        self._told_bytes = held_bytes

    def leave(self) -> None:
        """The link has ended: it is no part of the sum any more."""
        self._all.held_bytes -= self._told_bytes
        self._all, self._told_bytes = ReplyBudget(), 0
