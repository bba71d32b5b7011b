"""The money of a run: who counts, from when to when, in which sum, and what a liar can do."""

import math
from random import Random

import pytest

from p2pswarm.net.wire.message import encode
from p2pswarm.run.member_view import Incarnation
from p2pswarm.run.messages.balance import Capacity
from p2pswarm.run.messages.cost import MachinePrice, Spent
from p2pswarm.run.messages.field_limits import MEMBERS_MAX
from p2pswarm.run.messages.membership import Load
from p2pswarm.trainer.members.run_cost import AWAY_S, CURRENCIES_MAX, CostTerms, RunCost
from p2pswarm.trainer.reports.reports import (
    Loaded,
    MemberJoined,
    MemberLost,
    MemberReady,
    Replayed,
    RunFinished,
    StepDone,
    WentBack,
)

HOUR_S = 3_600.0
BATCH = 8, 1_000


def one(name: str = "a", number: int = 1) -> Incarnation:
    return Incarnation(name.encode().ljust(32, b"."), number)


class Account:
    """A trainer's account, fed as a trainer does."""

    def __init__(
        self,
        own: float = 0.0,
        limit: float = 0.0,
        currency: str = "USD",
        before: Spent | None = None,
        *,
        leads: bool = True,
    ) -> None:
        self.cost = RunCost(CostTerms(currency, own, limit), BATCH, before)
        if leads:
            self.cost.on_lead(0.0)

    def join(
        self, name: str, price: float, now_s: float, number: int = 1, *, invited: bool = True
    ) -> None:
        who = one(name, number)
        self.cost.on_price(who, MachinePrice(price), now_s, invited=invited)
        self.cost.on_member(MemberJoined(who, 0, "a:1"), now_s)

    def ready(self, name: str, now_s: float, number: int = 1) -> None:
        self.cost.on_member(MemberReady(one(name, number), 0), now_s)

    def lose(self, name: str, now_s: float, number: int = 1) -> None:
        self.cost.on_member(MemberLost(one(name, number), 0, "it is gone", 0), now_s)

    def load(self, name: str, rate_per_s: float, now_s: float) -> None:
        load = Load(0, 0.0, 0.0, rate_per_s, 0, capacity=Capacity(1.0, 2.0))
        self.cost.on_member(Loaded(one(name), 0, load), now_s)

    def step(self, step: int, now_s: float, replayed: int = 0) -> None:
        if replayed:
            self.cost.on_step(Replayed(step, tuple(range(replayed)), "lost"), now_s)
        self.cost.on_step(StepDone(step, 2.0, 1.0, 1e-3, BATCH[0]), now_s)

    def after(self, hours: float) -> Spent:
        return self.cost.spent(hours * HOUR_S)


def test_a_machine_costs_from_its_stage_to_its_end():
    account = Account()
    account.join("a", 0.5, 0.0)
    account.ready("a", 0.0)
    account.lose("a", 2 * HOUR_S)

    assert account.after(10).total == pytest.approx(1.0)
    assert account.after(10).per_hour == 0.0


def test_the_trainers_machine_costs_as_long_as_it_leads():
    account = Account(own=0.25)

    assert account.after(4).trainer == pytest.approx(1.0)
    account.cost.on_step_down(4 * HOUR_S)
    assert account.after(8).trainer == pytest.approx(1.0)


def test_a_trainer_that_stands_by_costs_while_it_does():
    account = Account()
    account.cost.on_standby(b"s" * 32, MachinePrice(1.0), 0.0)
    account.cost.on_standby(b"s" * 32, None, 3 * HOUR_S)

    assert account.after(9).trainer == pytest.approx(3.0)


def test_a_server_that_is_back_in_a_moment_was_rented_meanwhile():
    account = Account()
    account.join("a", 1.0, 0.0)
    account.lose("a", HOUR_S)
    account.join("a", 1.0, HOUR_S + AWAY_S, number=2)

    spent = account.cost.spent(2 * HOUR_S)
    assert spent.total == pytest.approx(2.0)


def test_a_server_that_was_away_for_long_is_not_charged_for_that():
    account = Account()
    account.join("a", 1.0, 0.0)
    account.lose("a", HOUR_S)
    account.join("a", 1.0, 3 * HOUR_S, number=2)

    assert account.after(4).total == pytest.approx(2.0)


def test_the_end_of_an_older_incarnation_is_not_the_end_of_the_machine():
    account = Account()
    account.join("a", 1.0, 0.0)
    account.join("a", 1.0, HOUR_S, number=2)

    account.lose("a", HOUR_S, number=1)

    assert account.after(3).total == pytest.approx(3.0)


def test_a_price_that_is_told_anew_holds_from_then_on():
    account = Account()
    account.join("a", 1.0, 0.0)
    account.join("a", 3.0, HOUR_S, number=2)

    assert account.after(2).total == pytest.approx(4.0)


def test_what_is_wasted_is_told_apart():
    account = Account()
    account.join("a", 1.0, 0.0)
    account.ready("a", HOUR_S)  # an hour of joining
    account.load("a", 0.25, HOUR_S)  # of a microbatch of 3 s: it computes three quarters
    account.step(0, 2 * HOUR_S, replayed=2)  # of ten attempts two come again
    account.cost.on_step(RunFinished("done", failed=False), 2 * HOUR_S)

    spent = account.after(4)
    assert spent.joining == pytest.approx(1.0)
    assert spent.idle == pytest.approx(0.25)
    assert spent.again == pytest.approx(0.75 * 2 / 10)
    assert spent.after_end == pytest.approx(2.0)
    assert spent.total == pytest.approx(4.0)
    assert spent.tokens == BATCH[1]


