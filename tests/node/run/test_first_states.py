"""What a run begins with is told by its seed or its checkpoint, not by who speaks first."""

import asyncio
from dataclasses import replace

import pytest
import torch
from checkpoint.saved_run import CONFIG, plain_weights, saved_run, virtual

from p2pswarm.base.errors import Unusable
from p2pswarm.checkpoint.catalogue import open_checkpoint
from p2pswarm.checkpoint.targets import open_store
from p2pswarm.models.compute.torch_weights import first_state
from p2pswarm.node.run.resume import proof_of, resumed_from, saved_state
from p2pswarm.run.manifest import RunIdentity
from p2pswarm.run.messages.run import RunOrigin
from p2pswarm.trainer.coordinator_io.checkpoints import ResumedFrom
from p2pswarm.trainer.reports.reports import MemberLost
from p2pswarm.trainer.step.stage_digests import OTHER_WEIGHTS

SHORT = replace(CONFIG, steps=2, stages=1)
THREE_STAGES = replace(SHORT, steps=4, stages=3)


def last(steps) -> bytes:
    *_, digest = steps
    return digest


async def wrong_speaks_first(tmp_path):
    async with saved_run(tmp_path, SHORT) as run:
        run.serve(1, drawn=99)
        await run.servers[1].serving()
        run.serve(2)
        run.serve(3)
        ended = await run.trainer.run()
        whole = [number for number in (2, 3) if run.servers[number].version == SHORT.steps]
        weights = [run.engines[number].weights._flat.parameters for number in whole]
        return ended, weights, run.seen(MemberLost)


@pytest.fixture
def saved(tmp_path) -> ResumedFrom:
    """A checkpoint of one stage after two steps."""

    async def story():
        async with saved_run(tmp_path, SHORT) as run:
            run.serve(1)
            assert not (await run.trainer.run()).failed
            await run.trainer.save_state()
            return run.identity.corpus

    corpus = virtual(story)
    config = replace(SHORT, steps=4)
    return resumed_from(str(tmp_path), config, corpus, lambda _: None)


def test_a_server_that_draws_other_weights_is_found_though_it_spoke_first(tmp_path):
    ended, weights, lost = virtual(lambda: wrong_speaks_first(tmp_path))

    assert not ended.failed
    assert bytes([1]) * 32 in {a.incarnation.peer for a in lost if a.reason == OTHER_WEIGHTS}
    assert weights
    for parameters in weights:
        for ours, plain in zip(parameters, plain_weights(SHORT), strict=True):
            assert torch.equal(ours, plain)


def test_the_manifest_names_the_state_of_a_stage_of_the_same_cut(saved):
    run = RunIdentity(SHORT, b"t" * 32, b"n" * 16, b"f" * 32, saved.origin)
    manifest = open_checkpoint(open_store(saved.target), saved.folder).manifest

    assert list(proof_of(run, saved)(0)) == [manifest.stages[0].state_digest]


def test_the_state_of_a_stage_of_another_cut_is_read(saved, tmp_path):
    proofs = [last(saved_state(THREE_STAGES, stage, saved)) for stage in range(3)]

    async def story():
        async with saved_run(tmp_path, THREE_STAGES, resume=True) as run:
            for number in (1, 2, 3):
                run.serve(number)
            loaded = {}
            while len(loaded) < 3:
                for server in run.servers.values():
                    if server.version == 2:
                        loaded[server.stage] = (await server._replica.held()).digest
                await asyncio.sleep(0.01)
            return [loaded[stage] for stage in range(3)]

    assert virtual(story) == proofs
    assert len(set(proofs)) == 3


def test_without_a_checkpoint_the_seed_tells():
    run = RunIdentity(SHORT, b"t" * 32, b"n" * 16, b"f" * 32)

    assert last(proof_of(run, None)(0)) == last(first_state(SHORT, 0))


def test_a_trainer_that_does_not_know_the_place_of_the_checkpoint_cannot_tell(saved):
    run = RunIdentity(SHORT, b"t" * 32, b"n" * 16, b"f" * 32, saved.origin)

    with pytest.raises(Unusable, match="not known where"):
        last(proof_of(run, None)(0))


def test_another_checkpoint_in_that_place_tells_nothing(saved):
    origin = RunOrigin(saved.origin.run, saved.origin.version, b"x" * 32)

    with pytest.raises(Unusable, match="is not the checkpoint"):
        last(saved_state(SHORT, 0, replace(saved, origin=origin)))


def test_first_weights_of_a_model_of_ones_own_are_not_proved():
    """They may differ from processor to processor, and the servers agree on others."""
    run = RunIdentity(
        replace(SHORT, model=replace(SHORT.model, family="mine")), b"t" * 32, b"n" * 16, b"f" * 32
    )

    with pytest.raises(Unusable, match="family 'mine' may draw otherwise"):
        last(proof_of(run, None)(0))


def test_frozen_weights_are_read_to_be_proved_unless_the_trainer_says_otherwise():
    frozen = replace(SHORT, start="pretrained", frozen=("blocks.0.*",))
    run = RunIdentity(frozen, b"t" * 32, b"n" * 16, b"f" * 32)

    with pytest.raises(Unusable, match="what most servers of the stage say stands"):
        last(proof_of(run, None, verify_base=False)(0))
    with pytest.raises(Unusable, match="pretrained weights"):
        last(proof_of(run, None)(0))
