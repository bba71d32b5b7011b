"""What `serve.compiled` brings: processor time of forward and backward, with and without it.

    python bench/compiled.py [--d-model 256] [--layers 4] [--rows 4] [--tokens 256] [--rounds 5]
                             [--precision full|bf16] [--device cpu] [--json FILE]

One stage that is the whole model, on one thread; the two ways take turns. On a GPU the time is the
clock's, with the device waited for.
"""

# ruff: noqa: N806  shapes are written at the end of names

import json
import statistics
import time

import torch
from one_stage import options_of, run_of

from p2pswarm.models.compute.base import BackwardSpec
from p2pswarm.models.compute.torch_weights import torch_engine

KEEP_BYTES = 1 << 34
STEPS = 4  # microbatches of a round
ALL = BackwardSpec(counting=True, returning=False)


def main() -> None:
    """Print the times, and write them."""
    options = options_of(__doc__, layers=4)
    torch.set_num_threads(1)
    run = run_of(options)
    device = torch.device(options.device)
    tokens_BS = torch.randint(0, 256, (options.rows, options.tokens + 1))
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    engines = []
    for compiles in (False, True):
        begun_s = time.monotonic()
        engine = torch_engine(run, 0, device, KEEP_BYTES, compiles=compiles)
        engine.weights.reset(draw=True)
        engine.stage.finish(tokens_BS, {}, ALL)
        engines.append(engine)
        print(f"compiled {compiles}: ready after {time.monotonic() - begun_s:.1f} s", flush=True)
    times_s: list[list[float]] = [[], []]
    for _ in range(options.rounds):
        for engine, taken_s in zip(engines, times_s, strict=True):
            begun_s = clock()
            for _ in range(STEPS):
                engine.stage.finish(tokens_BS, {}, ALL)
            taken_s.append((clock() - begun_s) / STEPS)
    plain_s, compiled_s = (statistics.median(each) for each in times_s)
    print(f"a microbatch: {1000 * plain_s:.1f} ms, compiled {1000 * compiled_s:.1f} ms")
    print(f"compiled is {plain_s / compiled_s:.2f} times as fast")
    if options.json:
        told = {"plain_s": plain_s, "compiled_s": compiled_s, "ratio": plain_s / compiled_s}
        options.json.write_text(json.dumps(told))


if __name__ == "__main__":
    main()
