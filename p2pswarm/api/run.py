"""A run, for programs: what the settings file has under `[run]`, as keyword arguments.

Errors:  ValueError names the setting that is wrong and what is allowed, in one line.
"""

from collections.abc import Mapping
from typing import TypedDict, Unpack

from p2pswarm.config import BatchConfig, CodecConfig, ModelConfig, OptimizerConfig, RunConfig
from p2pswarm.settings import from_values

Table = Mapping[str, object]


class RunSettings(TypedDict, total=False):
    """What `Run` takes beside its name; each has the default of `RunConfig`."""

    model: ModelConfig | Table
    """The model: `p2pswarm.models.GPT(...)`, or what a file has under `[run.model]`."""
    stages: int
    """Into how many parts the model is cut."""
    steps: int
    """How many optimizer steps are done."""
    seed: int
    """Of the initial weights and of the order of the samples."""
    min_replicas: int
    """Servers of each stage before the first step starts."""
    optimizer: OptimizerConfig | Table
    """AdamW and its schedule: `learning_rate`, `warmup_steps`, ..."""
    batch: BatchConfig | Table
    """How many sequences a step has: `microbatches`, `rows`, ..."""
    codecs: CodecConfig | Table
    """How tensors travel: `activation`, `gradient`, `averaging`."""


class Run:
    """The description of a run: its model, its stages, its steps.

    The settings are those of a settings file, under the same names, with the same limits; a table
    of the file is a mapping here.

    Args:
        name: What servers ask for; 1 to 64 printable characters.
        settings: As in `RunSettings`.

    Raises:
        ValueError: A setting is unknown or not allowed; the message names it and what is allowed.

    Example:
        `Run("my run", model=GPT(d_model=64), stages=2, batch={"rows": 8})`
    """

    def __init__(self, name: str, **settings: Unpack[RunSettings]) -> None:
        self.config: RunConfig = from_values(RunConfig, {"name": name, **settings}, "run")
        """Every setting, checked."""

    @property
    def name(self) -> str:
        """What servers ask for."""
        return self.config.name

    def __repr__(self) -> str:
        return f"Run({self.config})"
