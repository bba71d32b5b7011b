"""What DT-FM's own program did in an iteration, read from its code, for its logged runs.

Everything here comes from the program and its settings, or from other measurements of its authors;
no number comes from the 27 rows that it is held against (`dtfm.py`):

* **Rounds.** `scripts/aws_run_batch_gpt3.sh` makes 1,024, 2,048 and 4,096 sequences of 2, 4 and 8
  rounds of 64 for each of 8 pipelines, or of 62 with 40 layers, for want of memory. A round is
  GPipe's: all forwards, then all backwards, so it fills and drains the pipeline: n + 7 turns.
* **A turn** is what a single pipeline of theirs took with lines like its slowest one
  (`results/gpt3_xl_fp16.md`, 20 April 2022, 24 layers, 96 microbatches, so 103 turns): 8.79 s at
  5 Gbit/s and 1 ms, 10.69 s at 2 Gbit/s and 5 ms. With more layers, a turn is longer by what each
  more of them takes in Case 1, where a pipeline has the NVLink of one host. The slowest pipeline
  sets the pace.
* **Plan.** Pipelines are ranks in their order, so each stays in a region ("no special alignment").
  By chance, the ranks are shuffled, with the seed of the log's row (`generate_assignment.py`).
* **Delays** are those of the scripts that slowed the lines down: 10 ms inside a region in cases 4
  and 5 where the scheduler has 5, one way, by netem.
* **Averaging** is `--dp-mode central_ps`: NCCL reduces each parameter to the first pipeline's rank,
  then broadcasts it. Both go along NCCL's ring, which is the order of ranks, in pieces: as slow as
  the slowest link, and once the sum of the delays. Gradients are fp16, as the model is (`--fp16`).
* **The first stage is the last to be done**, and the heaviest: it has the embedding of 28,996 words
  (the vocabulary of bert-large-cased) and of 2,048 places.
* **Barriers** of all 64 processes, over gloo, after the forwards of each round and at the end.
  Profiling is on by default, so the device is waited for at each, and nothing hides them. Gloo's
  barrier has 6 turns (`gloo/barrier.cc`); a message is sent once its receiver has said it waits.

Left out: the optimizer (on the processor), TCP's slow start, what headers take.

Units:   seconds, Gbit, Gbit/s.
Source:  DS3Lab/DT-FM 69f05e50, DS3Lab/Decentralized_FM_alpha (a4841b21, 01aedd5f), gloo 1d9e62af.
"""

from dataclasses import dataclass

import numpy as np

from p2pswarm.plan.network import Floats

STAGES = PIPELINES = 8
PIPELINE_TURNS = 96 + STAGES - 1
HOPS = 2 * (STAGES - 1)
MODEL, WORDS, PLACES = 2048, 28_996, 2048
LAYER_PARAMETERS = 12 * MODEL**2 + 13 * MODEL  # four matrices and two, their biases, two norms
SINGLE_PIPELINES = (
    (10.0, 8.14, 0.0001),
    (5.0, 8.79, 0.001),
    (2.0, 10.69, 0.005),
    (1.0, 15.64, 0.01),
)
"""Of 20 April: Gbit/s, an iteration in seconds, and the delay."""
MICROBATCH_GBIT = MODEL * PLACES * 2 * 8 / 1e9  # an activation in fp16
REGION_DELAY_S = {3: 0.001, 4: 0.010, 5: 0.010}
ROUND_SEQUENCES = 512  # of all pipelines; with 40 layers it is less, and the log does not say so


@dataclass(frozen=True, slots=True)
class Parts:
    """Which parts the model has; by default all. Others show what each is worth."""

    fills: bool = True
    """Each round fills and drains the pipeline."""
    barriers: bool = True
    embedding: bool = True
    gradient_bits: int = 16


@dataclass(frozen=True, slots=True)
class LoggedRun:
    """A row of the log."""

    case: int
    layers: int
    sequences: int


def round_microbatches(layers: int) -> int:
    """Of a pipeline, so many as the memory took."""
    return 62 if layers == 40 else 64


def layer_s(first_s: dict[tuple[int, int], float]) -> float:
    """What a layer more takes in each turn, by Case 1: (layers, sequences) and seconds."""
    turn_s = {}
    for layers in (24, 40):
        turns = (4096 - 1024) // ROUND_SEQUENCES * (round_microbatches(layers) + STAGES - 1)
        turn_s[layers] = (first_s[layers, 4096] - first_s[layers, 1024]) / turns
    return (turn_s[40] - turn_s[24]) / 2


