"""Tests of `server/work_plan.py`."""

from dataclasses import replace

import pytest
import torch
from server.pushes import (
    ABOVE,
    ALL,
    BELOW,
    LAST,
    META,
    OTHER,
    TOKENS,
    backward,
    evaluation,
    forwarded,
    push,
    queue,
    scheduler,
)

from p2pswarm.base.errors import Busy, DialFailed, Late, LinkLost, NotServing, Refused
from p2pswarm.base.ids import PeerId
from p2pswarm.models.compute.base import BackwardSpec, LossResult
from p2pswarm.run.messages.field_limits import REASON_CHARS
from p2pswarm.run.messages.membership import MemberRecord
from p2pswarm.run.messages.microbatch import Counted, Evaluated, Handed, Undelivered
from p2pswarm.server.boundary_cache import Period, ResultRoute
from p2pswarm.server.commit_log import ClosedSum
from p2pswarm.server.scheduler import WorkInputs
from p2pswarm.server.work_plan import (
    UNKNOWN_RETRY_S,
    WAIT_TOLD_S,
    Direction,
    GrantWait,
    OutgoingBundle,
    SizeForecast,
    StageCall,
    bundle_in,
    cut_short,
    edge_to,
    handed,
    load_of,
    metas_of,
    plan,
    refusal_of,
    refuse_cut_off,
    refuse_stranger,
    undelivered,
)
from p2pswarm.tensors.codecs.base import Unencodable
from p2pswarm.tensors.codecs.bundle import BundleKey, BundleSpec
from p2pswarm.tensors.codecs.edge_codecs import EdgeCodecs
from p2pswarm.tensors.codecs.meta import Dtype, TensorLayout, TensorMeta
from p2pswarm.tensors.codecs.registry import encode_bundle

BUNDLE = {"x": "tensor"}


def taken(stage=1, message=None, sender=BELOW, **changes):
    """The plan for a push that was just taken up."""
    one = scheduler(stage=stage)
    tensors = (TOKENS, META) if stage else (TOKENS,)
    message = message or push(stage=stage, tensors=tensors, **changes)
    queue(one, message, sender)
    return plan(one, one.take(0.0))


def gradient_taken(stage=1, counting=ALL):
    one = scheduler(stage=stage)
    tensors = (TOKENS, META) if stage else (TOKENS,)
    forwarded(one, push(stage=stage, counting=counting, tensors=tensors))
    queue(one, backward(stage=stage, counting=counting), ABOVE)
    return plan(one, one.take(0.0))


@pytest.mark.parametrize(
    ("stage", "counting", "call", "way"),
    [
        (0, ALL, StageCall.FORWARD, ResultRoute.ONWARD),
        (1, ALL, StageCall.FORWARD, ResultRoute.ONWARD),
        (1, (0,), StageCall.FORWARD, ResultRoute.ONWARD),
        (1, (2,), StageCall.EVALUATE, ResultRoute.ONWARD),  # its gradient ends above
        (LAST, ALL, StageCall.FINISH, ResultRoute.BACK),
        (LAST, (0,), StageCall.FINISH, ResultRoute.BACK),
        (LAST, (2,), StageCall.FINISH, ResultRoute.NOWHERE),
    ],
)
def test_a_microbatch_is_kept_only_where_its_gradient_comes_back(stage, counting, call, way):
    work = taken(stage, counting=counting)

    assert (work.call, work.exit) == (call, way)
    assert work.forward is work.item
    assert work.spec.counting is (stage in counting)
    assert not work.counted


@pytest.mark.parametrize(
    ("stage", "counting", "way", "counted"),
    [
        (1, ALL, ResultRoute.BACK, True),
        (1, (0,), ResultRoute.BACK, False),
        (1, (1,), ResultRoute.NOWHERE, True),
        (0, ALL, ResultRoute.NOWHERE, True),
    ],
)
def test_a_gradient_goes_on_while_a_stage_below_counts(stage, counting, way, counted):
    work = gradient_taken(stage, counting)

    assert (work.call, work.exit, work.spec.counting) == (StageCall.BACKWARD, way, counted)
    assert not work.counted
    assert work.spec.may_add() is work.counted is counted
    assert work.forward.sender == BELOW
    assert work.item.sender == ABOVE


