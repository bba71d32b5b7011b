"""Fuzzes the parsers of tests/fuzzing: mutated inputs, guided by the lines of ours that they reach.

    python bench/fuzz.py [--parser NAME]... [--inputs 100000] [--seed 1] [--blind] [--json FILE]
                         [--resume] [--findings FOLDER] [--grow BYTES] [--list]

One process a parser, one line a parser: inputs a second, the slowest input, exceptions that are
none of the parser's own, growth of memory. Parsers that take over 0.1 ms (`SLOW`) get a hundredth
of the inputs. An input that raises one is written to `--findings`
(`--add FILE` puts it into tests/corpus for good). `--grow` leaves in tests/corpus, of what was
there and what was found, the smallest inputs that together take all branches that any of them
takes, at most so many bytes. `--json` is written after each parser; with `--resume` those are left
out of which it says already that as many inputs found nothing. atheris (libFuzzer) guides; without
it, or with `--blind`, inputs are mutated blindly. The exit status is 1 if a parser failed.

Times are of the processor, and the slowest input is measured again: a busy machine costs little.
"""

import argparse
import contextlib
import io
import json
import logging
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
# In place of bench/, whose files have the names of folders of tests.
sys.path[:1] = [str(ROOT), str(ROOT / "tests")]
try:
    import atheris  # type: ignore[import-not-found]
except ImportError:
    atheris = None
INPUT_BYTES_MAX = 4096  # all parsers have their limits below or read more of the same above
SETTLED = 0.2  # of the inputs: caches are full and modules are loaded after them
KINDS_MAX = 10  # findings of different places that are told
SLOW_S = 0.1  # no input may take longer
LAST = "last-input"
NATIVE = {"arrow_rows", "parquet_rows", "safetensors_file", "tokenizer_file", "tokenizer_folder"}
"""Parsers of other languages, which may end the process."""
SLOW_SHARE = 100  # a slow parser gets so many times fewer inputs
GROWN_FROM_MAX = 2000  # inputs of libFuzzer's corpus that are looked at, the smallest
GROWTH_BYTES_MAX = 32 << 20  # libFuzzer keeps its corpus in the same process


@dataclass(slots=True)
class Report:
    """What became of one parser."""

    parser: str
    inputs: int = 0
    inputs_per_s: float = 0.0
    slowest_s: float = 0.0
    slowest_bytes: int = 0
    grown_bytes: int = 0
    guided: bool = False
    findings: dict[str, str] = field(default_factory=dict)
    """By the place of the exception: the file of the first input that raised it."""

    @property
    def good(self) -> bool:
        """Whether nothing was found."""
        return not self.findings and self.slowest_s < SLOW_S and self.grown_bytes < GROWTH_BYTES_MAX

    def line(self) -> str:
        """The report for people."""
        how = "guided" if self.guided else "blind"
        slow = f"slowest {1e3 * self.slowest_s:.2f} ms ({self.slowest_bytes} B)"
        grown = f"memory {self.grown_bytes / 2**20:+.1f} MiB"
        found = f"{len(self.findings)} findings" if self.findings else "nothing found"
        rate = f"{self.inputs} inputs {how}, {self.inputs_per_s:.0f}/s"
        return f"{self.parser:16} {rate}, {slow}, {grown}, {found}"


