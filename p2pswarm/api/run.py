"""A run, for programs: the settings of `[run]` in a settings file, as keyword arguments."""

from collections.abc import Mapping, Sequence
from typing import TypedDict, Unpack

from p2pswarm.settings.adapter_config import AdapterConfig
from p2pswarm.settings.config import (
    BalanceConfig,
    BatchConfig,
    CodecConfig,
    ModelConfig,
    OptimizerConfig,
    RunConfig,
)
from p2pswarm.settings.objective import ObjectiveConfig
from p2pswarm.settings.parser import from_values

Table = Mapping[str, object]


class RunSettings(TypedDict, total=False):
    """The arguments of `Run` besides its name; the defaults are those of `RunConfig`."""

    model: ModelConfig | Table | str
    """The model: `p2pswarm.models.GPT(...)`, the settings of `[run.model]`, or "hf:FOLDER",
    "hf:OWNER/NAME" and the like (docs/models.md)."""
    start: str
    """The first weights: "random", or "pretrained", those of "hf:FOLDER"."""
    stages: int
    """The number of parts that the model is cut into."""
    cut: Sequence[int]
    """The blocks of each part, as `p2pswarm plan` finds them; left out: about the same work."""
    steps: int
    """The number of optimizer steps."""
    seed: int
    """The seed of the first weights and of the order of the samples."""
    min_replicas: int
    """The servers of each stage that the first step waits for."""
    on_stage_lost: str
    """Action when no server holds a stage's weights: "wait" for one that does, or "end"."""
    rewind_after_s: float
    """Time that "rewind" waits; it needs checkpoints, so a settings file."""
    strangers: str
    """What peers may do that are not invited: "compute", or also "lead" (docs/closed_runs.md)."""
    owner: str
    """The public key of the owner, in hexadecimal, who invites (docs/closed_runs.md)."""
    precision: str
    """Precision of the blocks: "full", the model's dtype, or "bf16" (docs/precision.md)."""
    weight_storage: str
    """Storage of the weights: "full", the model's dtype, or "bf16" (docs/precision.md)."""
    spot_check_share: float
    """The share of microbatches that are computed twice, to find servers that compute wrong."""
    delay: int
    """1: a step is computed with the weights of one step before (docs/delay.md)."""
    delay_correction: bool
    """With a delay: each update makes up for what the last one lacked."""
    base: str
    """How frozen weights are kept: "full", "bf16", "int8" or "nf4" (docs/bases.md)."""
    frozen: Sequence[str]
    """Patterns of parameters that do not train, as "model.embed*" (docs/adapters.md)."""
    adapter: AdapterConfig | Table
    """Low-rank matrices that train beside the frozen model: `rank`, `targets`, ..."""
    objective: ObjectiveConfig | Table
    """What is made small: `name`, as "dpo", `beta`, `gamma` (docs/preferences.md)."""
    emulated: bool
    """A rehearsal, whose servers only take the time of computing (docs/simulation.md)."""
    optimizer: OptimizerConfig | Table
    """AdamW or Muon and its schedule: `name`, `learning_rate`, `warmup_steps`, ..."""
    batch: BatchConfig | Table
    """The size of a step: `microbatches`, `rows`, ..."""
    codecs: CodecConfig | Table
    """The codecs of tensors on the wire: `activation`, `gradient`, `averaging`."""
    balance: BalanceConfig | Table
    """Moves of servers from one stage to another: `rule`, `every_s`, ..."""


class Run:
    """The description of a run: its model, its stages, its steps.

    The settings are those of a settings file, under the same names, with the same limits; a table
    of the file is a mapping here.

    Args:
        name: The name that servers look for; 1 to 64 printable characters.
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
        """The name that servers look for."""
        return self.config.name

    def __repr__(self) -> str:
        return f"Run({self.config})"
