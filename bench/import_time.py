"""How long `import p2pswarm` takes, beside Python's own start; each time in a fresh process.

    python bench/import_time.py --times 20

The time is the import statement's alone; Python's start and the site's are not in it.
"""

import argparse
import statistics
import subprocess
import sys

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


def main() -> None:
    """Measure each use in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=10, metavar="N")
    times = parser.parse_args().times
    print(f"{'':18} {'best':>8} {'median':>8}   loads of {', '.join(WATCHED)}")
    for name, use in USES.items():
        measured = [measure(use) for _ in range(times)]
        took = [took_s for took_s, _ in measured]
        best, median = min(took), statistics.median(took)
        print(f"{name:18} {best:7.4f}s {median:7.4f}s   {measured[-1][1]}")


if __name__ == "__main__":
    main()
