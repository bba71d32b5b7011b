"""A trainer: starts a run on the user's text, shows its progress, and writes the weights."""

import asyncio
import contextlib
import dataclasses
import functools
import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from random import Random

import torch

from p2pswarm.base.errors import RunEnded, SwarmError, Unusable
from p2pswarm.base.exit_codes import DONE
from p2pswarm.base.files import Written, write_text
from p2pswarm.base.ids import PeerId
from p2pswarm.base.problems import Problems
from p2pswarm.checkpoint.checkpoint_io import on_thread
from p2pswarm.checkpoint.weights_name import weights_name
from p2pswarm.data.chats.template import template_beside
from p2pswarm.data.samples.corpus import Corpus
from p2pswarm.data.tokenizer import tokenizer_beside
from p2pswarm.discovery.gossip.messages import RunRole
from p2pswarm.discovery.gossip.record import Activity, FigureKey, RoleKind, figures
from p2pswarm.models.blocks import stage_blocks
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.rpc.base import Rpc
from p2pswarm.node.alone import stages_here
from p2pswarm.node.owner_requests import OwnerRequests
from p2pswarm.node.progress.answers import LatestBalance, LatestStatus
from p2pswarm.node.progress.common_events import begun
from p2pswarm.node.progress.cost_io import CostKeeper
from p2pswarm.node.progress.curves import recorded
from p2pswarm.node.progress.event_hub import EventHub, numbers_of
from p2pswarm.node.progress.event_log import open_event_log
from p2pswarm.node.progress.notify_io import AlertSource, notified
from p2pswarm.node.progress.output import date_time, output
from p2pswarm.node.progress.reporter import Reporter
from p2pswarm.node.progress.wandb_curves import sent
from p2pswarm.node.progress.why import StepReports
from p2pswarm.node.run.closed_run import has_invitation, may_vote, run_calls, until_out
from p2pswarm.node.run.discovery import announce, announce_end, ends, offered
from p2pswarm.node.run.preparation import PreparedRun, check_run, prepare_run
from p2pswarm.node.run.references import keep_references, with_references
from p2pswarm.node.run.resume import proof_of, saving_plan
from p2pswarm.node.run.run_budget import account_of, check_budget, own_price, spent_before
from p2pswarm.node.run.run_entry import RunEntry, enter_run
from p2pswarm.node.run.run_members import keep_saying, run_directory, trainers_named
from p2pswarm.node.run.run_text import describe
from p2pswarm.node.run.weights_file import model_size, state_sizes, write_run
from p2pswarm.node.serve import check as check_server
from p2pswarm.node.serve import tensors_within
from p2pswarm.node.shutdown import LeaveRequest, unless
from p2pswarm.node.stack.machine_name import machine_name
from p2pswarm.node.stack.stack import NodeStack, Say
from p2pswarm.progress.events import Event, Report
from p2pswarm.run.access.grant import Access
from p2pswarm.run.manifest import RunIdentity
from p2pswarm.run.messages.balance import AskBalance, AskCapacities, BalanceStatus, RunCapacities
from p2pswarm.run.messages.cost import Spent
from p2pswarm.run.messages.field_limits import REASON_CHARS
from p2pswarm.run.messages.run import RunOver
from p2pswarm.run.messages.status import AskStatus, RunStatus
from p2pswarm.run.messages.waits import AskWhy, RunWhy
from p2pswarm.run.schedule import delay_cost
from p2pswarm.settings.config import RunConfig
from p2pswarm.settings.node_config import NodeConfig
from p2pswarm.trainer.balance.balance_reports import BalanceReport
from p2pswarm.trainer.coordinator_io.trainer_context import TrainerContext, raised
from p2pswarm.trainer.leadership.participant import Trainer
from p2pswarm.trainer.reports.leadership import Leads
from p2pswarm.trainer.reports.reports import ReferencesKnown, RunFinished, WentBack
from p2pswarm.web.health import HealthAnswer

SAVE_S = 2.0  # Ctrl-C ends the process within 5 s: enough to fetch a small model's weights
MEET_EVERY_S = 5.0  # a standby looks for other trainers; the coordinator tells it of most

