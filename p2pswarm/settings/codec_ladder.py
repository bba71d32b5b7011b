"""The ladder of codecs that a coordinator may choose from for a boundary, step by step.

A rung is a codec for activations and one for gradients. A later rung has fewer bits. A record
names a choice by two codes; none stand for the first rung.

Source:  docs/codecs.md. It loads no torch; a test compares the codes with the registry's.
"""

from dataclasses import dataclass

from p2pswarm.settings.config import CODEC_LADDER, CodecConfig

CODES = {"bf16": 3, "int8": 4, "dither6": 7, "dither4": 9, "dither3": 10}
NAMES = {code: name for name, code in CODES.items()}


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
