"""What a quantised base costs a stage: tokens a second and memory, beside bitsandbytes and PEFT.

    python bench/base_cost.py --json base_cost.json

One process and one thread a side, in turns: a llama of 77 million weights, NF4, LoRA of rank 16 on
all linear layers, float32 to compute in, AdamW. Ours is a stage with all blocks; theirs is the
library's model with `load_in_4bit`, PEFT, and an ordinary loop. Medians of steps and of turns.

Memory is the most that a process has during steps, less what it had after a step of a tiny model.
Ours is also told over base + 16 bytes x adapter + graph: of the process, and of its tensors alone,
as a GPU's allocator would count them. glibc's malloc seldom gives aligned memory to the same size
again, so a process keeps more than its tensors are. `--preload` takes another allocator:

    python bench/base_cost.py --preload /usr/lib/x86_64-linux-gnu/libjemalloc.so.2
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any, cast

import torch
from adapters import LIBRARIES, install
from proc import memory_bytes
from results import command_line, show, write_json
from torch.profiler import profile

from p2pswarm.models.compute.autograd_graphs import GraphLimits
from p2pswarm.models.compute.base import BackwardSpec, Engine, Update
from p2pswarm.models.compute.torch_weights import torch_engine
from p2pswarm.models.library.hf_library import library, library_model
from p2pswarm.models.model_source import resolved
from p2pswarm.settings.adapter_config import AdapterConfig
from p2pswarm.settings.config import BatchConfig, ModelConfig, RunConfig

ROOT = Path(__file__).resolve().parent.parent
CONFIG = {
    "model_type": "llama",
    "vocab_size": 256,
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 6,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "tie_word_embeddings": False,
}
TINY = CONFIG | {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1}
RANK, ROWS, LENGTH, STEPS, RATE = 16, 2, 256, 5, 1e-4
MIB = 1 << 20


def run_in(folder: Path) -> RunConfig:
    """A run that trains an adapter of the folder's model."""
    return resolved(
        RunConfig(
            stages=1,
            start="pretrained",
            base="nf4",
            adapter=AdapterConfig(rank=RANK),
            model=ModelConfig(family="hf", folder=folder, sequence_length=LENGTH),
            batch=BatchConfig(rows=ROWS, microbatches=1),
        )
    )


def make(folder: Path, config: dict[str, Any]) -> None:
    """Write the model's files."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    model = ModelConfig(family="hf", folder=folder, sequence_length=LENGTH)
    whole: Any = library_model(resolved(RunConfig(model=model)).model, torch.bfloat16)
    whole.save_pretrained(folder)


def forget_peak() -> int:
    """Begin to measure the most memory anew; returns what there is now."""
    Path("/proc/self/clear_refs").write_text("5")
    return memory_bytes(os.getpid(), "VmRSS")


def tensor_peak(life: Callable[[], object]) -> int:
    """The most bytes that torch's tensors have at once while `life` runs."""
    with profile(profile_memory=True) as seen:
        life()
    events = seen.profiler.kineto_results.events()
    return max(accumulate(each.nbytes() for each in events if each.name() == "[memory]"))


def timed(step: Callable[[], object], before: int) -> dict[str, float]:
    """Some steps, after one; what they take, loading not counted."""
    forget_peak()
    step()
    seconds = []
    for _ in range(STEPS):
        begun_s = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - begun_s)
    peak = memory_bytes(os.getpid(), "VmHWM") - before
    return {"tokens_per_s": ROWS * LENGTH / statistics.median(seconds), "peak_mib": peak / MIB}


