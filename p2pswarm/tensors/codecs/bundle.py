"""BundleSpec: the tensors of a bundle, known before any byte of it is sent.

Errors:  BadMessage for a peer's announcement; Unusable for a model that asks for too much.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from p2pswarm.base.errors import BadMessage, Unusable
from p2pswarm.tensors.codecs.meta import RANK_MAX, TENSOR_BYTES_MAX, TensorLayout, TensorMeta

BUNDLE_KEYS_MAX = 16  # an activation, a residual, statistics of a router, and as many
KEY_CHARS_MAX = 64  # settings have keys, and one line of a terminal shows them
BUNDLE_BYTES_MAX = TENSOR_BYTES_MAX  # the same as for one tensor


@dataclass(frozen=True, slots=True)
class BundleKey:
    """One tensor of a bundle."""

    name: str
    layout: TensorLayout
    differentiable: bool
    """True if a gradient of it goes back."""


@dataclass(frozen=True, slots=True)
class BundleSpec:
    """The tensors that one stage sends to the next, in order; none before the first stage.

    Both ends of an edge know the keys, their order, dtypes and shapes from the model and the
    manifest. So an announcement has no keys, and a different one is refused before memory is
    allocated.
    """

    keys: tuple[BundleKey, ...] = ()

    def __post_init__(self) -> None:
        if len(self.keys) > BUNDLE_KEYS_MAX:
            raise Unusable(f"a bundle of {len(self.keys)} tensors; {BUNDLE_KEYS_MAX} are the most")
        for key in self.keys:
            if not key.name.isidentifier() or len(key.name) > KEY_CHARS_MAX:
                raise Unusable(
                    f"{key.name[:KEY_CHARS_MAX]!r} is no key of a bundle: use a Python name of at "
                    f"most {KEY_CHARS_MAX} characters"
                )
            if len(key.layout.shape) > RANK_MAX:
                raise Unusable(f"{key.name} has rank {len(key.layout.shape)}; {RANK_MAX} is most")
        if self.raw_bytes > BUNDLE_BYTES_MAX:
            raise Unusable(f"a bundle of {self.raw_bytes} bytes; {BUNDLE_BYTES_MAX} are the most")

    @property
    def names(self) -> tuple[str, ...]:
        """The keys in order."""
        return tuple(key.name for key in self.keys)

    @property
    def raw_bytes(self) -> int:
        """The size of all tensors in memory."""
        return sum(key.layout.raw_bytes for key in self.keys)

    def gradient(self) -> "BundleSpec":
        """The bundle that goes back: the gradients of the differentiable tensors."""
        return BundleSpec(tuple(key for key in self.keys if key.differentiable))

    def check(self, metas: Sequence[TensorMeta]) -> None:
        """Raise BadMessage unless `metas` announce this bundle, in whatever codecs."""
        if len(metas) != len(self.keys):
            raise BadMessage(f"{len(metas)} tensors announced where {len(self.keys)} are due")
        for key, meta in zip(self.keys, metas, strict=True):
            due = key.layout
            if (meta.dtype, meta.shape) != (due.dtype, due.shape):
                raise BadMessage(
                    f"{key.name}: a tensor of dtype {meta.dtype} and shape {meta.shape} where "
                    f"{due.dtype.name.lower()} {due.shape} is due"
                )
