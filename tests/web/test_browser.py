"""The page in a real browser: what it shows, that hostile names stay text, and that it comes back.

Needs Debian's chromium, and playwright of PyPI without a browser of its own.
"""

import contextlib
import importlib.util
import shutil
from pathlib import Path

import pytest
from make_page_pictures import BYTES_MAX, SHOTS
from make_page_pictures import main as pictures
from web.harness import MICROBATCHES, RUN, begun, peers, served_page, stepped

from p2pswarm.progress.cost_events import CostSoFar
from p2pswarm.progress.events import (
    Begun,
    Checkpointed,
    Departure,
    HeldOut,
    Joined,
    Left,
    MachineFacts,
    Note,
    PeerLine,
    Peers,
    Phases,
    Serving,
    Stalled,
    Waiting,
)
from p2pswarm.progress.step_seconds import ChainPart, StageTimes
from p2pswarm.web.streams import VIEWERS_MAX

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
HAS_PLAYWRIGHT = importlib.util.find_spec("playwright") is not None
pytestmark = [
    pytest.mark.skipif(BROWSER is None, reason="no Chromium here: apt-get install chromium"),
    pytest.mark.skipif(not HAS_PLAYWRIGHT, reason="no playwright here: pip install playwright"),
    pytest.mark.timeout(300),  # a browser on a busy machine
]
HOSTILE = (
    "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    "\u202eeman\u2066"
)
HERE = Path(__file__).parent
WIDTHS = {"desktop": (1200, 900), "phone": (390, 844)}


@contextlib.asynccontextmanager
async def browser():
    async_api = importlib.import_module("playwright.async_api")
    async with async_api.async_playwright() as tools:
        chromium = await tools.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        try:
            yield chromium
        finally:
            await chromium.close()


@contextlib.asynccontextmanager
async def opened(fed, kind="desktop", scheme="light"):
    """A tab that shows the page, and what went wrong in it."""
    width, height = WIDTHS[kind]
    async with browser() as chromium:
        context = await chromium.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme
        )
        tab = await context.new_page()
        wrong = []
        tab.on("console", lambda said: wrong.append(said.text))
        tab.on("pageerror", lambda error: wrong.append(str(error)))
        here = f"http://{fed.address}/"
        tab.on(
            "request",
            lambda asked: wrong.append(asked.url) if not asked.url.startswith(here) else None,
        )
        await tab.goto(fed.link)
        yield tab, wrong


async def shows(tab, selector, text):
    await tab.locator(selector, has_text=text).first.wait_for(timeout=60_000)


async def test_the_owner_sees_the_run_its_stages_and_what_is_lost():
    async with served_page() as fed:
        fed.tell(
            *begun(),
            *(stepped(step) for step in range(1, 30)),
            peers(),
            HeldOut(20, 3.1),
            after_s=0.1,
        )
        async with opened(fed) as (tab, wrong):
            await shows(tab, "#top", "✓ fine")
            assert tab.url == f"http://{fed.address}/"
            await shows(tab, "#top", "29 / 2\u202f000")
            await shows(tab, ".stage[data-stage='0'] .machines", "machine-0")
            await shows(tab, "#once", f"{MICROBATCHES * 29}")
            assert await tab.locator("svg .one").count() == 2

            fed.tell(Left("peer1", 1, Departure.LOST, "no answer for 2.1 s", 5, "machine-1"))
            fed.tell(Left("peer3", 1, Departure.SILENT, "no answer for 3.3 s", 0, "machine-3"))
            fed.tell(Waiting((1,)))
            await shows(tab, ".gone", "no answer for 2.1 s")
            await shows(tab, ".stage.empty", "nobody")
            await shows(tab, "#top", "stage 1 has no server")
            fed.tell(Joined("peer5", 1, "machine-5"))
            fed.tell(Peers((PeerLine("peer5", 1, False, 0, 0.0, weights_share=0.639),)))
            await shows(tab, ".stage[data-stage='1'] .machines", "joining 63 %")
            await shows(tab, "#list", "5 microbatches")

            await tab.fill("#filter", "3.3 s")
            await tab.locator("#list li").nth(0).wait_for()
            await tab.wait_for_function("document.querySelectorAll('#list li').length === 1")
            assert wrong == []


async def test_a_stalled_run_shows_a_rate_of_0_and_its_age():
    async with served_page() as fed:
        fed.tell(*begun(), *(stepped(step) for step in range(1, 30)), after_s=1.0)
        async with opened(fed) as (tab, _):
            await shows(tab, "#top", "18.4 k")

            fed.wall.at += 94.0

            await shows(tab, "#top", "0 (last commit 9")
            await shows(tab, "#top", "stands still")