@pytest.mark.parametrize(("stage", "way"), [(1, ResultRoute.ONWARD), (LAST, ResultRoute.NOWHERE)])
def test_a_held_out_batch_is_evaluated_and_never_counted(stage, way):
    work = taken(stage, evaluation(stage=stage, counting=()))

    assert (work.call, work.exit, work.counted) == (StageCall.EVALUATE, way, False)


class Recorder:
    """A stage that says how it was called."""

    def __getattr__(self, name):
        return lambda *arguments, **also: (name, *arguments, *([also] if also else []))


@pytest.mark.parametrize(
    ("work", "called"),
    [
        (taken(), ("forward", (0, 0), "tokens", BUNDLE)),
        (gradient_taken(), ("backward", (0, 0), BUNDLE, BackwardSpec(True, True))),
        (taken(LAST), ("finish", "tokens", BUNDLE, BackwardSpec(True, True))),
        # dropout draws in a microbatch that this stage has counted, and in no held-out batch
        (taken(counting=(2,)), ("evaluate", "tokens", BUNDLE, {"training": True})),
        (
            taken(LAST, evaluation(stage=LAST, counting=())),
            ("evaluate", "tokens", BUNDLE, {"training": False}),
        ),
    ],
)
def test_the_stage_is_called_with_what_came(work, called):
    tokens = None if work.call is StageCall.BACKWARD else "tokens"

    assert work.run(Recorder(), WorkInputs(tokens, BUNDLE)) == called


def added(work):
    """The plan once its gradient is in the sum, if it counts."""
    work.spec.may_add()
    return work


def test_the_trainer_is_told_what_is_counted_and_what_was_lost():
    loss = LossResult(2.5, BUNDLE)

    assert added(taken(LAST)).note(loss) == Counted(0, 0, 0, True, 2.5)
    assert taken(LAST).note(loss) == Counted(0, 0, 0, False, 2.5)
    assert added(taken(LAST, counting=(0,))).note(loss) == Counted(0, 0, 0, False, 2.5)
    assert added(gradient_taken()).note(BUNDLE) == Counted(0, 0, 0, True, None)
    assert gradient_taken(counting=(0,)).note({}) == Counted(0, 0, 0, False, None)
    assert taken(LAST, evaluation(3, stage=LAST)).note(1.5) == Evaluated(0, 2**61 + 3, 1.5)


def test_of_a_forward_the_trainer_hears_from_the_forwarder():
    assert taken().note(BUNDLE) is None
    assert taken(counting=(2,)).note(BUNDLE) is None


@pytest.mark.parametrize(
    ("made", "leaves"),
    [(BUNDLE, BUNDLE), (LossResult(1.0, BUNDLE), BUNDLE), (1.5, None), (None, None)],
)
def test_a_bundle_leaves_and_a_loss_does_not(made, leaves):
    assert bundle_in(made) == leaves


def member(stage):
    return MemberRecord(BELOW, "127.0.0.1:1", stage, 1, ready=True)


def test_the_first_stage_listens_to_the_trainer_alone():
    message = push(stage=0, tensors=(TOKENS,))

    refuse_stranger(message, OTHER, PeerId(OTHER), None)
    refuse_stranger(message, OTHER, None, None)
    with pytest.raises(NotServing, match="from the trainer"):
        refuse_stranger(message, BELOW, PeerId(OTHER), member(1))


def test_microbatches_come_from_below_and_gradients_from_above():
    refuse_stranger(push(), BELOW, None, member(0))
    refuse_stranger(backward(), ABOVE, None, member(2))
    for message, record in ((push(), member(2)), (backward(), member(0)), (push(), None)):
        with pytest.raises(Busy, match="not in the view") as refusal:
            refuse_stranger(message, BELOW, None, record)
        assert refusal.value.retry_after_s == UNKNOWN_RETRY_S


def test_a_reason_is_cut_to_what_a_message_holds():
    assert undelivered(push(3, 1), "r" * 9999) == Undelivered(0, 3, 1, "r" * REASON_CHARS)