def barrier_s(delay_s_nn: Floats) -> float:
    """Gloo's barrier, if all enter it at once: in turn d, r hears from r - d and tells r + d."""
    n = len(delay_s_nn)
    done_s = np.zeros(n)
    far = 1
    while far < n:
        here = np.arange(n)
        teller, listener = (here - far) % n, (here + far) % n
        waits_s = done_s + delay_s_nn[here, teller]  # its word that it waits is at the teller
        hears_s = np.maximum(done_s[teller], waits_s) + delay_s_nn[teller, here]
        may_tell_s = np.maximum(done_s, done_s[listener] + delay_s_nn[listener, here])
        done_s = np.maximum(hears_s, may_tell_s)
        far *= 2
    return float(done_s.max())


def turn_s(gbps: float) -> float:
    """What a microbatch takes there and back, in three layers and over lines of such a rate.

    Between the measured rates by a line over the time of a transfer; below them a transfer there
    and one back take all of it.
    """
    slow = [1 / rate for rate, _, _ in SINGLE_PIPELINES]
    turns = [(took_s - HOPS * delay_s) / PIPELINE_TURNS for _, took_s, delay_s in SINGLE_PIPELINES]
    beyond = max(0.0, 1 / gbps - slow[-1])
    return float(np.interp(1 / gbps, slow, turns)) + 2 * MICROBATCH_GBIT * beyond


def averaging_s(delay_s_nn: Floats, gbps_nn: Floats, stage: int, gbit: float) -> float:
    """Reduce to the first pipeline's rank of a stage, then broadcast: twice along the ring."""
    ranks = np.arange(PIPELINES) * STAGES + stage
    reduced = np.roll(ranks, -1)  # the root's neighbour begins
    seconds = 0.0
    for chain in (reduced, ranks):
        one, other = chain[:-1], chain[1:]
        seconds += gbit / gbps_nn[one, other].min() + delay_s_nn[one, other].sum()
    return float(seconds)


def shuffled(seed: int) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    """The device of each rank in the rows by chance."""
    ranks = np.arange(1, STAGES * PIPELINES)
    np.random.RandomState(seed).shuffle(ranks)
    return np.argsort([0, *ranks])


def as_run(case: int, network: tuple[Floats, Floats]) -> tuple[Floats, Floats]:
    """Delays and rates as the scheduler has them, with the delays of the runs."""
    delay_s_nn = network[0].copy()
    apart = ~np.eye(len(delay_s_nn), dtype=bool)
    delay_s_nn[apart & (delay_s_nn == delay_s_nn[apart].min())] = REGION_DELAY_S[case]
    return delay_s_nn, network[1]


def iteration_s(
    row: LoggedRun, network: tuple[Floats, Floats], more_layer_s: float, parts: Parts | None = None
) -> float:
    """One iteration.

    `network`: the delays and rates of all pairs, in the order of ranks; `more_layer_s`: what a
    layer more than three takes in each turn.
    """
    parts = parts or Parts()
    delay_s_nn, gbps_nn = network
    turns = round_microbatches(row.layers) + (STAGES - 1) * parts.fills
    round_s = 0.0
    for first in range(0, STAGES * PIPELINES, STAGES):
        one = np.arange(first, first + STAGES - 1)
        each_s = turn_s(gbps_nn[one, one + 1].min()) + (row.layers / STAGES - 3) * more_layer_s
        there_and_back_s = 2 * delay_s_nn[one, one + 1].sum() * parts.fills
        round_s = max(round_s, turns * each_s + there_and_back_s)
    rounds = row.sequences // ROUND_SEQUENCES
    waits_s = (rounds + 1) * barrier_s(delay_s_nn) * parts.barriers
    averaged_s = 0.0
    for stage in range(STAGES):
        parameters = row.layers // STAGES * LAYER_PARAMETERS
        parameters += (WORDS + PLACES) * MODEL * (stage == 0 and parts.embedding)
        gbit = parameters * parts.gradient_bits / 1e9
        averaged_s = max(averaged_s, averaging_s(delay_s_nn, gbps_nn, stage, gbit))
    return rounds * round_s + waits_s + averaged_s
