"""A thread that lets all others go first."""

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

from p2pswarm.checkpoint.thread_priority import NICER, yield_processor


def test_a_thread_that_yields_the_processor_does_it_for_itself_alone():
    def priorities():
        yield_processor()
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    before = os.getpriority(os.PRIO_PROCESS, 0)
    assert priorities() == before  # the main thread never does
    with ThreadPoolExecutor(1) as pool:
        there = pool.submit(priorities).result()

    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == before
    assert there == (min(19, before + NICER) if sys.platform == "linux" else before)