def test_a_server_that_cannot_compute_names_itself_and_the_reason():
    refusal = refusal_of(OTHER, Refused("out of memory"))

    assert str(refusal) == f"{PeerId(OTHER).short} could not compute it: out of memory"
    assert len(str(refusal_of(OTHER, Refused("r" * 9999)))) == REASON_CHARS


def test_a_report_has_means_and_a_rate():
    period = Period(2.0, counted=6, waits_s=[1.0, 2.0], computes_s=[])

    load = load_of(period, 4, 9, 5.0)

    assert (load.queued, load.recomputed) == (4, 9)
    assert (load.queue_s, load.compute_s) == (1.5, 0.0)
    assert load.rate_per_s == 2.0
    assert load_of(Period(5.0), 0, 0, 5.0).rate_per_s == 0.0


def test_a_server_that_hears_nobody_of_the_next_stage_takes_no_new_microbatch():
    """Its sender asks another server of the stage; gradients still come back here."""
    onward = member(2), replace(member(2), peer=OTHER)

    for broken in ((), (BELOW,), (OTHER,)):
        refuse_cut_off(push(), onward, lambda peer, broken=broken: peer in broken)
    refuse_cut_off(backward(), onward, lambda peer: True)
    refuse_cut_off(push(), (), lambda peer: True)  # nobody is known yet: a view will come

    with pytest.raises(NotServing, match="next stage"):
        refuse_cut_off(push(), onward, lambda peer: True)


@pytest.mark.parametrize(
    ("left", "told"),
    [
        (ClosedSum(5, 0, frozenset()), NotServing),
        (ClosedSum(5, 0, frozenset({0, 3})), NotServing),
        (ClosedSum(5, 0, frozenset({1})), Refused),
        (None, Refused),
    ],
)
def test_a_push_that_a_sessions_end_cuts_short_may_go_elsewhere_only_if_the_sum_lacks_it(
    left, told
):
    """A sender asks another server after NotServing, and after a plain Refused nobody."""
    error = cut_short(push(1), left)

    assert type(error) is told
    assert "incarnation is over" in str(error)


LARGE = TensorMeta(1, (1000,), 1, 4000)
EDGE, OTHER_EDGE = (b"p", 1), (b"q", 1)
ALIVE = [MemberRecord(who, "127.0.0.1:1", 2, 1, ready=True) for who in (b"p", b"q")]


def test_a_size_that_came_twice_is_foreseen():
    forecast = SizeForecast()
    seen = []
    for meta in (LARGE, LARGE, LARGE, TensorMeta(1, (2000,), 1, 8000)):
        forecast.learn((meta, meta))
        seen.append(forecast.foreseen)

    assert seen == [None, (LARGE, LARGE), (LARGE, LARGE), None]


def test_what_rides_inline_is_not_foreseen():
    forecast = SizeForecast()
    for _ in range(3):
        forecast.learn((LARGE, META))

    assert forecast.foreseen is None


def direction_of(**codecs):
    """Codecs of tensors by their names, in a float32 bundle of any shapes."""
    keys = [
        BundleKey(key, TensorLayout(Dtype.FLOAT32, (300,)), differentiable=True) for key in codecs
    ]
    return Direction(EdgeCodecs(BundleSpec(tuple(keys)), tuple(codecs.values())))


def outgoing_of(direction):
    return OutgoingBundle(direction, push())


def bundle(seed=1):
    return {"x": torch.randn(300, generator=torch.Generator().manual_seed(seed))}


def sent(outgoing, edge=EDGE, value=None):
    return outgoing.finish(encode_bundle(outgoing.begin(edge, ALIVE, value or bundle())))


def carried(direction, edge=EDGE):
    return len(direction.edges.edge(edge, [EDGE, OTHER_EDGE]).carried[0])


def test_codecs_without_state_encode_once_for_all_peers():
    outgoing = outgoing_of(direction_of(x="int8"))
    assert outgoing.encoded_for(EDGE) is None
    outgoing.begin(EDGE, ALIVE, bundle())
    assert outgoing.encoded_for(EDGE) is None

    encoded = sent(outgoing)
    outgoing.failed(Busy("full"))

    assert outgoing.encoded_for(OTHER_EDGE) is encoded
    outgoing.taken()


