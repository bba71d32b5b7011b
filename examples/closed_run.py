"""A closed run: its owner invites one machine, and a machine without an invitation is kept out.

python examples/closed_run.py
"""

import asyncio
import tempfile

import p2pswarm as ps

LOOPBACK = "127.0.0.1:0"  # this machine alone, any free port
TEXT = ps.data.Bytes(asyncio.__path__[0], suffixes=(".py",))
RUN = ps.Run("friends", model={"d_model": 32, "heads": 2}, stages=1, steps=5, batch={"rows": 2})


async def serve(invitation: str) -> None:
    async with ps.Node(listen=LOOPBACK, invite=invitation) as node:  # it says where to join, too
        print(f"anna's run is over: {await ps.Server(node, device='cpu').serve()}")


async def train(folder: str) -> None:
    async with (
        ps.Node(listen=LOOPBACK, state=folder) as owner,
        asyncio.TaskGroup() as tasks,
        ps.Trainer(owner, RUN, data=TEXT, closed=True) as trainer,
        ps.Node(listen=LOOPBACK, bootstrap=[str(owner.contact.address)]) as other,
    ):
        invitation = await trainer.invite("anna", for_s=3600)
        print(f"anna gets {invitation[:16]}...")
        tasks.create_task(serve(invitation))
        uninvited = ps.Server(other, run=RUN.name, device="cpu")
        tasks.create_task(uninvited.serve())
        async for event in trainer:
            if isinstance(event, ps.events.Ended):
                print(f"{event.reason}; the uninvited served {uninvited.stage}")
        uninvited.leave()


with tempfile.TemporaryDirectory() as state:  # a run of your own keeps it: the key is in it
    asyncio.run(train(state))
