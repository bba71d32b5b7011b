"""A stage's state piece by piece: read, written, and followed, as the whole is."""

from dataclasses import replace

import pytest
import torch

from p2pswarm.base.errors import BadMessage
from p2pswarm.models.compute.base import Update
from p2pswarm.models.compute.flat_parameters import FlatParameters, digest_of
from p2pswarm.models.compute.optimizer import AdamW
from p2pswarm.models.compute.torch_sums import TorchSums
from p2pswarm.models.compute.torch_weights import TorchState
from p2pswarm.settings.config import ModelConfig, OptimizerConfig, RunConfig
from p2pswarm.tensors.state_tree import piece_hash, root_of

PIECE = 1000
RUN = RunConfig(stages=1, model=ModelConfig(d_model=16, layers=2, heads=2, sequence_length=12))
CPU = torch.device("cpu")


def stage(average_decay=0.0):
    run = replace(RUN, optimizer=OptimizerConfig(average_decay=average_decay))
    flat = FlatParameters(run, range(4), CPU)
    flat.draw()
    optimizer = AdamW(run.optimizer, flat, chunk_values=300)
    return flat, optimizer, TorchState(flat, [optimizer], PIECE)


def sums_of(flat, seed):
    generator = torch.Generator().manual_seed(seed)
    sums = TorchSums(flat.sum_N, "raw")
    sums.reduced_N.copy_(torch.randn(flat.length, generator=generator))
    return sums


def read(state, piece):
    return [state.read(tensor, piece) for tensor in range(state.tensors)]


def test_pieces_hashed_alone_have_the_digest_of_the_whole_as_their_root():
    flat, optimizer, state = stage()
    optimizer.step(sums_of(flat, 1).reduced_N, Update(1, 0.5, 1e-2))

    hashes = [piece_hash(read(state, k)) for k in range(state.pieces)]

    assert state.pieces > 3
    assert root_of(hashes) == digest_of(flat.state, flat.spans(PIECE))


@pytest.mark.parametrize("average_decay", [0.0, 0.9])
@pytest.mark.parametrize("scale", [0.5, 0.0])
def test_pieces_of_different_versions_become_the_state_that_a_commit_makes_of_the_whole(
    scale, average_decay
):
    flat, optimizer, state = stage(average_decay)
    other, _, copy = stage(average_decay)
    updates = [Update(n, scale, 1e-2) for n in (1, 2, 3)]
    gradients = [sums_of(flat, n) for n in (1, 2, 3)]

    came = {}
    for version, (update, gradient) in enumerate(zip(updates, gradients, strict=True)):
        for piece in range(version, state.pieces, 3):
            came[piece] = version, read(state, piece)
        optimizer.step(gradient.reduced_N, update)
    for piece, (version, parts) in came.items():
        copy.write(piece, parts)
        for step in range(version, 3):
            copy.follow(piece, copy.gradient(gradients[step], piece), updates[step])

    assert all(torch.equal(a, b) for a, b in zip(flat.state, other.state, strict=True))


def test_what_was_read_stays_as_it_is():
    flat, optimizer, state = stage()
    before = [bytes(part) for part in read(state, 0)]
    parts = read(state, 0)

    optimizer.step(sums_of(flat, 1).reduced_N, Update(1, 1.0, 1e-2))

    assert [bytes(part) for part in parts] == before
    assert [bytes(part) for part in read(state, 0)] != before


@pytest.mark.parametrize("wrong", ["a part too few", "a part too short"])
def test_a_piece_that_does_not_fit_changes_nothing(wrong):
    flat, _, state = stage()
    digest = flat.digest()
    parts = [memoryview(bytes(part.nbytes)) for part in read(state, 1)]
    parts = parts[:2] if wrong == "a part too few" else [*parts[:2], parts[2][:-4]]

    with pytest.raises(BadMessage, match="piece 1"):
        state.write(1, parts)

    assert flat.digest() == digest
