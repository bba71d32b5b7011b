"""AdamW and Muon at equal steps and in equal time: held-out loss at several learning rates.

    python bench/optimizers.py --text docs --rates 2e-3 4e-3 8e-3 1.6e-2

All train the same model side by side (`side_by_side.py`). What counts is each one's best rate; one
that is best at the edge of the rates says that more of them are needed. Then the one whose steps
take less time trains again, with as many steps as the other's time has, and a schedule of that
length. Time is the processor's (on a GPU, the clock's), the median of a step.
"""

from argparse import Namespace
from dataclasses import asdict, replace

from results import write_json
from side_by_side import Outcome, base_run, parser_of, train_side_by_side

OPTIMIZERS = ("adamw", "muon")


def main() -> None:
    """Train all, and compare the best."""
    parser = parser_of(__doc__.splitlines()[0])
    parser.add_argument("--rates", type=float, nargs="+", default=[2e-3, 4e-3, 8e-3, 1.6e-2])
    parser.add_argument("--muon-rates", type=float, nargs="+", help="if they are others")
    options = parser.parse_args()
    rates = {"adamw": options.rates, "muon": options.muon_rates or options.rates}
    print(f"{options.steps} steps each:", flush=True)
    found = _train(options, rates)
    step_s = {name: _best(found[name])[1].step_s for name in OPTIMIZERS}
    slow, fast = sorted(OPTIMIZERS, key=step_s.__getitem__, reverse=True)
    steps = int(options.steps * step_s[slow] / step_s[fast])
    print(f"in the time of {slow}, {steps} steps of {fast}:", flush=True)
    longer = _train(Namespace(**{**vars(options), "steps": steps}), {fast: rates[fast]})
    _compare("equal steps", {name: _best(found[name]) for name in OPTIMIZERS})
    _compare("equal time", {slow: _best(found[slow]), fast: _best(longer[fast])})
    told = {
        name: {f"{rate:g}": asdict(each) for rate, each in outcomes.items()}
        for name, outcomes in (*found.items(), (f"{fast}, {steps} steps", longer[fast]))
    }
    write_json(options.json, {"steps": options.steps, "ways": told})


def _train(options: Namespace, rates: dict[str, list[float]]) -> dict[str, dict[float, Outcome]]:
    """What became of each optimizer at each rate."""
    run = base_run(options)
    ways = {
        f"{name} {rate:g}": replace(
            run, optimizer=replace(run.optimizer, name=name, learning_rate=rate)
        )
        for name, each in rates.items()
        for rate in each
    }
    outcomes = train_side_by_side(ways, options)
    found = {
        name: {rate: outcomes[f"{name} {rate:g}"] for rate in each} for name, each in rates.items()
    }
    for name, each in found.items():
        told = ", ".join(f"{rate:g}: {outcome.held_out:.5f}" for rate, outcome in each.items())
        rate, best = _best(each)
        print(f"{name}: held-out loss by rate {told}; best {rate:g}, a step {best.step_s:.3f} s")
    return found


def _best(outcomes: dict[float, Outcome]) -> tuple[float, Outcome]:
    return min(outcomes.items(), key=lambda item: item[1].held_out)


def _compare(what: str, best: dict[str, tuple[float, Outcome]]) -> None:
    adamw, muon = (best[name][1].held_out for name in OPTIMIZERS)
    told = " and ".join(f"{name} {best[name][1].held_out:.5f}" for name in OPTIMIZERS)
    print(f"{what}: {told}, Muon's loss is {100 * (muon / adamw - 1):+.2f} %")


if __name__ == "__main__":
    main()
