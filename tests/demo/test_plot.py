"""The demo's picture and figures."""

from p2pswarm.demo.demo import summary
from p2pswarm.demo.plot import draw
from p2pswarm.progress.events import Ended, HeldOut, MicrobatchCounts, Stepped
from p2pswarm.progress.history import RunHistory


def told() -> RunHistory:
    history = RunHistory()
    for step in range(1, 30):
        counts = MicrobatchCounts(8 * step, 8 * step, 0)
        history.told(Stepped(step / 2, step, 5.0 / step, 900.0 + step, 1e-3, 1.0, counts))
        if step == 15:
            history.killed()
    history.told(HeldOut(0.0, 0, 5.5))
    history.told(HeldOut(14.5, 29, 2.5))
    return history


def test_the_picture_is_drawn(tmp_path):
    draw(told(), tmp_path / "loss.png", "a run")

    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_the_picture_of_a_short_run_is_drawn_too(tmp_path):
    history = RunHistory()
    history.told(Stepped(1.0, 1, 5.0, 900.0, 1e-3, 1.0, MicrobatchCounts(8, 8, 0)))

    draw(history, tmp_path / "loss.svg", "a run")

    assert "<svg" in (tmp_path / "loss.svg").read_text()


def test_the_summary_has_the_keys_that_scripts_read():
    history = told()
    history.told(Ended(15.0, 29, "done", False, 912.5, MicrobatchCounts(232, 232, 5)))

    assert summary(history, 7.5) == {
        "held_out": [[0.0, 0, 5.5], [14.5, 29, 2.5]],
        "tokens_per_s": 912.5,
        "steps": 29,
        "microbatches": {"asked": 232, "counted": 232, "replayed": 5},
        "kills": 1,
        "seconds_to_ready": 7.5,
    }
