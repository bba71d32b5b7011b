"""The ladder of codecs that a coordinator may choose from for a boundary, step by step.

A rung is a codec for activations and one for gradients. A later rung has fewer bits. A record
names a choice by two codes; none stand for the first rung.

Source:  docs/codecs.md. It loads no torch; a test compares the codes with the registry's.
"""

from dataclasses import dataclass

from p2pswarm.settings.config import CODEC_LADDER, CodecConfig, RunConfig

CODES = {"bf16": 3, "int8": 4, "dither6": 7, "dither4": 9, "dither3": 10}
NAMES = {code: name for name, code in CODES.items()}
CODECS_AFTER = 2  # steps: so no microbatch that is under way has to be encoded again


@dataclass(frozen=True, slots=True)
class BoundaryCodecs:
    """The codecs of one boundary, by their names."""

    activation: str
    gradient: str

    @property
    def codes(self) -> bytes:
        """As a record has them: empty for the mildest, or one of activations, one of gradients."""
        if self == MILDEST:
            return b""
        return bytes((CODES[self.activation], CODES[self.gradient]))


LADDER = tuple(BoundaryCodecs(*rung) for rung in CODEC_LADDER)
MILDEST = LADDER[0]


def codecs_of(codecs: CodecConfig, codes: bytes) -> BoundaryCodecs:
    """The codecs that a record names; those of the manifest where it names none."""
    if not codes:
        return BoundaryCodecs(codecs.activation, codecs.gradient)
    activation, gradient = codes
    return BoundaryCodecs(NAMES[activation], NAMES[gradient])


def boundary_ladder(codecs: CodecConfig, stages: int, stage: int) -> tuple[BoundaryCodecs, ...]:
    """The rungs that the manifest allows for the boundary above `stage`, the mildest first."""
    last = LADDER.index(BoundaryCodecs(*codecs.coarsest))
    if stage == stages - 2:
        activations = [rung.activation for rung in LADDER]
        last = min(last, activations.index(codecs.last_boundary))
    return LADDER[: last + 1]


def allowed_codes(codecs: CodecConfig, stages: int) -> tuple[frozenset[bytes], ...]:
    """For each stage, the codes that a record may name above it; none if the choice is fixed."""
    if codecs.choice == "fixed":
        return ()
    allowed: list[frozenset[bytes]] = []
    for stage in range(stages - 1):
        rungs = boundary_ladder(codecs, stages, stage)
        pairs = [BoundaryCodecs(up.activation, down.gradient) for up in rungs for down in rungs]
        allowed.append(frozenset(pair.codes for pair in pairs) - {b""})
    return (*allowed, frozenset())


@dataclass(frozen=True, slots=True)
class CodecChoices:
    """The choices that the records of a run may make, and when they come into force."""

    allowed: tuple[frozenset[bytes], ...] = ()
    """For each stage, the codes that a record may name; empty: none may name any."""
    after: int = CODECS_AFTER
    """Steps from the one that a record ends to the one whose codecs it names.

    A server with version v computes steps v to v + delay, and takes pushes of the one after these.
    The records that made version v have named the codecs of all of them."""

    @classmethod
    def of(cls, run: RunConfig, stages: int | None = None) -> "CodecChoices":
        """Those of a run; `stages`: as many as its records have, if they come from a file."""
        allowed = allowed_codes(run.codecs, run.stages if stages is None else stages)
        return cls(allowed, CODECS_AFTER + run.delay)


NO_CHOICE = CodecChoices()
