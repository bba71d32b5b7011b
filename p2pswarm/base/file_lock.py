"""A lock of a file among all processes of a machine, held until the file is closed.

On Windows a lock is of bytes, and who has not locked them cannot read them. So a byte is locked
that no such file has.

Source:  flock(2); `_locking` of Microsoft's C library, whose offsets have 31 bits.
"""

import os
import sys

FAR_BYTE = 2**31 - 2
"""Behind the end of every file that is locked: identities, and what voters have promised."""

if sys.platform == "win32":
    import msvcrt

    def lock_file(descriptor: int) -> None:
        """Lock an open file, or raise OSError: another process has it, or nobody can lock there."""
        position = os.lseek(descriptor, 0, os.SEEK_CUR)
        os.lseek(descriptor, FAR_BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        finally:
            os.lseek(descriptor, position, os.SEEK_SET)
else:
    import fcntl

    def lock_file(descriptor: int) -> None:
        """Lock an open file, or raise OSError: another process has it, or nobody can lock there."""
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
