"""A text larger than memory: what reading it takes before the first microbatch, and for each.

    python bench/text_stream.py [--gb 10] [--folder FOLDER] [--samples streamed|drawn] [--json FILE]

Writes files of JSON lines, 512 MB each, with documents of log-normal length (mean 3 kB), if they
are not in the folder yet; they are as large as `--gb` says, and are left there. Then another
process reads them as a trainer does: bytes as tokens, rows of 1,025, eight to a microbatch.
Measured in it: seconds until it has the text's digest and the first microbatch, its memory at most,
and what a microbatch takes from then on. The files may be in the memory of the kernel: what a disk
takes is not in these numbers.
"""

import argparse
import json
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from p2pswarm.config import BatchConfig, ModelConfig, NodeConfig, RunConfig  # noqa: E402
from p2pswarm.roles.run_text import read_corpus  # noqa: E402
from p2pswarm.train_config import TrainConfig  # noqa: E402

FILE_BYTES = 512_000_000
WORDS = 4096
MEAN_BYTES = 3000
MICROBATCHES = 200


def write(folder: Path, whole_bytes: int) -> None:
    """The files that are not there yet; but for the last one all are copies of the first."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(1)
    words = ["".join(rng.choices("etaoinshrdlu", k=rng.randint(2, 9))) for _ in range(WORDS)]
    for number in range(-(-whole_bytes // FILE_BYTES)):
        file = folder / f"part-{number:03}.jsonl"
        size = min(FILE_BYTES, whole_bytes - number * FILE_BYTES)
        if file.exists() and file.stat().st_size >= size:
            continue
        if number and size == FILE_BYTES:
            shutil.copyfile(folder / "part-000.jsonl", file)
            continue
        with file.open("w") as lines:
            while lines.tell() < size:
                count = max(1, round(rng.lognormvariate(0, 1) * MEAN_BYTES / 1.65 / 6.5))
                lines.write(json.dumps({"text": " ".join(rng.choices(words, k=count))}) + "\n")


def read(folder: Path, samples: str) -> dict[str, float]:
    """Read them as a trainer does."""
    begun_s = time.monotonic()
    config = NodeConfig(
        role="trainer",
        train=TrainConfig(data=folder / "*.jsonl", cache=folder / "cache"),
        run=RunConfig(
            model=ModelConfig(sequence_length=1024), batch=BatchConfig(rows=8, samples=samples)
        ),
    )
    corpus = read_corpus(config)
    corpus.digest()
    corpus.microbatch(0)
    first_s = time.monotonic() - begun_s
    for number in range(1, MICROBATCHES + 1):
        corpus.microbatch(number)
    each_s = (time.monotonic() - begun_s - first_s) / MICROBATCHES
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    return {"first_s": first_s, "microbatch_s": each_s, "peak_mb": peak_mb}


def main() -> None:
    """Write, read in a process of its own, and tell."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--gb", type=float, default=10.0)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "text_stream")
    parser.add_argument("--samples", choices=("streamed", "drawn"), default="streamed")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--read", action="store_true", help="be the process that reads")
    options = parser.parse_args()
    if options.read:
        print(json.dumps(read(options.folder, options.samples)))
        return
    write(options.folder, round(options.gb * 1e9))
    again = [*sys.argv, "--read"]
    done = subprocess.run([sys.executable, *again], check=True, stdout=subprocess.PIPE, text=True)
    found = json.loads(done.stdout)
    print(
        f"{options.gb:g} GB, {options.samples}: first microbatch after {found['first_s']:.2f} s,"
        f" {found['microbatch_s'] * 1e3:.2f} ms for each from then on, memory at most"
        f" {found['peak_mb']:.0f} MB"
    )
    if options.json:
        options.json.write_text(done.stdout)


if __name__ == "__main__":
    main()
