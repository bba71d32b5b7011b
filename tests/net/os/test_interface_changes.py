"""Where the kernel does not tell of changes, this machine's addresses are looked at."""

import asyncio

from p2pswarm.net.os.interface_changes import looks

PATIENCE_S = 20.0


async def test_a_change_of_address_is_noticed_and_nothing_else():
    answers = iter([["10.0.0.5"]] * 3 + [["10.0.0.6"]] * 3 + [[None]])
    seen, over, now = [], asyncio.Event(), []

    def addresses():
        now[:] = next(answers, [None])
        return list(now)

    def changed():
        seen.append(list(now))
        if now == [None]:
            over.set()

    with looks(changed, addresses, every_s=1e-4):
        async with asyncio.timeout(PATIENCE_S):
            await over.wait()

    assert seen == [["10.0.0.6"], [None]]
