"""The metrics of a node for Prometheus.

No label is chosen by a stranger, and none has more values than a run has stages. So a member can
neither name a series nor fill the memory of who scrapes them.

Alert on the age of the last commit, and not on a rate: a rate is a mean of what was.

Source:  https://prometheus.io/docs/practices/naming; docs/metrics.md.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from p2pswarm.base.version import VERSION
from p2pswarm.web.run_page import STEP_BUCKETS_S, RunPage

SERVER_STATES = ("ready", "joining", "moving", "lost")
MICROBATCH_STATES = {
    "counted": "counted",
    "again": "replayed",
    "void": "voided",
    "quarantined": "quarantined",
}
"""The values of the label, and where a snapshot has their numbers."""


class RunCollector(Collector):
    """Reads a page's snapshot when somebody scrapes."""

    def __init__(self, page: RunPage) -> None:
        self._page = page

    def collect(self) -> Iterator[Metric]:
        """All metrics of the run, and of this node."""
        shown = self._page.snapshot()
        run = shown["run"]
        yield _info(self._page.role, run)
        yield from _progress(run)
        yield from _stages(run)
        yield from _totals(run)
        yield _step_seconds(self._page)
        yield _network(self._page.traffic())


def metrics_text(page: RunPage) -> bytes:
    """The metrics as Prometheus reads them, those of the process too."""
    registry = CollectorRegistry()
    registry.register(RunCollector(page))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


def _info(role: str, run: Mapping[str, Any]) -> Metric:
    info = GaugeMetricFamily(
        "p2pswarm_info", "This node: always 1.", labels=("version", "run", "role")
    )
    info.add_metric((VERSION, run["run"], role), 1)
    return info


def _progress(run: Mapping[str, Any]) -> Iterator[Metric]:
    yield GaugeMetricFamily("p2pswarm_step", "Steps that are committed.", run["step"])
    yield GaugeMetricFamily("p2pswarm_steps", "Steps of the whole run.", run["steps"])
    for name, text, value in (
        ("p2pswarm_loss", "Training loss of the newest step, in nats per token.", run["loss"]),
        ("p2pswarm_held_out_loss", "Loss on text that is never trained on.", run["held_out"]),
        (
            "p2pswarm_last_commit_timestamp_seconds",
            "When the newest step was committed.",
            run["committed"],
        ),
        (
            "p2pswarm_checkpoint_timestamp_seconds",
            "When the newest checkpoint was finished.",
            run["checkpoint"]["at"],
        ),
    ):
        family = GaugeMetricFamily(name, text)
        if value is not None:  # absent before the first
            family.add_metric((), value)
        yield family
    tokens = run["counts"]["counted"] * _microbatch_tokens(run)
    yield CounterMetricFamily("p2pswarm_tokens", "Tokens of committed steps.", tokens)
    counts = CounterMetricFamily(
        "p2pswarm_microbatches", "Microbatches, by what became of them.", labels=("state",)
    )
    for state, key in MICROBATCH_STATES.items():
        counts.add_metric((state,), run["counts"][key])
    yield counts
    money = CounterMetricFamily(
        "p2pswarm_cost", "What the run has cost, as its members say.", labels=("currency",)
    )
    if (cost := run.get("cost")) is not None and cost["total"] is not None:
        currency = cost["currency"]
        known = currency.isascii() and currency.isalpha() and currency.isupper()
        money.add_metric((currency if known else "",), cost["total"])
    yield money


def _stages(run: Mapping[str, Any]) -> Iterator[Metric]:
    servers = GaugeMetricFamily(
        "p2pswarm_servers", "Servers of a stage, by their state.", labels=("stage", "state")
    )
    rate = GaugeMetricFamily(
        "p2pswarm_stage_rate", "Microbatches a second that a stage counts.", labels=("stage",)
    )
    queue = GaugeMetricFamily(
        "p2pswarm_queue_seconds", "Mean wait of a microbatch at a stage.", labels=("stage",)
    )
    states = Counter((one["stage"], one["state"]) for one in run["servers"].values())
    for row in run["stages"]:
        stage = row["stage"]
        for state in SERVER_STATES:
            servers.add_metric((str(stage), state), states[stage, state])
        rate.add_metric((str(stage),), row["rate_per_s"])
        if row["queue_s"] is not None:
            queue.add_metric((str(stage),), row["queue_s"])
    yield from (servers, rate, queue)


def _totals(run: Mapping[str, Any]) -> Iterator[Metric]:
    totals = run["totals"]
    yield CounterMetricFamily(
        "p2pswarm_joins", "Servers that were given a stage.", totals["joined"]
    )
    losses = CounterMetricFamily(
        "p2pswarm_losses", "Servers whose part was over, by the reason.", labels=("why",)
    )
    for why, count in totals["left"].items():
        losses.add_metric((why,), count)
    yield losses
    yield CounterMetricFamily(
        "p2pswarm_stalls", "Steps of more than three steps' usual time.", totals["stalls"]
    )


def _step_seconds(page: RunPage) -> Metric:
    """The times of steps that this node has seen."""
    below, buckets = 0, []
    for edge, count in zip((*STEP_BUCKETS_S, "+Inf"), page.step_times.counts, strict=True):
        below += count
        buckets.append((str(edge), below))
    return HistogramMetricFamily(
        "p2pswarm_step_seconds", "Time of a step.", buckets=buckets, sum_value=page.step_times.sum_s
    )


def _network(traffic: Mapping[tuple[str, str], int]) -> Metric:
    network = CounterMetricFamily(
        "p2pswarm_network_bytes",
        "Bytes that this node has sent and received, by the kind of path.",
        labels=("direction", "path"),
    )
    for (direction, path), count in traffic.items():
        network.add_metric((direction, path), count)
    return network


def _microbatch_tokens(run: Mapping[str, Any]) -> float:
    return run["step_tokens"] / run["microbatches"] if run["microbatches"] else 0.0
