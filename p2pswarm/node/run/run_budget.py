"""What a run had cost before its trainer began, and whether its budget lets it begin.

Errors:  Unusable, one line, for a budget that is spent, or sums in another currency.
"""

from collections.abc import Callable
from pathlib import Path

from p2pswarm.base.errors import Unusable
from p2pswarm.node.progress.cost_file import cost_file, read_cost
from p2pswarm.node.progress.cost_io import CostKeeper, CostPlan
from p2pswarm.node.run.run_entry import RunEntry
from p2pswarm.node.run.run_folder import RunFolder
from p2pswarm.progress.budget import money
from p2pswarm.progress.events import Event
from p2pswarm.run.messages.cost import MachinePrice, Spent
from p2pswarm.settings.node_config import NodeConfig
from p2pswarm.settings.train_config import TrainConfig
from p2pswarm.trainer.coordinator_io.checkpoints import ResumedFrom
from p2pswarm.trainer.members.run_cost import CostTerms, RunCost


def spent_before(
    state: Path | None, run: bytes | None, resumed: ResumedFrom | None
) -> Spent | None:
    """What was spent by this machine's account, or by the checkpoint's: whichever says more.

    `run`: the one that the folder goes on with, if it is known. A new run from another one's
    weights begins with nothing.
    """
    found = []
    runs = [run] if run is not None else []
    if resumed is not None and not resumed.origin.anew:
        runs.append(resumed.origin.run)
        found += [resumed.spent] if resumed.spent is not None else []
    if state is not None:
        kept = [read_cost(cost_file(state, each)) for each in runs]
        found += [spent for spent in kept if spent is not None]
    return max(found, key=lambda spent: spent.total, default=None)


def own_price(train: TrainConfig) -> MachinePrice:
    """The price of the trainer's own machine."""
    return MachinePrice(train.price_per_hour, train.currency)


def account_of(
    config: NodeConfig, entry: RunEntry, before: Spent | None, tell: Callable[[Event], None]
) -> CostKeeper:
    """What adds up the cost of a run from now on."""
    train, run = config.train, entry.identity.config
    terms = CostTerms(train.currency, train.price_per_hour, train.price_limit)
    cost = RunCost(terms, (run.batch.microbatches, run.step_tokens), before)
    file = None if config.state is None else cost_file(config.state, entry.identity.run)
    return CostKeeper(cost, CostPlan(train.budget, file, bool(config.checkpoint.target)), tell)


def check_budget(train: TrainConfig, before: Spent | None) -> None:
    """Raise Unusable if nothing is left of the budget."""
    if before is None:
        return
    if before.currency != train.currency:
        raise Unusable(
            f"the run has cost {money(before.total, before.currency)} so far, and train.currency "
            f'is "{train.currency}": set it to "{before.currency}"'
        )
    if train.budget and before.total >= train.budget:
        budget, total = money(train.budget, train.currency), money(before.total, train.currency)
        raise Unusable(
            f"train.budget is {budget}, and the run has cost {total} so far: raise it to go on"
        )


def begun_run(config: NodeConfig) -> bytes | None:
    """The run that the folder of `state` goes on with, as far as the settings tell."""
    train = config.train
    begins = train.new or train.resume or train.begin_from
    if config.state is None or not config.state.is_dir() or begins:
        return None
    saved = RunFolder(config.state).read()
    return None if saved is None or saved.finished else saved.identity.run