async def test_a_screen_reader_is_told_a_new_state_and_no_figure():
    async with served_page() as fed:
        fed.tell(*begun(), *(stepped(step) for step in range(1, 30)), after_s=1.0)
        async with opened(fed) as (tab, _):
            await shows(tab, "[role=status]", "training")
            await tab.evaluate(
                "new MutationObserver((seen) => { window.told = (window.told || 0) + seen.length })"
                ".observe(document.querySelector('[role=status]'), {childList: true})"
            )
            for step in range(30, 33):
                fed.tell(stepped(step), after_s=1.0)
                await shows(tab, "#top", f"{step} / ")
            assert await tab.evaluate("window.told") is None

            fed.wall.at += 94.0
            await shows(tab, "[role=status]", "stands still")


async def test_the_curves_of_a_long_run_are_drawn_to_their_end():
    """Each point is a dozen characters of an attribute."""
    async with served_page() as fed:
        fed.tell(*begun(), *(stepped(step) for step in range(1, 3_000)), after_s=0.5)
        async with opened(fed) as (tab, wrong):
            await shows(tab, "#top", "2\u202f999 / 2\u202f000")
            await tab.locator("svg .area").wait_for()
            ends = await tab.evaluate(
                "[...document.querySelectorAll('svg .one')].map("
                "line => line.getPointAtLength(line.getTotalLength()).x)"
            )

    assert ends == [pytest.approx(512, abs=1)] * 2
    assert wrong == []


async def test_a_stall_names_whom_the_run_waits_for():
    async with served_page() as fed:
        fed.tell(*begun(), *(stepped(step) for step in range(1, 30)), peers(), after_s=1.0)
        fed.tell(Stalled(30, 6.2, 1.0, "silent", ("peer1",), (1,), "peer1 does not answer"))
        fed.wall.at += 10.0
        async with opened(fed) as (tab, _):
            await shows(tab, "#top", "peer1 does not answer")
            await shows(tab, ".machines .bad", "the run waits for it")
            assert await tab.locator("#stages", has_text="as fast as this").count() == 0


async def test_marks_upon_marks_paint_over_no_other_row():
    """Sixty accents on one letter reach over half a phone."""
    async with served_page() as fed:
        fed.tell(*begun(), stepped(1), MachineFacts("peer0", "a" + "\u0301" * 60))
        fed.tell(Note("a" + "\u0301" * 400))
        async with opened(fed, "phone") as (tab, _):
            await shows(tab, "#list", "\u0301")
            clips = await tab.evaluate(
                "[...document.querySelectorAll('.machines li, #list li')].map("
                "row => getComputedStyle(row).overflowY)"
            )

    assert set(clips) == {"clip"}


async def test_a_server_tells_its_own_part_and_nothing_of_what_it_does_not_know():
    """Else the page of who lends a machine says that nobody serves the other stages."""
    async with served_page(role="stage") as fed:
        fed.page.own = lambda: {
            "role": "stage",
            "state": "serves",
            "run": "full",
            "stage": 0,
            "stages": 2,
            "version": 271,
        }
        fed.tell(Begun("full", "stage", "cellar", "0.1.0", steps=2_000, stages=2))
        fed.tell(Serving("peer0", 0, "cellar"))
        async with opened(fed) as (tab, wrong):
            await shows(tab, "#top", "serves stage 0 “full”")
            await shows(tab, "#top", "271 / 2\u202f000")
            await shows(tab, ".stage[data-stage='0']", "cellar")
            text = await tab.inner_text("body")
            await tab.click("nav a[href='/cost']")
            await shows(tab, "#cost", "shows the whole run")

    assert "nobody" not in text
    assert "starting" not in text
    assert wrong == []


async def test_hostile_names_and_reasons_are_text():
    async with served_page() as fed:
        fed.tell(
            Begun(HOSTILE, "trainer", HOSTILE, HOSTILE, steps=5, stages=1, model=HOSTILE),
            *begun(1, 1)[1:],
        )
        fed.tell(Note(HOSTILE), Left("peer0", 0, Departure.WRONG, HOSTILE, 0, HOSTILE))
        fed.tell(Checkpointed(1, HOSTILE, 0.1), stepped(1))
        async with opened(fed) as (tab, wrong):
            await shows(tab, "#list", "<img src=x")
            for part in ("/you", "/why", "/cost", "/"):
                await tab.click(f"nav a[href='{part}']")
                await tab.wait_for_function(
                    "document.querySelector('nav a[aria-current]') !== null"
                )
            text = await tab.inner_text("body")

            assert await tab.locator("img").count() == 0
            assert await tab.locator("body script").count() == 0
            assert not await tab.evaluate("document.title === 'owned'")
            assert "\u202e" not in text
            assert "\u2066" not in text
            assert wrong == []


