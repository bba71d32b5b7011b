"""The loss of a step is the sum over its targets divided by their number, in real training."""

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy
from trainer.leadership.test_participant import CONFIG, Swarm, corpus, distance, trained

from p2pswarm.data.samples.corpus import Corpus, Tokens
from p2pswarm.data.samples.target_marks import targets_in, with_marks
from p2pswarm.models.compute.reference import ReferenceTrainer
from p2pswarm.progress.events import HeldOut, Report
from p2pswarm.run.chain.record import CommitRecord, RecordKind
from p2pswarm.run.schedule import learning_rate
from p2pswarm.settings.config import RunConfig
from p2pswarm.sim.loop import run as run_simulated
from p2pswarm.trainer.reports.reports import MemberLost, RunFinished, StepDone

MARKED = replace(CONFIG, batch=replace(CONFIG.batch, samples="whole"))
SIZE, STEPS = MARKED.batch.microbatches, MARKED.steps
SILENT_STEP, SILENT_MICROBATCH = 5, 2 * SIZE + 3


@dataclass(frozen=True, slots=True)
class MarkedCorpus(Corpus):
    """Rows of which a few, most or no tokens are targets, as those of chats are."""

    blocking: bool = False

    @property
    def blocks(self) -> bool:
        return self.blocking

    def sample(self, number: int) -> Tokens:
        return self._marked(Corpus.sample(self, number), number // self.rows, number)

    def held_out_sample(self, number: int) -> Tokens:
        return self._marked(Corpus.held_out_sample(self, number), -SIZE, 10_000 + number)

    def _marked(self, tokens: Tokens, number: int, seed: int) -> Tokens:
        rng = np.random.default_rng(seed)
        targets = rng.random(tokens.shape) < rng.choice([0.05, 0.3, 0.95])
        if number // SIZE == SILENT_STEP or number == SILENT_MICROBATCH:
            targets[:] = False
        return with_marks(tokens, targets)


def marked_corpus(config: RunConfig = MARKED, *, blocking: bool = False) -> MarkedCorpus:
    same = corpus(config)
    texts, counts = (same.train, same.held_out), (same.files, same.seed, same.rows)
    return MarkedCorpus(*texts, *counts, same.sequence_length, blocking=blocking)


def nats_and_targets(loop: ReferenceTrainer, tokens: Tokens) -> tuple[torch.Tensor, int]:
    """By hand: the cross-entropy of all tokens without a mark but the first of each row."""
    ids = torch.from_numpy(tokens.astype(np.int64) % (1 << 22))
    is_target = torch.from_numpy(tokens < 1 << 22)[:, 1:]
    scores = ids[:, :-1]
    for block in loop.flat.blocks:
        scores = block(scores)
    nats = cross_entropy(scores[is_target], ids[:, 1:][is_target], reduction="sum")
    return nats, int(is_target.sum())


def plain() -> tuple[torch.Tensor, list[float]]:
    """A loop that has all of a step at hand, divides by its targets, and clips; and its losses."""
    loop, text, losses = ReferenceTrainer(MARKED, rounded=False), marked_corpus(), []
    for step in range(STEPS):
        numbers = range(step * SIZE, (step + 1) * SIZE)
        each = [nats_and_targets(loop, text.microbatch(number)) for number in numbers]
        targets = sum(count for _, count in each)
        if not targets:
            losses.append(math.nan)
            loop.apply(0.0, learning_rate(MARKED, step))
            continue
        loss = sum(nats for nats, _ in each) / targets
        leaves = [leaf for block in loop.flat.blocks for leaf in block.parameters()]
        found = torch.autograd.grad(loss, leaves)
        with torch.no_grad():
            flat = torch.cat([part.reshape(-1) for part in found])
            loop.flat.sum_N[: len(flat)] = flat
            scale = min(1.0, MARKED.optimizer.clip_norm / (flat.norm().item() + 1e-6))
        loop.apply(scale, learning_rate(MARKED, step))
        losses.append(loss.item())
    return loop.flat.params_N.detach(), losses


def train(
    config: RunConfig, text: Corpus, trouble: Callable[[Swarm, Report], None] = lambda s, r: None
) -> tuple[RunFinished, torch.Tensor, Swarm]:
    async def story() -> tuple[RunFinished, torch.Tensor, Swarm]:
        async with asyncio.TaskGroup() as tasks:
            swarm = Swarm(tasks, config, text=text)
            swarm.on_report = lambda report: trouble(swarm, report)
            for number in range(2, 6):
                swarm.serve(number)
            return *await trained(swarm), swarm

    return run_simulated(story(), seed=1)


def commits(swarm: Swarm) -> list[CommitRecord]:
    records = swarm.context.chain.store.records(0, 1_000)
    return [record for record in records if record.kind == RecordKind.COMMIT]


def kill_one(swarm: Swarm, report: Report) -> None:
    if isinstance(report, StepDone) and report.step in (1, 4, 7):
        number = min(swarm.running)
        asyncio.get_running_loop().call_later(0.3, swarm.kill, number)
        asyncio.get_running_loop().call_later(1.5, swarm.serve, 20 + report.step)


@pytest.mark.parametrize("blocking", [False, True])
def test_the_weights_are_those_of_a_loop_that_divides_by_the_steps_targets(blocking: bool):
    ended, weights, swarm = train(MARKED, marked_corpus(blocking=blocking), kill_one)

    assert not ended.failed, ended.reason
    assert len(swarm.of_kind(MemberLost)) >= 3
    expected, losses = plain()
    assert distance(weights, expected) <= 1e-14
    assert [done.loss for done in swarm.of_kind(StepDone)] == pytest.approx(losses, nan_ok=True)
    assert [done.loss for done in swarm.of_kind(StepDone)][SILENT_STEP] != 0.0


def test_a_mean_of_means_is_another_gradient():
    """What the test above would miss if it could not fail: each microbatch weighs alike."""
    loop, text = ReferenceTrainer(MARKED, rounded=False), marked_corpus()
    each = [nats_and_targets(loop, text.microbatch(number)) for number in range(SIZE)]
    leaves = [leaf for block in loop.flat.blocks for leaf in block.parameters()]
    whole = sum(nats for nats, _ in each) / sum(count for _, count in each)
    means = sum(nats / max(1, count) for nats, count in each) / SIZE

    found, other = (
        torch.cat([part.reshape(-1) for part in torch.autograd.grad(x, leaves, retain_graph=True)])
        for x in (whole, means)
    )

    assert distance(other, found) > 0.1


def test_the_held_out_loss_is_over_targets_too():
    ended, _, swarm = train(MARKED, marked_corpus())

    assert not ended.failed
    loop, text = ReferenceTrainer(MARKED, rounded=False), marked_corpus()
    batches = [text.held_out_batch(n) for n in range(MARKED.batch.evaluate_microbatches)]
    each = [nats_and_targets(loop, batch) for batch in batches]
    expected = sum(nats.item() for nats, _ in each) / sum(count for _, count in each)
    assert swarm.of_kind(HeldOut)[0].nats_per_token == pytest.approx(expected)


def test_the_record_of_a_step_counts_its_targets_and_its_scale_is_bounded_by_them():
    _, _, swarm = train(MARKED, marked_corpus())

    text, records = marked_corpus(), commits(swarm)
    assert len(records) == STEPS
    for record in records:
        numbers = range(record.first, record.first + record.count)
        targets = sum(targets_in(text.microbatch(number)) for number in numbers)
        assert record.stages[-1].targets == targets
        assert all(stage.targets is None for stage in record.stages[:-1])
        most = MARKED.step_tokens / targets if targets else 0.0
        assert record.scale <= most
        norm = record.gradient_norm
        clip = min(1.0, MARKED.optimizer.clip_norm / (norm + 1e-6))
        assert record.scale == pytest.approx(most * clip, rel=1e-12)


def test_a_run_in_which_all_tokens_are_targets_counts_none():
    ended, _, swarm = train(CONFIG, corpus())

    assert not ended.failed
    records = commits(swarm)
    assert len(records) == STEPS
    assert all(stage.targets is None for record in records for stage in record.stages)
