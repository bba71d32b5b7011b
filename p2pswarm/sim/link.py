"""The link between two simulated processes, its clock, and processes that are stopped."""

import contextvars
from collections import deque
from collections.abc import Callable
from contextvars import Context
from typing import Any, Protocol

from p2pswarm.sim.bulk_turns import BulkTurns
from p2pswarm.sim.network_conditions import Host, World


class SimTimer(Protocol):
    """What a clock will call."""

    def cancel(self) -> None:
        """Call nobody back."""
        ...


class SimClock(Protocol):
    """An event loop's timers."""

    def time(self) -> float:
        """The time now."""
        ...

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> SimTimer:
        """Call back at that time; `context` says whose timer it is."""
        ...

    def call_later(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> SimTimer:
        """Call back after that time."""
        ...

    def call_soon(self, callback: Callable[..., object], *args: Any) -> object:
        """Call back in the next turn of the loop."""
        ...


class Suspension:
    """The state of one process: whether it is stopped, and what waits until it goes on.

    Its kernel still takes what the network brings. When the process goes on, everything that came
    is read first; then the timers fire that are overdue, and the tasks go on that were to run.

    A process runs in contexts of its own, in which `PROCESS` names its suspension. So the event
    loop knows whose handles it runs. What the network does belongs to no process: it runs in
    `WORLD`.
    """

    def __init__(self) -> None:
        self.context = contextvars.copy_context()
        """A context of the process: what starts in it belongs to the process."""
        self.context.run(PROCESS.set, self)
        self.stopped = False
        """True if the process runs nothing now."""
        self._stops = 0
        self._arrivals: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._waiting: list[Callable[[], object]] = []

    def stop(self) -> None:
        """Stop it; as often as it is stopped, it has to be continued."""
        self._stops += 1
        self.stopped = True

    def go_on(self) -> None:
        """Continue it: first comes what arrived, then what was to run."""
        self._stops -= 1
        if self._stops == 0:
            self.release()

    def release(self) -> None:
        """Run all that waits, however often the process was stopped: it goes on, or it ends."""
        self._stops = 0
        self.stopped = False
        waiting, self._waiting = self._waiting, []
        for resume in waiting:
            resume()
        arrivals, self._arrivals = self._arrivals, deque()
        for event, args in arrivals:
            self.context.run(event, *args)

    def forget_arrivals(self) -> None:
        """Forget what came and was not read: the process has ended."""
        self._arrivals.clear()

    def wait(self, resume: Callable[[], object]) -> None:
        """Call `resume` when the process goes on: something was to run while it is stopped."""
        self._waiting.append(resume)

    def on_arrival(self, event: Callable[..., object], *args: Any) -> None:
        """Let the network tell the process something, now or when it goes on."""
        if self.stopped:
            self._arrivals.append((event, args))
        else:
            self.context.run(event, *args)


PROCESS: contextvars.ContextVar[Suspension | None] = contextvars.ContextVar("PROCESS", default=None)
WORLD = contextvars.Context()
DEAD_AFTER_S = 15.0  # silence that ends a link, as in net/config.py


class LinkEnd(Protocol):
    """The process at one end."""

    host: Host
    running: bool
    suspension: Suspension

    def take(self, event: Callable[..., object], *args: object) -> None:
        """Let the network tell it something."""
        ...


class SimLink:
    """One link, from its handshake to its end.

    Streams and calls use it. What is sent on a path that is cut waits, as TCP sends it again, and
    arrives when the path is whole. A link over which nothing is heard for `DEAD_AFTER_S` ends,
    whether a path is cut, the other process is stopped, or its machine has lost power.
    """

    def __init__(
        self, world: World, clock: SimClock, ends: tuple[LinkEnd, LinkEnd], over: Callable[[], None]
    ) -> None:
        """`over` is called when it ends."""
        self.ends = ends
        self.ended = False
        self._world = world
        self._clock = clock
        self._over = over
        self._users: dict[object, tuple[LinkEnd, Callable[[], None]]] = {}
        self._held: tuple[deque[Callable[[], object]], ...] = deque(), deque()
        """The messages that each end has sent into a path that is cut."""
        self._bulk = BulkTurns(), BulkTurns()
        self._silence: SimTimer | None = None

    def join(self, user: object, end: LinkEnd, lose: Callable[[], None]) -> None:
        """Use the link at one end; `lose` is called there when the link ends."""
        self._users[user] = end, lose

    def leave(self, user: object) -> None:
        """Use it no more."""
        self._users.pop(user, None)

    def passes(self, source: LinkEnd) -> bool:
        """Return whether what `source` sends now goes out, after all that it sent before."""
        here = self.ends.index(source)
        host, other = source.host, self.ends[1 - here].host
        return not self._held[here] and self._world.connected(host, other)

    def bulk_turns(self, source: LinkEnd) -> BulkTurns:
        """Return the order of the transfers of one end."""
        return self._bulk[self.ends.index(source)]

    def hold(self, source: LinkEnd, send: Callable[[], object]) -> None:
        """Keep what `source` sends until its path is whole; `send` tries again then."""
        self._held[self.ends.index(source)].append(send)
        self.watch()

    def watch(self) -> None:
        """Look at both ends and paths: something has changed."""
        if self.ended:
            return
        silent = not self._sound()
        if silent and self._silence is None:
            self._silence = self._clock.call_later(DEAD_AFTER_S, self.end, context=WORLD)
        elif not silent and self._silence is not None:
            self._silence.cancel()
            self._silence = None
        for here, source in enumerate(self.ends):
            held = list(self._held[here])
            if held and self._world.connected(source.host, self.ends[1 - here].host):
                self._held[here].clear()
                for send in held:
                    send()

    def on_death(self, end: LinkEnd, *, silent: bool) -> None:
        """The process at one end has ended: its own streams end, the other end is told or not."""
        for user, (where, lose) in list(self._users.items()):
            if where is end:
                del self._users[user]
                lose()
        if silent:
            self.watch()
        else:
            self.end_after(0.0)

    def end_after(self, wait_s: float) -> None:
        """End it after `wait_s`, or one latency if that is longer."""
        near, far = self.ends
        way_s = self._world.one_way_s(near.host, far.host)
        self._clock.call_later(max(wait_s, way_s), self.end, context=WORLD)

    def end(self) -> None:
        """End it: both ends are told."""
        if self.ended:
            return
        self.ended = True
        if self._silence is not None:
            self._silence.cancel()
        self._over()
        users, self._users = self._users, {}
        for end, lose in users.values():
            end.take(lose)

    def _sound(self) -> bool:
        """Return whether both ends hear each other."""
        near, far = self.ends
        living = all(end.running and not end.suspension.stopped for end in self.ends)
        world = self._world
        return (
            living and world.connected(near.host, far.host) and world.connected(far.host, near.host)
        )
