"""AdamW and Muon at equal steps: held-out loss at several learning rates, and the time of a step.

    python bench/optimizers.py --text docs --rates 5e-4 1e-3 2e-3 4e-3

All train the same model side by side (`side_by_side.py`). What counts is each one's best rate; one
that is best at the edge of the rates says that more of them are needed.
"""

import json
from dataclasses import asdict, replace

from side_by_side import base_run, parser_of, train_side_by_side


def main() -> None:
    """Train all, and compare the best."""
    parser = parser_of(__doc__.splitlines()[0])
    parser.add_argument("--rates", type=float, nargs="+", default=[5e-4, 1e-3, 2e-3, 4e-3])
    parser.add_argument("--optimizers", nargs="+", default=["adamw", "muon"])
    options = parser.parse_args()
    run = base_run(options)
    ways = {
        f"{name} {rate:g}": replace(
            run, optimizer=replace(run.optimizer, name=name, learning_rate=rate)
        )
        for name in options.optimizers
        for rate in options.rates
    }
    found = train_side_by_side(ways, options)
    best = {}
    for name in options.optimizers:
        mine = {way: found[way].held_out for way in found if way.startswith(f"{name} ")}
        best[name] = min(mine, key=mine.__getitem__)
        told = ", ".join(f"{way.split()[1]}: {loss:.5f}" for way, loss in mine.items())
        step_s = found[best[name]].step_s
        print(f"{name}: held-out loss by rate {told}; best {best[name]}, a step {step_s:.3f} s")
    if options.json:
        told = {"best": best, "ways": {way: asdict(each) for way, each in found.items()}}
        options.json.write_text(json.dumps({**told, "steps": options.steps}))


if __name__ == "__main__":
    main()
