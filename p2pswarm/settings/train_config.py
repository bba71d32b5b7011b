"""What a trainer's own machine needs to know: its text, and where results go."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from p2pswarm.settings.limits import Between, OneOf, Text, TextPlace, Tokenizing, Wandb

HELD_OUT_SHARE = 0.1
"""Of the text: the more, the surer the loss on it, and the less is left to learn from."""
PARTS_MAX = 64  # of a mixture: far more than people tune


@dataclass(frozen=True, kw_only=True, slots=True)
class MixturePart:
    """One text of a mixture."""

    data: Annotated[Path | None, TextPlace()] = None
    """As `train.data`; required."""
    weight: Annotated[float, Between(1e-6, 1e6)] = 1.0
    """Its share of the rows is this over the sum of all weights."""
    field: Annotated[str, Text(64, least=0)] = ""
    """As `train.field`, and that if it is left out."""

    def __post_init__(self) -> None:
        if self.data is None:
            raise ValueError("data is missing: name a text")


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """Settings that only the trainer's own machine needs."""

    data: Annotated[Path | None, TextPlace()] = None
    """A text file, a folder of them, or a pattern; or JSON lines, parquet, a dataset on disk, whose
    rows are documents: corpus/*.jsonl; or "hf:OWNER/NAME", a data set of the hub (docs/data.md);
    required, or `mixture`."""
    mixture: tuple[MixturePart, ...] = ()
    """Several texts with their weights, each `[[train.mixture]]` (docs/data.md)."""
    field: Annotated[str, Text(64)] = "text"
    """Which field of a row is the document, or the path of one, as "message.content"."""
    tokenizer: Annotated[str, Tokenizing()] = "bytes"
    """What makes tokens of the text: "bytes"; a folder with a tokenizer.json; "hf:NAME" of the hub;
    or "train:32000", as many learnt from the text (docs/data.md)."""
    special_tokens: Annotated[str, OneOf("text", "tokens")] = "text"
    """What the name of a special token is where a document has it, such as <|im_end|>: its letters;
    or that token, for text that a chat template wrote (docs/data.md)."""
    document_begin: Annotated[str, OneOf("auto", "none", "token")] = "auto"
    """The token that the tokenizer begins a text with (BOS) before each document: none; that token;
    auto: that token if the run starts from pretrained weights (docs/data.md)."""
    chat_template: Path | None = None
    """A file with the chat template, instead of the tokenizer's (docs/data.md)."""
    references: Path | None = None
    """The file with the references of a run of dpo; left out: in `state`, or else in `cache`."""
    cache: Path | None = None
    """A folder for what is prepared of the text; left out: p2pswarm in the user's cache folder."""
    suffixes: tuple[str, ...] = ()
    """Take only a folder's files with these endings, as [".txt", ".md"]; empty: every text file."""
    held_out_share: Annotated[float, Between(0.001, 0.5)] = HELD_OUT_SHARE
    """The share of the bytes of text files, or of rows, that is never trained on."""
    weights: Path | None = Path("weights.safetensors")
    """The file to write at the end, with the run's name and the step added; "" writes none."""
    curves: Path | None = None
    """A .csv file that grows with each step, or a folder for TensorBoard; empty: none."""
    log: Path | None = None
    """A file that gets a line of JSON for each event, for p2pswarm watch; empty: none."""
    wandb: Annotated[str, Wandb()] = ""
    """The same curves at Weights & Biases: a project there, or PROJECT/NAME; empty: none."""
    verify_base: bool = True
    """Read the model's files whole, to prove which server's frozen weights are right; false: what
    most servers of a stage say stands (docs/bases.md)."""
    standby: bool = False
    """Found no run: stand by for one of the same settings and text, and lead it when needed."""
    closed: bool = False
    """Only who is invited takes part: the owner's key is kept in the folder of `state`."""
    new: bool = False
    """Begin another run, though the folder of `state` holds one that is not finished."""
    resume: str = ""
    """A checkpoint, or a target that has some, to go on from the newest; empty: begin anew."""
    begin_from: str = ""
    """A checkpoint, or a target that has some, whose weights and moments begin a new run, with
    other settings; empty: none."""
    fresh_moments: bool = False
    """With `begin_from`: take the weights alone; moments begin with zeros."""
    progress: Annotated[str, OneOf("auto", "live", "lines", "json")] = "auto"
    """What stdout shows; auto: live in a terminal, lines elsewhere; json: one object per line."""

    def __post_init__(self) -> None:
        if self.mixture and self.data is not None:
            raise ValueError("data and mixture are both given: put data into the mixture")
        if len(self.mixture) > PARTS_MAX:
            raise ValueError(f"mixture has {len(self.mixture)} texts, {PARTS_MAX} are allowed")

    @property
    def parts(self) -> tuple[MixturePart, ...]:
        """The texts and their weights; one of all weight if it is no mixture, none without data."""
        if self.data is None:
            return self.mixture
        return (MixturePart(data=self.data),)

    def of_part(self, part: MixturePart) -> "TrainConfig":
        """The settings of one text."""
        return replace(self, data=part.data, mixture=(), field=part.field or self.field)
