"""A stage's gradient sum in torch, as the averaging sees it, and the memory of what is reduced.

Shapes:  N elements in a stage.
Errors:  BadMessage for a shard that does not fit.
Source:  McGrew and Viega, "The Galois/Counter Mode of Operation" (2004), for GHASH.
"""
# ruff: noqa: N803, N806  shapes are written at the end of names

import hashlib
import math
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import torch
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from torch import Tensor

from p2pswarm.base.errors import BadMessage
from p2pswarm.models.compute.flat_parameters import squared_norm, sum_of_squares
from p2pswarm.models.compute.low_rank import LowRank
from p2pswarm.run.averaging.base import AveragedGradient
from p2pswarm.run.averaging.shards import Span
from p2pswarm.tensors.codecs.base import DTYPES, bytes_of
from p2pswarm.tensors.codecs.codec import CodecKind
from p2pswarm.tensors.codecs.meta import TensorMeta, travels_alone
from p2pswarm.tensors.codecs.registry import EncodedTensor, decoder, encode, named
from p2pswarm.tensors.codecs.tensor_pool import TensorPool, on_host

DIGEST_BYTES = 32
NONCE_BYTES = 12
HASHED = 1 << 18  # elements under one tag: 1 MiB of float32, collisions below 2^-111
IDLE_MAX = 1  # reduced gradients kept for the next step, each as large as the weights


class GradientMemory:
    """Memory for reduced gradients, used again when its last view is gone.

    One may still be on its way to a slow newcomer, or a late chunk may still be written to it.
    """

    def __init__(self, sum_N: Tensor) -> None:
        self._sum_N = sum_N
        # A deque's append and pop are atomic between threads: no lock is needed.
        self._idle: deque[Tensor] = deque(maxlen=IDLE_MAX)

    def take(self) -> Tensor:
        """Uninitialised memory like the sum's."""
        if self._sum_N.device.type != "cpu":
            return torch.empty_like(self._sum_N)  # torch keeps a GPU's memory by itself
        try:
            memory = self._idle.pop()
        except IndexError:
            memory = torch.empty(self._sum_N.nbytes, dtype=torch.uint8)
        lease = memory.numpy()  # freed with the last tensor or memoryview that is made of it
        weakref.finalize(lease, self._idle.append, memory).atexit = False
        if not len(lease):  # a stage of which nothing trains; such a view has no step
            return torch.empty_like(self._sum_N, device="cpu")
        return torch.from_numpy(lease).view(self._sum_N.dtype)


class TorchSums:
    """Implements `Sums`: reads `sum_N`, writes `reduced_N`.

    The squared norm of each piece is taken while the piece is still in the processor's cache. The
    digest is GHASH, the universal hash of AES-GCM: 8 GB/s, where SHA-256 does 0.4 on a processor
    without instructions for it (docs/figures.md). It is worth something only under a key that
    nobody knew before the bytes were here (run/averaging/round.py).
    """

    def __init__(
        self,
        sum_N: Tensor,
        codec_name: str,
        memory: GradientMemory | None = None,
        *,
        tied: Span | None = None,
        reduced_N: Tensor | None = None,
        hole: Span | None = None,
        low_rank: LowRank | None = None,
    ) -> None:
        """`tied`: another stage has it as well; `reduced_N`: is here; `hole`: no part of it.

        `low_rank`: the matrices whose factors are averaged instead.
        """
        self._sum_N = sum_N
        self._tied = tied
        self._hole = hole or Span(sum_N.numel(), sum_N.numel())
        if reduced_N is None:
            reduced_N = (memory or GradientMemory(sum_N)).take()
        self.reduced_N = reduced_N
        self._codec_name = codec_name
        self._low_rank = low_rank
        self._pool = TensorPool(sum_N.device, keep_bytes=0)
        self._squares: dict[int, float] = {}

    @property
    def length(self) -> int:
        """The number of elements, N."""
        return self._sum_N.numel() - self._hole.length

    @property
    def cut(self) -> int:
        """See `Sums`: where the hole is."""
        return self._hole.start if self._hole.length else 0

    def apart(self) -> "tuple[TorchSums, TorchSums] | None":
        """See `Sums`."""
        if (tied := self._tied) is None:
            return None
        name, reduced_N = self._codec_name, self.reduced_N
        low_rank = self._low_rank
        rest = TorchSums(self._sum_N, name, reduced_N=reduced_N, hole=tied, low_rank=low_rank)
        place = slice(tied.start, tied.stop)
        return rest, TorchSums(self._sum_N[place], name, reduced_N=reduced_N[place])

    def rounds(self) -> "LowRankRounds | None":
        """See `Sums`."""
        if self._low_rank is None:
            return None
        return LowRankRounds(self._low_rank, self._sum_N, self.reduced_N)

    def part(self, span: Span) -> EncodedTensor:
        """Encode our part; for the raw codec on the CPU it is the sum's own memory."""
        return encode(self._sum_N[self._at(span)], self._codec_name, pool=self._pool)

    def reduce(self, span: Span, parts: Sequence[Tensor | None]) -> EncodedTensor:
        """Add in the given order and in the sum's dtype; keep what the encoding decodes to."""
        mine = self._sum_N[self._at(span)]
        place = self._place(span)
        terms = [mine if part is None else self._checked(part, span) for part in parts]
        if len(terms) == 1:
            place.copy_(terms[0])
        else:
            torch.add(terms[0], terms[1], out=place)
        for term in terms[2:]:
            place.add_(term)
        encoded_tensor = encode(place, self._codec_name, pool=self._pool)
        if named(self._codec_name).kind is not CodecKind.EXACT:
            received = decoder(encoded_tensor.meta, self._pool)
            received.buffer[:] = encoded_tensor.data
            place.copy_(received.finish())
        self._squares[span.start] = squared_norm(self._place(span))
        return encoded_tensor

    def landing(self, span: Span, meta: TensorMeta) -> memoryview | None:
        """The place of a reduced shard if its bytes can come straight into it."""
        place = self._place(span)
        if not (place.device.type == "cpu" and travels_alone(meta)):
            return None
        fits = (meta.dtype, meta.shape) == (DTYPES[place.dtype], tuple(place.shape))
        raw = meta.codec == named("raw").code and meta.encoded_bytes == place.nbytes
        return bytes_of(place) if fits and raw else None

    def place(self, span: Span, shard: Tensor | None) -> None:
        """Keep a reduced shard; None if it has come straight into its place."""
        if shard is not None:
            self._place(span).copy_(self._checked(shard, span))
        self._squares[span.start] = squared_norm(self._place(span))

    def outcome(self, key: bytes) -> AveragedGradient:
        """The keyed digest and the squared norm, from those of the pieces in their order."""
        hole = self._hole
        whole = self.reduced_N[: hole.start], self.reduced_N[hole.stop :]
        norm = sum_of_squares([self._squares[start] for start in sorted(self._squares)])
        digest = keyed_digest(key, [x_N for x_N in whole if x_N.numel()])
        return AveragedGradient(digest, norm if math.isfinite(norm) else None)

    def _at(self, span: Span) -> slice:
        shift = self._hole.length if span.start >= self._hole.start else 0
        return slice(span.start + shift, span.stop + shift)

    def _place(self, span: Span) -> Tensor:
        return self.reduced_N[self._at(span)]

    def _checked(self, shard: Tensor, span: Span) -> Tensor:
        if shard.shape != (span.length,) or shard.dtype != self._sum_N.dtype:
            raise BadMessage(f"a shard of {shard.dtype} {tuple(shard.shape)} for {span}")
        return shard