log = logging.getLogger(__name__)


def prepare(config: NodeConfig, identity: Identity, say: Say) -> PreparedRun:
    """Return what a trainer needs no swarm for; its input is wrong before its node begins."""
    return prepare_run(config, identity.peer_id.short, say)


def check(config: NodeConfig, problems: Problems) -> None:
    """Tell `problems` all that would keep this role from beginning."""
    check_run(config, problems)
    if config.train.alone:
        check_server(config, problems)


async def run(
    stack: NodeStack, prepared: PreparedRun, leaving: LeaveRequest, say: Say, _owner: OwnerRequests
) -> int | None:
    """Train from the first step to the last; None if asked to leave before."""
    config, tokenizer, corpus = prepared.config, prepared.tokenizer, prepared.corpus
    stack = dataclasses.replace(stack, config=config)
    _remark(config, say)
    say(describe(corpus, tokenizer))
    entry = await unless(leaving, enter_run(stack, prepared.text, say, prepared.resumed))
    if entry is None:
        return None
    config = dataclasses.replace(config, run=entry.identity.config)  # it may be closed by another
    stack = dataclasses.replace(stack, config=config)
    words, lost = list[str](), LostText(leaving)
    before = spent_before(config.state, entry.identity.run, entry.resumed)
    check_budget(config.train, before)
    try:
        async with (
            _shown(config, entry, event_hub(stack, entry)) as shown,
            accounted(config, entry, before, shown) as account,
            _alone(stack, entry.identity, say),
            open_trainer(stack, corpus, account.tell, entry, lost.on_loss, account) as trainer,
        ):
            show_trainer(stack, config.run.name, trainer)
            ended = await unless(leaving, unless(account.spent, trainer.run()))
            broke = account.spent.is_set() and ended is None and not leaving.is_set()
            if ended is not None and ended.failed:
                leaving.set()  # nothing is left to do; this starts the time limit of leaving
            with leaving.saved():
                ask = ended is None and not broke  # who asked to leave may ask again
                await _save_state(trainer, config, ended, say if ask else log.info)
                patient = broke or leaving.patient
                words.append(await _save(trainer, config, ended, prepared, patient=patient))
            words.append(account.text())
            if broke:
                trainer.end(account.reason)
            if ended is not None and not ended.failed:
                await asyncio.to_thread(entry.finished)
                await _leave_word(stack, entry.identity, trainer, ended)
    finally:
        for word in filter(None, words):  # also if the folder of `state` cannot be written any more
            say(word)
    if lost.reason is not None:
        raise lost.reason
    if ended is None:
        return DONE if broke else None
    if ended.failed:
        raise RunEnded(ended.reason)
    return DONE


def _remark(config: NodeConfig, say: Say) -> None:
    """Say what a run's settings cost that people may not know."""
    if config.run.emulated:
        say("run.emulated: a rehearsal; its servers compute nothing, and its weights are worthless")
    if config.run.delay:
        less = "" if config.run.delay_correction else ", and less with delay_correction"
        cost = f"{delay_cost(config.run)} of loss at equal steps"
        say(f"run.delay 1 costs {cost}, less in a long run{less} (docs/delay.md)")
    train = config.train
    if train.budget and not config.checkpoint.target:
        say(
            "train.budget without checkpoint.target: at its end the weights alone are saved, so the"
            " run could not go on"
        )


def _alone(stack: NodeStack, run: RunIdentity, say: Say) -> AbstractAsyncContextManager[None]:
    """The servers of a trainer that needs no other machine."""
    if not stack.config.train.alone:
        return contextlib.nullcontext()
    return stages_here(stack, run, say)


class LostText:
    """A text that cannot be read any more: the trainer leaves, and saves first what was learnt."""

    def __init__(self, leaving: LeaveRequest) -> None:
        self.reason: Unusable | None = None
        self._leaving = leaving

    def on_loss(self, reason: Unusable) -> None:
        """Leave because samples could not be read."""
        self.reason = self.reason or reason
        self._leaving.patient = True
        self._leaving.set()


