"""How much of their time servers compute, over round trip, bandwidth and depth.

`--table busy`: three runs of `busy_share.py` as they are asked for, then the same
servers over round trips and link rates. `relative` is a run's microbatches a second over those of
the first run of the grid, which has the shortest round trip and the fastest links.

The published shares are of SWARM's own system, whose servers wait for other reasons too: V100s, a
GPT of width 4,096 with shared layers, 500 Mbit/s.
"""

import json
import tempfile
from pathlib import Path

import busy_share

SOURCE = "SWARM Parallelism (ICML 2023), relative GPU utilisation; recalled, not read in the paper"
RUNS = (
    ("4 x 4, 200 ms", ("--rtt", "0.2"), None),
    ("4 x 4, 4 ms", ("--rtt", "0.004"), None),
    ("8 x 4, 200 ms", ("--rtt", "0.2", "--stages", "8", "--microbatches", "512"), None),
)
RTTS_MS = 1, 10, 50, 100, 200
MBITS = 500, 100, 25
"""At 25 Mbit/s a tensor of 0.5 MB takes half as long as a forward."""
PUBLISHED = {1: 0.895, 10: 0.872, 50: 0.795, 100: 0.715, 200: 0.592}
"""By round trip, at 500 Mbit/s; the first of a round trip of none."""
GRID_STEPS = 3
MICROBATCHES = 256


def table() -> list[dict[str, object]]:
    """The rows: one a run."""
    rows = [_row(name, arguments, published) for name, arguments, published in RUNS]
    first = 0.0
    for mbit in MBITS:
        for rtt_ms in RTTS_MS:
            arguments = (
                *("--rtt", str(rtt_ms / 1e3), "--bytes-per-s", str(mbit * 1e6 / 8)),
                *("--steps", str(GRID_STEPS), "--microbatches", str(MICROBATCHES)),
            )
            published = PUBLISHED[rtt_ms] if mbit == MBITS[0] else None
            row = _row(f"4 x 4, {rtt_ms} ms, {mbit} Mbit/s", arguments, published)
            rate = GRID_STEPS * MICROBATCHES / float(str(row["virtual_s"]))
            first = first or rate
            rows.append({**row, "microbatches_per_s": rate, "relative": rate / first})
            print(f"  {row['run']}: {rate:.2f} microbatches/s, {rate / first:.3f} of the first")
    return rows


def _row(name: str, arguments: tuple[str, ...], published: float | None) -> dict[str, object]:
    """One run, which prints its own line."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "row.json"
        print(f"{name}: ", end="", flush=True)
        if busy_share.main([*arguments, "--json", str(file)]):
            raise RuntimeError(f"the run {name} failed")
        row = {"run": name, **json.loads(file.read_text())}
    source = SOURCE if published else None
    return {**row, "published": published, "published_source": source}
