"""The end of a console of Windows, or of its user's session: it counts as SIGTERM.

Windows calls a function in a thread of its own, and ends the process when that returns, or after
five seconds. A process that has loaded parts of the desktop hears of a closed window alone.

Source:  SetConsoleCtrlHandler and HandlerRoutine in Microsoft's consoleapi.h.
"""

import sys

if sys.platform == "win32":
    import ctypes
    import signal
    import threading

    ENDS = (2, 5, 6)
    """The window was closed, the user logs off, the machine shuts down."""
    LEAVE_S = 5.0  # as long as Windows waits

    def _on_event(event: int) -> int:
        if event not in ENDS:
            return 0  # Ctrl-C and Ctrl-Break are signals
        signal.raise_signal(signal.SIGTERM)
        threading.Event().wait(LEAVE_S)  # the process is over before
        return 1

    HANDLER = ctypes.WINFUNCTYPE(ctypes.c_int, ctypes.c_uint)(_on_event)
    """Kept as long as the process lives: Windows knows its address."""

    def watch_console_end() -> None:
        """Raise SIGTERM when the console ends, from now on."""
        ctypes.WinDLL("kernel32").SetConsoleCtrlHandler(HANDLER, 1)
else:

    def watch_console_end() -> None:
        """A terminal that ends sends SIGHUP here."""
