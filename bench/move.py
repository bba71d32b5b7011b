"""How long a server that moves to another stage serves none, if it fetches first or leaves first.

    python bench/move.py [--d-model 768] [--layers 6] [--steps 40] [--json FILE]

Real processes on localhost, twice: servers that know their free memory fetch the state of their new
stage before they leave the old one; servers that do not know it leave first. They rehearse: they
take the time of computing and have weights, moments, sums and averages of full size. Two slow
servers hold stage 1, four fast ones stage 0 and 1; a fast one of stage 0 is to move. The time is
the trainer's: from the order to move until the server computes in its new stage. Beside it stands
what the rule foretold: a server that could fetch first leaves first where that is cheaper, and is
then foretold to be away for a download.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from swarm_processes import NODE, Gone, NodeListener, Run, RunFailed, Site, swarm

from p2pswarm.progress.events import Ended, Note, Peers, Relocated

SERVE = '[serve]\nthreads = 1\ndevice = "emulated"\n'
FAST = SERVE + "emulated_forward_s = 0.04\n"
SLOW = SERVE + "emulated_forward_s = 0.5\nstage = 1\n"
FAST_SERVERS = 4
AS_NODE = "node"
FORGETFUL = sys.executable, str(Path(__file__).resolve()), AS_NODE
"""A node that does not know how much memory is free, so that it leaves first."""
SHARES = "a server has come that shares the work"


class Balanced(Run):
    """A run whose servers move soon."""

    def settings(self) -> str:
        """As the trainer's TOML has it."""
        return super().settings() + "[run.balance]\nsteady_s = 1.0\n"


class Moved:
    """One run: how long each mover was away, and what was asked and counted."""

    def __init__(self) -> None:
        self.away_s: list[float] = []
        self.foretold_s: list[float] = []
        self.again = 0
        self.ended: Ended | None = None
        self._left: dict[str, Relocated] = {}

    def hear(self, said: object) -> None:
        """A node has said something, or has ended."""
        match said:
            case Gone(failed=RunFailed() as failed):
                raise failed
            case Peers():
                for peer in said.peers:
                    order = self._left.get(peer.peer)
                    if order and peer.ready and peer.stage == order.target:
                        self.away_s.append(said.seconds - self._left.pop(peer.peer).seconds)
                        self.foretold_s.append(order.away_s)
            case Relocated():
                self._left[said.server] = said
            case Note(text=text) if "sent again" in text and SHARES not in text:
                self.again += 1
            case Ended():
                self.ended = said
                if said.failed:
                    raise RunFailed(said.reason)


def moved(options: argparse.Namespace, node: Sequence[str]) -> dict[str, Any]:
    """Two slow servers, then four fast ones; what becomes of the one that moves."""
    run = Balanced(
        name="move",
        steps=options.steps,
        min_replicas=3,
        d_model=options.d_model,
        layers=options.layers,
        sequence_length=16,
        microbatches=8,
        codec="raw",
        emulated=True,
    )
    found, fast = Moved(), FAST_SERVERS
    with swarm(Site(node=node), run, [SLOW] * 2, options.patience_s) as nodes:
        listener = NodeListener(nodes)
        for name in ("trainer", "server 0", "server 1"):
            listener.listen_to(name)
        while found.ended is None and (news := listener.next()):
            found.hear(news[1])
            while fast and isinstance(news[1], Peers) and len(news[1].peers) == 2:
                listener.listen_to(nodes.start_server(FAST))
                fast -= 1
    assert found.ended is not None, "the run has ended"
    counts = found.ended.counts
    numbers = {"asked": counts.asked, "counted": counts.counted, "again": found.again}
    return {"away_s": found.away_s, "foretold_s": found.foretold_s, **numbers}


def main() -> None:
    """Both, and what they say of each other."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--d-model", type=int, default=768)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--patience-s", type=float, default=600.0)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    found = {}
    for name, node in (("fetch first", NODE), ("leave first", FORGETFUL)):
        found[name] = one = moved(options, node)
        pairs = zip(one["away_s"], one["foretold_s"], strict=True)
        away = ", ".join(f"{s:.2f} ({said:.1f} foretold)" for s, said in pairs) or "nobody moved"
        print(
            f"{name}: away for {away} s; {one['counted']} of {one['asked']} microbatches counted,"
            f" {one['again']} times sent again for a loss",
            flush=True,
        )
    if options.json:
        options.json.write_text(json.dumps(found))


def as_node(arguments: list[str]) -> int:
    """Be a node that does not know its free memory."""
    from p2pswarm import cli  # noqa: PLC0415 - only a node needs it
    from p2pswarm.node import stage  # noqa: PLC0415 - as above

    stage.free_bytes = lambda *_: None
    return cli.main(["node", *arguments])


if __name__ == "__main__":
    if sys.argv[1:2] == [AS_NODE]:
        sys.exit(as_node(sys.argv[2:]))
    main()
