"""Attention by document against a dense mask; devices that share the tokens of a row.

    PYTHONPATH=. python bench/context.py --devices N [--adapter] [--json FILE]

With one device, 16 documents of 512 tokens lie in one row of 8,192. Both ways compute the same
numbers, forward and backward, in turn, in one run: the time is the median of the pairs' ratios. The
memory is the peak of a process of its own for each way, above what it had with the tensors that
both are given. The difference is the largest of values and gradients, in float64, relative to the
largest number there.

With several, which are processes on the CPU, the difference is that of the loss and of a
microbatch's gradient, in float64, between `serve.parallel = "context"` and one process: one
document is split, and others are whole. With `--adapter` the run trains adapters of rank 16 on an
NF4 base, and it is told how many MiB are frozen, once for all devices, and how many of weights a
device has for itself: its share of what trains.

Times are of the plan's own model of a layer, of an 8B model on cards of PCIe 4, over the ideal,
where all devices are equal and nothing is exchanged: of the plan, and of zig-zag over the whole
row, where every device gets all keys. They are means of 40 rows of each of four kinds of log-normal
lengths. `plan_ms` is the processor's time for a row's plan, the 99th of a hundred.
"""
# ruff: noqa: D102, N803, N806  `TokenGroup` documents methods; shapes are written at the end of names

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  torch's own name for it

from p2pswarm.models.attention.document_attention import WHOLE_ROWS, AttentionRule
from p2pswarm.models.check.model_check import fill_factors
from p2pswarm.models.compute.base import BackwardSpec
from p2pswarm.models.compute.torch_weights import torch_engine
from p2pswarm.models.document_positions import beside
from p2pswarm.models.gpt import Layer
from p2pswarm.models.model_source import resolved
from p2pswarm.server.devices.group_stage import group_engine
from p2pswarm.server.devices.microbatch_part import BACKWARD, RECEIVED_PRODUCTS
from p2pswarm.server.devices.rank_processes import DeviceGroup
from p2pswarm.server.devices.token_plan import (
    TokenCosts,
    cost_of,
    ideal_cost,
    plan_cost,
    token_plan,
)
from p2pswarm.settings.adapter_config import AdapterConfig
from p2pswarm.settings.config import BatchConfig, ModelConfig, RunConfig
from p2pswarm.settings.node_config import CONTEXT

DOCUMENTS, LENGTH, HEADS, FEATURES = 16, 512, 4, 64
EQUAL = (LENGTH,) * DOCUMENTS
UNEVEN = (1, 700, 2, 3, 300, 18)
"""Of which the difference is taken: no length is a multiple of what kernels compute at a time."""
PAIRS = 5
CAUSAL = AttentionRule()
RETURNED = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
"""What is freed goes back to the system at once, so that the peak counts what lives."""
CLEAR, STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")


class DenseRows:
    """Documents kept apart by a mask of T x T, as every layer would make it."""

    def attend(
        self,
        q_BHTK: Tensor,
        k_BHTK: Tensor,
        v_BHTK: Tensor,
        position_BT: Tensor,
        rule: AttentionRule,
    ) -> Tensor:
        del rule
        length = position_BT.shape[1]
        number_BT = (position_BT == 0).cumsum(dim=1)
        seen_BTT = number_BT.unsqueeze(2) == number_BT.unsqueeze(1)
        seen_BTT = seen_BTT & torch.ones(length, length, dtype=torch.bool).tril()
        return F.scaled_dot_product_attention(
            q_BHTK, k_BHTK, v_BHTK, attn_mask=seen_BTT.unsqueeze(1)
        )


WAYS = {"dense": DenseRows(), "documents": WHOLE_ROWS}


def positions(lengths: Sequence[int]) -> Tensor:
    return torch.cat([torch.arange(each, dtype=torch.int32) for each in lengths]).unsqueeze(0)


def attention(
    way: str, lengths: Sequence[int] = EQUAL, dtype: torch.dtype = torch.float32
) -> Callable[[], list[Tensor]]:
    """What computes attention alone, and its gradients."""
    shape = 1, HEADS, sum(lengths), FEATURES
    generator = torch.Generator().manual_seed(1)
    tensors = [torch.randn(shape, generator=generator, dtype=dtype) for _ in range(4)]
    given, position_BT = [x.requires_grad_() for x in tensors[:3]], positions(lengths)

    def work() -> list[Tensor]:
        made = WAYS[way].attend(*given, position_BT, CAUSAL)
        return [made.detach(), *torch.autograd.grad(made, given, tensors[3])]

    return work


