"""EdgeCodecs: how a bundle is rounded at one boundary, in one direction, as both ends know it.

What a codec rounds by chance it draws from a key. A key depends on the run, the step, the
microbatch, the place in the model, the direction and the tensor's name. It depends on no peer,
attempt, incarnation or time. So a replay, a neighbour's copy, a second server of the stage and a
plain loop round the same values to the same bytes.

The place is the number of the first block above the cut, not the number of the stage: another cut
elsewhere does not change it.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from p2pswarm.base.errors import BadMessage, Unusable
from p2pswarm.tensors.codecs.base import TensorUse
from p2pswarm.tensors.codecs.bundle import BundleSpec
from p2pswarm.tensors.codecs.codec import CodecKind
from p2pswarm.tensors.codecs.meta import TensorMeta
from p2pswarm.tensors.codecs.registry import BY_CODE, NO_KEY, keeps_state, named

KEY_BYTES = 8
TAG = b"p2pswarm-codec-key-1"
WAYS = {TensorUse.ACTIVATION: b"up", TensorUse.GRADIENT: b"down"}

Keys = tuple[bytes, ...]
"""The rounding key of each tensor of a bundle; empty for one that is not rounded by chance."""


def codec_key(
    seed: int, step: int, microbatch: int, block: int, use: TensorUse, name: str
) -> bytes:
    """The key of one tensor: `microbatch` by its global number, `block` the first above the cut."""
    numbers = b"".join(each.to_bytes(8) for each in (seed, step, microbatch, block))
    return hashlib.sha256(TAG + numbers + WAYS[use] + name.encode()).digest()[:KEY_BYTES]


@dataclass(frozen=True, slots=True)
class EdgeCodecs:
    """The codec of each tensor of a bundle at one boundary, in one direction.

    The values that arrive are part of the run's definition. So a receiver takes no other codec
    than this, but for codecs that keep every bit where one of those is due.
    """

    spec: BundleSpec
    names: tuple[str, ...]
    """The codec of each tensor, in order."""
    use: TensorUse = TensorUse.ACTIVATION
    block: int = 0
    """The first block above the boundary."""
    seed: int = 0
    """The run's."""

    @property
    def stateful(self) -> bool:
        """True if a codec carries something from one bundle of a link to the next."""
        return any(map(keeps_state, self.names))

    def keys(self, step: int, microbatch: int) -> Keys:
        """The rounding keys of one bundle; `microbatch` by its global number."""
        return tuple(
            codec_key(self.seed, step, microbatch, self.block, self.use, key.name)
            if named(codec).kind is CodecKind.KEYED
            else NO_KEY
            for codec, key in zip(self.names, self.spec.keys, strict=True)
        )

    def check(self, metas: Sequence[TensorMeta]) -> None:
        """Raise BadMessage unless `metas` announce this bundle, rounded as the run says."""
        self.spec.check(metas)
        for key, name, meta in zip(self.spec.keys, self.names, metas, strict=True):
            due, came = named(name), BY_CODE.get(meta.codec)
            exact = due.kind is CodecKind.EXACT and came is not None and came.kind is due.kind
            if came is not due and not exact:
                shown = came.name if came else str(meta.codec)
                raise BadMessage(f"{key.name} came as {shown} where the run has {name}")


def edge_codecs(
    bundle: BundleSpec,
    codec: str,
    set_for: Callable[[str], str | None],
    use: TensorUse,
    block: int = 0,
    seed: int = 0,
) -> EdgeCodecs:
    """The codec of each tensor of a bundle: the one that is set for its key, else `codec`.

    A tensor that `codec` does not take, as one of whole numbers, is sent raw.
    """
    chosen = []
    for key in bundle.keys:
        name = set_for(key.name)
        fitting = named(name or codec, use)
        fits = key.layout.dtype in fitting.dtypes
        if name and not fits:
            raise Unusable(
                f"codec {name} does not take {key.name}, which is {key.layout.dtype.name}"
            )
        chosen.append(fitting.name if fits else "raw")
    return EdgeCodecs(bundle, tuple(chosen), use, block, seed)
