"""Processes of devices that start in milliseconds."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from procs.fork_server import ForkServer, environment

from p2pswarm.server.devices import rank_processes
from p2pswarm.server.devices.rank_processes import LOCAL, RankProcess


@pytest.fixture(scope="module")
def forked_ranks(fork_server: ForkServer):
    """Devices' processes are forks of one that has torch: without the seconds of their imports."""

    def started(device: str, threads: int, descriptors: Sequence[int]) -> RankProcess:
        command_end, commands = os.pipe()
        answers, answer_end = os.pipe()
        with Path(os.devnull).open("r+b") as nothing:
            process = fork_server.start(
                *("p2pswarm.server.devices.rank:main", ()),
                (nothing.fileno(), nothing.fileno(), sys.__stderr__.fileno()),
                arguments=["rank", str(command_end), str(answer_end)],
                environment=environment() | LOCAL | {"OMP_NUM_THREADS": str(threads)},
                path=os.environ.get("PYTHONPATH", "").split(os.pathsep),
                descriptors=(command_end, answer_end, *descriptors),
            )
        os.close(command_end)
        os.close(answer_end)
        return RankProcess(device, process, commands, answers)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rank_processes, "_started", started)
        yield
