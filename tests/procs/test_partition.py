"""Real nodes whose network is cut in two halves, and heals; skipped where no lab may be opened."""

import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from wanlab.lab import Lab, LabUnavailable
from wanlab.link import Link

NODE = Path(__file__).with_name("partition_node.py")
ROOT = Path(__file__).parents[2]
PORT = 4000
HALVES = (0, 1), (2, 3)
TOGETHER_S = 60.0  # four processes start on a busy machine
APART_S = 150.0  # a record lives for 45 s, on a busy machine; the cut lasts until it has died
HEAL_S = 30.0
WHOLE = Link(rate_bits_per_s=None, delay_s=0.02)
CUT = Link(rate_bits_per_s=None, delay_s=0.02, loss=1.0)


class Watched:
    """The nodes, and what each has said last."""

    def __init__(self, lab: Lab) -> None:
        self.last: dict[int, tuple[int, int]] = {}
        self._said: queue.Queue[tuple[int, str]] = queue.Queue()
        self._lab = lab

    def start(self, hosts: Sequence[int]) -> None:
        """Start nodes; host 0 is the one that the others join through."""
        first = f"{self._lab.address(0)}:{PORT}"
        for host in hosts:
            arguments = [sys.executable, str(NODE), f"{self._lab.address(host)}:{PORT}"]
            arguments += [first] if host else []
            program = self._lab.popen(
                host,
                arguments,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
            threading.Thread(target=self._read, args=(host, program.stdout), daemon=True).start()

    def _read(self, host: int, lines) -> None:
        with lines:
            for line in lines:
                self._said.put((host, line))

    def until(self, nodes: int, members: int, patience_s: float, *, table: int = 0) -> float:
        """Seconds until all `nodes` see so many members, and have so many nodes in their tables."""
        begun_s = time.monotonic()
        while len(self.last) < nodes or not all(
            seen == members and known >= table for seen, known in self.last.values()
        ):
            left_s = begun_s + patience_s - time.monotonic()
            try:
                host, line = self._said.get(timeout=max(left_s, 0.01))
            except queue.Empty:
                pytest.fail(f"not {members} members in {patience_s:g} s: {self.last}")
            seen, known = line.split()
            self.last[host] = int(seen), int(known)
        return time.monotonic() - begun_s


@pytest.mark.full
@pytest.mark.timeout(400)
def test_two_halves_of_real_nodes_are_one_directory_and_one_table_again_after_a_cut():
    try:
        lab = Lab(4, WHOLE)
        with lab:
            play(lab)
    except LabUnavailable as reason:
        pytest.skip(str(reason))


def play(lab: Lab) -> None:
    nodes = Watched(lab)
    nodes.start([0])
    nodes.until(1, 1, TOGETHER_S)
    nodes.start([1, 2, 3])
    nodes.until(4, 4, TOGETHER_S, table=3)

    set_links(lab, CUT)
    nodes.until(4, 2, APART_S)

    set_links(lab, WHOLE)
    taken_s = nodes.until(4, 4, HEAL_S, table=3)
    print(f"one directory again {taken_s:.1f} s after the cut has healed")


def set_links(lab: Lab, link: Link) -> None:
    ours, others = HALVES
    for here in ours:
        for there in others:
            lab.set_link(link, here, there)
            lab.set_link(link, there, here)
