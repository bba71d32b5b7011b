"""The process of one device: carries out what its node says, one command after the other.

`python -m p2pswarm.server.devices.rank COMMANDS ANSWERS`, two pipes; the node starts it. It ends
when the node does, also in the middle of a command: another rank may wait for this one for ever.
"""

import functools
import logging
import os
import select
import sys
import threading
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from p2pswarm.base.errors import Unusable
from p2pswarm.models.compute.flat_parameters import ODD_SUM
from p2pswarm.models.compute.torch_device import out_of_memory
from p2pswarm.models.registry import trust
from p2pswarm.server.devices.device_choice import free_bytes, graph_bytes
from p2pswarm.server.devices.plan_check import require_right_plan, tries_plan
from p2pswarm.server.devices.rank_commands import (
    Begin,
    CommandDone,
    RankCommand,
    RankFailed,
    RankMessage,
    framed,
    read_message,
)
from p2pswarm.server.devices.rank_stage import RankOptions, RankStage
from p2pswarm.server.devices.tensor_maps import close_all, mapped
from p2pswarm.settings.config import FORMER
from p2pswarm.settings.node_config import ROWS
from p2pswarm.settings.parser import run_from_json

BACKENDS = {"cpu": "gloo", "cuda": "nccl"}
METHODS: dict[str, Callable[..., int | list[float] | None]] = {
    method.__name__: method
    for method in (
        *(RankStage.take_base, RankStage.take_weights, RankStage.empty_sums),
        *(RankStage.give_sums, RankStage.settle),
        *(RankStage.forward, RankStage.backward, RankStage.last, RankStage.once),
        *(RankStage.forget_graphs, RankStage.forget),
    )
}
"""The commands of a node."""

log = logging.getLogger(__name__)


def main() -> int:
    """Serve one node until it is gone."""
    commands, answers = map(int, sys.argv[1:])
    read = functools.partial(os.read, commands)
    threading.Thread(target=_end_with, args=(commands,), daemon=True).start()
    try:
        halves, keep_bytes = _begun(read_message(read))
        weight_bytes = sum(half.weight_bytes for half in halves)
        weight_bytes += 0 if halves[0].base is None else halves[0].base.own_bytes
        _send(answers, CommandDone((), keep_bytes, weight_bytes))
        while True:
            _send(answers, _carried_out(halves, read_message(read)))
    except EOFError:
        return 0
    except Unusable as error:
        _send(answers, RankFailed(str(error), out_of_memory=False, refused=True))
        return 1
    except Exception as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        log.debug("a rank failed", exc_info=True)
        _send(answers, RankFailed(reason, out_of_memory(error)))
        return 1


def _begun(message: RankMessage) -> tuple[list[RankStage], int]:
    """Make this rank's part; returns the bytes of graphs that there is room for, too.

    With a delay there are two: for even steps, and for odd ones.
    """
    assert isinstance(message, Begin), "that is how a rank begins"
    trust(message.packages)
    places = list(message.places)
    shared: dict[str, Tensor] = {place.name: mapped(place) for place in places}
    close_all(places)
    device = torch.device(message.devices[message.rank])
    if device.type == "cuda":
        torch.cuda.set_device(device)
    count = len(message.devices)
    dist.init_process_group(
        BACKENDS.get(device.type),
        init_method=f"file://{message.rendezvous}",
        rank=message.rank,
        world_size=count,
    )
    run = run_from_json(message.run)
    rank = message.rank, count
    options = RankOptions(message.by_block, message.parallel)
    if message.parallel != ROWS and tries_plan(run):
        require_right_plan(run, rank, device, message.parallel)
    states = [shared]
    if run.delay:
        former = FORMER.removesuffix(".")
        states.append({**shared, "params": shared[former], "sum": shared[ODD_SUM]})
    halves: list[RankStage] = []
    for state in states:
        base = halves[0].base if halves else None
        halves.append(RankStage(run, message.stage, rank, device, state, options, base))
    keep_bytes = graph_bytes(message.graph_mib, device, free_bytes(device), engine_bytes=0)
    return halves, keep_bytes if message.graph_mib or device.type != "cpu" else keep_bytes // count


def _carried_out(halves: Sequence[RankStage], message: RankMessage) -> CommandDone:
    assert isinstance(message, RankCommand), "a rank begins once"
    made = METHODS[message.method](halves[message.half], **message.arguments)
    if isinstance(made, int):
        return CommandDone(graph_bytes=made)
    return CommandDone(tuple(made or ()))


def _send(answers: int, answer: RankMessage) -> None:
    data = framed(answer)
    while data:
        data = data[os.write(answers, data) :]


def _end_with(commands: int) -> None:
    """End this process when the node's end of the pipe is closed."""
    if sys.platform != "win32":  # several devices of one node need Linux
        poll = select.poll()
        poll.register(commands, select.POLLHUP)
        poll.poll()
        os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