async def test_the_page_says_that_the_node_is_gone_and_comes_back_with_it():
    async with served_page() as fed:
        fed.tell(*begun(), *(stepped(step) for step in range(1, 30)))
        tabs = contextlib.AsyncExitStack()
        tab, _ = await tabs.enter_async_context(opened(fed))
        await shows(tab, "#top", "29 / 2")
        await fed.server.close()

        await shows(tab, "#lost:not([hidden])", "the node does not answer")
        assert "29" in await tab.inner_text("#top")
    async with tabs, served_page(fed.address.port) as later:
        later.tell(*begun(), stepped(1), stepped(2))

        await shows(tab, "#top", "2 / 2")
        await tab.locator("#lost").wait_for(state="hidden", timeout=60_000)
        assert await tab.locator("#list li[data-event='begun']").count() == 1


async def test_another_process_of_the_node_is_shown_from_its_first_event():
    """Its lines are counted anew, and may be more than those that the page had."""
    async with served_page() as fed:
        fed.tell(*begun(), *(Note(f"old {number}") for number in range(5)))
        tabs = contextlib.AsyncExitStack()
        tab, _ = await tabs.enter_async_context(opened(fed))
        await shows(tab, "#list", "old 4")
        await fed.server.close()
    async with tabs, served_page(fed.address.port) as later:
        later.tell(*begun(), *(Note(f"new {number}") for number in range(50)))

        await shows(tab, "#list", "new 49")
        await shows(tab, "#list", "new 0")
        assert await tab.locator("#list li", has_text="old").count() == 0


async def test_a_page_without_a_stream_asks_from_time_to_time_and_says_so():
    async with served_page() as fed:
        fed.tell(*begun(), *(stepped(step) for step in range(1, 30)))
        others = [fed.page.streams.open() for _ in range(VIEWERS_MAX)]
        async with opened(fed) as (tab, _):
            await shows(tab, "#top", "29 / 2")
            await shows(tab, "#lost:not([hidden])", "16 pages follow already")

            fed.page.streams.close(others[0])

            await shows(tab, "#list", "training begins")
            await tab.locator("#lost").wait_for(state="hidden", timeout=60_000)


async def test_an_hour_without_a_step_is_the_slowest_of_a_night():
    async with served_page() as fed:
        evening = fed.wall.at
        fed.tell(*begun(), *(stepped(step, 60.0) for step in range(1, 121)), after_s=60.0)
        fed.wall.at += 3 * 3_600.0
        fed.tell(*(stepped(step, 60.0) for step in range(121, 241)), after_s=60.0)
        async with opened(fed) as (tab, wrong):
            await shows(tab, "#top", "240 / 2")
            looked = f"localStorage.setItem('look {RUN}', '{{\"at\": {evening}, \"step\": 5}}')"
            await tab.add_init_script(looked)  # leaving the page keeps its own
            await tab.reload()
            await shows(tab, "#night", "235 steps done")
            await shows(tab, "#night", ", 0 % of the fastest")
            assert wrong == []


async def test_the_cost_has_its_currency_and_each_price_as_it_was_told():
    cost = CostSoFar("EUR", 5.1, 24.1, 2.0, 7.0, 0.96, 1.24, 0.12, 0.0, 70e6, 1.83, 150.0)
    prices = (("peer0", 0.35, "EUR"), ("peer1", 0.5, "USD"))
    lines = (
        PeerLine(server, 0, True, 0, 1.0, price_per_hour=price, currency=currency)
        for server, price, currency in prices
    )
    async with served_page() as fed:
        fed.tell(*begun(), *(stepped(step) for step in range(1, 30)), cost, Peers(tuple(lines)))
        async with opened(fed) as (tab, wrong):
            await shows(tab, "#top", "0.41 EUR/Mtoken useful, 31.20 EUR so far of 150.00")
            await shows(tab, ".machines", "0.35 EUR/h, as told")
            await tab.click("nav a[href='/cost']")
            await shows(tab, "#cost", "1.83 EUR/h")
            text = await tab.inner_text("#cost")

    assert "0.45 EUR/Mtoken" in text
    assert "7.00 EUR" in text
    assert "peer1 (machine-1)\t0.50 USD/h: not counted, the run counts in EUR" in text
    assert wrong == []


