"""The context of a trainer: all that it is given once, by the code that composes it."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from p2pswarm.base.errors import Unusable
from p2pswarm.base.ids import Contact
from p2pswarm.data.samples.corpus import Corpus
from p2pswarm.net.rpc.base import Rpc
from p2pswarm.progress.events import Report
from p2pswarm.run.member_cards import NO_CARDS, MemberCards
from p2pswarm.run.messages.cost import NO_PRICE, MachinePrice
from p2pswarm.run.messages.run import RunOrigin
from p2pswarm.settings.config import RunConfig
from p2pswarm.tensors.transfer import TensorTransfer
from p2pswarm.trainer.balance.codec_choice import CodecRules, MeasuredCodecs
from p2pswarm.trainer.coordinator_io.chain_start import ChainStart
from p2pswarm.trainer.coordinator_io.checkpoints import ResumedFrom, SavingPlan
from p2pswarm.trainer.members.run_cost import RunCost

Proof = Callable[[int], Iterator[bytes]]
"""Makes the digest of a stage's state, in steps; the last value counts. Blocks, raises Unusable."""


def raised(reason: Unusable) -> None:
    """End the trainer with the reason why its text cannot be read."""
    raise reason


@dataclass(frozen=True, slots=True)
class TrainerContext:
    """The network, the run and its text."""

    rpc: Rpc
    tensors: TensorTransfer
    run: RunConfig
    run_id: bytes
    corpus: Corpus
    report: Callable[[Report], None]
    """Called with news for people, as it happens."""
    rng: random.Random
    """Differs from start to start: attempts to lead are named by it."""
    chain: ChainStart
    trainers: tuple[Contact, ...] = ()
    """Other trainers of the run, as far as they are known."""
    saving: SavingPlan | None = None
    """Target and times of checkpoints; None: there are none."""
    origin: ResumedFrom | None = None
    """Origin of the run, and where it lies; None: first weights, or it is not known where."""
    began: RunOrigin | None = None
    """Origin of the run, which its id covers; None: the first weights."""
    cards: MemberCards = NO_CARDS
    proof: Proof | None = None
    """Makes the digests of what the run begins with; None: what its members say is believed."""
    text_lost: Callable[[Unusable], None] = raised
    """Called when samples cannot be read any more; what it does not raise is waited for."""
    codec_rule: CodecRules = MeasuredCodecs
    """Makes the rule that chooses codecs, in a run that measures for it."""
    cost: RunCost | None = None
    """What the run has cost, for standbys and for checkpoints; None: nobody adds it up."""
    price: MachinePrice = NO_PRICE
    """Of this trainer's own machine."""
    may_vote: Callable[[bytes], bool] = lambda _server: True
    """Whether a server may be named as a voter: in an open run not all may."""
