"""Trains a run in one process, in a plain PyTorch loop: the yardstick of other benches.

It reads the same settings file as the trainer and tells the same events, so that both are
read by the same lines. Evaluation is left out.

    python bench/plain_training.py --config run.toml --weights plain.safetensors

With `--chain FILE` it rounds each step as the records in that file say.
"""

import argparse
import dataclasses
import shutil
import tempfile
import time
from pathlib import Path

import torch

from p2pswarm.data.samples.pair_corpus import PairCorpus
from p2pswarm.data.samples.references import References
from p2pswarm.data.samples.target_marks import targets_in
from p2pswarm.models.compute.flat_parameters import named_parameters
from p2pswarm.models.compute.reference import CodecsOfStep, ReferenceTrainer
from p2pswarm.models.model_source import resolved
from p2pswarm.node.run.run_text import read_corpus, settled
from p2pswarm.node.run.weights_file import write_weights
from p2pswarm.progress.event_lines import EventNumbers
from p2pswarm.progress.events import MicrobatchCounts, Stepped
from p2pswarm.run.chain.chain import Genesis
from p2pswarm.run.chain.chain_log import HEADER_BYTES, LogReader, restore
from p2pswarm.run.chain.record import CommitRecord
from p2pswarm.run.schedule import learning_rate
from p2pswarm.settings.codec_ladder import CodecChoices
from p2pswarm.settings.config import RunConfig
from p2pswarm.settings.parser import load
from p2pswarm.trainer.step.in_flight import REFERENCE_BASE


def codecs_in(file: Path, run: RunConfig) -> CodecsOfStep:
    """What the records in a chain file choose for each step."""
    reader = LogReader(str(file))
    entries = list(reader.feed(file.read_bytes()[HEADER_BYTES:]))
    of_entry = (getattr(entry.message, "record", entry.message) for entry in entries)
    first = next(one for one in of_entry if isinstance(one, CommitRecord))
    founder, voters = (first.coordinator,), first.voters_before
    of_run = run.stages, run.batch.microbatches, founder, voters
    tokens, codecs = run.counted_tokens, CodecChoices.of(run)
    genesis = Genesis(first.run, *of_run, codecs=codecs, tokens=tokens)
    origin = genesis.after(first.step, first.prev)
    return restore(origin, iter(entries), str(file)).learner.chain.codecs


def scored(corpus: PairCorpus, loop: ReferenceTrainer) -> PairCorpus:
    """The text with the references that the first weights give."""
    place = Path(tempfile.mkdtemp()) / "references"
    kept = References(place, bytes(32), len(corpus.train_side), corpus.answers)
    for batch in kept.due(corpus.rows):
        rows = torch.from_numpy(corpus.reference_batch(batch))
        found = loop.log_probabilities(rows, REFERENCE_BASE + batch)
        kept.keep(batch * corpus.rows, found.tolist())
    shutil.rmtree(place.parent)
    return dataclasses.replace(corpus, references=kept)


def trained(config_file: Path, device: torch.device, *, rounded: bool) -> ReferenceTrainer:
    """The loop of another run, at its end."""
    config = settled(load(config_file))
    run, batch, corpus = resolved(config.run), config.run.batch, read_corpus(config)
    loop = ReferenceTrainer(run, device, rounded=rounded)
    for step in range(run.steps):
        numbers = range(step * batch.microbatches, (step + 1) * batch.microbatches)
        microbatches = [corpus.microbatch(n) for n in numbers]
        loop.add_all([torch.from_numpy(each) for each in microbatches])
        targets = sum(map(targets_in, microbatches)) if batch.marked else None
        loop.commit(learning_rate(run, step), targets)
    return loop


def main() -> None:
    """Train to the last step."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--weights", type=Path, help="written at the end")
    parser.add_argument("--former", type=Path, help="a run that is trained before, and begun from")
    parser.add_argument("--chain", type=Path, help="the run's records, which choose its codecs")
    parser.add_argument("--rounded", action="store_true", help="as the run's codecs round")
    options = parser.parse_args()
    config = settled(load(options.config))
    run, batch = resolved(config.run), config.run.batch
    corpus = read_corpus(config)
    device = torch.device(options.device)
    codecs = codecs_in(options.chain, run) if options.chain else lambda _step: ()
    loop = ReferenceTrainer(run, device, rounded=options.rounded, codecs=codecs)
    if options.former:
        loop.begin_from(trained(options.former, device, rounded=options.rounded))
    if run.objective.refers:
        assert isinstance(corpus, PairCorpus), "the objective takes pairs"
        corpus = scored(corpus, loop)
    begun_s, quarantined = time.perf_counter(), 0
    events = EventNumbers("", "plain", time.time)
    for step in range(run.steps):
        numbers = range(step * batch.microbatches, (step + 1) * batch.microbatches)
        microbatches = [corpus.microbatch(n) for n in numbers]
        losses = loop.add_all([torch.from_numpy(each) for each in microbatches])
        rate = learning_rate(run, step)
        targets = sum(map(targets_in, microbatches)) if run.counts_targets else None
        norm = loop.commit(rate, targets)
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - begun_s
        done = (step + 1) * batch.microbatches
        tokens = done * batch.rows * run.model.sequence_length
        quarantined += batch.microbatches - len(losses)
        loss = sum(losses) / len(losses) if losses else float("nan")
        counts = MicrobatchCounts(done, done - quarantined, 0, quarantined)
        event = Stepped(step + 1, loss, tokens / seconds, rate, norm, counts, seconds=seconds)
        print(events.stamp(event).line, flush=True)
    if options.weights:
        parameters = named_parameters(loop.flat.numbers, loop.flat.blocks)
        named = ((name, parameter.detach().cpu()) for name, parameter in parameters)
        write_weights(options.weights, named, "plain loop")


if __name__ == "__main__":
    main()