def layer(way: str, lengths: Sequence[int] = EQUAL) -> Callable[[], list[Tensor]]:
    """What computes a layer of the built-in model, and its gradients."""
    width = HEADS * FEATURES
    model = ModelConfig(
        d_model=width, heads=HEADS, sequence_length=sum(lengths), documents="marked"
    )
    made = Layer(model, torch.float32)
    with torch.no_grad():
        made.draw(torch.Generator().manual_seed(1))
    made.token_group = WAYS[way]
    x_BTD = torch.randn(1, sum(lengths), width, generator=torch.Generator().manual_seed(2))
    value = beside(x_BTD.requires_grad_(), positions(lengths))

    def work() -> list[Tensor]:
        given = made(value)
        return list(torch.autograd.grad(given["x"].sum(), [x_BTD, *made.parameters()]))

    return work


WHAT = {"attention": attention, "layer": layer}


def peak_bytes(what: str, way: str) -> int:
    """The peak of a process that computes it, above what it had before."""
    command = [sys.executable, __file__, "--peak", what, way]
    env = {**os.environ, **RETURNED}
    return int(subprocess.run(command, check=True, capture_output=True, text=True, env=env).stdout)


def own_peak(what: str, way: str) -> int:
    """The same of this process."""
    WHAT[what](way, EQUAL[:1])()  # what torch loads and keeps
    work = WHAT[what](way)
    CLEAR.write_text("5")  # the peak is now what there is
    before = _high_water_kib()
    work()
    return (_high_water_kib() - before) << 10


def _high_water_kib() -> int:
    line = next(each for each in STATUS.read_text().splitlines() if each.startswith("VmHWM:"))
    return int(line.split()[1])


def time_ratio(what: str) -> tuple[float, float, float]:
    """By document over dense, the median of pairs; and the medians of seconds of both."""
    works = {way: WHAT[what](way) for way in WAYS}
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(PAIRS):
        for way, work in works.items():
            begun_s = time.perf_counter()
            work()
            seconds[way].append(time.perf_counter() - begun_s)
    ratios = [a / b for a, b in zip(seconds["documents"], seconds["dense"], strict=True)]
    found = (statistics.median(seconds[way]) for way in ("documents", "dense"))
    return statistics.median(ratios), *found


def difference() -> float:
    """The largest of values and gradients, in float64."""
    ours, theirs = (attention(way, UNEVEN, torch.float64)() for way in ("documents", "dense"))
    pairs = zip(ours, theirs, strict=True)
    return max(((a - b).abs().max() / b.abs().max()).item() for a, b in pairs)


ROWS_DRAWN = 40
KINDS = ((800, 1.3, 32_768), (800, 1.3, 131_072), (4_000, 1.5, 32_768), (4_000, 1.5, 131_072))
"""Median and deviation of the logarithm of documents' lengths, and the tokens of a row."""
WIDTH, KEYS, HIDDEN = 4_096, 1_024, 14_336  # features of an 8B model: of a row, of keys, of the MLP
TOKEN = 2 * WIDTH * WIDTH + 2 * WIDTH * KEYS + 3 * WIDTH * HIDDEN  # products of a forward
LAYER = TokenCosts(pair=2 * WIDTH * BACKWARD / TOKEN, received=2 * KEYS * RECEIVED_PRODUCTS / TOKEN)
SPEC = BackwardSpec(counting=True, returning=True)
END = 7


