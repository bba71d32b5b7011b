"""`--standby`, `--new` and the folder of `state`, as users give them and mistake them."""

import os
import signal

import pytest
from procs.test_checkpoints import HERE, RUN


@pytest.fixture
def run_file(tmp_path, text_folder):
    """A run of one stage; `state` is the trainer's folder."""

    def write(state: str = "", **values):
        values = {
            "stages": 1,
            "steps": 12,
            "replicas": 1,
            "every": 1000,
            "dtype": "float32",
        } | values
        path = tmp_path / f"run-{state or 'none'}.toml"
        text = RUN.format(**values).replace("[run]\n", '[run]\nstrangers = "lead"\n')
        path.write_text((f'state = "{state}"\n' if state else "") + text)
        return path

    return write


def refused(start, *flags) -> str:
    """The line with which a command line is refused."""
    node = start("train", *flags, module="p2pswarm")
    assert node.end() == 2
    assert node.errors.startswith("error: ")
    assert node.errors.count("\n") == 1, node.errors
    return node.errors


@pytest.mark.parametrize("flag", ["--new", "--resume"])
def test_a_standby_begins_no_run(start, run_file, flag):
    assert f"and {flag} begins one: leave one of them out" in refused(
        start, run_file(), "--standby", flag, *HERE
    )


def test_going_back_without_a_target_is_refused(start, run_file):
    path = run_file()
    text = path.read_text().replace('target = "checkpoints"', 'target = ""')
    path.write_text(text.replace("[run]\n", '[run]\non_stage_lost = "rewind"\n'))

    assert 'run.on_stage_lost = "rewind" needs checkpoints' in refused(start, path, *HERE)


@pytest.mark.timeout(300)
def test_a_standby_says_what_it_waits_for_and_takes_part_when_the_run_is_there(
    start, seed_node, run_file, tmp_path
):
    _, address = seed_node
    join = ("--bootstrap", address, *HERE)
    standby = start("train", run_file(), "--standby", *join, module="p2pswarm")
    assert standby.line_with("nobody offers the run yet: waiting for its trainer")
    other = start("train", run_file("other", steps=13), *join, module="p2pswarm")
    assert standby.line_with("is offered with other settings (run.steps is 13 there and 12 here)")
    other.interrupt()
    trainer = start("train", run_file(), *join, module="p2pswarm")
    assert standby.line_with("standing by for run 'saved'")

    server = start(*join)

    assert trainer.line_with("done after 12 steps")
    assert trainer.end() == 0, trainer.errors
    assert standby.line_with("done after 12 steps")
    assert standby.end() == 0, standby.errors
    assert server.end() == 0, server.errors  # with its run


@pytest.mark.timeout(300)
def test_a_folder_goes_on_with_its_run_and_new_begins_another(start, seed_node, run_file):
    _, address = seed_node
    join = ("--bootstrap", address, *HERE)
    server = start(*join)
    run = run_file("a", steps=1_000_000)
    trainer = start("train", run, *join, module="p2pswarm")
    assert trainer.line_with("loss")
    assert server.line_with("serving stage 0")
    os.killpg(trainer.process.pid, signal.SIGKILL)

    again = start("train", run, *join, module="p2pswarm")
    assert again.line_with("going on with run 'saved' of ")
    assert again.line_with("it goes on after step ")
    os.killpg(again.process.pid, signal.SIGKILL)

    other = run_file("a", steps=1_000_001)
    assert "): restore them, or begin another run with --new" in refused(start, other, *join)
    server.kill()  # it would look for the trainer of its run for a minute
    new = start("train", run_file("a", steps=12), "--new", *join, module="p2pswarm")
    start(*join)
    assert new.line_with("done after 12 steps")
    assert new.end() == 0, new.errors


@pytest.mark.full
@pytest.mark.timeout(300)
def test_a_trainer_that_comes_back_after_the_end_is_told_so(start, seed_node, run_file):
    """The one that led it is gone by then: the swarm remembers."""
    _, address = seed_node
    join = ("--bootstrap", address, *HERE)
    first = start("train", run_file("a", steps=40), *join, module="p2pswarm")
    second = start("train", run_file("b", steps=40), "--standby", *join, module="p2pswarm")
    assert second.line_with("standing by for run")
    assert second.line_with("leads the run, and this one waits to take its place")
    server = start(*join)
    assert first.line_with("stands by")
    for _ in range(3):  # a standby is named in one record, and can take over from the next on
        assert first.line_with("loss")
    os.killpg(first.process.pid, signal.SIGKILL)
    assert second.line_with("coordinates the run")
    assert second.line_with("done after 40 steps")
    assert second.end() == 0, second.errors
    assert server.end() == 0, server.errors  # with its run

    back = start("train", run_file("a", steps=40), *join, module="p2pswarm")
    assert back.line_with("going on with run")
    assert back.line_with("done after 40 steps")
    assert back.end() == 0, back.errors
    late = start("train", run_file(steps=40), "--standby", *join, module="p2pswarm")
    said = "says that such a run is over after 40 steps; anybody can say so"
    assert said in late.line_with(said)  # its folder would have proved it; its user decides
    assert late.process.poll() is None
