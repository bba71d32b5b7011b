"""How much of their time servers compute, over round trip and depth: three runs of `busy_share.py`.

Used by `papers.py --table busy`. The published share is of SWARM's own system, whose servers wait
for other reasons too: V100s, a GPT of width 4,096, 500 Mbit/s.
"""

import json
import tempfile
from pathlib import Path

import busy_share

SOURCE = "SWARM Parallelism (ICML 2023), 200 ms of round trip; recalled, not read in the paper"
RUNS = (
    ("4 x 4, 200 ms", ("--rtt", "0.2"), 0.592),
    ("4 x 4, 4 ms", ("--rtt", "0.004"), None),
    ("8 x 4, 200 ms", ("--rtt", "0.2", "--stages", "8", "--microbatches", "512"), None),
)


def table() -> list[dict[str, object]]:
    """The rows: one a run."""
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "row.json"
        for name, arguments, published in RUNS:
            if busy_share.main([*arguments, "--json", str(file)]):
                raise RuntimeError(f"the run {name} failed")
            row = {"run": name, **json.loads(file.read_text())}
            source = SOURCE if published else None
            rows.append({**row, "published": published, "published_source": source})
    return rows
