"""A scheduler of three stages, and what is pushed to it."""

from p2pswarm.run.messages.field_limits import Work
from p2pswarm.run.messages.microbatch import Push
from p2pswarm.run.messages.step import Fence, FencedWork
from p2pswarm.server.scheduler import ExpectedTensors, Scheduler
from p2pswarm.tensors.codecs.bundle import BundleKey, BundleSpec
from p2pswarm.tensors.codecs.edge_codecs import EdgeCodecs
from p2pswarm.tensors.codecs.meta import Dtype, TensorLayout, TensorMeta

RUN = b"r" * 16
ME, ABOVE, BELOW, OTHER = (bytes([n]) * 32 for n in range(4))
META = TensorMeta(Dtype.FLOAT32, (1,), 1, 4, b"1234")
TOKENS = TensorMeta(Dtype.UINT8, (1, 4), 1, 4, b"1234")
CROSSES = BundleSpec((BundleKey("x", TensorLayout(Dtype.FLOAT32, (1,)), differentiable=True),))
ALL = (0, 1, 2)
B = 8
LAST = 2


def expected(stage=1):
    crosses, nothing = EdgeCodecs(CROSSES, ("raw",)), EdgeCodecs(BundleSpec(), ())
    takes, gives = crosses if stage else nothing, crosses if stage < LAST else nothing
    return ExpectedTensors((1, 4), lambda _step: takes, lambda _step: gives)


def scheduler(stage=1, version=0, incarnation=5, microbatches=B):
    one = Scheduler(stage, LAST + 1, incarnation, microbatches, expected(stage))
    if version is not None:
        one.moved_to(version)
    return one


def push(microbatch=0, attempt=0, work=Work.FORWARD, **changes):
    tensors = (META,) if work is Work.BACKWARD else (TOKENS, META)
    fields = {"run": RUN, "step": microbatch // B, "stage": 1, "incarnation": 5, "counting": ALL}
    rest = {"microbatch": microbatch, "attempt": attempt, "work": work, "tensors": tensors}
    return Push(**{**fields, **rest, **changes})


def backward(microbatch=0, attempt=0, **changes):
    return push(microbatch, attempt, Work.BACKWARD, **changes)


def evaluation(number=0, **changes):
    return push(2**61 + number, 0, Work.EVALUATE, **{"step": 0, **changes})


def fence(*work, step=0, incarnation=5):
    return Fence(RUN, step, incarnation, tuple(FencedWork(m, a) for m, a in work))


def queue(one, message, sender=BELOW, now_s=0.0):
    item = one.admit(message, sender)
    one.arrived(item, now_s)
    return item


def compute(one, item, *, counted=False, compute_s=0.1):
    assert one.take(0.0) is item
    return one.done(item, compute_s, counted=counted)


def forwarded(one, message=None, to=ABOVE):
    """A microbatch that has gone on, and whose gradient is due from `to`."""
    message = message or push()
    assert compute(one, queue(one, message))
    one.handed((message.microbatch, message.attempt), to)
    return message


def count(one, microbatch=0, attempt=0):
    forwarded(one, push(microbatch, attempt))
    item = queue(one, backward(microbatch, attempt), ABOVE)
    assert compute(one, item, counted=True)
