"""The options of the demo, and the settings that it writes for each of its nodes."""

import sysconfig
from dataclasses import dataclass
from pathlib import Path

from p2pswarm.commands.arguments import toml
from p2pswarm.settings.service_hours import NEVER

STEPS = 500  # about five minutes on two hyperthreads of one core
LAYERS_LEAST = 4
UNEVEN_STEPS, UNEVEN_REPLICAS = 60, 3  # two minutes; so many that a stage can spare servers
SLOW_SERVERS = 2
SLOW_S, FAST_S = 0.3, 0.05  # of a forward: cards of today beside some of years ago
STEADY_S = 5.0  # a demo has no half minute to be sure of a gain


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """The options of `p2pswarm demo`."""

    stages: int = 2
    replicas: int = 2
    """Servers of each stage."""
    steps: int = STEPS
    kill_every: int | None = None
    """Steps between two kills; None: one kill half way; 0: none."""
    uneven: bool = False
    """Rehearse on slow and fast machines, which move; nothing is learnt."""
    json: Path | None = None
    plot: Path = Path("loss.png")
    data: Path | None = None
    """The text to learn; None: the sources of Python's standard library."""


def bootstrap_settings() -> str:
    """The settings of a node on this machine that the others join through."""
    return toml(role="bootstrap", listen="127.0.0.1:0", leave_at_eof=True)


def server_settings(bootstrap: str, options: Options, *, slow: bool = False) -> str:
    """The settings of a server of whichever stage needs it; a slow one serves the last stage."""
    top = toml(role="stage", **_joining(bootstrap))
    if not options.uneven:
        return top + "[serve]\n" + toml(threads=1, device="cpu", leave=NEVER)
    serve = toml(device="emulated", emulated_forward_s=SLOW_S if slow else FAST_S, leave=NEVER)
    pinned = toml(stage=options.stages - 1) if slow else ""
    return top + "[serve]\n" + serve + pinned


def _gathered(options: Options) -> int:
    """Return how many servers each stage has for sure, in whichever order they come."""
    if not options.uneven:
        return options.replicas
    fast = options.stages * options.replicas - SLOW_SERVERS
    return max(1, fast // options.stages)  # slow ones that come last all add to the last stage


def trainer_settings(bootstrap: str, options: Options) -> str:
    """The settings of a trainer that prints its progress as JSON."""
    top = toml(role="trainer", **_joining(bootstrap))
    if options.data is None:
        data = toml(data=sysconfig.get_path("stdlib"), suffixes=[".py"])
    else:
        data = toml(data=str(options.data.resolve()))
    train = "[train]\n" + data + toml(progress="json", weights="")
    run = "[run]\n" + toml(
        name="demo",
        stages=options.stages,
        steps=options.steps,
        min_replicas=_gathered(options),
        emulated=options.uneven,
    )
    model = "[run.model]\n" + toml(
        d_model=128,
        layers=max(LAYERS_LEAST, options.stages),
        heads=2,
        sequence_length=128,
    )
    schedule = "[run.optimizer]\n" + toml(
        learning_rate=4e-3,
        warmup_steps=min(20, options.steps),
        decay_steps=options.steps,
        final_share=0.05,
    )
    evaluate = {"evaluate_every": 0 if options.uneven else 25, "evaluate_microbatches": 32}
    batch = "[run.batch]\n" + toml(microbatches=8, rows=4, **evaluate)
    balance = "[run.balance]\n" + toml(steady_s=STEADY_S) if options.uneven else ""
    return top + train + run + model + schedule + batch + balance


def _joining(bootstrap: str) -> dict[str, object]:
    return {"listen": "127.0.0.1:0", "bootstrap": [bootstrap], "leave_at_eof": True}
