"""A report of a node's settings in plain words, and a check of the files that they name.

Errors:  Unusable for a file that is missing or cannot be written.
"""

import shlex
from pathlib import Path
from urllib.parse import urlsplit

from p2pswarm.base.files import check_target
from p2pswarm.data.sources import check_there, tokenizer_file
from p2pswarm.node.progress.event_log import try_event_log
from p2pswarm.run.schedule import delay_cost, learning_rate, warms_on
from p2pswarm.settings.config import EMULATED, HF, CodecConfig, RunConfig
from p2pswarm.settings.limits import BYTES, is_web, trained_tokens
from p2pswarm.settings.node_config import (
    CONTEXT,
    TENSOR,
    CheckpointConfig,
    NetworkConfig,
    NodeConfig,
    ServeConfig,
)
from p2pswarm.settings.objective import SIMPO
from p2pswarm.settings.service_hours import idle_s, leaves_with_run
from p2pswarm.settings.train_config import TrainConfig

Row = tuple[str, str]

FINE_TUNING_RATE_MAX = 5e-4  # published recipes have 1e-6 to 2e-4
USUAL_RATES = {False: ("2e-5", "2e-4"), True: ("5e-7", "5e-6")}
"""Of tokens and of pairs: where the whole model trains, and of adapters; TRL's for pairs."""


def check_files(config: NodeConfig) -> None:
    """Raise Unusable if a trainer's text is missing, or weights or a log cannot be written."""
    if config.role != "trainer":
        if config.role == "stage":
            try_event_log(config.serve.log, "serve.log")
        return
    for part in config.train.parts:
        assert part.data is not None, "a text of a mixture has it"
        check_there(part.data, config.train.suffixes)
    weights = config.train.weights
    name = config.train.tokenizer
    if name != BYTES and not trained_tokens(name) and not name.startswith(HF):
        tokenizer_file(Path(name))
    if weights is not None:
        check_target(weights)


def report(config: NodeConfig, source: Path | None) -> str:
    """The report: one line for each setting that matters for the role."""
    rows: list[Row] = [
        ("role", config.role),
        ("listens on", config.listen or "every address, port 4000 or any free one"),
        ("others dial", config.network.announce or "the address that it listens on"),
        *_relay_rows(config.network),
        ("joins through", ", ".join(config.bootstrap) or "nobody: it starts a swarm"),
        ("identity", str(config.identity or config.state or "a new one each time")),
        ("state", str(config.state or "in memory only: a restart begins anew")),
    ]
    match config.role:
        case "trainer":
            rows += _run_rows(config.run) + _train_rows(config.train, config.run)
            rows += _checkpoint_rows(config.checkpoint)
        case "stage":
            rows += _serve_rows(config.serve)
    width = max(len(name) for name, _ in rows)
    lines = [f"{name:{width}}  {value}" for name, value in rows]
    return "\n".join([f"{source or 'the flags'}: good", *lines]) + "\n"


def _relay_rows(network: NetworkConfig) -> list[Row]:
    if network.relays:
        return [("is reached", f"through {', '.join(network.relays)}")]
    if not network.relay:
        return [("relays", "nothing for others")]
    ports = [f"port {port}" for port in (network.relay_port,) if port]
    ports += [f"WebSocket on port {port}" for port in (network.relay_web,) if port]
    also = f"; also on {' and '.join(ports)}" if ports else ""
    return [("relays", f"at most {network.relay_mb_s:g} MB/s for others{also}")]


def _run_rows(run: RunConfig) -> list[Row]:
    model, batch, rate = run.model, run.batch, run.optimizer
    tokens = batch.microbatches * batch.rows * model.sequence_length
    made = f"{model.family}, {model.layers} layers, d_model {model.d_model}, {model.heads} heads"
    if model.folder is not None:  # its config.json has the sizes
        made = f"{model.family}: {model.folder}"
    if model.boundary != "none":
        made += f", {model.boundary} modules at each cut"
    shape = (
        f"{batch.microbatches} microbatches of {batch.rows} sequences of {model.sequence_length}"
    )
    last_step = rate.decay_steps or run.steps
    warmup = f"{rate.warmup_steps} steps"
    if warms_on(run):
        warmup += " (more than the run has, so it is never reached)"
    last = f"{learning_rate(run, last_step):g} at step {last_step}, {rate.schedule}"
    if run.start == "pretrained" and rate.learning_rate > FINE_TUNING_RATE_MAX:
        usual = USUAL_RATES[run.objective.prefers][run.adapter is not None]
        last += f"; so high a rate spoils pretrained weights, {usual} is usual"
    kind = "a rehearsal that learns nothing, " if run.emulated else ""
    computed = "" if run.precision == "full" else f", computed in {run.precision}"
    if run.weight_storage != "full":
        computed += f", weights kept in {run.weight_storage} and rounded by chance"
    cut = f"stages: {run.stages}, servers of each: {run.min_replicas} or more"
    return [
        ("run", f"{run.name!r}, {kind}{cut}"),
        ("model", f"{made}, {model.dtype}{computed}"),
        *([("trains", _trained_text(run))] if run.has_base else []),
        *([("objective", _objective_text(run))] if run.objective.prefers else []),
        ("steps", f"{run.steps} of {tokens:,} tokens: {shape}"),
        ("codecs", _codecs_text(run.codecs)),
        *([("delay", _delay_text(run))] if run.delay else []),
        ("learning rate", f"{rate.learning_rate:g} after {warmup}, {last}"),
    ]