async def test_where_the_seconds_of_ten_stages_go_is_told_to_the_end_of_the_step():
    rows = (StageTimes(2, 0.4, 0.9, 0.02, 1.2, 0.3, 0.02, "peer3", 1),) * 10
    chain = (
        ChainPart("filling", 3, "peer3", 0.9),
        *(ChainPart("forward", stage, f"peer{stage}", 0.1) for stage in range(10)),
        *(ChainPart("backward", stage, f"peer{stage}", 0.09) for stage in range(9, -1, -1)),
        ChainPart("closing", None, "", 0.001),
        ChainPart("averaging", 3, "peer3", 0.1),
        ChainPart("deciding", None, "", 0.1),
    )
    async with served_page() as fed:
        fed.tell(*begun(10, 20), *(stepped(step) for step in range(1, 30)))
        fed.tell(Phases(29, 3.0, rows, chain))
        async with opened(fed, "phone") as (tab, wrong):
            await tab.click("nav a[href='/why']")
            await shows(tab, "#why", "until the record is decided")
            text = await tab.inner_text("#why")
            width = await tab.evaluate("document.documentElement.scrollWidth")

    assert "100 ms backward" not in text
    assert "90 ms backward at peer0 (machine-0) of stage 0" in text
    assert "1 ms in 1 shorter part" in text
    assert "stage 9, 2 servers: forward 400 ms" in text
    assert "peer3 (machine-3) waited least; 1 server left out" in text
    assert width <= WIDTHS["phone"][0]
    assert wrong == []


async def test_without_the_link_there_is_one_sentence():
    async with served_page() as fed, browser() as chromium:
        tab = await chromium.new_page()

        answer = await tab.goto(f"http://{fed.address}/")

        assert answer.status == 401
        assert "open the link that it printed" in await tab.inner_text("body")


@pytest.mark.parametrize(("kind", "scheme"), [("phone", "dark"), ("desktop", "light")])
async def test_nothing_is_wider_than_the_screen_and_text_is_readable(kind, scheme):
    async with served_page() as fed:
        fed.tell(
            *begun(4, 20), *(stepped(step) for step in range(1, 30)), peers(4, 20), after_s=0.1
        )
        async with opened(fed, kind, scheme) as (tab, _):
            await shows(tab, "#top", "training")
            width = await tab.evaluate("document.documentElement.scrollWidth")
            ink, back = await tab.evaluate(
                "(style => [style.color, style.backgroundColor])(getComputedStyle(document.body))"
            )

    assert width <= WIDTHS[kind][0]
    assert abs(brightness(ink) - brightness(back)) > 0.6


def brightness(colour):
    numbers = [int(part) for part in colour.partition("(")[2].rstrip(")").split(",")[:3]]
    return sum(numbers) / (3 * 255)


@pytest.mark.full
async def test_a_day_of_events_takes_less_than_100_mb_of_the_browser():
    async with served_page() as fed:
        fed.tell(*begun(4, 20))
        async with opened(fed) as (tab, _):
            await shows(tab, "#top", "shakespeare")
            for hour in range(24):
                for step in range(3_600):
                    fed.tell(stepped(hour * 3_600 + step + 1), after_s=1.0)
                fed.tell(peers(4, 20))
                for number in range(200):
                    fed.page.streams.on_line(
                        f'{{"at":{fed.wall.at},"by":"k","event":"note","text":"n {number}"}}'
                    )
                await shows(tab, "#top", f"{hour * 3_600 + 3_600:,} /".replace(",", "\u202f"))
            session = await tab.context.new_cdp_session(tab)
            await session.send("HeapProfiler.collectGarbage")
            await session.send("Performance.enable")
            metrics = (await session.send("Performance.getMetrics"))["metrics"]

    used = {one["name"]: one["value"] for one in metrics}
    assert used["JSHeapUsedSize"] < 100e6
    assert used["Nodes"] < 20_000


async def test_the_pictures_of_the_docs_are_made_from_a_real_log(tmp_path):
    await pictures(HERE / "small_run.events.jsonl", tmp_path)

    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert sizes.keys() == {name for name, *_ in SHOTS}
    assert all(10_000 < size < BYTES_MAX for size in sizes.values())