def event_hub(stack: NodeStack, entry: RunEntry) -> EventHub:
    """Return what numbers the events of this process, and passes them on."""
    hub = EventHub(numbers_of(entry.identity.run, stack.identity.peer_id))
    if stack.page is not None:
        hub.show_on(stack.page.page, asyncio.get_running_loop().time)
    return hub


@contextlib.asynccontextmanager
async def _shown(
    config: NodeConfig, entry: RunEntry, hub: EventHub
) -> AsyncIterator[Callable[[Event], None]]:
    """Give what shows an event, writes it to the log, and writes and sends the curves."""
    name, train = config.run.name, config.train
    async with output(train.progress, f"run {name}") as show:
        hub.listen(show)
        with (
            recorded(train.curves, hub.tell, entry.identity.run.hex(), date_time) as told,
            contextlib.ExitStack() as sending,
        ):
            hub.listen(sending.enter_context(open_event_log(train.log, "train.log")))
            yield sending.enter_context(sent(train.wandb, entry.identity, told))
            await asyncio.to_thread(sending.close)  # it may wait for the service, and others for us


@contextlib.asynccontextmanager
async def accounted(
    config: NodeConfig, entry: RunEntry, before: Spent | None, tell: Callable[[Event], None]
) -> AsyncIterator[CostKeeper]:
    """Give the account of what the run costs, whose `tell` also wakes the owner."""
    source = AlertSource(config.run.name, entry.identity.run.hex())
    async with notified(config.train.notify, source, tell) as both:
        yield account_of(config, entry, before, both)


class RunReports:
    """The trainer's reports as events for `tell`, and as the answers to who asks about the run."""

    def __init__(
        self,
        rpc: Rpc,
        identity: RunIdentity,
        tell: Callable[[Event], None],
        stack: NodeStack,
        done: int,
        account: CostKeeper,
    ) -> None:
        """`done`: the steps that are decided, as far as this trainer knows."""
        self._bans, self._links = stack.endpoint.bans, stack.endpoint.links
        run = identity.config
        parameters = model_size(run).parameters
        self._reporter = Reporter(run, parameters, done)
        size = run.batch.microbatches, run.steps
        self._status = LatestStatus(identity.run, run.stages, done, *size)
        self._tell, self._account = tell, account
        self._invited = functools.partial(has_invitation, rpc)
        self._loop = asyncio.get_running_loop()
        self._balance = LatestBalance(identity.run, run.balance.rule)
        rpc.serve_unary(AskStatus, self._status_of)
        rpc.serve_unary(AskBalance, self._balance_of)
        self._why = StepReports(identity.run)
        rpc.serve_unary(AskWhy, self._why_of)
        rpc.serve_unary(AskCapacities, self._capacities)
        cut = tuple(len(stage_blocks(run, stage)) for stage in range(run.stages))
        tell(begun(run, "trainer", machine_name(stack.config), cut, parameters, done))

    def on_report(self, report: Report) -> None:
        """Take a report of the trainer."""
        now_s = self._loop.time()
        if isinstance(report, BalanceReport):
            self._balance.on_report(report, now_s)
        if isinstance(report, Leads | WentBack):
            self._status.go_on_after(report.version)
        self._account.on_report(report, self._invited)
        told = self._reporter.on_report(report, now_s)
        for event in [*told, *self._why.on_report(report, now_s, self._reporter.named)]:
            self._status.on_event(event, now_s)
            self._tell(event)

    def _status_of(self, peer: PeerId, question: AskStatus) -> RunStatus:
        now_s = self._loop.time()
        may_know = self._invited(peer.raw, Access.WATCH | Access.SERVE | Access.TRAIN)
        spent = self._account.cost.spent(now_s) if may_know else None
        bans, name = self._bans.current(now_s), self._reporter.name
        return self._status.answer(question, now_s, bans, name, spent)

    def _balance_of(self, _peer: PeerId, question: AskBalance) -> BalanceStatus:
        return self._balance.answer(question, self._loop.time(), self._reporter.name)

    def _why_of(self, _peer: PeerId, question: AskWhy) -> RunWhy:
        return self._why.answer(question, self._loop.time(), self._reporter.name)

    def _capacities(self, _peer: PeerId, question: AskCapacities) -> RunCapacities:
        rtts_s = {link.peer.raw: link.rtt_s for link in self._links() if link.rtt_s > 0}
        return self._balance.capacities(question, rtts_s)


