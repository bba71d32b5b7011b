"""The newest lines of this process's log, kept for a report."""

import logging
from collections import deque

from p2pswarm.node.report.bug_report import LINE_CHARS_MAX, LOG_LINES_MAX
from p2pswarm.progress.printable import PrintableFormatter

FORM = "%(asctime)s %(levelname).1s %(name)s: %(message)s"


class RecentLog(logging.Handler):
    """Keeps lines; add it to the root logger of a process that can be asked for a report."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(PrintableFormatter(FORM))
        self.lines: deque[str] = deque(maxlen=LOG_LINES_MAX)

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`."""
        try:
            text = self.format(record)
        except Exception:  # noqa: BLE001  the wrong arguments of one line: logging's own rule
            self.handleError(record)
            return
        for line in text.splitlines():  # a traceback has many
            self.lines.append(line[:LINE_CHARS_MAX])
