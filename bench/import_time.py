"""How long `import p2pswarm` takes, beside Python's own start; each time in a fresh process.

    python bench/import_time.py --times 20
    python bench/import_time.py --times 20 --installed

The time is the import statement's alone; Python's start and the site's are not in it.

With `--installed` it builds a wheel and installs it into clean environments, without dependencies.
There it runs `p2pswarm --version`, whole processes: the first one of each environment, before any
of its files was read, and later ones.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
ENVIRONMENTS = 3  # each has one first start

WATCHED = ("torch", "numpy", "rich", "matplotlib", "asyncio")
PROGRAM = f"""
import sys, time
begin_s = time.perf_counter()
import p2pswarm as ps
{{use}}
took_s = time.perf_counter() - begin_s
print(took_s, *[name for name in {WATCHED} if name in sys.modules])
"""
USES = {"import p2pswarm": "", "and ps.Node": "ps.Node", "and ps.Trainer": "ps.Trainer"}


def measure(use: str) -> tuple[float, str]:
    """Seconds, and which of the watched modules were loaded."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(use=use)], capture_output=True, text=True, check=True
    )
    took_s, *loaded = done.stdout.split()
    return float(took_s), " ".join(loaded) or "nothing"


def started(command: Path) -> float:
    """Seconds from the start of `p2pswarm --version` to its end."""
    begin_s = time.perf_counter()
    subprocess.run([command, "--version"], check=True, capture_output=True)
    return time.perf_counter() - begin_s


def measure_installed(times: int) -> None:
    """Print how long the first and later starts of an installed wheel take."""
    first_s, later_s = [], []
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        build = [
            sys.executable,
            "-m",
            "build",
            "--no-isolation",
            "--wheel",
            "--outdir",
            folder,
            ROOT,
        ]
        subprocess.run(build, check=True, capture_output=True)
        (wheel,) = folder.glob("*.whl")
        print(f"wheel: {wheel.stat().st_size:,} bytes")
        for number in range(ENVIRONMENTS):
            place = folder / str(number)
            venv.create(place, with_pip=True)
            pip = [place / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-deps", wheel]
            subprocess.run(pip, check=True, capture_output=True)
            first_s.append(started(place / "bin" / "p2pswarm"))
            later_s += [started(place / "bin" / "p2pswarm") for _ in range(times)]
    print(f"first p2pswarm --version  {min(first_s):.3f} to {max(first_s):.3f} s")
    print(
        f"later ones                {min(later_s):.3f} s, median {statistics.median(later_s):.3f} s"
    )


def main() -> None:
    """Measure each use in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=10, metavar="N")
    parser.add_argument("--installed", action="store_true", help="starts of an installed wheel")
    flags = parser.parse_args()
    times: int = flags.times
    if flags.installed:
        measure_installed(times)
        return
    print(f"{'':18} {'best':>8} {'median':>8}   loads of {', '.join(WATCHED)}")
    for name, use in USES.items():
        measured = [measure(use) for _ in range(times)]
        took = [took_s for took_s, _ in measured]
        best, median = min(took), statistics.median(took)
        print(f"{name:18} {best:7.4f}s {median:7.4f}s   {measured[-1][1]}")


if __name__ == "__main__":
    main()
