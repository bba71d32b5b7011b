"""The compute thread: what torch cannot do there is an error of ours."""

import asyncio

import pytest

from p2pswarm.base.errors import NotServing, Refused
from p2pswarm.node.serve import ComputeThread


def compute(work):
    async def main():
        thread = ComputeThread()
        try:
            return await thread(work)
        finally:
            thread.close()

    return asyncio.run(main())


def test_a_result_comes_back():
    assert compute(lambda: 7) == 7


@pytest.mark.parametrize(
    "error",
    [RuntimeError("DefaultCPUAllocator: can't allocate memory"), MemoryError()],
)
def test_no_memory_for_weights_or_averages_is_a_refusal_with_the_remedy(error):
    def work():
        raise error

    with pytest.raises(Refused, match=r"out of memory: lower serve\.graph_mib here"):
        compute(work)


def test_our_own_errors_pass():
    def work():
        raise NotServing("nothing is kept")

    with pytest.raises(NotServing):
        compute(work)
