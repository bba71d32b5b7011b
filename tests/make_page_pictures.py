"""Make the pictures of the page in docs: from the log of a real run, in a real browser.

    python tests/make_page_pictures.py tests/web/small_run.events.jsonl

The replay is at the log's last event, so that the same log gives the same picture but for fonts.
`make_page_log.py` makes another log.
"""

import asyncio
import importlib
import shutil
import sys
from pathlib import Path

from p2pswarm.base.ids import Address
from p2pswarm.node.page import served
from p2pswarm.node.progress.event_files import read_events
from p2pswarm.node.stack.node_page import FILES, STOP, page_link
from p2pswarm.progress.events import Ended
from p2pswarm.web.health import NodeHealth
from p2pswarm.web.run_page import RunPage

DOCS = Path(__file__).parents[1] / "docs"
BYTES_MAX = 200_000  # of a picture: a repository keeps each for good
TOKEN = "the-token-of-a-picture-of-the-docs"
SHOTS = (
    ("page.png", "/", (1200, 940), "light"),
    ("page-dark.png", "/", (1200, 940), "dark"),
    ("page-phone.png", "/", (390, 844), "dark"),
    ("page-you.png", "/you", (390, 760), "light"),
    ("page-why.png", "/why", (1000, 980), "light"),
    ("page-cost.png", "/cost", (700, 880), "light"),
)
"""File, path, size of the screen, and scheme."""
YOU = {
    "role": "stage",
    "name": "cellar",
    "state": "serves",
    "device": "NVIDIA GeForce RTX 3090",
    "stage": 1,
    "share": 0.43,
    "up_bytes": 21 * 10**9,
    "down_bytes": 19 * 10**9,
    "reachable": "punched at 198.51.100.7:4000",
    "stop": STOP.format(20.0),
    "files": FILES,
    "unheard_s": 0.4,
}
"""What a server would say; its other figures are of the run."""


async def main(log: Path, folder: Path) -> None:
    """Take all pictures."""
    tools = importlib.import_module("playwright.async_api")
    told = [each for each in read_events([log], "", print) if not isinstance(each.event, Ended)]
    page = RunPage(NodeHealth("trainer", 0.0), lambda: told[-1].at)
    for each in told:
        page.view.on_event(each)
        page.on_line(each, each.at)
    run = page.view.to_json(told[-1].at)
    page.own = lambda: {
        **YOU,
        "run": run["name"],
        "stages": len(run["stages"]),
        "since": told[0].at,
        "version": run["step"],
    }
    async with (
        served(page, [Address("127.0.0.1", 0)], TOKEN) as address,
        tools.async_playwright() as playwright,
    ):
        browser = await playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        for name, path, (width, height), scheme in SHOTS:
            context = await browser.new_context(
                viewport={"width": width, "height": height}, color_scheme=scheme
            )
            tab = await context.new_page()
            await tab.goto(page_link(address, TOKEN))
            await tab.locator("#top .facts").wait_for()
            await tab.click(f"nav a[href='{path}']")
            await tab.locator("nav a[aria-current]").wait_for()
            await tab.screenshot(path=folder / name)
            assert (folder / name).stat().st_size < BYTES_MAX, name
            await context.close()
        await browser.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else DOCS))
