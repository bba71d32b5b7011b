"""LowRank: gradients of matrices as two factors of few directions, averaged one after the other.

With M the gradient of a matrix summed over all microbatches of a step, and Q the warm factor that
the state has of it:

    P = Q M^T           summed over the members
    P^ = orthonormal P  by each member, with the same bits
    Q' = P^ M           summed over the members
    gradient = P^^T Q'  and the directions of Q' are the next step's Q

Each product is linear in M, so it does not matter who counted what. A member's own products need no
common bits, as its sum needs none; what is made of averaged factors has them on every processor.

Shapes:  N elements in a stage; R directions, M rows and C columns of a matrix, B matrices of a
         shape; F elements that are averaged first, S that are averaged second.
Source:  Vogels et al., "PowerSGD" (arXiv 1905.13727), without its feedback: docs/codecs.md.
"""
# ruff: noqa: N803, N806  shapes are written at the end of names

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from p2pswarm.models.compute.orthonormal import directions, drawn_directions, orthonormal
from p2pswarm.run.averaging.shards import Span
from p2pswarm.settings.config import RunConfig
from p2pswarm.tensors.flat_layout import FlatLayout, FlatTensor

CHUNK_VALUES = 1 << 16  # of a gradient at a time: 256 KiB of float32 stay in a core's cache
GPU_CHUNK_VALUES = 1 << 24  # 64 MiB: a GPU wants large launches


@dataclass(frozen=True, slots=True)
class LowRankMatrix:
    """A matrix of a stage, and its factors."""

    name: str
    place: slice
    """In the flat buffers."""
    warm: slice
    """Of its warm factor, in the buffer of first moments."""
    rank: int
    rows: int
    columns: int
    left: slice
    """Of P in what is averaged first."""
    right: slice
    """Of Q' in what is averaged second."""

    @property
    def alike(self) -> tuple[int, int, int]:
        """What matrices have in common that are computed together."""
        return self.rank, self.rows, self.columns


class LowRank:
    """The matrices of a stage that are averaged in low rank, and what goes beside them."""

    def __init__(
        self, seed: int, layout: FlatLayout, warm_N: Tensor, *, tied: Span | None = None
    ) -> None:
        """`seed`: of the run; `warm_N`: the first moments, where the warm factors lie.

        `tied`: a tensor that another stage has as well: it is averaged with that one.
        """
        self._seed = seed
        self._warm_N = warm_N
        self.parameters = slice(0, layout.factors_start)
        """In the flat buffers; the factors lie behind."""
        self.tied = tied
        factors = layout.factors
        low = [tensor for tensor in layout.parameters if tensor.name in factors]
        left_out = [*((t.start, t.stop) for t in low), *([(tied.start, tied.stop)] if tied else [])]
        self._others: list[tuple[slice, slice]] = []
        """Places of what is averaged as it is: in the flat buffers, in what is averaged first."""
        first = second = 0
        for place in _between(sorted(left_out), layout.factors_start):
            there = slice(first, first + place.stop - place.start)
            self._others.append((place, there))
            first = there.stop
        self.matrices: list[LowRankMatrix] = []
        for tensor in low:
            found = _matrix(tensor, factors[tensor.name], first, second)
            self.matrices.append(found)
            first, second = found.left.stop, found.right.stop
        self.first_length, self.second_length = first, second

    def first(self, sum_N: Tensor, out_F: Tensor) -> None:
        """Write this member's part of what is averaged first: vectors and the like, and each P."""
        for place, there in self._others:
            out_F[there].copy_(sum_N[place])
        for matrix in self.matrices:
            gradient_MC, warm_RC = self._gradient(matrix, sum_N), self._warm(matrix, self._warm_N)
            left_RM = out_F[matrix.left].view(matrix.rank, matrix.rows)
            torch.mm(warm_RC, gradient_MC.mT, out=left_RM)

    def left(self, averaged_F: Tensor) -> list[Tensor]:
        """The orthonormal P^ of each matrix, from the average."""
        found: list[Tensor] = [averaged_F] * len(self.matrices)
        for numbers in self._alike():
            matrices = [self.matrices[number] for number in numbers]
            stacked = [averaged_F[each.left].view(each.rank, each.rows) for each in matrices]
            for number, left_RM in zip(numbers, orthonormal(torch.stack(stacked)), strict=True):
                found[number] = left_RM
        return found

    def second(self, sum_N: Tensor, lefts: Sequence[Tensor], out_S: Tensor) -> None:
        """Write this member's part of what is averaged second: each Q'."""
        for matrix, left_RM in zip(self.matrices, lefts, strict=True):
            right_RC = out_S[matrix.right].view(matrix.rank, matrix.columns)
            torch.mm(left_RM, self._gradient(matrix, sum_N), out=right_RC)

    def restore(
        self, averaged_F: Tensor, lefts: Sequence[Tensor], averaged_S: Tensor, out_N: Tensor
    ) -> None:
        """Write the gradient, and the next warm factors behind it; a tied tensor's place stays."""
        tied = self.tied or Span(0, 0)
        out_N[: tied.start].zero_()
        out_N[tied.stop :].zero_()
        for place, there in self._others:
            out_N[place].copy_(averaged_F[there])
        for matrix, left_RM in zip(self.matrices, lefts, strict=True):
            right_RC = averaged_S[matrix.right].view(matrix.rank, matrix.columns)
            _multiply(left_RM, right_RC, self._gradient(matrix, out_N))
        for numbers in self._alike():
            matrices = [self.matrices[number] for number in numbers]
            rights = [averaged_S[each.right].view(each.rank, each.columns) for each in matrices]
            warm_BRC = directions(torch.stack(rights), partial(self._drawn, matrices))
            for matrix, warm_RC in zip(matrices, warm_BRC, strict=True):
                self._warm(matrix, out_N).copy_(warm_RC)

    def restored(self, gradient_N: Tensor) -> list[Tensor]:
        """The parts of a gradient that `restore` writes, without the factors."""
        tied = self.tied or Span(0, 0)
        parts = gradient_N[: tied.start], gradient_N[tied.stop : self.parameters.stop]
        return [x_N for x_N in parts if x_N.numel()]

    def reduce_whole(self, sum_N: Tensor) -> None:
        """Put what a stage of one member would be given in place of a whole sum."""
        first_F, second_S = (
            sum_N.new_empty(length) for length in (self.first_length, self.second_length)
        )
        self.first(sum_N, first_F)
        lefts = self.left(first_F)
        self.second(sum_N, lefts, second_S)
        self.restore(first_F, lefts, second_S, sum_N)

    def _alike(self) -> list[list[int]]:
        """The numbers of matrices of one shape, which are made orthonormal together."""
        alike: dict[tuple[int, int, int], list[int]] = defaultdict(list)
        for number, matrix in enumerate(self.matrices):
            alike[matrix.alike].append(number)
        return list(alike.values())

    def _gradient(self, matrix: LowRankMatrix, x_N: Tensor) -> Tensor:
        return x_N[matrix.place].view(matrix.rows, matrix.columns)

    def _warm(self, matrix: LowRankMatrix, x_N: Tensor) -> Tensor:
        return x_N[matrix.warm].view(matrix.rank, matrix.columns)

    def _drawn(self, matrices: Sequence[LowRankMatrix]) -> Tensor:
        """The first warm factors, as version 0 has them."""
        shapes = [(each.name, (each.rank, each.columns)) for each in matrices]
        dtype = self._warm_N.dtype
        return torch.stack([drawn_directions(self._seed, *shape, dtype) for shape in shapes])


