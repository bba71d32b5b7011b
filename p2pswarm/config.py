"""Settings as frozen dataclasses: every knob has a default, a unit and a meaning.

`RunConfig` describes a run and travels to everybody in its manifest; `NodeConfig` is one
machine's part and stays there. `settings.py` reads both from TOML, and checks each value
against the limits that stand beside its type here.

Units:   in the names.
Errors:  ValueError when settings that are each allowed contradict each other.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

CODEC_NAMES = ("raw", "fp16", "bf16", "int8", "planes-zstd", "int8-ef")
"""The codec registry's names; a test holds the two together."""
CODEC_KEYS_MAX = 16  # as many as a bundle has keys
GRADIENT_CODEC_NAMES = ("int8-ef",)
"""Those that are fit for the gradients that go back between stages, and for nothing else."""
ROLES = ("auto", "bootstrap", "stage", "trainer")
LOG_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True)
class Between:
    """A number lies in low..high, both included."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"a number from {self.low:g} to {self.high:g}"

    @property
    def whole(self) -> str:
        """The limits of a setting that counts something, every digit written out."""
        if self.low == self.high:
            return f"{int(self.low)}; nothing else is possible yet"
        return f"a whole number from {int(self.low)} to {int(self.high)}"


class OneOf:
    """A text is one of `choices`."""

    def __init__(self, *choices: str) -> None:
        self.choices = choices

    def __str__(self) -> str:
        return "one of " + ", ".join(self.choices)


@dataclass(frozen=True, slots=True)
class Text:
    """A text is 1..`longest` printable characters: it is shown in other people's terminals."""

    longest: int

    def __str__(self) -> str:
        return f"1 to {self.longest} printable characters"


