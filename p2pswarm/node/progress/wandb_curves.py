"""A run's curves at Weights & Biases, where the package wandb is installed.

Source:  https://docs.wandb.ai/ref/python
"""

import contextlib
import importlib
import logging
import os
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

from p2pswarm.base.errors import Unusable, one_line
from p2pswarm.node.progress.curves import Row, row_of
from p2pswarm.progress.events import Event
from p2pswarm.progress.printable import printable
from p2pswarm.run.manifest import RunIdentity
from p2pswarm.settings.plain_settings import plain_settings

PACKAGE = "wandb"
ONLINE = "online"
INIT_S = 10.0  # for the service to know the run; then the curves stay on this machine
FINISH_S = 10.0  # for what is not sent yet; the rest stays on this machine
LEFT_S = 25.0  # what the end of a run waits for the thread: both of these, and some
ROWS_MAX = 10_000  # that wait for wandb: hours of steps, a megabyte
PRIVATE = {
    "console": "off",
    "disable_code": True,
    "disable_git": True,
    "disable_job_creation": True,
    "save_code": False,
    "x_disable_machine_info": True,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_save_requirements": False,
    "host": "",
    "username": "",
    "email": "",
    "program": "p2pswarm",
}
"""Settings without which wandb sends the terminal, code, the machine, its user, its packages."""
FLUSH_S = 1.0  # what a process that is killed may lose of its last rows; wandb's own is 15 s
LIMITS = {
    "silent": True,
    "init_timeout": INIT_S,
    "finish_timeout": FINISH_S,
    "x_transaction_log_flush_interval": FLUSH_S,
}
NO_REPORTS = "WANDB_ERROR_REPORTING"
"""The variable by which wandb does not report its own errors, whose traces have paths."""

log = logging.getLogger(__name__)


@contextlib.contextmanager
def sent(
    place: str, identity: RunIdentity, tell: Callable[[Event], None], package: str = PACKAGE
) -> Iterator[Callable[[Event], None]]:
    """Give `tell`; each event that it is told goes to the project `place` as well; "": nowhere."""
    if not place:
        yield tell
        return
    rows: queue.Queue[Row | None] = queue.Queue(ROWS_MAX)
    curves = WandbCurves(_library(package), place, identity)
    thread = threading.Thread(target=curves.send, args=(rows,), daemon=True, name=PACKAGE)
    thread.start()

    def both(event: Event) -> None:
        row = row_of(event)
        if row is not None and not rows.full():  # full: wandb stands still, and the run does not
            rows.put_nowait(row)
        tell(event)

    try:
        yield both
    finally:
        if not rows.full():
            rows.put_nowait(None)
        thread.join(LEFT_S)


def try_wandb(place: str, package: str = PACKAGE) -> None:
    """Raise Unusable where curves cannot be sent, before anything is done for them; no network."""
    if not place:
        return
    wandb = _library(package)
    try:
        settings = wandb.setup(settings=wandb.Settings(**PRIVATE, **LIMITS)).settings
        known = settings.mode != ONLINE or wandb.login(prompt=False, verify=False)
    except (TypeError, ValueError) as error:
        raise Unusable(
            f"train.wandb: the installed {package} is too old to keep this machine's facts to "
            f"itself: pip install --upgrade {package}"
        ) from error
    except (wandb.Error, OSError) as error:
        raise Unusable(f"train.wandb: {printable(one_line(error))}") from error
    if not known:
        raise Unusable(
            "train.wandb: nobody is logged in: run wandb login, or set WANDB_MODE=offline in the "
            "environment"
        )


class WandbCurves:
    """The curves of one run, for the thread that talks to `wandb`, the package.

    A thread of ours talks to wandb, and a process of wandb's own to the service: neither a service
    that is down nor a slow one hinders the run. Without the service the curves stay in wandb's
    folder, for `wandb sync`. The id there is the run's, so a trainer that is started again, or
    takes over, goes on with the same curves; it begins with its first row, because only who leads
    has rows.

    Nothing is sent but the rows, the run's name, and settings that are numbers or one of named
    choices: no text of the user, no path, nothing about the machine.
    """

    def __init__(self, wandb: Any, place: str, identity: RunIdentity) -> None:
        self._wandb = wandb
        self._project, _, name = place.partition("/")
        self._run = identity.config
        self._name = name or identity.config.name
        self._id = identity.run.hex()

    def send(self, rows: "queue.Queue[Row | None]") -> None:
        """Send rows until None comes; an error costs the curves and not the run."""
        row = rows.get()
        if row is None:
            return
        try:
            run = self._begun()
            while row is not None:
                run.log(row)
                row = rows.get()
            run.finish()
        except Exception as error:  # noqa: BLE001  whatever it is, it is said, and costs the curves alone
            log.warning("wandb: no more curves are sent: %s", printable(one_line(error)))

    def _begun(self) -> Any:
        """The run there; in wandb's folder alone if the service cannot be reached."""
        try:
            run = self._init({})
        except (self._wandb.Error, OSError) as error:
            why = printable(one_line(error))
            log.warning("wandb: %s; the curves stay on this machine: wandb sync sends them", why)
            self._wandb.teardown()  # its process holds the id of the run that failed
            run = self._init({"mode": "offline"})
        # by the step and not by the order of rows: a step that was done anew is drawn in its place
        run.define_metric("*", step_metric="step")
        return run

    def _init(self, more: dict[str, object]) -> Any:
        wandb = self._wandb
        return wandb.init(
            project=self._project,
            name=self._name,
            id=self._id,
            resume="allow",
            config=plain_settings(self._run, "run."),
            settings=wandb.Settings(**PRIVATE, **LIMITS, **more),
        )


def _library(package: str) -> Any:
    """The package; Unusable if it is not installed, or only wandb's own folder is there."""
    os.environ.setdefault(NO_REPORTS, "false")
    try:
        library: Any = importlib.import_module(package)
    except ImportError:
        library = None
    if not hasattr(library, "init"):  # or a folder of that name is in the working folder
        raise Unusable(
            f"train.wandb: {package} is not installed: pip install {package}, or set train.curves"
        )
    return library
