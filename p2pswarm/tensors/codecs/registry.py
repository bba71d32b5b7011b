"""The registry of codecs, by name and by code; encodes and decodes tensors with them.

Errors:  Unusable for a wrong name or use in the user's settings; ValueError for a tensor that
         the codec does not take, Unencodable for its values; BadMessage or TooLarge for a
         peer's announcement.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from p2pswarm.base.errors import BadMessage, Unusable
from p2pswarm.tensors.codecs.base import DTYPES, Decoder, TensorUse
from p2pswarm.tensors.codecs.cast import Cast
from p2pswarm.tensors.codecs.codec import Codec, KeyedCodec, StatefulCodec
from p2pswarm.tensors.codecs.dither import Dither
from p2pswarm.tensors.codecs.exact import PlanesZstd, Raw
from p2pswarm.tensors.codecs.fp4 import MxFp4, NvFp4, NvFp4Eden
from p2pswarm.tensors.codecs.int8 import Int8, Int8ErrorFeedback
from p2pswarm.tensors.codecs.int_grid import IntGrid
from p2pswarm.tensors.codecs.meta import (
    INLINE_BYTES_MAX,
    RANK_MAX,
    Dtype,
    TensorLayout,
    TensorMeta,
    layout,
)
from p2pswarm.tensors.codecs.tensor_pool import FRESH, TensorPool, passing

CODECS: tuple[Codec, ...] = (
    Raw(),
    Cast("fp16", 2, Dtype.FLOAT16),
    Cast("bf16", 3, Dtype.BFLOAT16),
    Int8(),
    PlanesZstd(),
    Int8ErrorFeedback(),
    Dither(6, 7),
    Dither(5, 8),
    Dither(4, 9),
    Dither(3, 10),
    Dither(2, 11),
    NvFp4(),
    NvFp4Eden(),
    MxFp4(),
    IntGrid(),
)
BY_NAME = {codec.name: codec for codec in CODECS}
BY_CODE = {codec.code: codec for codec in CODECS}
NO_KEY = b""  # of a tensor that no codec rounds by chance
MESSAGE_INLINE_BYTES = 2 * INLINE_BYTES_MAX  # of one announcement: half a mux frame


@dataclass(frozen=True, slots=True)
class EncodedTensor:
    """An encoded tensor and its announcement."""

    meta: TensorMeta
    data: memoryview
    """The encoded bytes; a raw CPU tensor's own memory, not to be changed until it is sent."""
    left: Tensor | None = None
    """What a codec with state carries to the edge's next tensor."""


@dataclass(frozen=True, slots=True)
class TensorToEncode:
    """A tensor, its codec, the key that it is rounded by, and what its edge carries for it."""

    tensor: Tensor
    codec_name: str
    key: bytes = NO_KEY
    carried: tuple[Tensor, ...] = ()


@dataclass(frozen=True, slots=True)
class AdmittedTensor:
    """An announcement that was checked."""

    meta: TensorMeta
    layout: TensorLayout
    codec: Codec
    memory_bytes: int
    """The memory that receiving it takes."""

    def decoder(self, pool: TensorPool, key: bytes = NO_KEY) -> Decoder:
        """The memory for the tensor, filled if its bytes are inline; `key`: as the sender's."""
        what = self.layout, self.meta.encoded_bytes
        if isinstance(self.codec, KeyedCodec) and key:
            place = self.codec.keyed_decoder(*what, key, pool)
        else:
            place = self.codec.decoder(*what, pool)
        if self.meta.inline:
            place.buffer[:] = self.meta.inline
        return place


def named(name: str, use: TensorUse | None = None) -> Codec:
    """The codec of that name; raises Unusable if there is none or it does not suit `use`."""
    codec = BY_NAME.get(name)
    if codec is None:
        raise Unusable(f"no codec {name!r}: choose one of {', '.join(BY_NAME)}")
    if use is not None and use not in codec.uses:
        fit = ", ".join(c.name for c in CODECS if use in c.uses)
        raise Unusable(f"codec {name} is not fit for {str(use.name).lower()}: choose {fit}")
    return codec


def keeps_state(name: str) -> bool:
    """Return whether the codec carries something from one tensor of an edge to the next."""
    return isinstance(named(name), StatefulCodec)


