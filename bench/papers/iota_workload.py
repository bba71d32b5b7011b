"""The workload of IOTA's simulator competition: workers in layers, activations forward and back.

96 workers serve 3 to 8 layers. An activation goes forward through one worker of each layer and back
through the same. Each worker has a queue of each kind and takes backwards first. It keeps what it
has done forward until the backward has come, five of them: then its forwards wait. What takes a
minute at one layer is dropped, wherever it is. An epoch is 500 activations that came back.

The competition's ranges are not published. These are ours: `RANGES`; `UNDER_WAY` activations are
under way for each worker.

Units:   seconds, bytes.
Source:  macrocosm-os/apex @9e8f330b, shared/competition/src/competition/iota_simulator/README.md.
"""

import heapq
import itertools
from collections import deque
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

WORKERS, CACHE, EPOCHS, FINISHED = 96, 5, 5, 500
STUCK_S = 60.0
ACTIVATION_BYTES = 8 << 20
UNDER_WAY = 1.5  # activations for each worker
RANGES = {
    "layers": (3, 8),
    "bytes_per_s": (2.5e6, 25e6),
    "latency_s": (0.01, 0.15),
    "forward_s": (0.5, 4.0),
    "backward_over_forward": 2.0,
    "drift_between_epochs": (0.8, 1.25),
    "classes": ((0.75, 0.0005), (0.15, 0.005), (0.10, 0.03)),
    "classes_are": "share of the workers, and how likely one drops what it has computed",
}


@dataclass(slots=True)
class Worker:
    """One machine."""

    number: int
    bytes_per_s: float
    latency_s: float
    forward_s: float
    drops: float
    layer: int = 0
    forwards: deque["Passing"] = field(default_factory=deque)
    backwards: deque["Passing"] = field(default_factory=deque)
    cached: set[int] = field(default_factory=set)
    working: bool = False
    busy_s: float = 0.0
    done: int = 0

    @property
    def transfer_s(self) -> float:
        """How long an activation takes to come."""
        return self.latency_s + ACTIVATION_BYTES / self.bytes_per_s

    @property
    def full(self) -> bool:
        """Whether one more forward would wait for a backward."""
        return len(self.cached) + len(self.forwards) >= CACHE


@dataclass(slots=True)
class Passing:
    """One activation on its way."""

    number: int
    road: list[Worker] = field(default_factory=list)
    """The workers that it was given to, layer by layer."""
    given_s: float = 0.0
    """When it was given to the last of them, or began to wait for one."""
    arrived_s: float = 0.0
    forward_done_s: list[float] = field(default_factory=list)
    moved: int = 0
    """Rises with each thing that happens to it: who waited for the last knows that it is over."""
    gone: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """A worker has computed a forward."""

    chosen_s: float
    arrived_s: float
    taken_s: float
    done_s: float


class Routing(Protocol):
    """Chooses a worker of a layer for an activation."""

    def arranged(self, layers: list[list[Worker]]) -> None:
        """An epoch begins with these workers in each layer."""
        ...

    def choose(self, layer: int, now_s: float) -> Worker | None:
        """The worker for the next one; None: none yet, ask again when one has answered."""
        ...

    def answered(self, worker: Worker, answer: Answer) -> None:
        """A forward was computed."""
        ...

    def came_back(self, worker: Worker, waited_s: float) -> None:
        """The gradient came back so long after the forward."""
        ...

    def dropped(self, worker: Worker, chosen_s: float, now_s: float) -> None:
        """What it was given was not done within a minute."""
        ...


def workers_of(rng: Random) -> list[Worker]:
    """The machines of one seed."""
    shares = [share for share, _ in RANGES["classes"]]
    drops = [drop for _, drop in RANGES["classes"]]
    return [
        Worker(
            number,
            rng.uniform(*RANGES["bytes_per_s"]),
            rng.uniform(*RANGES["latency_s"]),
            rng.uniform(*RANGES["forward_s"]),
            rng.choices(drops, shares)[0],
        )
        for number in range(WORKERS)
    ]


def drift(workers: list[Worker], rng: Random) -> None:
    """Between two epochs everything changes a little."""
    for worker in workers:
        low, high = RANGES["drift_between_epochs"]
        worker.bytes_per_s *= rng.uniform(low, high)
        worker.latency_s *= rng.uniform(low, high)
        worker.forward_s *= rng.uniform(low, high)


