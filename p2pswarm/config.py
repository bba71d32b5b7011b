"""Settings as frozen dataclasses: every knob has a default, a unit and a meaning.

`RunConfig` describes a run and travels to everybody in its manifest; `NodeConfig` describes
one machine's part. Both are read from TOML by `load`.

Units:   in the names.
Errors:  Unusable, one line that names the file, the key and what is allowed.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """The transformer, a list of blocks: embedding, `layers` layers, head."""

    family: str = "gpt"
    """The named family; `gpt` is the only one so far."""
    vocabulary: int = 256
    """Tokens; 256 = bytes."""
    d_model: int = 128
    layers: int = 4
    heads: int = 4
    sequence_length: int = 256
    """Tokens a sequence."""
    dtype: str = "float32"
    """float32 or float64, of weights and gradients."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerConfig:
    """AdamW with linear warm-up and cosine decay."""

    learning_rate: float = 3e-3
    warmup_steps: int = 20
    decay_steps: int = 2_000
    """Steps until the rate has fallen to `final_share` of its peak."""
    final_share: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    weight_decay: float = 0.1
    clip_norm: float = 1.0
    """The global gradient norm is clipped to this over all stages together."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchConfig:
    """One step trains on `microbatches` microbatches of `rows` sequences."""

    microbatches: int = 16
    rows: int = 8
    window: int = 0
    """Microbatches in flight at most; 0: four for every server of the first stage."""
    evaluate_every: int = 10
    """Steps between two measurements of the held-out loss; 0: never."""
    evaluate_microbatches: int = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class CodecConfig:
    """How tensors travel, by name in the codec registry."""

    activation: str = "bf16"
    gradient: str = "bf16"
    averaging: str = "raw"


@dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig:
    """A run, as its trainer describes it; the same on every member."""

    name: str = "p2pswarm"
    seed: int = 1
    """Of the initial weights and of the order of the samples."""
    stages: int = 2
    steps: int = 1_000
    min_replicas: int = 1
    """Servers of each stage before the first step starts."""
    model: ModelConfig = field(default_factory=ModelConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    batch: BatchConfig = field(default_factory=BatchConfig)
    codecs: CodecConfig = field(default_factory=CodecConfig)
