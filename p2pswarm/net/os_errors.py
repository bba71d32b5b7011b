"""The operating system's errors: which of them pass, and what they are called in one line."""

import errno

OUT_OF_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)  # until others close
GONE_IN_BACKLOG = (errno.ECONNABORTED, errno.EPROTO, errno.ECONNRESET)  # hung up too early


def reason_of(error: Exception) -> str:
    """Why it failed, in one line and without the address."""
    if isinstance(error, ConnectionRefusedError):
        return "Connection refused"  # asyncio puts the address in its place
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
