"""Settings of money and alerts: what a file may say, and the one line when it may not."""

import pytest

from p2pswarm.base.errors import Unusable
from p2pswarm.settings import parser as settings


@pytest.fixture
def written(tmp_path):
    def write(text: str):
        path = tmp_path / "run.toml"
        path.write_text(text)
        return path

    return write


def test_a_budget_may_stand_in_the_run_or_in_train(written):
    run, train = written("[run]\nbudget = 150"), None
    assert settings.load(run).train.budget == 150.0
    train = written("[train]\nbudget = 150")
    assert settings.load(train).train.budget == 150.0


def test_a_budget_of_the_command_line_wins(written):
    path = written("[run]\nbudget = 150\n[train]\nprice_limit = 2")

    for key in ("run.budget", "train.budget"):
        if key == "train.budget":
            path = written("[train]\nbudget = 150\nprice_limit = 2")
        train = settings.load(path, (f"{key}=300",)).train
        assert (train.budget, train.price_limit) == (300.0, 2.0)


def test_no_manifest_says_what_may_be_spent(written):
    path = written("[run]\nbudget = 150")

    assert b"budget" not in settings.run_to_json(settings.load(path).run)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[serve]\nprice_per_hour = nan", "serve.price_per_hour is a number from 0 to 1000"),
        ("[serve]\nprice_per_hour = -1", "serve.price_per_hour is a number from 0 to 1000"),
        ("[serve]\nprice_per_hour = 1001", "serve.price_per_hour is a number from 0 to 1000"),
        ("[serve]\nprice_per_hour = '$2'", "serve.price_per_hour is a number from 0 to 1000"),
        ("[train]\nprice_per_hour = inf", "train.price_per_hour is a number from 0 to 1000"),
        ("[serve]\ncurrency = 'usd'", "serve.currency is a currency in three capital letters"),
        ("[train]\ncurrency = 'Dollars'", "train.currency is a currency in three capital letters"),
        ("[serve]\nspot = 1", "serve.spot is true or false, not 1"),
        ("[run]\nbudget = nan", "train.budget is a number from 0 to 1e+09, not NaN"),
        ("[train]\nbudget = -5", "train.budget is a number from 0 to 1e+09, not -5"),
        (
            "[run]\nbudget = 1\n[train]\nbudget = 2",
            "run.budget and train.budget are both given: leave one out",
        ),
        ("[train]\nprice_limit = -1", "train.price_limit is a number from 0 to 1e+09"),
        ("[train]\nnotify = 3", "train.notify is a text, not 3"),
        ("[train]\nnotify = []", "train.notify is a command of up to 64 words"),
        ("[train]\nnotify = ['']", "train.notify is a command of up to 64 words"),
        ('[train]\nnotify = "mail \'me"', "its quotes closed"),
        ("[train]\nnotify = 'ftp://example.org/x'", 'or a URL "https://..." or "http://..."'),
        ("[train]\nnotify = 'https://'", 'or a URL "https://..." or "http://..."'),
        ('[train]\nnotify = "a\\u001b[2J"', "printable characters at most"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_setting(written, text, said):
    with pytest.raises(Unusable) as error:
        settings.load(written(text))

    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "notify",
    ["''", "'mail -s \"my run\" me'", "['mail', 'me']", "'HTTPS://hooks.example.org/x?y=z'"],
)
def test_what_may_be_told_of_alerts(written, notify):
    assert settings.load(written(f"[train]\nnotify = {notify}")).train.notify is not None
