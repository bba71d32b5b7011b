"""AttemptStagger: when the next of several addresses is tried beside those that are under way.

Source:  RFC 8305 section 5 and 8 (the delay, and that a measured round trip may be used).
"""

ATTEMPT_DELAY_S = 0.25  # RFC 8305 section 8: longer than most round trips
DELAY_MAX_S = 1.0  # whatever was measured: who accepts and says nothing costs no more
SLACK = 1.5  # a round trip may take so much longer than the last one
HANDSHAKE_RTTS = 3  # hello, an answer to it, and one more where a peer is crowded
ROUNDING_S = 1e-6  # a timer may fire so much before its time
TIMES_MAX = 1024  # about 150 KB


class AttemptStagger:
    """The pauses between the attempts of one dial.

    An address that drops everything shows nothing, so the next one is tried a quarter of a second
    later. One at which a connection came up shows that somebody is there, and how far away: what
    comes after it, a handshake, takes as long again. So the next address waits for that, and a
    peer at the other end of the world is not dialled twice only because it is far. Whoever was
    reached before is given the time that it took then.
    """

    def __init__(self, expected_s: float = 0.0) -> None:
        """`expected_s`: how long the first address took to connect before; 0 if it is not known."""
        self._pause_s = min(max(ATTEMPT_DELAY_S, SLACK * expected_s), DELAY_MAX_S)
        self.next_s = float("-inf")
        """The time at which the next address may be tried."""

    def due(self, now_s: float) -> bool:
        """Return whether the next address may be tried."""
        return now_s >= self.next_s - ROUNDING_S

    def on_attempt(self, now_s: float) -> None:
        """Note that an address is being tried."""
        self.next_s = now_s + self._pause_s
        self._pause_s = ATTEMPT_DELAY_S

    def on_connection(self, took_s: float, now_s: float) -> None:
        """Note that a connection is up, and how long that took; what follows takes a while."""
        pause_s = min(max(ATTEMPT_DELAY_S, HANDSHAKE_RTTS * took_s), DELAY_MAX_S)
        self.next_s = max(self.next_s, now_s + pause_s)

    def on_failure(self) -> None:
        """Note that an attempt came to nothing: the next address need not wait."""
        self.next_s = float("-inf")


class ConnectTimes:
    """The time that it took to connect to hosts of late."""

    def __init__(self) -> None:
        self._took_s: dict[str, float] = {}

    def note(self, host: str, took_s: float) -> None:
        """Note how long a connection took to come up."""
        self._took_s.pop(host, None)  # to the end: the newest
        self._took_s[host] = took_s
        if len(self._took_s) > TIMES_MAX:
            del self._took_s[next(iter(self._took_s))]

    def of(self, host: str) -> float:
        """Return how long the last one took; 0 if that is not known."""
        return self._took_s.get(host, 0.0)
