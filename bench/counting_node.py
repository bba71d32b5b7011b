"""A node that writes down what it sends in averaging, by steps.

    python bench/counting_node.py --count FILE --config NODE.toml

Each line is a step and the bytes of one piece. Everything else is as in `python -m p2pswarm.node`.
`bench/finetune.py` starts servers so.
"""

import sys
from pathlib import Path
from typing import Any

from p2pswarm.cli import main
from p2pswarm.run.averaging.averaging_io import Averaging, OngoingRound
from p2pswarm.run.messages.step import Shard
from p2pswarm.tensors.codecs.registry import EncodedTensor


def count_into(path: Path) -> None:
    """Have every piece that is sent add a line."""
    send = Averaging._send_once  # noqa: SLF001

    async def counted(
        self: Averaging,
        ongoing: OngoingRound,
        delivery: Any,
        message: Shard,
        encoded: EncodedTensor | None,
    ) -> None:
        await send(self, ongoing, delivery, message, encoded)
        if encoded is not None:
            with path.open("a") as file:
                file.write(f"{message.step} {encoded.meta.encoded_bytes}\n")

    Averaging._send_once = counted  # type: ignore[method-assign]  # noqa: SLF001


if __name__ == "__main__":
    at = sys.argv.index("--count")
    _, place = sys.argv[at : at + 2]
    del sys.argv[at : at + 2]
    count_into(Path(place))
    sys.exit(main(["node", *sys.argv[1:]]))