def tokens() -> torch.Tensor:
    """A microbatch."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, CONFIG["vocab_size"], (ROWS, LENGTH + 1), generator=generator)


def stage_of(folder: Path) -> tuple[Engine, Callable[[], None]]:
    """A stage with all blocks, and a step of it."""
    tokens_BS, versions = tokens(), iter(range(1, 1_000))  # noqa: N806
    engine = torch_engine(run_in(folder), 0, torch.device("cpu"), GraphLimits(1 << 34, 1 << 40))
    engine.weights.reset(draw=True)
    weights: Any = engine.weights
    flat = weights._flat  # noqa: SLF001

    def step() -> None:
        engine.stage.finish(tokens_BS, {}, BackwardSpec(True, False))
        update = Update(next(versions), 1.0, RATE)
        weights._optimizers[0].step(flat.sum_N, update)  # noqa: SLF001
        flat.sum_N.zero_()

    return engine, step


def ours(folder: Path) -> dict[str, float]:
    """Steps of a stage; then of another one, of whose memory torch writes down each part."""
    before = forget_peak()
    engine, step = stage_of(folder)
    found = timed(step, before)
    flat, stage = cast("Any", engine.weights)._flat, cast("Any", engine.stage)  # noqa: SLF001
    graph = max(stage._graphs.budget._sizes.values())  # noqa: SLF001
    due = flat.base.size_bytes + 16 * flat.length + graph

    def life() -> None:
        _, step = stage_of(folder)
        for _ in range(2):
            step()

    return found | {
        "over_due": found["peak_mib"] * MIB / due,
        "tensors_over_due": tensor_peak(life) / due,
        "graph_mib": graph / MIB,
    }


def theirs(folder: Path) -> dict[str, float]:
    """The library's model in 4 bits, with PEFT."""
    from peft import LoraConfig, get_peft_model  # noqa: PLC0415
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig  # noqa: PLC0415

    tokens_BS = tokens()  # noqa: N806
    quantisation = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32
    )
    before = forget_peak()
    bare = AutoModelForCausalLM.from_pretrained(
        folder, quantization_config=quantisation, dtype=torch.float32, device_map="cpu"
    )
    adapter = LoraConfig(r=RANK, lora_alpha=RANK, target_modules="all-linear")
    model = get_peft_model(bare, adapter).train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=RATE)

    def step() -> None:
        scores = model(input_ids=tokens_BS[:, :-1], use_cache=False).logits.flatten(0, 1)
        torch.nn.functional.cross_entropy(scores, tokens_BS[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return timed(step, before)


SIDES = {"ours": ours, "theirs": theirs}


def main() -> int:
    """Run both sides in turns, print, write."""
    options = _options()
    torch.set_num_threads(1)
    if options.side:
        library()
        SIDES[options.side](options.folder / "tiny")  # what is loaded at the first use is there
        print(json.dumps(SIDES[options.side](options.folder / "model")))
        return 0
    install()
    found: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory() as name:
        make(Path(name) / "tiny", TINY)
        make(Path(name) / "model", CONFIG)
        for _ in range(options.turns):
            for side, turns in found.items():
                turns.append(_in_a_process(side, Path(name), options.preload))
    medians = {
        side: {key: statistics.median(turn[key] for turn in turns) for key in turns[0]}
        for side, turns in found.items()
    }
    show(
        ("side", "tokens/s", "peak, MiB"),
        [(side, f"{x['tokens_per_s']:.1f}", f"{x['peak_mib']:.0f}") for side, x in medians.items()],
    )
    one, other = medians["ours"], medians["theirs"]
    figures = {
        "speed": one["tokens_per_s"] / other["tokens_per_s"],
        "memory": one["peak_mib"] / other["peak_mib"],
        "over_due": one["over_due"],
        "tensors_over_due": one["tensors_over_due"],
    }
    print("; ".join(f"{name} {value:.3f}" for name, value in figures.items()))
    write_json(options.json, figures | medians)
    return 0


def _in_a_process(side: str, folder: Path, preload: str) -> dict[str, float]:
    paths = os.pathsep.join([str(ROOT), str(LIBRARIES)])
    there = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "LD_PRELOAD": preload}
    command = [sys.executable, "-W", "ignore", __file__, "--side", side, "--folder", str(folder)]
    said = subprocess.run(command, env=there, check=True, stdout=subprocess.PIPE, text=True)
    result: dict[str, float] = json.loads(said.stdout.splitlines()[-1])
    return result


def _options() -> Any:
    parser = command_line(__doc__)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--preload", default="", metavar="FILE", help="an allocator of both sides")
    parser.add_argument("--side", choices=list(SIDES))
    parser.add_argument("--folder", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