class _FactorSums(TorchSums):
    """Sums that are made of a gradient's when the first of them is asked for.

    A newcomer, which only receives, is never asked: it has no sum.
    """

    def __init__(self, factor_N: Tensor, fill: Callable[[Tensor], None]) -> None:
        super().__init__(factor_N, "raw")
        self._fill: Callable[[Tensor], None] | None = fill

    def part(self, span: Span) -> EncodedTensor:
        self._filled()
        return super().part(span)

    def reduce(self, span: Span, parts: Sequence[Tensor | None]) -> EncodedTensor:
        self._filled()
        return super().reduce(span, parts)

    def _filled(self) -> None:
        if self._fill is not None:
            self._fill(self._sum_N)
            self._fill = None


class LowRankRounds:
    """Implements `Rounds`: vectors and the first factor of each matrix, then the second factors."""

    def __init__(self, low_rank: LowRank, sum_N: Tensor, reduced_N: Tensor) -> None:
        self._low_rank, self._sum_N, self._reduced_N = low_rank, sum_N, reduced_N
        first_F = sum_N.new_empty(low_rank.first_length)
        self.first = _FactorSums(first_F, lambda out_F: low_rank.first(sum_N, out_F))

    def second(self) -> TorchSums:
        """See `Rounds`."""
        return _SecondFactors(self._low_rank, self._sum_N, self.first.reduced_N, self._reduced_N)


class _SecondFactors(_FactorSums):
    """The second factors; their outcome is that of the whole gradient.

    What takes time waits until it is asked for: so the round has begun when others send to it.
    """

    def __init__(
        self, low_rank: LowRank, sum_N: Tensor, averaged_F: Tensor, reduced_N: Tensor
    ) -> None:
        self._rules, self._averaged_F, self._gradient_N = low_rank, averaged_F, reduced_N
        self._lefts: list[Tensor] | None = None
        second_S = sum_N.new_empty(low_rank.second_length)
        super().__init__(second_S, lambda out_S: low_rank.second(sum_N, self._left(), out_S))

    def outcome(self, key: bytes) -> AveragedGradient:
        """Restore the gradient; its digest and its norm."""
        self._rules.restore(self._averaged_F, self._left(), self.reduced_N, self._gradient_N)
        parts = self._rules.restored(self._gradient_N)
        norm = sum_of_squares([squared_norm(x_N) for x_N in parts])
        digest = keyed_digest(key, [*parts, self._gradient_N[self._rules.parameters.stop :]])
        return AveragedGradient(digest, norm if math.isfinite(norm) else None)

    def _left(self) -> list[Tensor]:
        if self._lefts is None:
            self._lefts = self._rules.left(self._averaged_F)
        return self._lefts


def keyed_digest(key: bytes, tensors: Sequence[Tensor]) -> bytes:
    """The digest of tensors under a key: of the tags of their parts, one after another."""
    digest, hash_key = hashlib.blake2b(key, digest_size=DIGEST_BYTES), AESGCM(key)
    for number, part in enumerate(_parts(tensors)):
        nonce = number.to_bytes(NONCE_BYTES)
        digest.update(hash_key.encrypt(nonce, b"", bytes_of(on_host(part))))
    return digest.digest()


def _parts(tensors: Sequence[Tensor]) -> Iterator[Tensor]:
    for x_N in tensors:
        yield from torch.split(x_N, HASHED)