class Fuzzer:
    """Gives inputs to one parser and notes what happens; ends the process after the last."""

    def __init__(self, name: str, parse: Any, inputs: int, findings: Path, place: Path) -> None:
        """`place`: a folder where the input that is being tried is kept, if it may be the last."""
        self.parse, self._most, self._folder = parse, inputs, findings
        self._last = place / LAST if name in NATIVE else None
        self.report = Report(name)
        self._slowest = b""
        self._settled_bytes = 0
        self._begun_s = time.process_time()

    def try_one(self, data: bytes) -> None:
        """One input."""
        report = self.report
        if self._last is not None:
            self._last.write_bytes(data)
        begun_s = time.thread_time()
        try:
            self.parse(data)
        except Exception as error:
            self._found(error, data)
        took_s = time.thread_time() - begun_s
        report.inputs += 1
        if took_s > report.slowest_s and report.inputs > 1:
            report.slowest_s, self._slowest = took_s, data
        if report.inputs == int(SETTLED * self._most):
            self._settled_bytes = resident_bytes()

    @property
    def done(self) -> bool:
        """Whether all inputs were given."""
        return self.report.inputs >= self._most

    def end(self, *, guided: bool) -> Report:
        """The report; the slowest input is measured again, because the machine has other work."""
        report = self.report
        report.guided = guided
        report.inputs_per_s = report.inputs / max(time.process_time() - self._begun_s, 1e-9)
        report.grown_bytes = resident_bytes() - self._settled_bytes
        report.slowest_bytes = len(self._slowest)
        for _ in range(3):
            begun_s = time.thread_time()
            with contextlib.suppress(Exception):
                self.parse(self._slowest)
            report.slowest_s = min(report.slowest_s, time.thread_time() - begun_s)
        return report

    def _found(self, error: Exception, data: bytes) -> None:
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}"
        if place in self.report.findings or len(self.report.findings) >= KINDS_MAX:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{self.report.parser}-{len(self.report.findings)}"
        path.write_bytes(data)
        self.report.findings[place] = str(path)
        traceback.print_exception(error, limit=-4)


def resident_bytes() -> int:
    """The memory of this process that is in RAM."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def fuzz(name: str, arguments: argparse.Namespace, folder: str, answer: Path) -> None:
    """Fuzz one parser in this process; the report goes into a file. It may end the process."""
    from fuzzing.corpus import beginnings, mutations  # noqa: PLC0415 - instrumented on import
    from fuzzing.parsers import PARSERS  # noqa: PLC0415

    logging.disable(logging.CRITICAL)  # rows that are passed over are no findings
    tempfile.tempdir = folder
    os.environ["HF_HOME"] = folder
    inputs = inputs_of(name, arguments)
    fuzzer = Fuzzer(name, PARSERS[name], inputs, Path(arguments.findings), Path(folder))
    starts = beginnings(name)
    if is_guided(arguments):
        _guided(fuzzer, starts, arguments, answer)
    for data in mutations(starts, arguments.seed):
        fuzzer.try_one(data)
        if fuzzer.done:
            break
    answer.write_text(json.dumps(asdict(fuzzer.end(guided=False))))


def is_guided(arguments: argparse.Namespace) -> bool:
    """Return whether the branches that an input takes guide the next one."""
    return atheris is not None and not arguments.blind


@contextlib.contextmanager
def instrumented() -> Iterator[None]:
    """Have the package's modules count the branches that are taken in them."""
    with (
        contextlib.redirect_stderr(io.StringIO()),  # it names every module
        atheris.instrument_imports(include=["p2pswarm"]),
    ):
        yield


def _guided(
    fuzzer: Fuzzer, starts: list[bytes], arguments: argparse.Namespace, answer: Path
) -> None:
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    for number, data in enumerate(starts):
        (folder / f"start-{number}").write_bytes(data)

    def one(data: bytes) -> None:
        fuzzer.try_one(data)
        if fuzzer.done:  # libFuzzer ends its process, too, and says nothing of use to us
            answer.write_text(json.dumps(asdict(fuzzer.end(guided=True))))
            if arguments.grow:
                grow(fuzzer.report.parser, folder, fuzzer.parse, arguments.grow)
            shutil.rmtree(folder)
            os._exit(0)

    limits = [f"-max_len={INPUT_BYTES_MAX}", "-rss_limit_mb=0", "-timeout=60", "-verbosity=0"]
    chance = [f"-seed={arguments.seed}", "-reload=0", f"-artifact_prefix={folder}/"]
    atheris.Setup([sys.argv[0], *limits, *chance, str(folder)], one)
    atheris.Fuzz()


