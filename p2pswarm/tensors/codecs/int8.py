"""Int8, a codec with 8 bits per value and a scale per 256 values.

Wire: a float32 scale per block, then an int8 per value; value = scale * int8. The
last block may be shorter. The error of a value is at most half a step, its block's
largest magnitude over 254. NaN and infinities are refused, because one of them would
spoil its whole block.
Errors:  Unencodable for NaN and infinities; BadMessage for a peer's wrong bytes.
Source:  Dettmers et al., "8-bit Optimizers via Block-wise Quantization" (2022), with a
         uniform code: 1.5 % of the bytes are scales, and no code book is sent.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from p2pswarm.base.errors import BadMessage
from p2pswarm.tensors.codecs.base import (
    FLOATS,
    LOSSY,
    TORCH,
    Decoder,
    TensorUse,
    Unencodable,
    bytes_of,
    expect_bytes,
)
from p2pswarm.tensors.codecs.codec import Codec, CodecKind, StatefulCodec
from p2pswarm.tensors.codecs.meta import TENSOR_BYTES_MAX, TensorLayout
from p2pswarm.tensors.codecs.tensor_pool import TensorPool

BLOCK_VALUES = 256
SCALE_BYTES = 4
STEPS = 127
SCALE_MIN = 2.0**-126  # the least normal float32: its reciprocal is finite
SCALE_MAX = 2.679e36  # just under float32's largest / 127: decoding stays finite
CHUNK_VALUES = 1 << 18  # 1 MiB of float32: 7 GB/s, against 2 at 2**14 and memory speed at 2**22


class Int8(Codec):
    """The codec int8: floats of any width.

    The scale of a block of 256 values is a float32, the block's largest magnitude over 127.

    A tensor is encoded in chunks, so that intermediate results stay in the processor's cache; on a
    GPU it is one chunk.
    """

    name = "int8"
    code = 4
    kind = CodecKind.PLAIN
    uses = LOSSY
    dtypes = FLOATS
    heavy = True

    def check(self, layout: TensorLayout, encoded_bytes: int) -> None:
        """Raise BadMessage unless there is a scale per block and a byte per value."""
        expect_bytes(self.name, encoded_bytes, _encoded_bytes(layout.values))

    def encode(self, tensor: Tensor, pool: TensorPool) -> memoryview:
        """Quantise on the tensor's device, then copy the smaller result to the CPU."""
        return bytes_of(pool.on_host(quantised(tensor, pool)))

    def decoder(self, layout: TensorLayout, encoded_bytes: int, pool: TensorPool) -> Decoder:
        """Memory for scales and codes, which `finish` multiplies on the device."""
        encoded = pool.way((encoded_bytes,), torch.uint8)

        def finish() -> Tensor:
            scales, codes = _parts(pool.on_device(encoded), layout.values)
            if not bool(((scales >= 0) & (scales <= SCALE_MAX)).all()):
                raise BadMessage("an int8 scale that no encoder makes")
            values = pool.home((layout.values,), TORCH[layout.dtype])
            _restore_all(scales, codes, values)
            return values.reshape(layout.shape)

        return Decoder(bytes_of(encoded), finish)


def quantised(tensor: Tensor, pool: TensorPool) -> Tensor:
    """The encoded bytes of a tensor, on its device."""
    flat = tensor.detach().reshape(-1)
    encoded = pool.beside(flat, (_encoded_bytes(len(flat)),), torch.uint8)
    scales, codes = _parts(encoded, len(flat))
    for at, blocks in _chunks(flat):
        _quantise(flat[at], scales[blocks], codes[at])
    return encoded


def restored(encoded: Tensor, values: Tensor) -> Tensor:
    """Overwrite `values` with what a receiver decodes from `encoded`."""
    flat = values.view(-1)
    _restore_all(*_parts(encoded, len(flat)), flat)
    return values


def _blocks(values: int) -> int:
    return -(-values // BLOCK_VALUES)


def _encoded_bytes(values: int) -> int:
    return SCALE_BYTES * _blocks(values) + values


def _parts(encoded: Tensor, values: int) -> tuple[Tensor, Tensor]:
    """The scales and the codes as views of the encoded bytes."""
    scale_bytes = SCALE_BYTES * _blocks(values)
    return encoded[:scale_bytes].view(torch.float32), encoded[scale_bytes:].view(torch.int8)


def _chunks(flat: Tensor) -> Iterator[tuple[slice, slice]]:
    """Ranges of values and of their blocks: whole blocks, then the short last one alone."""
    whole = len(flat) - len(flat) % BLOCK_VALUES
    step = CHUNK_VALUES if flat.device.type == "cpu" else TENSOR_BYTES_MAX
    for begin in range(0, whole, step):
        end = min(begin + step, whole)
        yield slice(begin, end), slice(begin // BLOCK_VALUES, end // BLOCK_VALUES)
    if whole < len(flat):
        yield slice(whole, len(flat)), slice(_blocks(whole), None)


def _quantise(values: Tensor, scales: Tensor, codes: Tensor) -> None:
    width = min(BLOCK_VALUES, len(values))
    exact = values.to(torch.float32).view(-1, width)
    work = exact.abs()
    torch.amax(work, 1, out=scales)
    if not bool(scales.isfinite().all()):
        raise Unencodable("int8 cannot hold NaN, infinities or values past float32: send them raw")
    scales.mul_(1 / STEPS).clamp_(SCALE_MIN, SCALE_MAX)
    torch.mul(exact, scales.reciprocal().unsqueeze(1), out=work)
    codes.view(-1, width).copy_(work.round_())


def _restore_all(scales: Tensor, codes: Tensor, values: Tensor) -> None:
    for at, blocks in _chunks(values):
        _restore(scales[blocks], codes[at], values[at])


def _restore(scales: Tensor, codes: Tensor, values: Tensor) -> None:
    width = min(BLOCK_VALUES, len(values))
    if values.dtype in (torch.float32, torch.float64):
        whole = values.view(-1, width).copy_(codes.view(-1, width))
        whole.mul_(scales.unsqueeze(1))
    else:  # 8 bits of bfloat16 would round the scale before it is used
        values.view(-1, width).copy_(codes.view(-1, width) * scales.unsqueeze(1))


class Int8ErrorFeedback(Int8, StatefulCodec):
    """The codec int8-ef, which adds a gradient's rounding error to the edge's next one.

    The bytes are those of int8, so the receiver needs no state. The receiver's sum over many
    microbatches differs from the exact sum only by the last error, which does not grow with their
    number. The error of a sum with plain int8 grows.

    Source: Seide et al., "1-bit stochastic gradient descent" (2014), for error feedback; between
    pipeline stages from microbatch to microbatch: Optimus-CC, arXiv 2301.09830.
    """

    name = "int8-ef"
    code = 6
    kind = CodecKind.LINKED
    uses = TensorUse.GRADIENT

    def encode(self, tensor: Tensor, pool: TensorPool) -> memoryview:
        """The bytes of the first tensor on an edge."""
        return self.encode_after(tensor, (), pool)[0]

    def encode_after(
        self, tensor: Tensor, carried: Sequence[Tensor], pool: TensorPool
    ) -> tuple[memoryview, Tensor]:
        """The bytes of the tensor plus all that is carried, and the error of rounding."""
        owed = tensor.detach().to(torch.promote_types(tensor.dtype, torch.float32), copy=True)
        for each in carried:
            owed.add_(each)
        encoded = quantised(owed, pool)
        received = torch.empty_like(tensor, memory_format=torch.contiguous_format)
        return bytes_of(pool.on_host(encoded)), owed.sub_(restored(encoded, received))
