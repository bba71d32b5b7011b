"""The history of a run: what a summary and a picture need of its events."""

from p2pswarm.progress.events import Ended, MicrobatchCounts, PeerLine, Peers, Stepped
from p2pswarm.progress.history import RunHistory


def stepped(step: int, seconds: float = 0.0, loss: float = 3.0) -> Stepped:
    return Stepped(
        step, loss, 1000.0, 1e-3, 0.5, MicrobatchCounts(8 * step, 8 * step, 0), seconds=seconds
    )


def peer(name: str, stage: int, *, ready: bool = True) -> PeerLine:
    return PeerLine(name, stage, ready, 0, 1.0)


def test_the_history_knows_how_far_the_run_is():
    history = RunHistory()
    assert (history.step, history.seconds, history.counts) == (0, 0.0, MicrobatchCounts(0, 0, 0))

    history.on_event(stepped(1, 2.0))
    history.on_event(stepped(2, 4.0))

    assert (history.step, history.seconds, history.counts) == (2, 4.0, MicrobatchCounts(16, 16, 0))


def test_the_end_has_the_last_word_on_the_tally():
    history = RunHistory()
    history.on_event(stepped(1))

    history.on_event(Ended(1, "done", False, 10.0, MicrobatchCounts(8, 8, 2), seconds=5.0))

    assert history.counts == MicrobatchCounts(8, 8, 2)


def test_a_kill_is_noted_where_the_run_stands():
    history = RunHistory()
    history.on_event(stepped(7, 3.5))

    history.on_kill()

    assert [(kill.seconds, kill.step) for kill in history.kills] == [(3.5, 7)]


def test_ready_servers_are_told_by_stage():
    history = RunHistory()
    history.on_event(Peers((peer("a", 0), peer("b", 1), peer("c", 1, ready=False))))

    assert history.stages == (0, 1)
    assert [p.peer for p in history.ready(1)] == ["b"]
