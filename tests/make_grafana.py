"""Write docs/grafana.json, a board of the metrics, and the table of docs/metrics.md.

    python tests/make_grafana.py

Both are functions of the metrics that a page with a run gives; a test holds them to that.
"""

import json
import re
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric

from p2pswarm.web.health import NodeHealth
from p2pswarm.web.metrics import RunCollector
from p2pswarm.web.run_page import RunPage

ROOT = Path(__file__).parents[1]
BOARD, PAGE = ROOT / "docs" / "grafana.json", ROOT / "docs" / "metrics.md"
SOURCE = "${DS_PROMETHEUS}"
WIDTH, HEIGHT = 12, 8  # of 24 columns: two panels a row
PANELS = (
    ("Steps", "p2pswarm_step", "short"),
    ("Loss", "p2pswarm_loss or p2pswarm_held_out_loss", "short"),
    ("Since the last commit", "time() - p2pswarm_last_commit_timestamp_seconds", "s"),
    ("Tokens a second", "rate(p2pswarm_tokens_total[5m])", "short"),
    (
        "Time of a step, 90 %",
        "histogram_quantile(0.9, rate(p2pswarm_step_seconds_bucket[5m]))",
        "s",
    ),
    ("Servers of a stage", 'p2pswarm_servers{state="ready"}', "short"),
    ("Microbatches a second of a stage", "p2pswarm_stage_rate", "short"),
    ("Wait of a microbatch", "p2pswarm_queue_seconds", "s"),
    ("Lost in an hour, by the reason", "increase(p2pswarm_losses_total[1h])", "short"),
    ("Microbatches again", 'rate(p2pswarm_microbatches_total{state="again"}[5m])', "short"),
    ("Network", "rate(p2pswarm_network_bytes_total[5m])", "Bps"),
    ("Since the last checkpoint", "time() - p2pswarm_checkpoint_timestamp_seconds", "s"),
)
"""Title, question and unit of each panel."""


def metrics() -> list[Metric]:
    """The metrics of an empty page."""
    registry = CollectorRegistry()
    registry.register(RunCollector(RunPage(NodeHealth("trainer", 0.0), lambda: 0.0)))
    return list(registry.collect())


def names() -> set[str]:
    """The names that a question may ask for."""
    found = set()
    for one in metrics():
        endings = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}
        found |= {one.name + ending for ending in endings.get(one.type, ("",))}
    return found


def asked(question: str) -> set[str]:
    """The metrics that a question names."""
    return set(re.findall(r"\bp2pswarm_\w+", question))


def board() -> dict[str, Any]:
    """The board as Grafana imports it; it asks which Prometheus to use."""
    panels = [
        {
            "id": number + 1,
            "type": "timeseries",
            "title": title,
            "datasource": {"type": "prometheus", "uid": SOURCE},
            "gridPos": {
                "x": WIDTH * (number % 2),
                "y": HEIGHT * (number // 2),
                "w": WIDTH,
                "h": HEIGHT,
            },
            "fieldConfig": {"defaults": {"unit": unit}, "overrides": []},
            "targets": [{"refId": "A", "expr": question}],
        }
        for number, (title, question, unit) in enumerate(PANELS)
    ]
    return {
        "__inputs": [
            {
                "name": "DS_PROMETHEUS",
                "label": "Prometheus",
                "type": "datasource",
                "pluginId": "prometheus",
            }
        ],
        "title": "p2pswarm",
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-6h", "to": "now"},
        "panels": panels,
    }


def table() -> str:
    """The rows of the table of metrics."""
    rows = []
    for one in metrics():
        ending = "_total" if one.type == "counter" else ""
        rows.append(f"| `{one.name}{ending}` | {one.type}: {one.documentation} |")
    return "\n".join(rows)


def page() -> str:
    """docs/metrics.md with the table as it is now."""
    head, _, rest = PAGE.read_text().partition("| metric | is |\n|---|---|\n")
    tail = rest[rest.index("Besides those") :]
    return f"{head}| metric | is |\n|---|---|\n{table()}\n\n{tail}"


if __name__ == "__main__":
    BOARD.write_text(json.dumps(board(), indent=1) + "\n")
    PAGE.write_text(page())
