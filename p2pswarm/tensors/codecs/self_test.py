"""The self-test of codecs on the device that will encode, before a server enters a run.

A kernel or a driver may return zeros, or round with a bias, without an error; then a run trains on
noise. So each codec that rounds shows here what its definition says, and makes the bytes that every
other device makes. It takes a tenth of a second of a CPU for each kind of codec with a key.

Source:  TransformerEngine issue 3281: NVFP4 gradients were zeros on one kind of GPU.
"""

import copy
import functools
import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType

import torch
from torch import Tensor

from p2pswarm.base.errors import BadMessage
from p2pswarm.kernels import loader
from p2pswarm.tensors.codecs.base import CPU, DTYPES, Device, Unencodable
from p2pswarm.tensors.codecs.codec import Codec, CodecKind, KeyedCodec
from p2pswarm.tensors.codecs.dither import Dither
from p2pswarm.tensors.codecs.edge_codecs import KEY_BYTES
from p2pswarm.tensors.codecs.int_grid import IntGrid
from p2pswarm.tensors.codecs.meta import TensorLayout
from p2pswarm.tensors.codecs.registry import named
from p2pswarm.tensors.codecs.tensor_pool import passing

log = logging.getLogger(__name__)

TAG = b"p2pswarm-codec-self-test-1"
DRAWS = 64
SIGMAS = 4.0
LOST_MAX = 0.75
"""The error of a tensor, as a share of its length: of zeros it would be 1."""
TINIEST = 2.0**-149
SHAPE = (4, 64)

DIGESTS = {
    "fp16": "c909ae4e63dee26710f70223e5a895a52bb5d4f15ed4cc86dc5362fd4501765c",
    "bf16": "dfde1d8e5db0105a0bb50724d1f71d00ea859e96811eceb22757daf7e74b8b4f",
    "int8": "3891289c909621907e685ea59b171f3d40625a46888bbd7c7510d5bf5362ef32",
    "int8-ef": "3891289c909621907e685ea59b171f3d40625a46888bbd7c7510d5bf5362ef32",
    "dither6": "fee12668ef0ac6d7be4a26e663a8378b399e16ac4cea732f0fcfa737d6e21b1a",
    "dither5": "0b599ecef81daccf5508280612cca36dc9f9c8aeeb067b18206ef5c77a4eb02a",
    "dither4": "2b7c3a1b6b84300cf4346bdd0fef1f8b42cede55bcf4674ef4e3dbb7d80b360e",
    "dither3": "eb11f3d7710c581a9b0cecbcaf9263d628c1c8e23564c78a44fa4cbf37fc98a5",
    "dither2": "5f696d2496d786eb2cb3bba985f14182f515d55d9e589fd3ee198d9378efa965",
    "nvfp4": "d48dd7b04ccb289d8a74c15a40dd14f0e0b3a8ca87758f64f2bf216863d8d4ff",
    "nvfp4-eden": "e71fff4d392e4b27f3581c2928699407f6eb9cbcc5d9ea6954c4508e9a07dfe8",
    "mxfp4": "9b1d9cf4419f9453aed7c7fb207a5dd025bb8b964e605cee03df11203211e82e",
}
"""SHA-256 of what a codec makes of `samples()`, as bytes and as values again."""


def device_fault(names: Iterable[str], device: Device) -> str | None:
    """What is wrong with the codecs of these names on a device; None if nothing is."""
    return _device_fault(frozenset(names), device)


@functools.cache  # a server begins anew with each stage that it moves to
def _device_fault(names: frozenset[str], device: Device) -> str | None:
    rounding = [codec for codec in map(named, sorted(names)) if codec.kind is not CodecKind.EXACT]
    classes: set[type[Codec]] = set()
    for codec in rounding:
        # the draws of another dither are made by the same lines: its bytes are compared
        fault = codec_fault(codec, device, draws=type(codec) not in classes)
        if fault is not None:
            return fault
        classes.add(type(codec))
    return None


def codec_fault(codec: Codec, device: Device, *, draws: bool = True) -> str | None:
    """The first thing that a codec does wrong on a device; `draws`: with the mean over keys."""
    try:
        fault = next(_faults(codec, device, draws=draws), None)
    except (RuntimeError, ValueError, BadMessage) as error:
        fault = f"fails: {str(error).partition(chr(10))[0]}"
    return None if fault is None else f"codec {codec.name} on {device} {fault}"


def digest(codec: Codec, device: Device) -> str:
    """The digest of what a codec makes of all samples, in hexadecimal."""
    sha256 = hashlib.sha256()
    for sample in samples():
        data, came = _there_and_back(codec, sample, bytes(KEY_BYTES), device)
        sha256.update(data)
        sha256.update(came.numpy().tobytes())
    return sha256.hexdigest()


def samples() -> tuple[Tensor, Tensor, Tensor]:
    """Values like Gaussian ones; channels of unlike sizes; and a spike, zeros and padding."""
    powers = torch.ones(256, dtype=torch.int32).bitwise_left_shift_(torch.arange(256) % 16)
    channels = _drawn(1, 8, 256) / powers  # `pow` may differ in the last bit
    mixed = _drawn(2, 7, 37)
    mixed[0, 5], mixed[3], mixed[4] = 1000.0, 0.0, mixed[4] * 2.0**-130
    return _drawn(0, 8, 256), channels, mixed


