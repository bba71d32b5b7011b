"""The settings of a run, as frozen dataclasses: each has a default, a unit and a meaning.

The run's manifest carries `RunConfig` to every member. `settings/parser.py` reads it from TOML, and
checks each value against the limit that is written beside its type here. What describes one machine
stays there (`settings/node_config.py`).
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from p2pswarm.settings.adapter_config import AdapterConfig
from p2pswarm.settings.limits import (
    HUB_CHARS_MAX,
    Between,
    OneOf,
    Text,
    check_entries,
    check_patterns,
    entry_for,
)
from p2pswarm.settings.objective import PAIR_ROWS_MAX, REFERENCE_TOKENS, ObjectiveConfig

RANDOM, PRETRAINED = "random", "pretrained"
STARTS = RANDOM, PRETRAINED
"""The first weights that a manifest names; files of the trainer's own become a checkpoint."""
DITHER_NAMES = ("dither6", "dither5", "dither4", "dither3", "dither2")
NEAREST_FP4_NAMES = ("nvfp4", "mxfp4")
"""The codecs of 4-bit floats that round to nearest: for activations alone."""
FP4_NAMES = (*NEAREST_FP4_NAMES, "nvfp4-eden")
INT_GRID = "int-grid"
"""Sums within a stage are whole numbers on a grid (docs/codecs.md)."""
POWERSGD = "powersgd"
"""Sums within a stage are averaged as two factors of low rank (docs/codecs.md)."""
RANK_LEAST, RANK_MOST = 4, 32
CODEC_NAMES = (
    *("raw", "fp16", "bf16", "int8", "planes-zstd", "int8-ef"),
    *DITHER_NAMES,
    *FP4_NAMES,
    INT_GRID,
)
"""The codec registry's names; a test compares the two lists."""
SQUARES, AVERAGE = "exp_avg_sq.", "average."
FORMER, LAST_UPDATE, FORMER_SQUARES = "former.", "last_update.", "former_exp_avg_sq."
STATE_KINDS = ("", "exp_avg.", SQUARES, AVERAGE, FORMER, LAST_UPDATE, FORMER_SQUARES)
"""What stands before a parameter's name in a stage's file, by tensor of its state: nothing for
weights, torch's names for moments. The others are there if the run has them: an average of the
weights; with a delay the weights of the version before, the last update, and the second moments of
the version before, where sums are on a grid (docs/delay.md)."""
FACTOR = "factor."
"""What stands before a matrix's name where a state has its warm factor (docs/codecs.md)."""
CODEC_KEYS_MAX = 16  # as many as a bundle has keys
CODEC_LADDER = (
    ("bf16", "bf16"),
    ("int8", "dither4"),
    ("dither6", "dither3"),
    ("dither4", "dither3"),
)
"""The codecs of activations and gradients that "measured" chooses from, the mildest first."""
LINKED_CODEC_NAMES = ("int8-ef",)
"""The codecs with a link's memory, for the gradients that go back between stages."""
ROUNDED_SUM_NAMES = ("fp16", "bf16", "int8")  # a member's sum is of whatever it has counted
BOUNDARY_NAMES = ("none", "projector", "subspace", "resbm", "bottleneck", "maxout")
"""The modules at cuts; a test compares the list with theirs."""
HF = "hf:"
"""How a family of the library transformers begins."""
CONFIG_BYTES_MAX = 100_000  # in ASCII; a manifest has room for 122,880, with all else of a run
PACKAGE_CHARS_MAX = 128
EMULATED = "emulated"  # the device of a server that only takes the time of computing
OWNER = re.compile("[0-9a-f]{64}")
SCHEDULE = OneOf("cosine", "linear", "warmup-stable-decay", "constant")
ANY_CODEC = OneOf(*(name for name in CODEC_NAMES if name != INT_GRID))
ACTIVATION_CODEC = OneOf(*(name for name in ANY_CODEC.choices if name not in LINKED_CODEC_NAMES))
AVERAGING_CODEC = OneOf(
    *(name for name in ACTIVATION_CODEC.choices if name not in DITHER_NAMES + FP4_NAMES),
    *(INT_GRID, POWERSGD),
)
Share = Annotated[float, Between(0.0, 1.0)]
Count = Annotated[int, Between(1, 65_536)]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """The model, a list of blocks; the GPT's are an embedding, `layers` layers and a head."""

    family: Annotated[str, Text(64)] = "gpt"
    """`gpt`, `hf:FOLDER` or `hf:NAME`, `PACKAGE.MODULE:FUNCTION`, or one the program registered."""
    folder: Path | None = None
    """The folder of `hf:FOLDER`; it stays on the trainer's machine."""
    hub: Annotated[str, Text(HUB_CHARS_MAX, least=0)] = ""
    """NAME@COMMIT of the hub's model whose weights the run starts from; filled in."""
    config: Annotated[str, Text(CONFIG_BYTES_MAX, least=0)] = ""
    """What the folder's config.json says, for the manifest; filled in."""
    package: Annotated[str, Text(PACKAGE_CHARS_MAX, least=0)] = ""
    """NAME==VERSION of the package that has the model's code; filled in."""
    weights: Annotated[str, Text(64, least=0)] = ""
    """A digest of the names of pretrained weights; filled in."""
    tokenizer: Annotated[str, Text(64, least=0)] = ""
    """A digest of `train.tokenizer`; empty for bytes; filled in."""
    document_end: Annotated[int, Between(-1, 1 << 22)] = -1
    """The token that ends a document; -1: none does; filled in."""
    document_begin: Annotated[int, Between(-1, 1 << 22)] = -1
    """The token that each document of text begins with; -1: none does; filled in."""
    documents: Annotated[str, OneOf("joined", "apart", "marked")] = "joined"
    """Whether a token sees the documents before its own in its row; apart: for `gpt` and `hf:`,
    with a tokenizer (docs/data.md); in rows of whole documents it becomes "marked"."""
    tie: bool | None = None
    """Whether embedding and head are one tensor; left out: as config.json says, in `gpt` two."""
    vocabulary: Annotated[int, Between(256, 1 << 22)] = 256
    """The number of tokens; left out: the tokenizer's, 256 for bytes; `hf:` has its config's."""
    d_model: Annotated[int, Between(2, 65_536)] = 128
    layers: Annotated[int, Between(1, 1_000)] = 4
    heads: Annotated[int, Between(1, 1_024)] = 4
    sequence_length: Annotated[int, Between(2, 1_048_576)] = 128
    """Tokens per sequence."""
    router_loss: bool = False
    """Balance the routers of a mixture of experts of `hf:`, too, as its config weighs it."""
    dtype: Annotated[str, OneOf("float32", "float64")] = "float32"
    """The type of weights and gradients."""
    boundary: Annotated[str, OneOf(*BOUNDARY_NAMES)] = "none"
    """Modules at every cut, which make few values of each row (docs/boundary_modules.md)."""
    boundary_width: Annotated[int, Between(0, 65_536)] = 0
    """The values that cross for each token, with modules; 0: a quarter of d_model."""

    @property
    def crossing_width(self) -> int:
        """The values that cross a cut for each token."""
        if self.boundary == "none":
            return self.d_model
        return self.boundary_width or max(1, self.d_model // 4)

    def __post_init__(self) -> None:
        if self.family != "gpt":  # another family may use these settings differently
            return
        if self.d_model % self.heads:
            raise ValueError(f"d_model {self.d_model} is not a multiple of heads {self.heads}")
        if self.d_model // self.heads % 2:
            raise ValueError("rotary positions need an even number of features per head")


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerConfig:
    """AdamW or Muon with linear warm-up and a schedule (docs/optimizers.md)."""

    name: Annotated[str, OneOf("adamw", "muon")] = "adamw"
    """muon: for matrices between the first and the last block, with `momentum`; AdamW elsewhere."""
    learning_rate: Annotated[float, Between(0.0, 1e3)] = 4e-3
    schedule: Annotated[str, SCHEDULE] = "cosine"
    """How the rate falls after the warm-up."""
    warmup_steps: Annotated[int, Between(0, 10**9)] = 20
    decay_steps: Annotated[int, Between(0, 10**9)] = 0
    """Steps until the rate has fallen to `final_share` of its peak; 0: the run's steps."""
    final_share: Share = 0.1
    decay_share: Share = 0.2
    """Of the steps after the warm-up, the last in which warmup-stable-decay falls."""
    beta1: Annotated[float, Between(0.0, 0.999999)] = 0.9
    beta2: Annotated[float, Between(0.0, 0.999999)] = 0.95
    epsilon: Annotated[float, Between(1e-16, 1.0)] = 1e-8
    momentum: Annotated[float, Between(0.0, 0.999999)] = 0.95
    weight_decay: Annotated[float, Between(0.0, 100.0)] = 0.1
    decays: Annotated[str, OneOf("matrices", "inner-matrices", "all")] = "matrices"
    """To what: all matrices; those between the first and the last block; norms and biases too."""
    average_decay: Annotated[float, Between(0.0, 0.9999999)] = 0.0
    """What an average of the weights over time keeps of itself in a step; 0: there is none."""
    clip_norm: Annotated[float, Between(1e-9, 1e9)] = 1.0
    """The global gradient norm is clipped to this over all stages together."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchConfig:
    """One step trains on `microbatches` microbatches of `rows` sequences."""

    microbatches: Count = 8
    rows: Count = 4
    samples: Annotated[str, OneOf("drawn", "once", "packed", "whole", "streamed")] = "drawn"
    """drawn: windows from anywhere; once: each once an epoch; packed: whole documents, with a
    tokenizer; whole: those, padded, as of chats; streamed: as drawn, read as needed (data.md)."""
    window: Annotated[int, Between(0, 65_536)] = 0
    """The most microbatches in flight; 0: as the trainer measures (docs/training.md)."""
    evaluate_every: Annotated[int, Between(0, 10**9)] = 10
    """Steps between two measurements of the held-out loss; 0: never."""
    evaluate_microbatches: Count = 4

    @property
    def marked(self) -> bool:
        """True if rows tell which of their tokens are targets; else all are."""
        return self.samples == "whole"


@dataclass(frozen=True, kw_only=True, slots=True)
class CodecConfig:
    """The codecs of tensors, by their names. Tensors of whole numbers always travel exactly."""

    activation: Annotated[str, ACTIVATION_CODEC] = "bf16"
    gradient: Annotated[str, ANY_CODEC] = "bf16"
    averaging: Annotated[str, AVERAGING_CODEC] | tuple[Annotated[str, AVERAGING_CODEC], ...] = "raw"
    """Of sums within a stage, or a list with a name for each stage. int-grid: whole numbers on a
    grid, whose sums have the same bits in any order, and so have the weights. powersgd: two
    factors of low rank (docs/codecs.md)."""
    averaging_rank: Annotated[int, Between(RANK_LEAST, RANK_MOST)] = 8
    """Of powersgd: directions of each matrix."""
    exact: bool = True
    """Refuses what no plain loop can compute: a link's memory, as int8-ef has, and rounded sums."""
    activation_keys: tuple[str, ...] = ()
    """Codecs of single tensors, such as ["memory=raw"], instead of `activation`."""
    gradient_keys: tuple[str, ...] = ()
    """Codecs of the gradients of single tensors, such as ["memory=int8-ef"]."""
    choice: Annotated[str, OneOf("fixed", "measured")] = "fixed"
    """measured: the coordinator picks, by what a boundary's links carry (docs/codecs.md)."""
    coarsest: tuple[str, ...] = CODEC_LADDER[2]
    """Of activations and of gradients, what "measured" never goes beyond."""
    last_boundary: Annotated[str, OneOf(*(rung[0] for rung in CODEC_LADDER))] = "int8"
    """Of activations, what "measured" never goes beyond before the last stage."""

    def __post_init__(self) -> None:
        if self.coarsest not in CODEC_LADDER:
            rungs = " or ".join(f'["{up}", "{down}"]' for up, down in CODEC_LADDER)
            raise ValueError(f"coarsest is {rungs}")
        if self.choice == "measured" and (self.activation, self.gradient) != CODEC_LADDER[0]:
            raise ValueError(
                'choice "measured" begins with bf16 both ways: leave activation and gradient out, '
                'or set choice = "fixed"'
            )
        check_entries("activation_keys", self.activation_keys, ACTIVATION_CODEC, CODEC_KEYS_MAX)
        check_entries("gradient_keys", self.gradient_keys, ANY_CODEC, CODEC_KEYS_MAX)
        chosen = self.gradient, *(entry.partition("=")[2] for entry in self.gradient_keys)
        nearest = [name for name in chosen if name in NEAREST_FP4_NAMES]
        if nearest:
            raise ValueError(
                f"{nearest[0]} is round-to-nearest below 8 bits, and sums of gradients would be "
                'biased: choose "nvfp4-eden" or "dither4"'
            )
        if self.exact and (linked := [name for name in chosen if name in LINKED_CODEC_NAMES]):
            raise ValueError(
                f"{linked[0]} adds the errors of earlier microbatches on a link, so no plain loop "
                'could compute the weights: choose "dither4", or set codecs.exact = false'
            )
        rounded = [name for name in self.averagings if name in ROUNDED_SUM_NAMES]
        if self.exact and rounded:
            raise ValueError(
                f"averaging {rounded[0]} rounds each server's sum, so the weights would depend on "
                'who counted what: choose "int-grid", or set codecs.exact = false'
            )

    @property
    def averagings(self) -> tuple[str, ...]:
        """The name of each stage, or one for all of them."""
        return (self.averaging,) if isinstance(self.averaging, str) else self.averaging

    @property
    def names(self) -> frozenset[str]:
        """All codecs that tensors may have: those that are set, and those of the choice."""
        single = (*self.activation_keys, *self.gradient_keys)
        names = {self.activation, self.gradient}
        names.update("raw" if name == POWERSGD else name for name in self.averagings)
        names.update(entry.partition("=")[2] for entry in single)
        if self.choice == "measured":
            names.update(*CODEC_LADDER[: CODEC_LADDER.index(self.coarsest) + 1])
        return frozenset(names)

    def activation_of(self, key: str) -> str | None:
        """The codec that was set for one tensor of a bundle, if any."""
        return entry_for(key, self.activation_keys)

    def gradient_of(self, key: str) -> str | None:
        """The codec that was set for the gradient of one tensor, if any."""
        return entry_for(key, self.gradient_keys)


@dataclass(frozen=True, kw_only=True, slots=True)
class BalanceConfig:
    """When servers move from one stage to another (docs/rebalancing.md)."""

    rule: Annotated[str, OneOf("priced", "swarm", "off")] = "priced"
    """priced: where everybody gains more than it costs; swarm: as in the paper; off: never."""
    every_s: Annotated[float, Between(1.0, 1e6)] = 300.0
    """How often "swarm" moves a server."""
    moving_share: Annotated[float, Between(0.001, 0.5)] = 0.125
    """Of all servers, that "priced" moves at once."""
    least_gain: Annotated[float, Between(0.0, 10.0)] = 0.02
    """What "priced" moves somebody for, as a share of the run's speed."""
    steady_s: Annotated[float, Between(0.0, 1e6)] = 10.0
    """How long that gain has to last before somebody moves."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig:
    """A run as its trainer describes it, the same on every member."""

    name: Annotated[str, Text(64)] = "p2pswarm"
    seed: Annotated[int, Between(0, 2**63 - 1)] = 1
    """The seed of the initial weights and of the order of the samples."""
    start: Annotated[str, Text(1_000)] = RANDOM
    """The first weights: "random", drawn from the seed; "pretrained", those of `hf:FOLDER` or
    `hf:NAME`; or a file or folder of the trainer's own, whole weights or an adapter."""
    stages: Annotated[int, Between(1, 256)] = 2
    cut: tuple[Count, ...] = ()
    """How many blocks each stage has, as `p2pswarm plan` found; empty: about the same work."""
    steps: Annotated[int, Between(1, 10**9)] = 1_000
    min_replicas: Annotated[int, Between(1, 64)] = 1
    """How many servers each stage needs before the first step starts."""
    on_stage_lost: Annotated[str, OneOf("wait", "rewind", "end")] = "wait"
    """When no server holds a stage's weights: wait for one that does; go back to the newest
    checkpoint after `rewind_after_s`; or end after 30 s."""
    rewind_after_s: Annotated[float, Between(1.0, 1e6)] = 60.0
    """How long "rewind" waits: a server that was asleep or cut off for less brings them back."""
    strangers: Annotated[str, OneOf("compute", "lead", "nothing")] = "compute"
    """What peers may do that the run's owner has not invited: compute, and no more; lead: also
    vote, stand by and lead; nothing: the run is closed, as `train.closed` makes it."""
    owner: str = ""
    """The owner's public key in hexadecimal; filled in, where `state` keeps the key."""
    precision: Annotated[str, OneOf("full", "bf16")] = "full"
    """What blocks compute in: the model's dtype, or bfloat16 by autocast (docs/precision.md)."""
    weight_storage: Annotated[str, OneOf("full", "bf16")] = "full"
    """What weights are kept in: the model's dtype; or bfloat16, rounded by chance after each step,
    for precision "bf16": 4 bytes a parameter fewer, for a little loss (docs/precision.md)."""
    spot_check_share: Share = 0.0
    """The share of microbatches that two servers compute, to find one that computes wrong."""
    delay: Annotated[int, Between(0, 1)] = 0
    """1: a step is computed with the weights of one step before, while that step is averaged and
    committed (docs/delay.md)."""
    delay_correction: bool = True
    """With a delay: each update is applied with what the last one lacked, for a better loss."""
    base: Annotated[str, OneOf("full", "bf16", "int8", "nf4")] = "full"
    """How frozen weights are kept: full, in model.dtype; int8 and nf4, large matrices quantised and
    all else in bfloat16 (docs/bases.md)."""
    frozen: tuple[str, ...] = ()
    """Patterns of parameters' names, as in "model.embed*", that are not trained."""
    adapter: AdapterConfig | None = None
    """Train low-rank matrices beside the model, which is frozen (docs/adapters.md)."""
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    """What is made small; of rows with `chosen` and `rejected` as in { name = "dpo", beta = 0.1 }
    (docs/preferences.md)."""
    emulated: bool = False
    """A rehearsal: its servers have `serve.device = "emulated"`, and nothing is learnt."""
    model: ModelConfig = field(default_factory=ModelConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    batch: BatchConfig = field(default_factory=BatchConfig)
    codecs: CodecConfig = field(default_factory=CodecConfig)
    balance: BalanceConfig = field(default_factory=BalanceConfig)

    @property
    def closed(self) -> bool:
        """True if only who is invited takes part."""
        return self.strangers == "nothing"

    @property
    def has_base(self) -> bool:
        """True if some of the model is frozen."""
        return self.adapter is not None or bool(self.frozen)

    @property
    def tied(self) -> bool:
        """True if embedding and head are one tensor that trains; a frozen one is two equal ones."""
        return bool(self.model.tie) and self.adapter is None

    @property
    def tied_ends(self) -> tuple[int, int] | None:
        """The two stages that have the tied tensor in common; None if no two have."""
        return (0, self.stages - 1) if self.tied and self.stages > 1 else None

    @property
    def tokens_per_microbatch(self) -> int:
        """How many tokens of a microbatch could be targets."""
        return self.batch.rows * self.model.sequence_length

    @property
    def step_tokens(self) -> int:
        """How many tokens of a step could be targets."""
        return self.batch.microbatches * self.tokens_per_microbatch

    @property
    def share_of_token(self) -> float:
        """The weight of a token in a step of which every token is a target."""
        return 1.0 / self.step_tokens

    @property
    def share_of_pair(self) -> float:
        """The weight of a pair in a step: every microbatch has as many, so it needs no count."""
        return 2.0 / (self.batch.microbatches * self.batch.rows)

    @property
    def counts_targets(self) -> bool:
        """True if a step's loss is over as many targets as its text has, and not a fixed number."""
        return self.batch.marked and not self.objective.prefers

    @property
    def counted_tokens(self) -> int:
        """How many tokens a step has, of which its record counts the targets; 0: it does not."""
        return self.step_tokens if self.counts_targets else 0

    def averaging_of(self, stage: int) -> str:
        """How the sums of a stage are averaged."""
        names = self.codecs.averagings
        return names[stage] if len(names) > 1 else names[0]

    @property
    def state(self) -> dict[str, str]:
        """The tensors of a stage's state, as `STATE_KINDS` names them, and their dtypes."""
        wide = self.model.dtype
        weights = "bfloat16" if self.weight_storage == "bf16" else wide
        state = {"": weights, "exp_avg.": wide, SQUARES: wide}
        if self.optimizer.average_decay:
            state[AVERAGE] = wide
        if self.delay:
            state[FORMER] = weights
            if self.delay_correction:
                state[LAST_UPDATE] = wide
            if INT_GRID in self.codecs.averagings:
                state[FORMER_SQUARES] = wide
        return state

    @property
    def state_dtypes(self) -> tuple[str, ...]:
        """The dtype of each tensor of a stage's state."""
        return tuple(self.state.values())

    def __post_init__(self) -> None:
        if self.owner and not OWNER.fullmatch(self.owner):
            raise ValueError("owner is a public key: 64 digits from 0 to 9 and a to f")
        if self.closed and not self.owner:
            raise ValueError(
                'strangers = "nothing" is for train.closed, or --closed, to fill in: use that'
            )
        if self.precision == "bf16" and self.model.dtype != "float32":
            raise ValueError(f"precision bf16 is for model.dtype float32, not {self.model.dtype}")
        if self.precision == "bf16" and self.spot_check_share:
            raise ValueError(
                "precision bf16 differs between kinds of processors as much as a fault might: set "
                "spot_check_share to 0, or precision to full"
            )
        if self.weight_storage == "bf16" and self.precision != "bf16":
            raise ValueError(
                "weight_storage bf16 saves nothing where blocks compute from a float32 copy: set "
                "precision to bf16, too, or weight_storage to full"
            )
        self._check_delay()
        self._check_averaging()
        self._check_frozen()
        self._check_pairs()
        if self.model.boundary != "none" and self.start == "pretrained":
            raise ValueError(
                f'model.boundary "{self.model.boundary}" spoils pretrained weights: they know no '
                'modules: leave it out, and set codecs.activation = "dither6" and '
                'codecs.gradient = "dither3"'
            )
        if self.cut and len(self.cut) != self.stages:
            raise ValueError(
                f"cut has {len(self.cut)} numbers for {self.stages} stages: one for each, or none"
            )
        blocks = self.model.layers + 2
        if self.model.family == "gpt" and self.stages > blocks:
            raise ValueError(
                f"stages {self.stages} is more than the {blocks} blocks of the model "
                f"(embedding, {self.model.layers} layers, head)"
            )
        if self.model.family == "gpt" and self.cut and sum(self.cut) != blocks:
            raise ValueError(
                f"cut has {sum(self.cut)} blocks and the model {blocks} (embedding, "
                f"{self.model.layers} layers, head): the numbers have to add up to that"
            )

    def _check_delay(self) -> None:
        """Refuse a delay where it brings nothing."""
        if self.delay and self.batch.microbatches == 1:
            raise ValueError(
                "delay 1 overlaps a step's microbatches with the end of the step before, and "
                "batch.microbatches is 1: set it to 2 or more, or delay to 0"
            )

    def _check_frozen(self) -> None:
        """Refuse frozen weights where nothing is frozen, and what does not go with them."""
        check_patterns("frozen", self.frozen)
        brings_one = self.start not in STARTS  # a folder of an adapter
        if self.base != "full" and not self.frozen and self.adapter is None and not brings_one:
            raise ValueError(
                f'base "{self.base}" is for weights that are frozen: set adapter, as in '
                "adapter = { rank = 16 }, or leave base out"
            )
        if self.adapter is not None and self.frozen:
            raise ValueError(
                "frozen has no place beside adapter, which freezes all of the model: leave it out"
            )
        if self.adapter is not None and self.model.boundary != "none":
            raise ValueError(
                f'model.boundary "{self.model.boundary}" changes the model that an adapter is for: '
                "leave it out"
            )

    def _check_pairs(self) -> None:
        """Refuse rows that are not pairs, and what has no meaning for them."""
        name = self.objective.name
        if not self.objective.prefers:
            return
        if self.batch.rows % 2 or self.batch.rows > PAIR_ROWS_MAX:
            raise ValueError(
                f'objective "{name}" takes pairs of rows, and batch.rows is {self.batch.rows}: set '
                f"it to an even number of up to {PAIR_ROWS_MAX:,}"
            )
        if self.objective.refers and self.model.sequence_length < REFERENCE_TOKENS:
            raise ValueError(
                f"objective dpo has a number in each row's first {REFERENCE_TOKENS} tokens, and "
                f"model.sequence_length is {self.model.sequence_length}: raise it"
            )
        if self.objective.refers and self.emulated:
            raise ValueError(
                "a rehearsal computes no references: set objective to orpo or simpo, which take as "
                "much time and need none"
            )
        if self.model.router_loss:
            raise ValueError(
                f'model.router_loss is weighed by targets, and objective "{name}" by pairs: leave '
                "it out"
            )

    def _check_averaging(self) -> None:
        """Refuse a list that does not fit the stages, and what a rehearsal cannot add up."""
        codecs, names = self.codecs, self.codecs.averagings
        if not isinstance(codecs.averaging, str) and len(names) != self.stages:
            raise ValueError(
                f"codecs.averaging has {len(names)} names for {self.stages} stages: one for each, "
                "or a name alone for all"
            )
        if (ends := self.tied_ends) and len({self.averaging_of(end) for end in ends}) > 1:
            raise ValueError(
                "model.tie has one tensor in the first and the last stage, which average it "
                "together: give both the same name in codecs.averaging"
            )
        if self.emulated and POWERSGD in names:
            raise ValueError(
                "a rehearsal's gradients are single ones, of which no few directions are worth "
                'anything: set codecs.averaging to "raw"'
            )
