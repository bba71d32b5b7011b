"""The learning rate of a step, and the clipping of its gradient.

The trainer sends both in `Commit`. A reference trainer that a swarm is compared with calls the same
functions.

Units:   the learning rate and the clipping scale are numbers without a unit.
Source:  docs/optimizers.md; clipping as torch.nn.utils.clip_grad_norm_: max_norm / (norm + 1e-6),
         at most 1; warm-up, stable, decay: MiniCPM, arXiv 2404.06395, with a linear decay.
"""

import math

from p2pswarm.settings.config import OptimizerConfig, RunConfig

CLIP_EPSILON = 1e-6  # torch's


def learning_rate(run: RunConfig, step: int) -> float:
    """The rate of a step: a linear warm-up, then the schedule down to `final_share` of the peak."""
    optimizer = run.optimizer
    if step < optimizer.warmup_steps:
        return optimizer.learning_rate * (step + 1) / optimizer.warmup_steps
    decay_steps = max(1, (optimizer.decay_steps or run.steps) - optimizer.warmup_steps)
    done = min(1.0, (step - optimizer.warmup_steps) / decay_steps)
    left = _left(optimizer, done)
    return optimizer.learning_rate * (optimizer.final_share + (1 - optimizer.final_share) * left)


def warms_on(run: RunConfig) -> bool:
    """Return whether the warm-up is longer than the run or its schedule."""
    return run.optimizer.warmup_steps > (run.optimizer.decay_steps or run.steps)


def delay_cost(run: RunConfig) -> str:
    """The cost of a delay in steps, in words: of small models after some hundred steps."""
    if run.delay_correction:
        return "up to 2 %"
    return "4 to 8 %" if run.optimizer.name == "muon" else "5 to 10 %"


def _left(optimizer: OptimizerConfig, done: float) -> float:
    """What is left of the way from the peak to the end, from 1 to 0; `done`: of the steps."""
    match optimizer.schedule:
        case "cosine":
            return 0.5 * (1.0 + math.cos(math.pi * done))
        case "linear":
            return 1.0 - done
        case "warmup-stable-decay":
            falling = done - (1.0 - optimizer.decay_share)
            return 1.0 if falling <= 0.0 else max(0.0, 1.0 - falling / optimizer.decay_share)
        case _:
            return 1.0


def tokens_per_target(run: RunConfig, targets: int) -> float:
    """By how much the gradient of a step is larger than what servers sum; 0 without a target.

    Servers weigh each target as one of all tokens, because they compute before its number is known.
    """
    return run.step_tokens / targets if targets else 0.0


def sum_scale(
    optimizer: OptimizerConfig, sum_norm: float, tokens_per_target: float
) -> tuple[float, float]:
    """The norm of a step's gradient, and the factor that makes of the summed gradients its update.

    `tokens_per_target`: as that function gives it; 1 where every token is a target.
    """
    norm = sum_norm * tokens_per_target
    return norm, tokens_per_target * clip_scale(optimizer, norm)


def clip_scale(optimizer: OptimizerConfig, gradient_norm: float) -> float:
    """The factor for the gradient, at most 1."""
    return min(1.0, optimizer.clip_norm / (gradient_norm + CLIP_EPSILON))
