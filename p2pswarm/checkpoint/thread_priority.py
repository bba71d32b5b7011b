"""The priority of a thread for work that nobody waits for.

Errors:  none; where a system knows no priorities of threads, nothing changes.
"""

import os
import sys
import threading

NICER = 10  # a tenth of a processor that everything else wants, and all of one that nobody does


def yield_processor() -> None:
    """Let all other threads go before this one, for the rest of its life; the main one does not."""
    if threading.current_thread() is threading.main_thread():
        return  # it would never come back from that; in virtual time all work is done here
    if sys.platform == "linux":  # elsewhere the number of a thread means something else
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + NICER)