@contextlib.asynccontextmanager
async def open_trainer(
    stack: NodeStack,
    corpus: Corpus,
    tell: Callable[[Event], None],
    entry: RunEntry,
    text_lost: Callable[[Unusable], None] = raised,
    account: CostKeeper | None = None,
) -> AsyncIterator[Trainer]:
    """Offer the run of the settings to the swarm and train it while this block lasts.

    `tell` is called with every event as it happens, `text_lost` when the text cannot be read any
    more. `account`: adds up what the run costs; None: one of its own does.
    """
    if account is None:
        before = spent_before(stack.config.state, entry.identity.run, entry.resumed)
        check_budget(stack.config.train, before)
        account = account_of(stack.config, entry, before, tell)
    corpus = await on_thread(functools.partial(_referring, stack.config, corpus, entry))
    try:
        async with (
            run_calls(stack, entry.identity, log.warning) as rpc,
            run_directory(stack, rpc, entry.identity.run) as directory,
            asyncio.TaskGroup() as tasks,
        ):
            context = await _context(stack, rpc, corpus, tell, entry, text_lost, account)
            reported = context.report

            def report(news: Report) -> None:
                reported(news)
                if isinstance(news, ReferencesKnown) and news.complete:
                    tasks.create_task(_keep(stack.config, corpus))

            context = dataclasses.replace(context, report=report)
            announcing = tasks.create_task(announce(stack, entry.identity))
            counting = tasks.create_task(account.run())
            out = tasks.create_task(until_out(rpc))
            async with Trainer(context) as trainer:
                directory.enter_through(entry.trainers)
                meeting = tasks.create_task(_meet_others(stack, entry.identity, trainer))
                saying = tasks.create_task(keep_saying(directory, lambda: standing_of(trainer)))
                yield trainer
                meeting.cancel()
                saying.cancel()
            announcing.cancel()
            counting.cancel()
            out.cancel()
    finally:
        await account.write()
        entry.place.store.close()


def _referring(config: NodeConfig, corpus: Corpus, entry: RunEntry) -> Corpus:
    """The text with the references of a run that compares with them, as far as they are known."""
    run = entry.identity.config
    model = dataclasses.replace(run.model, folder=config.run.model.folder)
    config = dataclasses.replace(config, run=dataclasses.replace(run, model=model))
    found = with_references(config, corpus, entry.identity.origin, entry.resumed)
    keep_references(config, found)
    return found


async def _keep(config: NodeConfig, corpus: Corpus) -> None:
    """Write references where the next run and checkpoints have them."""
    try:
        await asyncio.to_thread(keep_references, config, corpus)
    except Unusable as error:
        log.warning("%s", error)


async def _context(
    stack: NodeStack,
    rpc: Rpc,
    corpus: Corpus,
    tell: Callable[[Event], None],
    entry: RunEntry,
    text_lost: Callable[[Unusable], None],
    account: CostKeeper,
) -> TrainerContext:
    config, identity = stack.config, entry.identity
    done = entry.place.restored.learner.chain.head.version
    saving = await on_thread(
        lambda: saving_plan(config.checkpoint, stack.identity, identity.corpus)
    )
    return TrainerContext(
        rpc=rpc,
        cards=stack.cards,
        tensors=tensors_within(config.network, torch.device("cpu")),
        run=identity.config,
        run_id=identity.run,
        corpus=corpus,
        report=RunReports(rpc, identity, tell, stack, done, account).on_report,
        rng=Random(os.urandom(32)),
        chain=entry.place,
        trainers=entry.trainers,
        saving=saving,
        origin=entry.resumed,
        began=identity.origin,
        proof=proof_of(identity, entry.resumed, verify_base=config.train.verify_base),
        text_lost=text_lost,
        may_vote=functools.partial(may_vote, rpc),
        cost=account.cost,
        price=own_price(config.train),
    )


