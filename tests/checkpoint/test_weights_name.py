"""The names of files of weights, and which file a name means."""

from pathlib import Path

import pytest

from p2pswarm.base.errors import Unusable
from p2pswarm.checkpoint.weights_name import file_of, weights_name
from p2pswarm.settings.config import RunConfig

RUN = RunConfig(name="my run/2")


def test_the_name_has_the_run_and_the_step():
    path = weights_name(Path("out") / "weights.safetensors", RUN, 300)

    assert path == Path("out") / "weights-my-run-2-step-300.safetensors"


@pytest.mark.parametrize("beside", ["weights-my-run-2-step-300-average", "other", "weights-2"])
def test_the_name_in_the_settings_means_the_file_that_the_run_made_of_it(tmp_path, beside):
    named = tmp_path / "weights.safetensors"
    made = weights_name(named, RUN, 300)
    for file in (made, made.with_stem(beside)):
        file.touch()

    assert file_of(named) == made
    named.touch()
    assert file_of(named) == named


def test_a_file_that_got_another_name_because_one_was_there_is_one_of_them(tmp_path):
    named = tmp_path / "weights.safetensors"
    made = weights_name(named, RUN, 300)
    for file in (made, made.with_stem(f"{made.stem}-2")):
        file.touch()

    with pytest.raises(Unusable, match=r"name one \(there are: weights-my-run-2-step-300-2\.safe"):
        file_of(named)


@pytest.mark.parametrize("name", ["weights.safetensors", "gone/weights.safetensors"])
def test_a_name_of_which_nothing_was_made_means_nothing(tmp_path, name):
    with pytest.raises(Unusable, match="there is no such file: name the "):
        file_of(tmp_path / name)


def test_many_files_are_not_all_named(tmp_path):
    for number in range(12):
        (tmp_path / f"{number:02}.safetensors").touch()

    with pytest.raises(Unusable, match=r"00\.safetensors.* and 4 more\)$"):
        file_of(tmp_path)
