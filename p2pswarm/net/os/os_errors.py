"""The operating system's errors: which are temporary, and a one-line text for each."""

import errno

OUT_OF_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)  # until others close
GONE_IN_BACKLOG = (errno.ECONNABORTED, errno.EPROTO, errno.ECONNRESET)  # it left too early


def reason_of(error: Exception) -> str:
    """The reason of a failure, in one line and without the address."""
    if isinstance(error, ConnectionRefusedError):
        return "Connection refused"  # asyncio's text has the address instead
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