ANY_CODEC = OneOf(*CODEC_NAMES)
COMMON_CODEC = OneOf(*(name for name in CODEC_NAMES if name not in GRADIENT_CODEC_NAMES))
Codec = Annotated[str, COMMON_CODEC]
GradientCodec = Annotated[str, ANY_CODEC]
Share = Annotated[float, Between(0.0, 1.0)]
Count = Annotated[int, Between(1, 65_536)]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """The model, a list of blocks; of the GPT: embedding, `layers` layers, head."""

    family: Annotated[str, Text(64)] = "gpt"
    """`gpt`, or a name that the program has registered (docs/bundle.md)."""
    vocabulary: Annotated[int, Between(256, 256)] = 256
    """Tokens; 256 = bytes, the only tokenizer so far."""
    d_model: Annotated[int, Between(2, 65_536)] = 128
    layers: Annotated[int, Between(1, 1_000)] = 4
    heads: Annotated[int, Between(1, 1_024)] = 4
    sequence_length: Annotated[int, Between(2, 1_048_576)] = 128
    """Tokens a sequence."""
    dtype: Annotated[str, OneOf("float32", "float64")] = "float32"
    """Of weights and gradients."""

    def __post_init__(self) -> None:
        if self.family != "gpt":  # another family may mean something else by these
            return
        if self.d_model % self.heads:
            raise ValueError(f"d_model {self.d_model} is no multiple of heads {self.heads}")
        if self.d_model // self.heads % 2:
            raise ValueError("rotary positions need an even number of features a head")


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerConfig:
    """AdamW with linear warm-up and cosine decay."""

    learning_rate: Annotated[float, Between(0.0, 1e3)] = 4e-3
    warmup_steps: Annotated[int, Between(0, 10**9)] = 20
    decay_steps: Annotated[int, Between(0, 10**9)] = 0
    """Steps until the rate has fallen to `final_share` of its peak; 0: the run's steps."""
    final_share: Share = 0.1
    beta1: Annotated[float, Between(0.0, 0.999999)] = 0.9
    beta2: Annotated[float, Between(0.0, 0.999999)] = 0.95
    epsilon: Annotated[float, Between(1e-16, 1.0)] = 1e-8
    weight_decay: Annotated[float, Between(0.0, 100.0)] = 0.1
    clip_norm: Annotated[float, Between(1e-9, 1e9)] = 1.0
    """The global gradient norm is clipped to this over all stages together."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchConfig:
    """One step trains on `microbatches` microbatches of `rows` sequences."""

    microbatches: Count = 8
    rows: Count = 4
    window: Annotated[int, Between(0, 65_536)] = 0
    """Microbatches in flight at most; 0: four a server of the first stage, two a server of all."""
    evaluate_every: Annotated[int, Between(0, 10**9)] = 10
    """Steps between two measurements of the held-out loss; 0: never."""
    evaluate_microbatches: Count = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class CodecConfig:
    """How tensors travel, by name in the codec registry. Whole numbers travel exactly."""

    activation: Codec = "bf16"
    gradient: GradientCodec = "bf16"
    averaging: Codec = "raw"
    activation_keys: tuple[str, ...] = ()
    """For single tensors of a bundle, such as ["memory=raw"]: instead of `activation`."""
    gradient_keys: tuple[str, ...] = ()
    """For the gradients of single tensors, such as ["memory=int8-ef"]: instead of `gradient`."""

    def __post_init__(self) -> None:
        for name, allowed, entries in (
            ("activation_keys", COMMON_CODEC, self.activation_keys),
            ("gradient_keys", ANY_CODEC, self.gradient_keys),
        ):
            if len(entries) > CODEC_KEYS_MAX:
                raise ValueError(f"{name} has more than {CODEC_KEYS_MAX} entries")
            for entry in entries:
                key, _, codec = entry.partition("=")
                if not key.isidentifier() or codec not in allowed.choices:
                    raise ValueError(f"{name}: {entry!r} is not KEY=CODEC, CODEC {allowed}")

    def activation_of(self, key: str) -> str | None:
        """The codec that was set for one tensor of a bundle."""
        return _set_for(key, self.activation_keys)

    def gradient_of(self, key: str) -> str | None:
        """The codec that was set for the gradient of one tensor."""
        return _set_for(key, self.gradient_keys)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig:
    """A run, as its trainer describes it; the same on every member."""

    name: Annotated[str, Text(64)] = "p2pswarm"
    seed: Annotated[int, Between(0, 2**63 - 1)] = 1
    """Of the initial weights and of the order of the samples."""
    stages: Annotated[int, Between(1, 256)] = 2
    steps: Annotated[int, Between(1, 10**9)] = 1_000
    min_replicas: Annotated[int, Between(1, 64)] = 1
    """Servers of each stage before the first step starts."""
    model: ModelConfig = field(default_factory=ModelConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    batch: BatchConfig = field(default_factory=BatchConfig)
    codecs: CodecConfig = field(default_factory=CodecConfig)

    def __post_init__(self) -> None:
        blocks = self.model.layers + 2
        if self.model.family == "gpt" and self.stages > blocks:
            raise ValueError(
                f"stages {self.stages} is more than the {blocks} blocks of the model "
                f"(embedding, {self.model.layers} layers, head)"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """What only the trainer's own machine needs to know."""

    data: Path | None = None
    """A text file or a folder of them; required."""
    suffixes: tuple[str, ...] = ()
    """Of a folder, only files that end so, for example [".txt", ".md"]; empty: every text file."""
    held_out_share: Annotated[float, Between(0.001, 0.5)] = 0.1
    """Of the files (of the bytes, where there is one file) that are never trained on."""
    weights: Path | None = Path("weights.safetensors")
    """Written at the end; "" writes none."""
    progress: Annotated[str, OneOf("auto", "live", "lines", "json")] = "auto"
    """On stdout; auto: live in a terminal, lines elsewhere; json: one object a line."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServeConfig:
    """What a stage server gives to a run."""

    run: str = ""
    """The name of the run to join; empty: the first that is found."""
    stage: Annotated[int, Between(0, 255)] | None = None
    """Serve only this stage; left out: whichever needs a server most."""
    device: str = "auto"
    """A torch device such as cpu or cuda:0; auto: the GPU where there is one."""
    threads: Annotated[int, Between(0, 1_024)] = 0
    """Of torch; 0: torch's own choice."""
    graph_mib: Annotated[int, Between(0, 2**20)] = 1_024
    """Memory for what a forward keeps for its backward; past it, the forward is computed again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkConfig:
    """How this node is reached and how much it takes in."""

    announce: str = ""
    """HOST:PORT that others dial; empty: the address listened on, or this host's own."""
    bulk_connections: Annotated[int, Between(1, 16)] = 1
    """To each peer, for tensors."""
    peer_mib: Annotated[int, Between(1, 2**20)] = 1_024
    """Tensor bytes on their way from one peer at most."""
    total_mib: Annotated[int, Between(1, 2**20)] = 4_096
    """The same from all peers together."""

    def __post_init__(self) -> None:
        if self.peer_mib > self.total_mib:
            raise ValueError(f"peer_mib {self.peer_mib} is more than total_mib {self.total_mib}")


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeConfig:
    """One machine's part. A flag of the command line goes before the file."""

    role: Annotated[str, OneOf(*ROLES)] = "auto"
    """auto: `stage` with a bootstrap address, else `bootstrap`."""
    listen: str = ""
    """HOST:PORT; empty: all of this host's addresses, port 4000 or any free one."""
    bootstrap: tuple[str, ...] = ()
    """HOST:PORT of nodes that are in the swarm already."""
    identity: Path | None = None
    """The key file, made if absent; left out: a new identity each time."""
    log_level: Annotated[str, OneOf(*LOG_LEVELS)] = "warning"
    leave_at_eof: bool = False
    """Leave when stdin ends: for a program that starts nodes and must not leave them behind."""
    run: RunConfig = field(default_factory=RunConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    serve: ServeConfig = field(default_factory=ServeConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)


def _set_for(key: str, entries: tuple[str, ...]) -> str | None:
    pairs = (entry.partition("=") for entry in entries)
    return next((codec for name, _, codec in pairs if name == key), None)
