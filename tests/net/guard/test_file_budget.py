"""The budget of open files: whatever the system allows, the limits fit, and none is zero."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.net.config import TransportConfig
from p2pswarm.net.guard.file_budget import (
    DIAL_FILES,
    FILES_LEAST,
    FILES_SPARE,
    WATCHED_SPARE,
    files_wanted,
    fitted,
    refusal,
    shortage,
    web_files,
    within_select,
)

CONFIG = TransportConfig()


def limits(config: TransportConfig) -> tuple[int, ...]:
    return (
        config.silent_max,
        config.answered_max,
        config.upgrading_max,
        config.dials_max,
        config.links_max,
        config.bulk_joined_max,
    )


def test_limits_stay_where_there_are_files_enough():
    assert fitted(CONFIG, files_wanted(CONFIG)) is CONFIG


@given(st.integers(64, files_wanted(CONFIG) - 1))
def test_limits_fit_into_what_there_is_and_leave_the_spare_files(files):
    config = fitted(CONFIG, files)

    assert files_wanted(config) - FILES_SPARE <= files - min(FILES_SPARE, files // 2) + 8
    assert files_wanted(config) - FILES_SPARE < files
    assert min(limits(config)) >= 1
    assert all(small <= large for small, large in zip(limits(config), limits(CONFIG), strict=True))


def test_something_beside_gets_less_in_the_same_proportion():
    wanted, beside = files_wanted(CONFIG), 1024

    assert fitted(CONFIG, wanted + beside, beside) is CONFIG
    half = fitted(CONFIG, (wanted + beside) // 2, beside)
    share = half.links_max / CONFIG.links_max
    assert files_wanted(half) + beside * share <= (wanted + beside) / 2 + FILES_SPARE
    assert f"`ulimit -n {wanted + beside}`" in shortage(1024, CONFIG, beside)


def test_a_port_for_websockets_takes_five_files_for_each_connection_over_it():
    """Its own socket, a pair for TLS, a pair for the WebSocket."""
    assert web_files(CONFIG) == 5 * CONFIG.upgrading_max + 4 * CONFIG.links_max


def test_the_user_is_told_the_remedy_in_a_line():
    told = shortage(1024, CONFIG)

    assert f"`ulimit -n {files_wanted(CONFIG)}`" in told
    assert f"at most {fitted(CONFIG, 1024).links_max} peers" in told
    assert "\n" not in told


def test_too_few_files_for_a_run_are_refused_in_a_line_with_the_remedy():
    told = refusal(64, CONFIG, 1024)

    assert "may open 64 files" in told
    assert f"at least {FILES_LEAST}" in told
    assert f"`ulimit -n {files_wanted(CONFIG) + 1024}`" in told
    assert "\n" not in told
    assert refusal(FILES_LEAST, CONFIG) == ""
    assert fitted(CONFIG, FILES_LEAST).links_max == 17


SELECT = 512  # of Windows


def watched(config: TransportConfig) -> int:
    dials = DIAL_FILES * config.dials_max
    return config.silent_max + config.answered_max + dials + config.links_max


def test_where_few_sockets_are_watched_most_of_them_are_for_links():
    config = within_select(TransportConfig(), SELECT)

    assert config.links_max == 400
    assert watched(config) + WATCHED_SPARE <= SELECT


@pytest.mark.parametrize("beside", [1, 1024, 5_376, 6_400])
def test_what_is_watched_beside_links_is_in_the_same_proportion(beside: int):
    usual = TransportConfig()
    config = within_select(usual, SELECT, beside)

    circuits = int(beside * config.links_max / usual.links_max)
    assert config.links_max >= 1
    assert watched(config) + circuits + WATCHED_SPARE <= SELECT


def test_limits_below_what_is_watched_stay():
    few = replace(TransportConfig(), links_max=10, silent_max=1, answered_max=1, dials_max=1)

    assert within_select(few, SELECT) == few
