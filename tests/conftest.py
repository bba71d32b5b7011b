"""What every test shares: one torch thread a process, no hub, and seeds that can be replayed."""

import atexit
import functools
import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator, Sequence

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before anybody imports torch
os.environ["HF_HOME"] = tempfile.mkdtemp(prefix="p2pswarm-hub-")  # not the user's cache
os.environ["HF_ENDPOINT"] = "http://127.0.0.1:9"  # where nobody listens; a test may name its own
os.environ.pop("HF_TOKEN", None)
os.environ["XDG_RUNTIME_DIR"] = tempfile.mkdtemp(prefix="p2pswarm-nodes-")  # not the user's

from pathlib import Path

import hypothesis
import pytest
from _pytest.assertion import rewrite
from groups import GroupScheduling
from local_hub import LocalHub, local_hub
from procs.fork_server import ForkServer
from xdist.remote import Producer

for _variable in ("P2PSWARM_BOOTSTRAP", "P2PSWARM_INVITE", "P2PSWARM_NAME", "NOTIFY_SOCKET"):
    os.environ.pop(_variable, None)  # they are of whoever runs the tests
atexit.register(shutil.rmtree, os.environ["HF_HOME"], ignore_errors=True)
atexit.register(shutil.rmtree, os.environ["XDG_RUNTIME_DIR"], ignore_errors=True)
hypothesis.settings.register_profile("full", deadline=None, print_blob=True)
hypothesis.settings.register_profile(
    "short", hypothesis.settings.get_profile("full"), max_examples=30
)
hypothesis.settings.load_profile("short")  # `--hypothesis-profile=full`: make test-all

HERE = Path(__file__).parent
WAITING = ("procs", "wanlab", "natlab", "systems")
"""Folders whose tests mostly wait: for processes that start, and for networks."""
NEED_LINUX = (
    *("procs", "wanlab", "natlab", "server/devices"),  # forks, namespaces, memory that has no name
    "net/os/test_system_limits.py",  # limits that Windows lacks
)
collect_ignore = [] if sys.platform == "linux" else list(NEED_LINUX)
UNTRACED = {
    *(
        "run/chain/test_model.py",
        "reach/nat/test_router.py",
        "commands/simulate/test_simulate.py",
    ),
    *("plan/test_pipelined.py", "plan/test_moves.py", "plan/test_search.py"),
    *("chaos/test_stalls.py", "trainer/test_toy_takeovers.py"),
    *("sim/test_bulk_count.py", "sim/test_devices.py", "sim/test_dht_attack.py"),
    *("sim/test_disasters.py", "sim/test_gossip.py", "sim/test_rebalancing.py"),
    *("sim/test_reunion.py", "sim/test_spot_checks.py"),
}
"""Whole swarms, and searches of millions of lines: to trace each line would double the time of all.

The tests of their rules, one by one, reach the same lines.
"""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> GroupScheduling | None:
    """Know the groups, under `--dist=loadgroup`."""
    return GroupScheduling(config, log) if config.getvalue("dist") == "loadgroup" else None


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Trace no line of what is in UNTRACED.

    The mark `no_cover` of pytest-cov stops the records in a worker of xdist, and not the tracing.
    """
    tracer = sys.gettrace()
    untraced = item.path.is_relative_to(HERE) and str(item.path.relative_to(HERE)) in UNTRACED
    if untraced and tracer is not None:
        sys.settrace(None)
    yield
    if untraced and tracer is not None:
        sys.settrace(tracer)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Rewrite this worker's share of the tests before all are collected.

    In a new clone each worker would else rewrite the asserts of all, ten seconds of work. Pytest
    has no public name for it; what is not written here, the collection writes.
    """
    worker = getattr(session.config, "workerinput", None)
    if worker is None or sys.dont_write_bytecode:
        return
    number, count = int(worker["workerid"].removeprefix("gw")), worker["workercount"]
    for path in sorted(HERE.rglob("test_*.py"))[number::count]:
        written = rewrite.get_cache_dir(path) / (path.name.removesuffix(".py") + rewrite.PYC_TAIL)
        if not written.exists() or written.stat().st_mtime < path.stat().st_mtime:
            about, code = rewrite._rewrite_test(path, session.config)
            rewrite.try_makedirs(written.parent)
            state = session.config.stash[rewrite.assertstate_key]
            rewrite._write_pyc(state, code, about, written)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests without looking for garbage: what is made here stays until the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()  # nor does the first look go through all of it
        gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--update`."""
    parser.addoption("--update", action="store_true", help="write the texts of tests/golden anew")


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    """Starts processes without the seconds of their imports."""
    server = ForkServer()
    yield server
    server.close()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    """A hub on this host, which is the one that the library asks."""
    with local_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.at("us"))
        yield hub


@pytest.fixture
def golden(pytestconfig: pytest.Config) -> Callable[[str, dict[str, str]], None]:
    """Compares texts, by what each is of, with the file of a name in tests/golden.

    `pytest --update` writes the file anew; the change is then read in the diff.
    """

    def compare(name: str, texts: dict[str, str]) -> None:
        shown = "\n".join(f"== {title}\n{text.rstrip()}\n" for title, text in texts.items())
        compare_with_file(f"{name}.txt", shown, update=pytestconfig.getoption("update"))

    return compare


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Half as many again as processors, where some of the tests wait."""
    folders = {path.name for each in config.args for path in (Path(each), *Path(each).glob("*"))}
    return -(-3 * (os.cpu_count() or 1) // 2) if folders.intersection(WAITING) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spread the tests that wait evenly among those that compute: they fill each other's pauses."""
    waiting = [item for item in items if is_waiting(item.path)]
    computing = [item for item in items if not is_waiting(item.path)]
    place = {
        item: (number + 0.5) / len(some)
        for some in (waiting, computing)
        for number, item in enumerate(some)
    }
    items.sort(key=place.__getitem__)


@functools.cache
def is_waiting(path: Path) -> bool:
    """Tell whether a file's tests wait."""
    return any(path.is_relative_to(HERE / folder) for folder in WAITING)


@pytest.fixture
def golden_lines(pytestconfig: pytest.Config) -> Callable[[str, Sequence[str]], None]:
    """Compares lines with a file of tests/golden; `pytest --update` writes it anew."""

    def compare(name: str, lines: Sequence[str]) -> None:
        shown = "\n".join([*lines, ""])
        compare_with_file(name, shown, update=pytestconfig.getoption("update"))

    return compare


def compare_with_file(name: str, text: str, *, update: bool) -> None:
    """Hold a text to the file of that name in tests/golden, or write that anew."""
    path = HERE / "golden" / name
    if update:
        path.write_text(text)
    assert text == path.read_text()