def low_rank_of(
    run: RunConfig, layout: FlatLayout, warm_N: Tensor, *, tied: Span | None = None
) -> LowRank | None:
    """The matrices that a run averages in low rank; None if these parameters have none."""
    return LowRank(run.seed, layout, warm_N, tied=tied) if layout.factors else None


def _matrix(tensor: FlatTensor, factor: FlatTensor, first: int, second: int) -> LowRankMatrix:
    rank, columns = factor.shape
    rows = (tensor.stop - tensor.start) // columns
    return LowRankMatrix(
        name=tensor.name,
        place=slice(tensor.start, tensor.stop),
        warm=slice(factor.start, factor.stop),
        rank=rank,
        rows=rows,
        columns=columns,
        left=slice(first, first + rank * rows),
        right=slice(second, second + rank * columns),
    )


def _between(left_out: Sequence[tuple[int, int]], stop: int) -> Iterator[slice]:
    """What is not left out of 0..stop, gaps included."""
    start = 0
    for begin, end in (*left_out, (stop, stop)):
        if begin > start:
            yield slice(start, begin)
        start = end


def _multiply(left_RM: Tensor, right_RC: Tensor, out_MC: Tensor) -> None:
    """The product of both factors, with the same bits on every processor.

    Products of single values are added one after another, each rounded by itself: no library's
    order, and nothing fused.
    """
    chunk = CHUNK_VALUES if out_MC.device.type == "cpu" else GPU_CHUNK_VALUES
    rows = max(1, chunk // out_MC.shape[1])
    work_KC = torch.empty_like(out_MC[:rows])
    for start in range(0, out_MC.shape[0], rows):
        out_KC, left_RK = out_MC[start : start + rows], left_RM[:, start : start + rows]
        work = work_KC[: len(out_KC)]
        torch.mul(left_RK[0].unsqueeze(1), right_RC[0], out=out_KC)
        for left_K, right_C in zip(left_RK[1:], right_RC[1:], strict=True):
            out_KC.add_(torch.mul(left_K.unsqueeze(1), right_C, out=work))