def _trained_text(run: RunConfig) -> str:
    """What trains, and how the rest is kept."""
    kept = "in model.dtype" if run.base == "full" else f"in {run.base}"
    if run.adapter is None:
        return f"all but {', '.join(run.frozen)}, which is kept {kept}"
    targets = run.adapter.targets
    named = targets if isinstance(targets, str) else ", ".join(targets)
    whole = f", and whole {', '.join(run.adapter.train)}" if run.adapter.train else ""
    return f"adapters of rank {run.adapter.rank} on {named}{whole}; the model is kept {kept}"


def _objective_text(run: RunConfig) -> str:
    objective, pairs = run.objective, run.batch.microbatches * run.batch.rows // 2
    gamma = f", gamma {objective.gamma:g}" if objective.name == SIMPO else ""
    before = "; references are computed before the first step" if objective.refers else ""
    return f"{objective.name}, beta {objective.strength:g}{gamma}: {pairs:,} pairs a step{before}"


def _codecs_text(codecs: CodecConfig) -> str:
    """What crosses links: between stages, and within one."""
    pair = codecs.activation, codecs.gradient
    up, down = codecs.coarsest if codecs.choice == "measured" else pair
    measured = ", or milder where links carry that" if codecs.choice == "measured" else ""
    return f"{up} up, {down} down{measured}; sums of a stage {', '.join(codecs.averagings)}"


def _delay_text(run: RunConfig) -> str:
    corrected = "corrected" if run.delay_correction else "not corrected"
    cost = f"{delay_cost(run)} more loss at equal steps, less in a long run"
    return f"one step, {corrected}: no waiting between steps, {cost} (docs/delay.md)"


def _train_rows(train: TrainConfig, run: RunConfig) -> list[Row]:
    only = f", files that end in {' '.join(train.suffixes)}" if train.suffixes else ""
    total = sum(part.weight for part in train.parts)
    texts = [f"{part.data} ({part.weight / total:.2%})" for part in train.mixture]
    text = ", ".join(texts) or train.data
    read = ", names of special tokens are read" if train.special_tokens == "tokens" else ""
    curves = [str(train.curves)] if train.curves else []
    curves += [f"wandb: {train.wandb}"] if train.wandb else []
    return [
        ("text", f"{text}{only}; {train.held_out_share:.1%} held out"),
        ("tokens", train.tokenizer + read),
        ("goes on from", train.resume or f"the first weights, {run.start}"),
        ("weights", f"{train.weights}, with run and step" if train.weights else "not written"),
        ("log of events", str(train.log) if train.log else "not written"),
        ("curves", " and ".join(curves) or "not written"),
        ("costs", _cost_text(train)),
        ("alerts", _notify_text(train.notify)),
    ]


def _cost_text(train: TrainConfig) -> str:
    """What this machine costs, and what the run may."""
    own = _price_text(train.price_per_hour, train.currency)
    budget = "the run has no budget"
    if train.budget:
        budget = f"at {train.budget:g} {train.currency} of the run it is saved and ends"
    limit = ""
    if train.price_limit:
        limit = f"; servers without an invitation count for {train.price_limit:g} an hour at most"
    return f"{own}; {budget}{limit}"


def _price_text(per_hour: float, currency: str) -> str:
    return f"this machine {per_hour:g} {currency} an hour" if per_hour else "this machine nothing"


def _notify_text(notify: str | tuple[str, ...]) -> str:
    """Where alerts go; what may be a secret in it is left out."""
    if not notify:
        return "none (train.notify)"
    if isinstance(notify, str) and is_web(notify):
        return f"posted to {urlsplit(notify).hostname}"
    return f"given to {(shlex.split(notify) if isinstance(notify, str) else notify)[0]}"


def _checkpoint_rows(checkpoint: CheckpointConfig) -> list[Row]:
    if not checkpoint.target:
        return [("checkpoints", "not written")]
    kept = f"the newest {checkpoint.keep_newest} stay"
    if checkpoint.keep_every:
        kept += f", and each {checkpoint.keep_every} steps one"
    every = f"every {checkpoint.every_steps} steps to {checkpoint.target}"
    return [("checkpoints", f"{every}; {kept}")]


def _serve_rows(serve: ServeConfig) -> list[Row]:
    device = serve.device if serve.device != "auto" else "the GPU where there is one"
    if serve.device == EMULATED:
        device = f"none: a forward is emulated, {serve.emulated_forward_s:g} s long"
    device += {TENSOR: ", which share each tensor", CONTEXT: ", which share each row's tokens"}.get(
        serve.parallel, ""
    )
    return [
        ("run", repr(serve.run) if serve.run else "the first that is found"),
        ("stage", _stage_text(serve)),
        ("device", device),
        ("serves", serve.hours or "all day"),
        ("ends by itself", _leave_text(serve.leave)),
        ("costs", _price_text(serve.price_per_hour, serve.currency) + (", spot" * serve.spot)),
    ]


def _leave_text(leave: str) -> str:
    """When a server ends by itself."""
    ends = ["when its run is over"] if leaves_with_run(leave) else []
    if (seconds := idle_s(leave)) is not None:
        ends.append(f"after {seconds:g} s without a run")
    return ", or ".join(ends) or "never: it looks for the next run"


def _stage_text(serve: ServeConfig) -> str:
    if serve.stage is not None:
        return str(serve.stage)
    if serve.planned_stage is not None:
        return f"{serve.planned_stage} as planned, until the run moves it"
    return "the one that needs it most"