def test_steps_that_are_done_anew_were_in_vain():
    account = Account()
    account.join("a", 1.0, 0.0)
    account.ready("a", 0.0)
    for step in range(4):
        account.step(step, (step + 1) * HOUR_S)

    account.cost.on_step(WentBack(1, 4), 4 * HOUR_S)

    spent = account.after(4)
    assert spent.again == pytest.approx(3.0)
    assert spent.tokens == BATCH[1]


def test_strangers_count_for_nothing_unless_the_owner_says_so():
    account = Account()
    account.join("mine", 1.0, 0.0)
    account.join("liar", 1_000.0, 0.0, invited=False)

    spent = account.after(1)
    assert spent.total == pytest.approx(1.0)
    assert spent.uncounted == pytest.approx(1_000.0)
    assert account.cost.told_per_hour == 1_000.0


def test_a_thousand_liars_count_for_no_more_than_the_limit():
    account = Account(limit=2.0)
    for liar in range(1_000):
        account.join(f"liar {liar}", 1_000.0, 0.0, invited=False)

    spent = account.after(3)
    assert spent.others == spent.total == pytest.approx(6.0)
    assert spent.per_hour == 2.0


def test_below_the_limit_others_count_as_they_say():
    account = Account(limit=2.0)
    account.join("a", 0.5, 0.0, invited=False)
    account.join("b", 0.75, 0.0, invited=False)

    spent = account.after(2)
    assert (spent.others, spent.uncounted) == (pytest.approx(2.5), 0.0)


def test_prices_in_another_currency_are_not_counted():
    account = Account(currency="EUR")
    for number in range(3 * CURRENCIES_MAX):
        price = MachinePrice(1.0, f"A{chr(65 + number)}A")
        account.cost.on_price(one(str(number)), price, 0.0, invited=True)

    assert account.after(1).total == 0.0
    assert len(account.cost.foreign) == CURRENCIES_MAX


def test_a_run_that_goes_on_adds_to_what_it_had_cost():
    before = Spent("CHF", trainer=1.0, invited=30.0, tokens=5e6)
    account = Account(own=1.0, currency="CHF", before=before)

    spent = account.after(1)
    assert (spent.total, spent.currency, spent.tokens) == (pytest.approx(32.0), "CHF", 5e6)


def test_who_takes_over_with_another_currency_keeps_that_of_the_run():
    account = Account(own=36.0, currency="EUR", leads=False)
    account.cost.on_sums(Spent("USD", invited=10.0), 0.0)

    account.cost.on_lead(0.0)

    spent = account.after(1)
    assert (spent.currency, spent.total) == ("USD", 10.0)


def test_who_takes_over_goes_on_with_the_sums_and_pays_for_the_gap():
    account = Account(own=36.0, leads=False)
    account.cost.on_sums(Spent("USD", invited=10.0, per_hour=360.0), 100.0)

    account.cost.on_lead(110.0)  # ten seconds

    spent = account.cost.spent(110.0)
    assert spent.invited == pytest.approx(11.0)
    assert spent.trainer == pytest.approx(0.1)


def test_a_standby_that_was_cut_off_for_long_guesses_no_more_than_a_minute():
    account = Account(leads=False)
    account.cost.on_sums(Spent("USD", invited=10.0, per_hour=60.0), 0.0)

    account.cost.on_lead(24 * HOUR_S)

    assert account.cost.spent(24 * HOUR_S).invited == pytest.approx(10.0 + AWAY_S / 60.0)


def test_a_coordinator_takes_no_sums_of_others():
    account = Account()

    account.cost.on_sums(Spent("USD", invited=1e6), 1.0)

    assert account.after(1).total == 0.0


def test_machines_that_come_and_go_for_ever_take_no_memory():
    account = Account()
    for number in range(3 * MEMBERS_MAX):
        account.join(str(number), 1.0, number * 0.001)
        account.lose(str(number), number * 0.001)

    assert len(account.cost._away) <= MEMBERS_MAX


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_sums_only_grow_and_can_be_sent(seed):
    rng, now_s = Random(f"run cost {seed}"), 0.0
    account = Account(own=rng.choice((0.0, 0.5)), limit=rng.choice((0.0, 3.0)))
    names, numbers, step = "abcdef", dict.fromkeys("abcdef", 0), 0
    last = account.cost.spent(0.0)
    for _ in range(300):
        now_s += rng.choice((0.0, 0.5, 30.0, 4_000.0))
        name = rng.choice(names)
        match rng.randrange(7):
            case 0:
                numbers[name] += 1
                invited = rng.random() < 0.5
                account.join(
                    name, rng.choice((0.0, 0.3, 1e3)), now_s, numbers[name], invited=invited
                )
            case 1:
                account.ready(name, now_s, numbers[name])
            case 2:
                account.lose(name, now_s, numbers[name])
            case 3:
                account.load(name, rng.choice((0.0, 0.1, 1e9)), now_s)
            case 4:
                account.step(step, now_s, replayed=rng.randrange(5))
                step += 1
            case 5:
                back = rng.randrange(step + 1)
                account.cost.on_step(WentBack(back, step), now_s)
                step = back
            case _:
                account.cost.on_step_down(now_s)
                account.cost.on_lead(now_s)
        spent = account.cost.spent(now_s)
        encode(spent)
        assert spent.total >= last.total - 1e-9
        assert spent.uncounted >= last.uncounted - 1e-9
        wasted = spent.joining + spent.idle + spent.again + spent.after_end
        assert wasted <= spent.total * (1 + 1e-9) + 1e-9
        assert math.isfinite(spent.total)
        last = spent
