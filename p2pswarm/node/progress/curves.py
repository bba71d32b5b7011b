"""A run's curves in a file: a CSV that every table reads, or a folder for TensorBoard.

Each step that is done is a row, and so is each measurement of the held-out loss; of a step that was
done anew, the last row counts. A file may hold several runs, which their ids tell apart; a folder
has one for each run. A thread writes them: a disk that fails or hangs costs the curves and not the
run.

Units:   seconds since the first step began; losses in nats per token.
"""

import contextlib
import csv
import importlib
import logging
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from p2pswarm.base.errors import Unusable
from p2pswarm.base.files import check_target
from p2pswarm.checkpoint.names import RUN_HEX
from p2pswarm.node.progress.queue_thread import QueueThread
from p2pswarm.progress.events import Event, HeldOut, Stepped

HEADER = (
    "step",
    "seconds",
    "loss",
    "held_out_loss",
    "tokens_per_s",
    "learning_rate",
    "gradient_norm",
    "replayed",
    "time",
    "run",
)
STEP_FIGURES = ("step", "seconds", "loss", "tokens_per_s", "learning_rate", "gradient_norm")
CSV = ".csv"
ROW_BYTES_MAX = 1024  # ten columns have 250
TENSORBOARD = "torch.utils.tensorboard"
WAITING_MAX = 4096  # rows: an hour of a disk that hangs, with a step a second
CLOSE_S = 2.0  # Ctrl-C ends a node within 5 s, whatever its disk does

Row = dict[str, float]
Write = Callable[[Row, str], None]
"""Writes a row, and when it was made."""

log = logging.getLogger(__name__)


@contextlib.contextmanager
def recorded(
    path: Path | None,
    tell: Callable[[Event], None],
    run: str,
    date_time: Callable[[], str],
) -> Iterator[Callable[[Event], None]]:
    """Give `tell`; each event that it is told goes into the file or folder `path` as well.

    `run`: the run's id, `date_time` the present time.
    """
    if path is None:
        yield tell
        return
    short = run[:RUN_HEX]
    with contextlib.ExitStack() as blocks:
        kind = _table(path, short) if path.suffix == CSV else _board(path / short)
        rows = _RowThread(path, blocks.enter_context(kind), blocks.pop_all().close)
        try:

            def both(event: Event) -> None:
                if (row := row_of(event)) is not None:
                    rows.add(row, date_time())
                tell(event)

            yield both
        finally:
            rows.close()


class _RowThread:
    """Takes rows on the event loop, and writes them on its thread."""

    def __init__(self, path: Path, write: Write, end: Callable[[], None]) -> None:
        """`end`: closes what is written to."""
        self._path, self._write, self._end = path, write, end
        self._thread = QueueThread[tuple[Row, str]]("curves", self._write_all, WAITING_MAX)
        self._thread.start()

    def add(self, row: Row, made_at: str) -> None:
        """Take a row; never waits."""
        self._thread.put((row, made_at), self._say_full)

    def close(self) -> None:
        """Write what waits, for some seconds at most."""
        self._thread.close(CLOSE_S)

    def _say_full(self) -> None:
        log.warning("%s: the disk is too slow, rows are left out", self._path)

    def _write_all(self) -> None:
        works = True
        while (waiting := self._thread.items.get()) is not None:
            works = works and self._try(partial(self._write, *waiting))
        if works:
            self._try(self._end)
        else:  # it was said
            with contextlib.suppress(OSError):
                self._end()

    def _try(self, work: Callable[[], None]) -> bool:
        try:
            work()
        except OSError as error:
            log.warning("%s: no more curves are written: %s", self._path, error.strerror)
            return False
        return True


def try_curves(path: Path | None) -> None:
    """Raise Unusable for curves that cannot be written, before anything is done for them."""
    if path is None:
        return
    begun = path.exists()
    if path.suffix == CSV:
        with _opened(path):
            pass
    else:
        _board_library(path)
        check_target(path / "trial")
    if not begun and path.is_file():
        path.unlink()


def row_of(event: Event) -> Row | None:
    """Return what an event adds to the curves, by the names of `HEADER`; None for most events."""
    match event:
        case Stepped():
            figures = {name: getattr(event, name) for name in STEP_FIGURES}
            return figures | {"replayed": event.counts.replayed}
        case HeldOut():
            loss = event.nats_per_token
            return {"step": event.step, "seconds": event.seconds, "held_out_loss": loss}
        case _:
            return None


@contextlib.contextmanager
def _table(path: Path, run: str) -> Iterator[Write]:
    """Rows go to the end of a CSV; one that was begun before goes on."""
    with _opened(path) as file:
        writer = csv.DictWriter(file, HEADER)

        def write(row: Row, made_at: str) -> None:
            writer.writerow({**row, "time": made_at, "run": run})
            file.flush()

        yield write


def _opened(path: Path) -> TextIO:
    """The file, with its header; Unusable for one that is no file of curves."""
    first = ",".join(HEADER)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+", newline="", encoding="utf-8", errors="replace")
        file.seek(0)
        found = file.readline(len(first) + 2).rstrip("\r\n")
        if not found:
            csv.writer(file).writerow(HEADER)
            file.flush()
        elif found == first:
            _cut_torn_row(path)
    except OSError as error:
        raise Unusable(f"{path}: {error.strerror}: name another file in train.curves") from error
    if found not in ("", first):
        file.close()
        raise Unusable(f"{path}: is no file of curves: name another in train.curves")
    return file


def _cut_torn_row(path: Path) -> None:
    """Take away a last row without its end: whoever wrote it was killed, and rows would join."""
    with path.open("r+b") as file:
        begin = max(0, file.seek(0, os.SEEK_END) - ROW_BYTES_MAX)
        file.seek(begin)
        if cut := file.read().rfind(b"\n") + 1:
            file.truncate(begin + cut)


def _board_library(path: Path) -> Any:
    try:
        return importlib.import_module(TENSORBOARD)
    except ImportError as error:
        raise Unusable(
            f"train.curves {path}: a folder is for TensorBoard: pip install tensorboard, or name "
            f"a file that ends with {CSV}"
        ) from error


@contextlib.contextmanager
def _board(path: Path) -> Iterator[Write]:
    """Scalars for TensorBoard, in a folder."""
    board = _board_library(path)
    try:
        writer = board.SummaryWriter(path)
    except OSError as error:
        raise Unusable(f"{path}: {error.strerror}: name another in train.curves") from error
    try:

        def write(row: Row, _made_at: str) -> None:
            step = int(row["step"])
            for name, value in row.items():
                if name not in ("step", "seconds"):
                    writer.add_scalar(name, value, step)

        yield write
    finally:
        writer.close()
