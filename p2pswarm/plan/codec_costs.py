"""WireCodec: the bytes and the processor time of a value on the wire, by codec.

Source:  docs/figures.md, "Codecs".
"""

from dataclasses import dataclass

from p2pswarm.base.errors import Unusable
from p2pswarm.settings.config import CODEC_LADDER, NEAREST_FP4_NAMES


@dataclass(frozen=True, slots=True)
class WireCodec:
    """What a codec makes of a float32 value, and how fast it does."""

    name: str
    """One for both ways, or as "int8/dither4" one forward and one backward."""
    bytes_per_value: float
    values_per_s: float
    """Encoded on one side and decoded on the other, by one core; infinite if nothing is done."""

    @property
    def ways(self) -> tuple[str, str]:
        """The codec of activations, and that of their gradients."""
        forward, _, backward = self.name.partition("/")
        return forward, backward or forward


CODECS = (
    WireCodec("raw", 4.0, float("inf")),
    WireCodec("planes-zstd", 4.0 / 1.2, 1.8e8),
    WireCodec("fp16", 2.0, 1.2e9),
    WireCodec("bf16", 2.0, 1.3e9),
    WireCodec("int8", 4.0 / 3.94, 6.5e8),
    WireCodec("dither6", 6.5 / 8, 9.8e7),
    WireCodec("dither5", 5.5 / 8, 9.5e7),
    WireCodec("dither4", 4.5 / 8, 1.1e8),
    WireCodec("dither3", 3.25 / 8, 8.6e7),
    WireCodec("nvfp4", 4.5 / 8, 5.6e7),
    WireCodec("nvfp4-eden", 4.5 / 8, 5.0e7),
    WireCodec("mxfp4", 4.25 / 8, 1.05e8),
)
"""Of those in docs/figures.md ("Codecs"), in the order of what they lose within a kind.

All by torch alone: a server with numba does dither and `GRID` two to four times as fast.
"""
PAIRS = (*("/".join(rung) for rung in CODEC_LADDER[1:]), "nvfp4/nvfp4-eden", "mxfp4/nvfp4-eden")
"""Codecs of activations and of gradients that lose little together."""
CODEC_CHOICES = (
    *(codec.name for codec in CODECS if codec.name not in NEAREST_FP4_NAMES),
    *PAIRS,
)
"""What a plan may have: a name alone is of gradients too, which are not rounded to the nearest of
four bits."""

GRID = WireCodec("int-grid", 0.8, 1.0e8)
FACTORS = WireCodec("powersgd", 4.0, float("inf"))
"""Of sums within a stage alone (docs/codecs.md). `FACTORS` is of values that factors have."""


def codec_of(name: str) -> WireCodec:
    """The codec of this name, or the mean of a pair as "int8/dither4"; Unusable if unknown."""
    known = {codec.name: codec for codec in (*CODECS, GRID, FACTORS)}
    forward, _, backward = name.partition("/")
    up, down = known.get(forward), known.get(backward or forward)
    if up is None or down is None:
        names = ", ".join(CODEC_CHOICES)
        raise Unusable(f"codec {name!r:.40} is not known to the planner: choose of {names}")
    size = (up.bytes_per_value + down.bytes_per_value) / 2
    value_s = (1 / up.values_per_s + 1 / down.values_per_s) / 2
    shown = forward if up == down else name
    return WireCodec(shown, size, 1 / value_s if value_s else float("inf"))
