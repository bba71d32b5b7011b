"""RunPage: what a page shows, without the HTTP that carries it.

Events come in; a snapshot of the run, lines of events, curves and metrics are read. A snapshot is
made twice a second at most, however many look, and never while nobody does.

Units:   `now_s` seconds on the caller's clock; wall clocks in seconds since 1970.
"""

import json
import math
from bisect import bisect_left
from collections.abc import Callable, Mapping
from typing import Any

from p2pswarm.base.token_bucket import TokenBucket
from p2pswarm.progress.event_lines import EventLine
from p2pswarm.progress.events import Stepped, name_of
from p2pswarm.progress.servers_view import NAME_CHARS, shown
from p2pswarm.progress.view import FIGURE_EVENTS, RunView
from p2pswarm.web.health import NodeHealth
from p2pswarm.web.streams import EventStreams, message

VIEW_EVERY_S = 0.5  # people see no more, and a lost server is to be seen within a second
VIEW_QUIET_S = 1.0  # ages and stalls are of the clock: without an event they change, too
LINES_PER_S = 50  # more than anybody reads; a member that makes more events costs no more
LINES_BURST = 200  # twenty servers that are lost at once, and come back
TEXT_CHARS_MAX = 500  # of an event's sentence
FIGURES = frozenset(FIGURE_EVENTS)
STEP_BUCKETS_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0)


class StepHistogram:
    """How long steps took, in the buckets of a histogram."""

    def __init__(self) -> None:
        self.counts = [0] * (len(STEP_BUCKETS_S) + 1)
        """By bucket; the last one has what is longer than all."""
        self.sum_s = 0.0

    def add(self, took_s: float) -> None:
        """Count a step."""
        if 0.0 < took_s < math.inf:
            self.counts[bisect_left(STEP_BUCKETS_S, took_s)] += 1
            self.sum_s += took_s


class RunPage:
    """The page of one node."""

    def __init__(self, health: NodeHealth, wall: Callable[[], float], process: str = "") -> None:
        """`health`: of the node; `wall`: the wall clock; in a replay, that of its newest event.

        `process`: a text that no other process has, which counts lines anew.
        """
        self.role = health.role
        self.process = process
        self.health = health
        self.view = RunView()
        """The run; whoever gives events to the page gives them to this first."""
        self.streams = EventStreams()
        self.step_times = StepHistogram()
        self.own: Callable[[], Mapping[str, object]] = dict
        """What the node says of itself: the part YOU."""
        self.traffic: Callable[[], Mapping[tuple[str, str], int]] = dict
        """The bytes that this node has carried, by direction and kind of path."""
        self.look: Callable[[], object] = lambda: None
        """Looks at what the node's own figures are of; called once a second."""
        self.over = False
        """The node leaves, and streams are to end."""
        self.left_out = 0
        """Events that were too many a second."""
        self._wall = wall
        self._bucket = TokenBucket(1.0 / LINES_PER_S, LINES_BURST)
        self._next_line_s = -math.inf
        """From then on the bucket has a line left."""
        self._gap = 0
        """Of `left_out`: what the streams know."""
        self._changed = True
        self._newest = b""
        self._made_s = -math.inf

    def on_line(self, told: EventLine, now_s: float) -> None:
        """Take an event. It costs little, and awaits nothing: a run waits for no page."""
        event = told.event
        self._changed = True
        if type(event) in FIGURES:
            if isinstance(event, Stepped):
                self.step_times.add(event.took_s)
        elif now_s < self._next_line_s:  # of a flood, each event comes here: nothing else is done
            self.left_out += 1
        else:
            self._bucket.take(now_s)
            self._next_line_s = self._bucket.next_s()
            self.streams.on_gap(self.left_out - self._gap)
            self._gap = self.left_out
            line = {
                "at": told.at,
                "by": shown(told.by, NAME_CHARS),
                "event": name_of(type(event)),
                "text": shown(event.text, TEXT_CHARS_MAX),
            }
            # not as ASCII, in which a reason of emoji is too long for a line, and nobody sees it
            self.streams.on_line(json.dumps(line, separators=(",", ":"), ensure_ascii=False))

    def end(self) -> None:
        """End all streams: the node leaves."""
        self.over = True

    def newest_view(self, now_s: float) -> bytes:
        """The newest snapshot as a message of a stream; the same object until there is another."""
        age_s = now_s - self._made_s
        if age_s >= VIEW_QUIET_S or (self._changed and age_s >= VIEW_EVERY_S):
            self._newest = message("view", self.snapshot_json())
            self._made_s, self._changed = now_s, False
        return self._newest

    def snapshot_json(self) -> str:
        """The run and the node as they stand, without curves and events."""
        return json.dumps(self.snapshot(), separators=(",", ":"), allow_nan=False)

    def snapshot(self) -> dict[str, Any]:
        """The same as plain values."""
        run = self.view.to_json(self._wall(), events=0, curves=False)
        return {
            "role": self.role,
            "process": self.process,
            "run": run,
            "you": dict(self.own()),
            "left_out": self.left_out,
            "viewers": self.streams.viewers,
        }

    def curves_json(self) -> str:
        """The curves of the run, each of bounded length."""
        return json.dumps(self.view.curves(), separators=(",", ":"))

    def lines_json(self) -> str:
        """The lines that are kept, the newest last."""
        return f"[{','.join(each.line for each in self.streams.after(0))}]"
