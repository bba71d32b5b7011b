"""A stage on several devices against the same stage on one: every gradient, and what it costs.

    PYTHONPATH=.:tests python bench/device_group.py [--parallel tensor] [FAMILY ...]

Each stage of a model is computed twice: by processes that share it (`cpu,cpu` unless `--devices`
names others), and by this process alone. Two microbatches of three rows go forward before either
comes back. Printed are the largest differences of sums and of what goes back, over the largest
number there; wanted is 1e-6. Families of `transformers` are tiny random copies. `--parallel tensor`
shares tensors instead of rows; the third column is what lies on a device of all weights.
"""

import argparse
import sys
import time
from dataclasses import replace

import torch
from models.families import family_run
from torch import Tensor

from p2pswarm.base.errors import Unusable
from p2pswarm.models.compute.base import BackwardSpec, Engine
from p2pswarm.models.compute.torch_weights import torch_engine
from p2pswarm.server.devices.group_stage import group_engine
from p2pswarm.server.devices.rank_processes import DeviceGroup
from p2pswarm.settings.config import BatchConfig, ModelConfig, RunConfig

ALL = BackwardSpec(counting=True, returning=True)
ROWS, PASSES, KEEP_BYTES = 3, 2, 1 << 30
VOCABULARY = 256  # the least that a manifest may have
CPU = torch.device("cpu")


def gpt(dtype: str, precision: str) -> RunConfig:
    """A small transformer of our own in three stages."""
    model = ModelConfig(d_model=256, layers=4, heads=4, sequence_length=128, dtype=dtype)
    batch = BatchConfig(microbatches=PASSES, rows=ROWS)
    return RunConfig(stages=3, model=model, batch=batch, precision=precision)


def bundle_like(spec: list, chance: torch.Generator, dtype: torch.dtype) -> dict[str, Tensor]:
    """What a stage may take, or a gradient of what it gives."""
    return {
        key.name: torch.randn(key.layout.shape, generator=chance, dtype=torch.float64).to(dtype)
        for key in spec
    }


def passed(engine: Engine, run: RunConfig, dtype: torch.dtype) -> tuple[list[Tensor], float]:
    """Sum and gradients of some microbatches, and the seconds that the last ones took."""
    engine.weights.reset(draw=True)
    chance = torch.Generator().manual_seed(1)
    shape = run.batch.rows, run.model.sequence_length + 1
    tokens_BS = torch.randint(0, run.model.vocabulary, shape, generator=chance)  # noqa: N806
    given = bundle_like(engine.takes.keys, chance, dtype)
    gradient = bundle_like(engine.gives.gradient().keys, chance, dtype)
    found: list[Tensor] = []
    for again in range(2):
        begun_s = time.monotonic()
        for number in range(PASSES):
            if engine.gives.keys:
                engine.stage.forward((number, again), tokens_BS, given)
            else:
                found += engine.stage.finish(tokens_BS, given, ALL).gradient.values()
        for number in range(PASSES if engine.gives.keys else 0):
            found += engine.stage.backward((number, again), gradient, ALL).values()
        took_s = time.monotonic() - begun_s
    sums = engine.weights.reduction()
    return [*found, sums._sum_N.clone()], took_s  # noqa: SLF001  what the averaging reads


def compared(run: RunConfig, group: DeviceGroup) -> tuple[float, float, float]:
    """The largest relative difference over all stages, the share of weights, and the time."""
    dtype = {"float32": torch.float32, "float64": torch.float64}[run.model.dtype]
    worst, ours_s, theirs_s, here_bytes, whole_bytes = 0.0, 0.0, 0.0, 0, 0
    for stage in range(run.stages):
        engine = group_engine(run, stage, group)
        here_bytes += max(engine.stage._ranks.weight_bytes)  # noqa: SLF001  counted, not told
        ours, took_s = passed(engine, run, dtype)
        ours_s += took_s
        alone = torch_engine(run, stage, CPU, KEEP_BYTES)
        whole_bytes += sum(p.nbytes for p in alone.weights._flat.parameters)  # noqa: SLF001
        theirs, took_s = passed(alone, run, dtype)
        theirs_s += took_s
        for one, other in zip(ours, theirs, strict=True):
            apart = (one - other).abs().max() / other.abs().max().clamp_min(1e-30)
            worst = max(worst, float(apart))
    return worst, here_bytes / whole_bytes, ours_s / theirs_s


def main() -> int:
    """Compare, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("families", nargs="*", help="of transformers; left out: only our own")
    parser.add_argument("--devices", default="cpu,cpu")
    parser.add_argument("--parallel", choices=("rows", "tensor", "context"), default="rows")
    parser.add_argument("--dtype", choices=("float32", "float64"), help="of the families")
    options = parser.parse_args()
    torch.set_num_threads(1)
    devices = tuple(options.devices.split(","))
    group = DeviceGroup(devices, 1, parallel=options.parallel)
    count = len(devices)
    heads = {"hidden_size": 16 * count, "num_attention_heads": 2 * count}
    unused = {"summary_first_dropout": 0.0, "classifier_dropout": 0.0}
    runs = {f"gpt, {d}, {p}": gpt(d, p) for d, p in (("float64", "full"), ("float32", "full"))}
    runs["gpt, float32, bf16"] = gpt("float32", "bf16")
    for name in options.families:
        groups = {"num_key_value_heads": (2 if name == "deepseek_v3" else 1) * count}
        run = family_run(name, vocab_size=VOCABULARY, **heads, **groups, **unused)
        batch = replace(run.batch, rows=ROWS, microbatches=PASSES)
        model = replace(run.model, vocabulary=VOCABULARY, dtype=options.dtype or run.model.dtype)
        runs[f"{name}, {model.dtype}"] = replace(run, batch=batch, model=model)
    print(f"| model | {len(devices)} devices from one | weights on each | time over one device's |")
    print("|---" * 4 + "|")
    for name, run in runs.items():
        try:
            worst, share, times = compared(run, group)
        except Unusable as error:
            print(f"| {name} | refused: {error} | | |", flush=True)
        else:
            print(f"| {name} | {worst:.2g} | {share:.3f} | {times:.2f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
