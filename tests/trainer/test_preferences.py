"""Pairs of answers in real training: the weights are those of a plain loop, whoever dies."""

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from models.losses.test_preference import by_hand
from trainer.leadership.test_participant import CONFIG, distance, peer
from trainer.several import ManyTrainers
from trainer.test_several_trainers import after_step, ended, play, start
from trainer.test_targets import kill_one, train

from p2pswarm.data.samples.corpus import Corpus
from p2pswarm.data.samples.pair_corpus import PairCorpus, paired
from p2pswarm.data.samples.references import References
from p2pswarm.data.samples.target_marks import marked_document
from p2pswarm.models.compute.reference import ReferenceTrainer
from p2pswarm.progress.events import HeldOut, Report
from p2pswarm.run.schedule import learning_rate
from p2pswarm.settings.config import RunConfig
from p2pswarm.settings.objective import ObjectiveConfig
from p2pswarm.trainer.reports.leadership import Leads
from p2pswarm.trainer.reports.reports import MemberLost, ReferencesKnown, StepDone

PAIRS = replace(CONFIG, steps=6, batch=replace(CONFIG.batch, samples="whole", rows=4))
SIZE, ROWS = PAIRS.batch.microbatches, PAIRS.batch.rows
SETTINGS = {
    "dpo": {"beta": 0.3},
    "orpo": {"beta": 0.3},
    "simpo": {"beta": 0.3, "gamma": 0.7},
}


def config_of(name: str) -> RunConfig:
    return replace(PAIRS, objective=ObjectiveConfig(name=name, **SETTINGS[name]))


def text(seed: int, pairs: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    documents = []
    for _ in range(pairs):
        prompt = rng.integers(0, 256, rng.integers(1, 6))
        for _ in range(2):
            tokens = np.concatenate([prompt, rng.integers(0, 256, rng.integers(1, 7))])
            targets = np.arange(len(tokens)) >= len(prompt)
            documents.append(marked_document(tokens, targets))
    return np.concatenate(documents).astype("<u4")


def pair_corpus(config: RunConfig, folder: Path) -> PairCorpus:
    shape = config.batch.rows, config.model.sequence_length
    made = paired(Corpus(text(1, 30), text(2, 9), 1, config.seed, *shape), padding=0)
    if not config.objective.refers:
        return made
    kept = References(folder / "references", bytes(32), len(made.train_side), made.answers)
    return replace(made, references=kept)


def mean_loss(
    config: RunConfig, loop: ReferenceTrainer, tokens: np.ndarray, first: ReferenceTrainer
) -> torch.Tensor:
    """By hand: the mean over all pairs of a step; `first`: its weights are those of the start."""
    marked = torch.from_numpy(tokens & (1 << 24) - 1).to(torch.int64)
    labels = torch.where(marked[:, 1:] < 1 << 22, marked[:, 1:], -100)

    def scores(of: ReferenceTrainer) -> torch.Tensor:
        x = marked[:, :-1] % (1 << 22)
        for block in of.flat.blocks:
            x = block(x)
        return x

    with torch.no_grad():
        p = scores(first).log_softmax(-1).gather(2, labels.clamp(min=0)[..., None])[..., 0]
        references = (p * (labels >= 0)).sum(1)
    made = scores(loop)
    each = [
        by_hand(config.objective.name, made[k : k + 4], labels[k : k + 4], references[k : k + 4])
        for k in range(0, len(tokens), 4)
    ]
    return sum(each) / len(each)


def plain(config: RunConfig, text: PairCorpus) -> tuple[torch.Tensor, list[float]]:
    """A loop that has all pairs of a step at hand; its weights and losses."""
    loop, first = (ReferenceTrainer(config, rounded=False) for _ in range(2))
    losses = []
    for step in range(config.steps):
        tokens = np.concatenate(
            [text.microbatch(number) for number in range(step * SIZE, (step + 1) * SIZE)]
        )
        loss = mean_loss(config, loop, tokens, first)
        leaves = [leaf for block in loop.flat.blocks for leaf in block.parameters()]
        found = torch.autograd.grad(loss, leaves)
        with torch.no_grad():
            flat = torch.cat([part.reshape(-1) for part in found])
            loop.flat.sum_N[: len(flat)] = flat
            scale = min(1.0, config.optimizer.clip_norm / (flat.norm().item() + 1e-6))
        loop.apply(scale, learning_rate(config, step))
        losses.append(loss.item())
    return loop.flat.params_N.detach(), losses


@pytest.mark.parametrize("name", ["dpo", "orpo", "simpo"])
def test_the_weights_are_those_of_a_plain_loop_over_pairs_whoever_dies(name: str, tmp_path: Path):
    config = config_of(name)
    corpus = pair_corpus(config, tmp_path)

    ended, weights, swarm = train(config, corpus, kill_one)

    assert not ended.failed, ended.reason
    assert len(swarm.of_kind(MemberLost)) == 2
    expected, losses = plain(config, corpus)
    assert distance(weights, expected) <= 1e-14
    assert [done.loss for done in swarm.of_kind(StepDone)] == pytest.approx(losses, rel=1e-12)
    if name == "dpo":  # its first model is its reference
        assert losses[0] == pytest.approx(np.log(2), rel=1e-12)
    loop = ReferenceTrainer(config, rounded=False)
    batches = [corpus.held_out_batch(n) for n in range(config.batch.evaluate_microbatches)]
    held_out = np.mean([mean_loss(config, loop, batch, loop).item() for batch in batches])
    assert swarm.of_kind(HeldOut)[0].nats_per_token == pytest.approx(held_out, rel=1e-12)


class ManyReaders(ManyTrainers):
    """Trainers of one text, each with a file of references of its own."""

    folder: Path

    def text_of(self, name: str) -> PairCorpus:
        (self.folder / name).mkdir(exist_ok=True)
        return pair_corpus(self.config, self.folder / name)


def test_whoever_dies_while_references_are_computed_and_whoever_leads_then_has_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    config = config_of("dpo")
    monkeypatch.setattr("trainer.test_several_trainers.ManyTrainers", ManyReaders)
    monkeypatch.setattr(ManyReaders, "folder", tmp_path, raising=False)
    seen: list[tuple[str, int]] = []

    async def story(many: ManyReaders) -> None:
        def heard(name: str, report: Report) -> None:
            if not isinstance(report, ReferencesKnown):
                return
            seen.append((name, report.known))
            if report.known < 50:
                many.servers.pop(2).cancel()
                many.world.kill(peer(2), silent=False)
                many.heard = again
                many.serve(7)

        def again(name: str, report: Report) -> None:
            if isinstance(report, ReferencesKnown):
                seen.append((name, report.known))
                if report.known > 40:  # the coordinator dies before all are there, and comes back
                    many.heard = lambda name, report: None
                    asyncio.get_running_loop().call_soon(comes_back)

        def comes_back() -> None:
            many.kill("a")
            many.train("a")
            after_step(many, 2, many.kill)

        many.text_of("b").references.keep(0, [-1.0] * 78)  # of another pass
        many.heard = heard
        await start(many)
        await ended(many, "b")

    many = play(story, config)

    corpus = pair_corpus(config, tmp_path / "a")
    expected, _ = plain(config, corpus)
    (weights,) = [one.weights for one in many.trainers.values() if one.weights is not None]
    assert distance(weights, expected) <= 1e-14
    assert {name for name, known in seen} == {"a"}
    assert [name for name, _ in many.of_kind(Leads)] == ["a", "a", "b"]
    other = pair_corpus(config, tmp_path / "b").references
    assert corpus.references.complete
    assert np.array_equal(other.train, corpus.references.train)
