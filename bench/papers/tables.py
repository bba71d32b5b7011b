"""The tables of papers, with our numbers beside the published ones.

    python bench/papers --table rebalancing|oobleck|iota|dtfm|busy
                        [--json FILE] [--trace FILE.json] [--seeds N]

Each published number stands beside ours with its source, and whether it was read there.

`rebalancing` (`rebalancing.py`): shares of the optimum under preemption, after SWARM.
`oobleck` (`oobleck.py`): samples of a fleet that is preempted, on Oobleck's own tables.
`iota` (`iota.py`): the workload of IOTA's simulator competition: routing and rebalancing.
`busy` (`busy.py`): how much of their time servers compute, and what they do a second, over
round trip, bandwidth and depth.
`dtfm` (`dtfm.py`): the five networks of Decentralized Training of Foundation Models in
Heterogeneous Environments (Yuan et al., NeurIPS 2022): 64 devices, 8 stages, the cost of an
iteration by the paper's own formula. "their search" is what the authors' log records for their
genetic algorithm with its published budget of 5,000 candidates (Decentralized_FM_alpha, branch
scheduler, data/); with 100,000 candidates it came to 37.59 on case 2. `--genetic` runs that
algorithm here as well, some minutes a case. Then their 27 logged runs beside a model of them.

`--trace` plays a trace of one's own in `rebalancing` and `oobleck`: {"events": [[seconds, "+" or
"-", machines], ...]} or {"counts": [[seconds, machines], ...]}.
"""

import argparse
import importlib
from collections.abc import Sequence
from pathlib import Path

from results import write_json

from p2pswarm.base.errors import Unusable
from p2pswarm.sim.traces import Trace, read_trace

TABLES = ("rebalancing", "oobleck", "iota", "dtfm", "busy")
TRACED = ("rebalancing", "oobleck")
SEEDS = 10


def rows_of(
    options: argparse.Namespace, traces: dict[str, Trace] | None
) -> list[dict[str, object]]:
    """Make one table; it is printed row by row."""
    module = importlib.import_module(f"papers.{options.table}")  # dtfm loads numba: seconds
    match options.table:
        case "dtfm":
            found = module.table(options.seconds, genetic=options.genetic)
        case "rebalancing" | "oobleck":
            found = module.table(traces, options.seeds)
        case "iota":
            found = module.table(options.seeds)
        case _:
            found = module.table()
    rows: list[dict[str, object]] = found
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the table, and write it."""
    parser = argparse.ArgumentParser(
        prog="papers", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--table", choices=TABLES, required=True)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows here")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="in place of the shipped ones")
    parser.add_argument("--seeds", type=int, default=SEEDS, metavar="N", help="default: 10")
    parser.add_argument("--seconds", type=float, default=60.0, help="of search for each network")
    parser.add_argument("--genetic", action="store_true", help="run DT-FM's algorithm as well")
    options = parser.parse_args(arguments)
    if options.seeds < 1:
        parser.error("--seeds has to be 1 or more")
    if options.trace and options.table not in TRACED:
        parser.error(f"--trace is for the tables {' and '.join(TRACED)}")
    if options.json and not options.json.absolute().parent.is_dir():
        parser.error(f"there is no folder {options.json.parent} for {options.json.name}")
    traces = None
    if options.trace:
        try:
            traces = {options.trace.stem: read_trace(options.trace)}
        except Unusable as error:
            parser.error(str(error))
    rows = rows_of(options, traces)
    write_json(options.json, rows)
    return 0
