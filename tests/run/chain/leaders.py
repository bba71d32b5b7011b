"""Leaders of a chain of three voters, and what is said to them."""

from run.chain.harness import RUN, commit, genesis, peer, voter

from p2pswarm.run.chain.actions import (
    Ask,
)
from p2pswarm.run.chain.chain import ChainHead
from p2pswarm.run.chain.leader import Attempt, Leader
from p2pswarm.run.chain.messages import (
    Accepted,
    Denial,
    Denied,
    Promise,
)
from p2pswarm.run.chain.record import digest

NONCE = b"n" * 16
FIRST = commit(genesis().head(), "b")
SECOND = commit(ChainHead.of(FIRST), "b")


def standing(name: str = "a", term: int = 2, head=None) -> Leader:
    return Leader(Attempt(peer(name), term, NONCE), genesis(), head or genesis().head(), 0.0)


def promise(name: str, accepted=None, accepted_term: int = 1, memory: int = 0) -> Promise:
    term = accepted_term if accepted else 0
    return Promise(RUN, voter(name, memory).memory, 2, NONCE, term, accepted)


def accepted(name: str, record, term: int = 2) -> Accepted:
    return Accepted(RUN, voter(name).memory, term, record.height, digest(record))


def denied(name: str, promised: int = 2, why: Denial = Denial.TERM, memory: int = 0) -> Denied:
    return Denied(RUN, voter(name, memory).memory, 2, promised, why)


def asked(leader: Leader, kind: type) -> list[bytes]:
    return [a.to for a in leader.actions() if isinstance(a, Ask) and isinstance(a.message, kind)]


def seen(leader: Leader, kind: type) -> list:
    return [action for action in leader.actions() if isinstance(action, kind)]


def leading(name: str = "a") -> Leader:
    leader = standing(name)
    for other in "abc":
        leader.receive(peer(other), promise(other))
    leader.actions()
    assert leader.leads
    return leader