class Epoch:
    """One epoch; `play` it once."""

    def __init__(
        self, layers: list[list[Worker]], routing: Routing, rng: Random, begun_s: float
    ) -> None:
        self._layers = layers
        self._routing = routing
        self._rng = rng
        self.now_s = begun_s
        self._order = itertools.count()
        self._events: list[tuple[float, int, str, Passing, int]] = []
        self._waiting: list[deque[Passing]] = [deque() for _ in layers]
        self._numbers = itertools.count()
        self.finished = self.dropped = 0
        for layer in layers:
            for worker in layer:
                worker.forwards.clear()
                worker.backwards.clear()
                worker.cached.clear()
                worker.working, worker.busy_s, worker.done = False, 0.0, 0
        routing.arranged(layers)

    def play(self) -> float:
        """Until 500 have come back; returns when that was."""
        for _ in range(int(UNDER_WAY * sum(len(layer) for layer in self._layers))):
            self._launch()
        while self.finished < FINISHED:
            self.now_s, _, kind, one, moved = heapq.heappop(self._events)
            if not one.gone:
                if kind != "stuck" or moved == one.moved:
                    getattr(self, f"_{kind}")(one)
            elif kind in ("forwarded", "backed"):
                self._idle(one.road[-1])  # it was dropped while it was computed
        return self.now_s

    def _at(self, after_s: float, kind: str, one: Passing) -> None:
        event = self.now_s + after_s, next(self._order), kind, one, one.moved
        heapq.heappush(self._events, event)

    def _launch(self) -> None:
        self._next_layer(Passing(next(self._numbers)))

    def _next_layer(self, one: Passing) -> None:
        one.given_s = self.now_s
        one.moved += 1
        self._at(STUCK_S, "stuck", one)
        self._waiting[len(one.road)].append(one)
        self._give(len(one.road))

    def _give(self, layer: int) -> None:
        """Give out what waits for a worker of a layer."""
        waiting = self._waiting[layer]
        while waiting:
            if waiting[0].gone:
                waiting.popleft()
                continue
            worker = self._routing.choose(layer, self.now_s)
            if worker is None:
                return
            one = waiting.popleft()
            one.road.append(worker)
            one.given_s = self.now_s
            self._at(worker.transfer_s, "arrived", one)

    def _arrived(self, one: Passing) -> None:
        one.arrived_s = self.now_s
        one.road[-1].forwards.append(one)
        self._work(one.road[-1])

    def _returned(self, one: Passing) -> None:
        one.road[-1].backwards.append(one)
        self._work(one.road[-1])

    def _work(self, worker: Worker) -> None:
        if worker.working:
            return
        ways = RANGES["backward_over_forward"]
        last = worker.layer == len(self._layers) - 1
        if worker.backwards:
            one, kind, took_s = worker.backwards.popleft(), "backed", ways * worker.forward_s
        elif worker.forwards and len(worker.cached) < CACHE:
            one, kind = worker.forwards.popleft(), "forwarded"
            took_s = worker.forward_s * (1 + ways * last)  # the last goes back at once
            worker.cached.add(one.number)
            one.forward_done_s.append(self.now_s)  # until it is done: when it was taken up
        else:
            return
        worker.working = True
        worker.busy_s += took_s
        self._at(took_s, kind, one)

    def _idle(self, worker: Worker) -> None:
        worker.working = False
        self._work(worker)
        self._give(worker.layer)

    def _forwarded(self, one: Passing) -> None:
        worker = one.road[-1]
        answer = Answer(one.given_s, one.arrived_s, one.forward_done_s[-1], self.now_s)
        one.forward_done_s[-1] = self.now_s
        worker.done += 1
        lost = self._rng.random() < worker.drops
        if not lost:
            self._routing.answered(worker, answer)
            if len(one.road) < len(self._layers):
                self._next_layer(one)
            else:
                self._back(one)
        self._idle(worker)

    def _backed(self, one: Passing) -> None:
        worker = one.road[-1]
        if self._rng.random() >= worker.drops:
            self._back(one)
        self._idle(worker)

    def _back(self, one: Passing) -> None:
        """The gradient goes to the layer before."""
        worker = one.road.pop()
        worker.cached.discard(one.number)
        one.moved += 1
        one.given_s = self.now_s
        if not one.road:
            self.finished += 1
            one.gone = True
            self._launch()
            return
        self._at(STUCK_S, "stuck", one)
        before = one.road[-1]
        self._routing.came_back(before, self.now_s - one.forward_done_s[len(one.road) - 1])
        self._at(before.transfer_s, "returned", one)

    def _stuck(self, one: Passing) -> None:
        """It was a minute at one layer: it is dropped, and another one begins."""
        one.gone = True
        self.dropped += 1
        if one.road:
            self._routing.dropped(one.road[-1], one.given_s, self.now_s)
        for worker in one.road:
            worker.cached.discard(one.number)
            for queue in (worker.forwards, worker.backwards):
                if one in queue:
                    queue.remove(one)
        for worker in one.road:
            self._work(worker)
            self._give(worker.layer)
        self._launch()
