"""A text larger than memory: what reading it takes before the first microbatch, and for each.

    python bench/text_stream.py [--gb 10] [--kind jsonl|parquet|arrow|text] [--group-mb 128]
                                [--folder FOLDER] [--samples streamed|drawn] [--json FILE]

Writes files of about 512 MB, with documents of log-normal length (mean 3 kB), if they are not in
the folder yet; they are as large as `--gb` says, and are left there. Parquet has groups of
`--group-mb` MB and the compression that pyarrow chooses; plain text has blank lines between
documents. Then another process reads them as a trainer does: bytes as tokens, rows of 1,025, eight
to a microbatch.
Measured in it: seconds, and processor seconds, until it has the text's digest and the first
microbatch, its memory at most, and what a microbatch takes from then on, in the mean and at most.
The files may be in the memory of the kernel: what a disk takes is not in these numbers.
"""

import json
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyarrow import ipc, parquet
from results import command_line, write_json

from p2pswarm.node.run.run_text import read_corpus
from p2pswarm.settings.config import BatchConfig, ModelConfig, RunConfig
from p2pswarm.settings.node_config import NodeConfig
from p2pswarm.settings.train_config import TrainConfig

FILE_BYTES = 512_000_000
WORDS = 4096
MEAN_BYTES = 3000
MICROBATCHES = 200
ENDINGS = {"jsonl": "jsonl", "parquet": "parquet", "arrow": "arrow", "text": "txt"}


def write(folder: Path, whole_bytes: int, kind: str, group_bytes: int) -> None:
    """The files that are not there yet; but for the last one all are copies of the first."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(-(-whole_bytes // FILE_BYTES)):
        file = folder / f"part-{number:03}.{ENDINGS[kind]}"
        size = min(FILE_BYTES, whole_bytes - number * FILE_BYTES)
        if file.exists():
            continue
        if number and size == FILE_BYTES:
            shutil.copyfile(folder / f"part-000.{ENDINGS[kind]}", file)
            continue
        match kind:
            case "jsonl":
                with file.open("w") as lines:
                    lines.writelines(json.dumps({"text": text}) + "\n" for text in texts(size))
            case "text":
                with file.open("w") as plain:
                    plain.writelines(text + "\n\n" for text in texts(size))
            case "parquet":
                schema = pa.schema([("text", pa.string())])
                with parquet.ParquetWriter(file, schema) as writer:
                    for some in tables(size, group_bytes):
                        writer.write_table(some, row_group_size=some.num_rows)
            case "arrow":  # batches as `datasets` writes them, of 1,000 rows
                schema = pa.schema([("text", pa.string())])
                with ipc.new_stream(str(file), schema) as writer:
                    for some in tables(size, 1000 * MEAN_BYTES):
                        writer.write_table(some)


def texts(size: int) -> Iterator[str]:
    """Documents, `size` bytes of them."""
    rng = random.Random(1)
    words = ["".join(rng.choices("etaoinshrdlu", k=rng.randint(2, 9))) for _ in range(WORDS)]
    written = 0
    while written < size:
        count = max(1, round(rng.lognormvariate(0, 1) * MEAN_BYTES / 1.65 / 6.5))
        text = " ".join(rng.choices(words, k=count))
        written += len(text)
        yield text


def tables(size: int, group_bytes: int) -> Iterator[pa.Table]:
    """Documents as tables of about so many bytes."""
    some, held_bytes = list[str](), 0
    for text in texts(size):
        some.append(text)
        held_bytes += len(text)
        if held_bytes >= group_bytes:
            yield pa.table({"text": some})
            some, held_bytes = [], 0
    if some:
        yield pa.table({"text": some})


def read(folder: Path, samples: str, kind: str) -> dict[str, float]:
    """Read them as a trainer does."""
    begun_s, busy_s = time.monotonic(), time.process_time()
    config = NodeConfig(
        role="trainer",
        train=TrainConfig(data=folder / f"*.{ENDINGS[kind]}", cache=folder / "cache"),
        run=RunConfig(
            model=ModelConfig(sequence_length=1024), batch=BatchConfig(rows=8, samples=samples)
        ),
    )
    corpus = read_corpus(config)
    corpus.digest()
    corpus.microbatch(0)
    first_s, first_busy_s = time.monotonic() - begun_s, time.process_time() - busy_s
    each_s = []
    for number in range(1, MICROBATCHES + 1):
        before_s = time.process_time()
        corpus.microbatch(number)
        each_s.append(time.process_time() - before_s)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    return {
        "first_s": first_s,
        "first_busy_s": first_busy_s,
        "microbatch_s": sum(each_s) / MICROBATCHES,
        "slowest_s": max(each_s),
        "peak_mb": peak_mb,
    }


def main() -> None:
    """Write, read in a process of its own, and tell."""
    parser = command_line(__doc__)
    parser.add_argument("--gb", type=float, default=10.0)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "text_stream")
    parser.add_argument("--kind", choices=tuple(ENDINGS), default="jsonl")
    parser.add_argument("--group-mb", type=float, default=128.0)
    parser.add_argument("--samples", choices=("streamed", "drawn"), default="streamed")
    parser.add_argument("--read", action="store_true", help="be the process that reads")
    parser.add_argument("--write", action="store_true", help="be the process that writes")
    options = parser.parse_args()
    if options.read:
        print(json.dumps(read(options.folder, options.samples, options.kind)))
        return
    size, group_bytes = round(options.gb * 1e9), round(options.group_mb * 1e6)
    if options.write:
        write(options.folder, size, options.kind, group_bytes)
        return
    again = [*sys.argv, "--write"]  # its memory would count as that of the process that reads
    subprocess.run([sys.executable, *again], check=True)
    again = [*sys.argv, "--read"]
    done = subprocess.run([sys.executable, *again], check=True, stdout=subprocess.PIPE, text=True)
    found = json.loads(done.stdout)
    print(
        f"{options.gb:g} GB of {options.kind}, {options.samples}: first microbatch after"
        f" {found['first_s']:.2f} s ({found['first_busy_s']:.2f} s of the processor), each from"
        f" then on {found['microbatch_s'] * 1e3:.2f} ms of it, {found['slowest_s'] * 1e3:.0f} ms at"
        f" most, memory at most {found['peak_mb']:.0f} MB"
    )
    write_json(options.json, found)


if __name__ == "__main__":
    main()