def grow(name: str, folder: Path, parse: Any, most_bytes: int) -> None:
    """Keep the smallest of the inputs that take branches which no smaller one takes."""
    from fuzzing.corpus import keep, kept, smallest_that_reach  # noqa: PLC0415 - instrumented
    from fuzzing.seeds import SEEDS  # noqa: PLC0415 - instrumented on import

    fresh = {path.read_bytes() for path in folder.iterdir() if not path.name.startswith("start-")}
    some = sorted(fresh, key=lambda each: (len(each), each))[:GROWN_FROM_MAX]
    keep(name, smallest_that_reach(parse, SEEDS[name](), [*kept(name), *some], most_bytes))


def run(name: str, arguments: argparse.Namespace) -> Report:
    """Fuzz one parser in a process of its own: a copy of this one, which has imported all."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        answer = Path(folder) / "report"
        child = os.fork()
        if not child:
            try:
                fuzz(name, arguments, folder, answer)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if answer.exists():
            return Report(**json.loads(answer.read_text()))
        last = Path(folder) / LAST
        kept = Path(arguments.findings) / f"{name}-last"
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(last.read_bytes() if last.exists() else b"")
        return Report(name, findings={f"the process ended with {code}": str(kept)})


def main() -> int:
    arguments = parsed()
    only_told = arguments.list or arguments.add
    with instrumented() if is_guided(arguments) and not only_told else contextlib.nullcontext():
        from fuzzing.parsers import PARSERS  # noqa: PLC0415 - instrumented on import
    if arguments.list:
        print("\n".join(PARSERS))
        return 0
    names = arguments.parser or list(PARSERS)
    if unknown := [name for name in names if name not in PARSERS]:
        print(f"error: no parser is called {unknown[0]}: --list names them", file=sys.stderr)
        return 2
    if arguments.add:
        from fuzzing.corpus import keep, kept  # noqa: PLC0415

        keep(names[0], [*kept(names[0]), *(Path(path).read_bytes() for path in arguments.add)])
        return 0
    if atheris is None and not arguments.blind:
        print(
            "atheris is not installed (pip install --group fuzz): blind mutations", file=sys.stderr
        )
    reports = earlier(arguments)
    for name in names:
        if name in reports:
            continue
        reports[name] = report = run(name, arguments)
        print(report.line(), flush=True)
        for place, path in report.findings.items():
            print(f"    {place}: {path}")
        if arguments.json:
            rows = [asdict(each) for each in reports.values()]
            Path(arguments.json).write_text(json.dumps(rows, indent=1) + "\n")
    return 0 if all(report.good for report in reports.values()) else 1


def inputs_of(name: str, arguments: argparse.Namespace) -> int:
    """Return how many inputs a parser gets."""
    from fuzzing.parsers import SLOW  # noqa: PLC0415 - instrumented on import

    share = SLOW_SHARE if name in SLOW else 1
    return max(1, arguments.inputs // share)


def earlier(arguments: argparse.Namespace) -> dict[str, Report]:
    """The reports of a run that was broken off, of parsers that had as many inputs and held."""
    if not (arguments.resume and arguments.json and Path(arguments.json).exists()):
        return {}
    rows = [Report(**row) for row in json.loads(Path(arguments.json).read_text())]
    return {
        row.parser: row
        for row in rows
        if row.good and row.inputs >= inputs_of(row.parser, arguments)
    }


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--parser", action="append", help="one of --list; all without it")
    parser.add_argument("--inputs", type=int, default=100_000, help="for each parser")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--blind", action="store_true", help="mutate without guidance")
    parser.add_argument("--findings", default="fuzz-findings", help="a folder for what raised")
    parser.add_argument("--grow", type=int, default=0, help="bytes of each file in tests/corpus")
    parser.add_argument("--add", action="append", help="a file to keep in tests/corpus")
    parser.add_argument("--json", help="a file for the reports")
    parser.add_argument("--resume", action="store_true", help="go on with the run of --json")
    parser.add_argument("--list", action="store_true", help="the names of the parsers")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