def use_kernels(names: Iterable[str]) -> None:
    """Let codecs of these names use compiled loops, where those make the same bytes on this CPU.

    Run it in a thread: it takes a second, and where nobody has compiled the loops some ten.
    """
    for codec in map(named, sorted(names)):
        if isinstance(codec, Dither | IntGrid) and codec.kernels is None:
            name = "dither_kernels" if isinstance(codec, Dither) else "grid_kernels"
            kernels = loader.kernels(name)
            if kernels is not None and kernels_agree(codec, kernels):
                codec.kernels = kernels


def kernels_agree(codec: Dither | IntGrid, kernels: ModuleType) -> bool:
    """Return whether a codec makes the same bytes and values by compiled loops as by torch."""
    plain, by_kernels = copy.copy(codec), copy.copy(codec)
    plain.kernels, by_kernels.kernels = None, kernels
    key = bytes(KEY_BYTES)
    for sample in samples_of_kernels(codec):
        expected, values = _there_and_back(plain, sample, key, CPU)
        try:
            data, came = _there_and_back(by_kernels, sample, key, CPU)
        except (RuntimeError, TypeError, ValueError, BadMessage) as error:
            log.warning("torch runs %s, slower: compiled loops fail: %s", codec.name, error)
            return False
        if data != expected or not torch.equal(came.view(torch.uint8), values.view(torch.uint8)):
            log.warning("torch runs %s, slower: compiled loops make other bytes", codec.name)
            return False
    return True


def samples_of_kernels(codec: Dither | IntGrid) -> tuple[Tensor, ...]:
    """What compiled loops do apart: several panels, narrow rows, small values; whole numbers."""
    many = _drawn(4, 70, 2080)
    if isinstance(codec, Dither):
        narrow = many.view(-1)[: 400 * 32].view(400, 32)
        return (*samples(), many, many.to(torch.bfloat16), narrow, many[:3] * 2.0**-130)
    whole = many.view(-1)[: 300 * 256].view(300, 256).mul(8).round_()
    whole[64:].mul_(2.0**9).round_()
    row = torch.arange(300, dtype=torch.int32).unsqueeze(1)
    return many, whole.mul_((row % 20 + 107).bitwise_left_shift_(23).view(torch.float32)) + 0.0


def _faults(codec: Codec, device: Device, *, draws: bool) -> Iterator[str]:
    def arrives(values: Tensor, draw: int = 0) -> Tensor:
        return _there_and_back(codec, values, draw.to_bytes(KEY_BYTES), device)[1]

    zeros, drawn = torch.zeros(SHAPE), _drawn(3, *SHAPE)
    if not torch.equal(arrives(zeros), zeros):
        yield "makes something else of zeros"
    lone, greatest, tiny = zeros.clone(), zeros.clone(), drawn * 2.0**-130
    lone[1, 7], greatest[1, 7] = -3.0, codec.greatest
    known = {"common values": drawn, "a lone value": lone, "its greatest value": greatest}
    for name, values in known.items():
        if not _is_near(values, arrives(values), LOST_MAX):
            yield f"loses {name}"
    # int8 and fp16 may make zeros of these
    if not _is_near(tiny, arrives(tiny), LOST_MAX if codec.kind is CodecKind.KEYED else 1.0):
        yield "loses values next to zero"
    if not _minds_nan(codec, device):
        yield "makes a number of NaN"
    if draws and codec.kind is CodecKind.KEYED and not _is_unbiased(drawn, arrives):
        yield f"is biased: the mean of {DRAWS} draws is {SIGMAS:g} sigma off"
    if digest(codec, device) != DIGESTS[codec.name]:
        yield "makes other bytes than it should"


def _there_and_back(
    codec: Codec, values: Tensor, key: bytes, device: Device
) -> tuple[bytes, Tensor]:
    """The bytes of values that lie on a device, and what arrives there."""
    pool, there = passing(device), values.to(device)
    layout = TensorLayout(DTYPES[values.dtype], tuple(values.shape))
    if isinstance(codec, KeyedCodec):
        data = codec.encode_keyed(there, key, pool)
        place = codec.keyed_decoder(layout, len(data), key, pool)
    else:
        data = codec.encode(there, pool)
        place = codec.decoder(layout, len(data), pool)
    place.buffer[:] = data
    return bytes(data), place.finish().cpu()


def _drawn(number: int, *shape: int) -> Tensor:
    """Sums of four uniform values, the same on every processor, with a mean square of 4/3."""
    count = torch.Size(shape).numel()
    stream = hashlib.shake_128(TAG + bytes([number])).digest(8 * count)
    parts = torch.frombuffer(bytearray(stream), dtype=torch.int16).view(count, 4)
    return (parts.to(torch.int32).sum(1) / 32768.0).to(torch.float32).view(shape)


def _is_near(values: Tensor, came: Tensor, share: float) -> bool:
    apart, length = (came.double() - values.double()).norm(), values.double().norm()
    return bool(apart <= share * length)  # NaN is not


def _minds_nan(codec: Codec, device: Device) -> bool:
    values = torch.ones(SHAPE)
    values[1, 7] = torch.nan
    try:
        _, came = _there_and_back(codec, values, bytes(KEY_BYTES), device)
    except Unencodable:
        return True
    return bool(came[1, 7].isnan())


def _is_unbiased(values: Tensor, arrives: Callable[[Tensor, int], Tensor]) -> bool:
    errors = (
        torch.stack([arrives(values, draw) for draw in range(DRAWS)]).double() - values.double()
    )
    sigma = errors.std(0) / DRAWS**0.5
    mean = errors.mean(0)
    each = bool((mean.abs() <= SIGMAS * sigma + TINIEST).all())
    return each and bool(mean.sum().abs() <= SIGMAS * sigma.square().sum().sqrt() + TINIEST)