def zigzag_cost(lengths: Sequence[int], devices: int) -> float:
    """The time of a row that is cut into equal parts, whatever its documents are."""
    tokens, costs = sum(lengths), [0.0] * devices
    for device, part in ((d, p) for d in range(devices) for p in (d, 2 * devices - 1 - d)):
        low, high = (each * tokens // (2 * devices) for each in (part, part + 1))
        begin = 0
        for length in lengths:
            start, stop = max(low, begin), min(high, begin + length)
            if stop > start:
                costs[device] += cost_of(start - begin, stop - begin, LAYER)
            begin += length
    return max(costs) + LAYER.received * (tokens - tokens / devices)


def drawn_row(rng: random.Random, median: float, sigma: float, tokens: int) -> tuple[int, ...]:
    lengths: list[int] = []
    while (rest := tokens - sum(lengths)) > 0:
        lengths.append(min(rest, max(1, int(rng.lognormvariate(math.log(median), sigma)))))
    return tuple(lengths)


def planned(devices: int) -> dict[str, float]:
    """Times over the ideal."""
    rng, ours, theirs, took_ms = random.Random(1), [], [], []
    found = {}
    for median, sigma, tokens in KINDS:
        rows = [drawn_row(rng, median, sigma, tokens) for _ in range(ROWS_DRAWN)]
        kind = []
        for lengths in rows:
            begun_s = time.process_time()
            plan = token_plan(lengths, devices, LAYER)
            took_ms.append(1e3 * (time.process_time() - begun_s))
            ideal = ideal_cost(lengths, devices, LAYER)
            kind.append(max(plan_cost(plan, lengths, LAYER)) / ideal)
            theirs.append(zigzag_cost(lengths, devices) / ideal)
        found[f"time_over_ideal_{median}_{tokens}"] = statistics.mean(kind)
        ours += kind
    found |= {
        "time_over_ideal": statistics.mean(ours),
        "zigzag_over_ideal": statistics.mean(theirs),
    }
    return found | {"plan_ms": statistics.quantiles(took_ms, n=100)[-1]}


def shared_difference(devices: int, *, adapter: bool) -> dict[str, float]:
    """The largest of the loss and of a microbatch's gradient, between a context group and one."""
    model = ModelConfig(
        d_model=64, layers=2, heads=4, sequence_length=256, dtype="float64", documents="apart",
        document_end=END,
    )  # fmt: skip
    run = RunConfig(stages=1, model=model, batch=BatchConfig(rows=2, microbatches=1))
    if adapter:
        run = resolved(replace(run, base="nf4", adapter=AdapterConfig()))
    generator = torch.Generator().manual_seed(1)
    tokens_BS = torch.randint(END + 1, 256, (2, 257), generator=generator)
    tokens_BS[:, [3, 200, 230]] = END
    group = group_engine(run, 0, DeviceGroup(("cpu",) * devices, 1, parallel=CONTEXT))
    alone = torch_engine(run, 0, torch.device("cpu"), 1 << 30)
    worst, results = 0.0, []
    for engine in (group, alone):
        engine.weights.reset(draw=True)
        fill_factors(engine.weights._flat)  # noqa: SLF001  zeros would hide the other factors'
        loss = engine.stage.finish(tokens_BS, {}, SPEC).loss
        results.append((loss, engine.weights.reduction()._sum_N.clone()))  # noqa: SLF001
    (own, ours_N), (loss, theirs_N) = results
    worst = abs(own - loss) / loss
    worst = max(worst, ((ours_N - theirs_N).abs().max() / theirs_N.abs().max()).item())
    if not adapter or group.base is None:
        return {"difference": worst}
    own_bytes = max(group.stage._ranks.weight_bytes)  # noqa: SLF001  counted, not told
    base_bytes = sum(map(group.base.piece_bytes, range(group.base.pieces)))
    return {
        "difference": worst,
        "base_mib": base_bytes / (1 << 20),
        "own_mib": own_bytes / (1 << 20),
    }


def several_devices(devices: int, *, adapter: bool) -> dict[str, float]:
    return {**shared_difference(devices, adapter=adapter), **planned(devices)}


def one_device() -> dict[str, float]:
    found = {"difference": difference()}
    for what in WHAT:
        ratio, own_s, dense_s = time_ratio(what)
        peaks = {way: peak_bytes(what, way) for way in WAYS}
        found |= {
            f"{what}_times_faster": 1 / ratio,
            f"{what}_memory_share": peaks["documents"] / peaks["dense"],
            f"{what}_seconds": own_s,
            f"{what}_dense_seconds": dense_s,
            f"{what}_peak_mib": peaks["documents"] / (1 << 20),
            f"{what}_dense_peak_mib": peaks["dense"] / (1 << 20),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--adapter", action="store_true", help="train adapters on an NF4 base")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--peak", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.adapter and asked.devices == 1:
        parser.error("--adapter is for several devices: add --devices 2")
    torch.set_num_threads(1)
    if asked.peak:
        print(own_peak(*asked.peak))
        return
    if asked.devices == 1:
        found = one_device()
    else:
        found = several_devices(asked.devices, adapter=asked.adapter)
    text = json.dumps({name: float(f"{x:.3g}") for name, x in found.items()}, indent=1)
    print(text)
    if asked.json:
        asked.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