def show_trainer(stack: NodeStack, name: str, trainer: Trainer) -> None:
    """Say what this trainer does to probes, and to its owner if there is a page."""

    def state() -> HealthAnswer:
        if trainer.leads:
            return HealthAnswer(ok=True, why="leads the run")
        if trainer.watch.enlisted:
            return HealthAnswer(ok=True, why="stands by")
        return HealthAnswer(ok=False, why="looks for the trainer that leads")

    stack.health.of_role = state
    if stack.page is not None:
        stack.page.of_role = lambda: {"run": name, "state": state().why}


def standing_of(trainer: Trainer) -> RunRole:
    """Return what a trainer says of itself in the run's directory."""
    activity = Activity.WORKING if trainer.leads else Activity.STANDING_BY
    return RunRole(RoleKind.TRAINER, activity, None, figures({FigureKey.TERM: float(trainer.term)}))


async def _meet_others(stack: NodeStack, run: RunIdentity, trainer: Trainer) -> None:
    """Tell a trainer that stands by who offers its run, or that it is over; until cancelled."""
    me = stack.identity.peer_id
    while True:
        if not trainer.leads:
            found = [one for one in await offered(stack, run.run) if one.peer != me]
            if (directory := stack.directories.get(run.run)) is not None:
                directory.enter_through(found)
            alone = not trainer.watch.enlisted
            trainer.on_trainers([*found, *(trainers_named(stack, run.run) if alone else ())])
            lost = not trainer.watch.enlisted  # else the coordinator says when the run is over
            for said_by, over in await ends(stack, run.config, run.corpus) if lost else ():
                trainer.on_run_over(said_by, over)
        await asyncio.sleep(MEET_EVERY_S)


async def _leave_word(
    stack: NodeStack, run: RunIdentity, trainer: Trainer, ended: RunFinished
) -> None:
    if trainer.leads:
        reason = ended.reason[:REASON_CHARS]
        await announce_end(stack, run, RunOver(run.run, run.config.steps, reason))


async def _save_state(
    trainer: Trainer, config: NodeConfig, ended: RunFinished | None, say: Say
) -> None:
    """Have the last version saved, if the run has checkpoints; events tell how far that is."""
    if not config.checkpoint.target or (ended is not None and ended.failed):
        return
    if ended is None:
        say("saving a checkpoint; Ctrl-C leaves without it")
    await trainer.save_state()


async def _save(
    trainer: Trainer,
    config: NodeConfig,
    ended: RunFinished | None,
    prepared: PreparedRun,
    *,
    patient: bool,
) -> str:
    """Fetch and write the weights; returns what to print about it.

    `patient`: who asked to leave can ask again, and is not kept by a limit of ours.
    """
    path = config.train.weights
    if path is None or (ended is not None and ended.failed):
        return ""
    if not trainer.leads:
        return "" if ended is None else "the trainer that coordinated the run has the weights"
    try:
        async with asyncio.timeout(SAVE_S if ended is None and not patient else None):
            written = await save(trainer, config.run, path, prepared, named=True)
    except TimeoutError:
        return "left before the weights could be fetched"
    except SwarmError as error:
        if ended is None:
            return f"left without the weights: {error}"
        raise
    return f"weights: {written}"


async def save(
    trainer: Trainer,
    run_config: RunConfig,
    path: Path,
    prepared: PreparedRun | None = None,
    *,
    named: bool = False,
) -> Written:
    """Fetch the weights from their servers and write them; returns where they are.

    `named`: the run's name and the step are added to the name of the file.
    """
    snapshots = await trainer.weights(state_sizes(run_config))
    if named:
        step = min(snapshot.version for snapshot in snapshots)
        path = weights_name(path, run_config, step)
    written = await asyncio.to_thread(write_run, path, run_config, snapshots)
    for place, text in _beside(written.path, prepared).items():
        await asyncio.to_thread(write_text, place, text)
    return written


def _beside(weights: Path, prepared: PreparedRun | None) -> dict[Path, str]:
    """What is written beside weights: without it nobody can write to them."""
    files = dict[Path, str]()
    if prepared is not None and prepared.tokenizer is not None:
        files[tokenizer_beside(weights)] = prepared.tokenizer.text
    if prepared is not None and prepared.template is not None:
        files[template_beside(weights)] = prepared.template.as_json
    return files