def test_codecs_with_state_encode_for_each_peer():
    direction = direction_of(x="int8-ef")
    outgoing = outgoing_of(direction)
    encoded = sent(outgoing)

    assert outgoing.encoded_for(EDGE) is encoded
    assert outgoing.encoded_for(OTHER_EDGE) is None
    outgoing.taken()
    assert (carried(direction), carried(direction, OTHER_EDGE)) == (1, 0)
    outgoing.taken()
    assert carried(direction) == 1


@pytest.mark.parametrize(
    ("error", "left"),
    [
        (Busy("full"), 1),
        (NotServing("gone"), 1),
        (DialFailed("nobody"), 1),
        (Unencodable("NaN"), 1),
        (LinkLost("cut"), 0),
        (Late("slow"), 0),
    ],
)
def test_an_edge_gets_back_what_the_peer_surely_has_not(error, left):
    direction = direction_of(x="int8-ef")
    first = outgoing_of(direction)
    sent(first)
    first.taken()
    outgoing = outgoing_of(direction)
    sent(outgoing)
    assert carried(direction) == 0

    outgoing.failed(error)
    outgoing.failed(Busy("again"))

    assert carried(direction) == left
    assert outgoing.encoded_for(EDGE) is None


def test_a_push_that_was_refused_before_anything_was_encoded_changes_nothing():
    direction = direction_of(x="int8-ef")
    outgoing = outgoing_of(direction)
    outgoing.failed(Busy("full"))
    outgoing.taken()

    assert carried(direction) == 0


def test_each_tensor_goes_with_its_codec_and_what_its_edge_carries():
    direction = direction_of(x="raw", memory="int8-ef")
    outgoing = outgoing_of(direction)
    value = {"x": torch.zeros(3), "memory": torch.ones(4)}

    first = outgoing.begin(EDGE, ALIVE, value)

    assert [(each.codec_name, each.carried) for each in first] == [("raw", ()), ("int8-ef", ())]
    outgoing.finish(encode_bundle(first))
    outgoing.taken()
    again = outgoing_of(direction).begin(EDGE, ALIVE, value)
    assert [len(each.carried) for each in again] == [0, 1]


def test_the_trainer_is_told_which_incarnation_takes_a_microbatch():
    encoded = encode_bundle([])
    to = MemberRecord(b"p" * 32, "127.0.0.1:1", 2, 7, ready=True)

    assert metas_of(encoded) == ()
    assert handed(push(3, 2), to) == Handed(0, 3, 2, b"p" * 32, 7)
    assert edge_to(to) == (b"p" * 32, 7)


def waiting() -> GrantWait:
    """A microbatch that is computed at 0, and that a server was asked to take."""
    wait = GrantWait()
    wait.on_request(Handed(0, 3, 2, b"p" * 32, 7))
    wait.on_result(0.0)
    return wait


def test_the_trainer_is_told_once_that_a_computed_microbatch_waits_for_a_server():
    wait = waiting()

    assert wait.next_deadline_s() == WAIT_TOLD_S
    assert wait.on_deadline(WAIT_TOLD_S - 0.1) is None
    assert wait.on_deadline(WAIT_TOLD_S) == Handed(0, 3, 2, b"p" * 32, 7, granted=False)
    assert wait.next_deadline_s() is None
    assert wait.on_deadline(10.0) is None


def test_the_trainer_is_told_nothing_of_a_microbatch_that_is_granted_or_still_computed():
    granted, computed = waiting(), GrantWait()
    granted.on_end()
    computed.on_request(Handed(0, 3, 2, b"p" * 32, 7))

    for wait in (granted, computed):
        assert wait.next_deadline_s() is None
        assert wait.on_deadline(10.0) is None


def test_a_microbatch_for_which_nobody_was_asked_yet_is_told_of_later():
    wait = GrantWait()
    wait.on_result(0.0)

    assert wait.on_deadline(WAIT_TOLD_S) is None
    wait.on_request(Handed(0, 3, 2, b"p" * 32, 7))
    assert wait.on_deadline(2 * WAIT_TOLD_S) == Handed(0, 3, 2, b"p" * 32, 7, granted=False)