def encode(
    tensor: Tensor,
    codec_name: str,
    inline_bytes: int = INLINE_BYTES_MAX,
    pool: TensorPool = FRESH,
    key: bytes = NO_KEY,
) -> EncodedTensor:
    """Encode a tensor; it is sent in the announcement if it has at most `inline_bytes`."""
    codec = _fit(tensor, codec_name)
    data = _keyed(codec, tensor, key, pool)
    return EncodedTensor(_meta(tensor, codec, data, inline_bytes), data)


def encode_all(
    tensors: Sequence[Tensor], codec_name: str, pool: TensorPool = FRESH
) -> list[EncodedTensor]:
    """Encode tensors for one announcement, inline in order as long as they fit a message."""
    encoded: list[EncodedTensor] = []
    left = MESSAGE_INLINE_BYTES
    for tensor in tensors:
        encoded.append(encode(tensor, codec_name, min(left, INLINE_BYTES_MAX), pool))
        left -= len(encoded[-1].meta.inline)
    return encoded


def encode_bundle(
    bundle: Sequence[TensorToEncode], pool: TensorPool = FRESH
) -> list[EncodedTensor]:
    """Encode a bundle, with all tensors inline or none.

    So the announcement of a large bundle does not depend on its values, and can be made early.
    """
    made = [(each.tensor, *_encoded_after(each, pool)) for each in bundle]
    size_bytes = sum(len(data) for _, _, data, _ in made)
    inline_bytes = INLINE_BYTES_MAX if size_bytes <= INLINE_BYTES_MAX else -1
    return [
        EncodedTensor(_meta(tensor, codec, data, inline_bytes), data, left)
        for tensor, codec, data, left in made
    ]


def admit(meta: TensorMeta) -> AdmittedTensor:
    """Check an announcement before memory is allocated; raises BadMessage or TooLarge."""
    plan = layout(meta)
    codec = BY_CODE.get(meta.codec)
    if codec is None:
        raise BadMessage(f"{meta.codec} is no codec")
    if plan.dtype not in codec.dtypes:
        raise BadMessage(f"codec {codec.name} does not make {plan.dtype.name.lower()}")
    codec.check(plan, meta.encoded_bytes)
    return AdmittedTensor(meta, plan, codec, codec.memory_bytes(plan, meta.encoded_bytes))


def decoder(meta: TensorMeta, pool: TensorPool = FRESH, key: bytes = NO_KEY) -> Decoder:
    """The memory for the tensor that `meta` announces, filled if its bytes are inline."""
    return admit(meta).decoder(pool, key)


def round_trip(tensor: Tensor, codec_name: str, key: bytes = NO_KEY) -> Tensor:
    """Return the values that a receiver gets of a tensor."""
    pool = passing(tensor.device)
    encoded = encode(tensor, codec_name, -1, pool, key)
    place = decoder(encoded.meta, pool, key)
    place.buffer[:] = encoded.data
    return place.finish()


def _fit(tensor: Tensor, codec_name: str) -> Codec:
    codec = named(codec_name)
    dtype = DTYPES.get(tensor.dtype)
    if dtype is None or dtype not in codec.dtypes:
        raise ValueError(f"codec {codec_name} does not take {tensor.dtype}")
    if tensor.dim() > RANK_MAX:
        raise ValueError(f"a tensor of rank {tensor.dim()}; {RANK_MAX} is the most")
    return codec


def _encoded_after(
    each: TensorToEncode, pool: TensorPool
) -> tuple[Codec, memoryview, Tensor | None]:
    codec = _fit(each.tensor, each.codec_name)
    if isinstance(codec, StatefulCodec):
        return codec, *codec.encode_after(each.tensor, each.carried, pool)
    return codec, _keyed(codec, each.tensor, each.key, pool), None


def _keyed(codec: Codec, tensor: Tensor, key: bytes, pool: TensorPool) -> memoryview:
    if isinstance(codec, KeyedCodec) and key:
        return codec.encode_keyed(tensor, key, pool)
    return codec.encode(tensor, pool)


def _meta(tensor: Tensor, codec: Codec, data: memoryview, inline_bytes: int) -> TensorMeta:
    inline = bytes(data) if len(data) <= inline_bytes else b""
    return TensorMeta(DTYPES[tensor.dtype], tuple(tensor.shape), codec.code, len(data), inline)
