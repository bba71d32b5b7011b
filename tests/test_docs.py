"""The documentation says what is so: its programs run, and the files that it names are there."""

import ast
import contextlib
import re
from pathlib import Path

import pytest
from make_map import PAGE, map_page, sentence

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
EXAMPLES = ROOT / "examples"
FENCE = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
NAMED_TEST = re.compile(r"`(tests/[\w./]+)`")
NAMED_BENCH = re.compile(r"`[^`\n]*?(\w+\.py)\b")
INCLUDED = re.compile(r'^--8<-- "(.+)"$')
FRAGMENTS = {
    "dht.md",
    "directory.md",
}  # shows calls on objects that its text describes: parsed, not run
QUESTIONS_MIN = 44
WORDS_MAX = {"README.md": 1500, "docs/contributing.md": 1200}
MARK_OF_A_MERGE = re.compile(r"^(<{7}|\|{7}|={7}|>{7})( |$)", re.MULTILINE)


def programs() -> list:
    """Every block of Python, by page; what a page includes is tests/procs/test_examples.py's."""
    found = []
    for page in sorted(DOCS.rglob("*.md")):
        for number, text in enumerate(FENCE.findall(page.read_text())):
            if not INCLUDED.match(text.strip()):
                found.append(pytest.param(page, text, id=f"{page.relative_to(DOCS)}:{number}"))
    return found


@pytest.mark.parametrize(("page", "text"), programs())
def test_program_on_a_page_runs(page, text, tmp_path):
    if page.relative_to(DOCS).as_posix() in FRAGMENTS:
        compile(text, page, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        return
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("some text to learn\n" * 500)

    with contextlib.chdir(tmp_path):
        exec(compile(text, page, "exec"), {"__name__": "__main__"})


def test_programs_that_pages_include_are_there():
    """Recipes, which pages include too, are tests/deploy/test_recipes.py's."""
    included = [
        found[1]
        for page in DOCS.rglob("*.md")
        for line in page.read_text().splitlines()
        if (found := INCLUDED.match(line)) and not found[1].startswith("deploy/")
    ]

    there = [*EXAMPLES.glob("*.py"), *EXAMPLES.glob("*.toml")]
    assert sorted(included) == sorted(f"examples/{path.name}" for path in there)


def test_the_tour_leads_to_files_that_exist():
    """A file was moved or renamed? Name its new place in docs/contributing.md."""
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in (DOCS / "contributing.md").read_text().splitlines()
        if line.startswith("|") and "?" in line
    ]

    missing = [
        f"docs/contributing.md: {question!r} leads to {name}, which is not there"
        for question, file, there in rows
        for name in re.findall(r"`([\w./]+\.(?:py|pyi|md))`", f"{file} {there}")
        if not ((ROOT / "p2pswarm" / name).exists() or (ROOT / name).exists())
    ]

    assert missing == []
    assert all(re.fullmatch(r"`[\w./]+`", file) for _, file, _ in rows)
    assert len(rows) >= QUESTIONS_MIN
    assert len({question for question, *_ in rows}) == len(rows)


@pytest.mark.parametrize(("page", "words"), WORDS_MAX.items())
def test_a_page_for_newcomers_is_short(page, words):
    """A fact that does not fit goes to the page of its subject."""
    assert len((ROOT / page).read_text().split()) <= words


def test_the_tours_words_lead_to_files_that_exist():
    """The same for files that the text around the questions names."""
    for page in (DOCS / "contributing.md", ROOT / "CONTRIBUTING.md"):
        named = set(re.findall(r"`([\w./]+\.(?:py|md))`", page.read_text()))
        missing = [
            name
            for name in sorted(named)
            if not ((ROOT / "p2pswarm" / name).exists() or (ROOT / name).exists())
        ]
        assert missing == [], f"{page.name} names what is not there"


def test_tests_that_pages_name_are_there():
    named = {name for page in DOCS.glob("*.md") for name in NAMED_TEST.findall(page.read_text())}

    assert "tests/server/test_bad_input.py" in named
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_benches_that_the_figures_name_are_there():
    named = set(NAMED_BENCH.findall((DOCS / "figures.md").read_text()))
    named = {name for name in named if not name.startswith("test_")}

    assert "overhead.py" in named
    assert [name for name in sorted(named) if not (ROOT / "bench" / name).exists()] == []


@pytest.mark.parametrize(
    "page",
    [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))],
    ids=lambda page: page.relative_to(ROOT).as_posix(),
)
def test_page_has_no_mark_of_a_merge(page):
    assert not MARK_OF_A_MERGE.findall(page.read_text())


def test_the_map_is_as_the_modules_say():
    """A module was added, moved or described anew? `make map` writes the page again."""
    fresh = PAGE.read_text(encoding="utf-8") == map_page()

    assert fresh, "docs/map.md is stale: run make map"


def test_every_module_has_a_sentence_on_the_map():
    described = {path: sentence(path) for path in sorted((ROOT / "p2pswarm").rglob("*.py"))}

    assert [path.name for path, text in described.items() if not text.endswith(".")] == []


def test_no_change_is_told_twice():
    told = [
        line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("- ")
    ]

    assert sorted(told) == sorted(set(told))
