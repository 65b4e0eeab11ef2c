"""`doctor scan --format html` as somebody gets it: the installed command, and the page in a real Chromium."""

from __future__ import annotations

import json
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from hermes_doctor.demo.home import make_demo_home
from tests.chromium import Page, browsing
from tests.cli.support import doctor
from tests.debian import debian_program

HOSTILE = "</p><script>alert(1)</script>\u202e\x1b[31m"
LONG = "x" * 300

#: Text with too little contrast to what is behind it (WCAG 2.2, 1.4.3), as [text, contrast].
CONTRAST = """(() => {
  const parts = colour => colour.match(/[\\d.]+/g).map(Number);
  const light = colour => parts(colour).slice(0, 3).map(part => part / 255)
    .map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
    .reduce((sum, part, place) => sum + part * [0.2126, 0.7152, 0.0722][place], 0);
  const behind = element => {
    for (let each = element; each; each = each.parentElement) {
      const colour = getComputedStyle(each).backgroundColor;
      if ((parts(colour)[3] ?? 1) > 0) return colour;
    }
    return 'rgb(255, 255, 255)';
  };
  document.querySelectorAll('details').forEach(each => each.open = true);
  return [...document.body.querySelectorAll('*')]
    .filter(each => [...each.childNodes].some(child => child.nodeType === 3 && child.data.trim()))
    .map(each => {
      const [one, other] = [light(getComputedStyle(each).color), light(behind(each))].sort((a, b) => b - a);
      return [each.textContent.slice(0, 40), (one + 0.05) / (other + 0.05)];
    })
    .filter(([, contrast]) => contrast < 4.5);
})()"""

#: What stands out of the page to the right.
WIDER = """[...document.body.querySelectorAll('*')].filter(each => !each.closest('.away'))
    .filter(each => each.getBoundingClientRect().right > document.documentElement.clientWidth + 0.5)
    .map(each => each.outerHTML.slice(0, 80))"""

FOCUSED = """(() => {
  const each = document.activeElement;
  const shown = getComputedStyle(each);
  return [each.tagName, each.textContent.slice(0, 60), shown.outlineStyle !== 'none' && shown.outlineWidth !== '0px'];
})()"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A damaged home, in it a conversation with several branches, and ids that would like to be more than text."""
    store = make_demo_home(tmp_path / "home")
    connection = apsw.Connection(str(store))
    started = time.time() - 29 * 86400
    kin = [
        ("chat-1", None, "telegram", "compression"),
        ("chat-2", "chat-1", "telegram", "compression"),
        (HOSTILE, "chat-2", "cron", None),
        (LONG, "chat-2", "cron", None),
        ("helper", "chat-1", "subagent", None),
        ("chat-3", "chat-2", HOSTILE, None),
    ]
    for place, (name, parent, source, reason) in enumerate(kin):
        at = started + place * 60
        connection.execute(
            "INSERT INTO sessions (id, parent_session_id, source, started_at, ended_at, end_reason)"
            " VALUES (?, ?, ?, ?, ?, ?)",
            (name, parent, source, at, at + 60 if reason else None, reason),
        )
        connection.execute(
            "INSERT INTO messages (session_id, role, content, timestamp) VALUES (?, 'user', 'a private word', ?)",
            (name, at),
        )
    connection.close()
    return store.parent


@pytest.fixture
def page(home: Path, tmp_path: Path) -> Path:
    file = tmp_path / "report.html"
    done = doctor(tmp_path, "scan", "--format", "html", "--output", file, home)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    return file


@pytest.fixture
def tab(tmp_path: Path) -> Iterator[Page]:
    binary = debian_program("chromium")
    with browsing(binary, tmp_path / "profile") as browser:
        yield browser.page()


def test_the_page_on_standard_output_holds_what_the_json_counts(home: Path, tmp_path: Path) -> None:
    done = doctor(tmp_path, "scan", "--format", "html", home)
    [database] = json.loads(doctor(tmp_path, "scan", "--json", home).stdout)["databases"]
    assert done.returncode == 1
    assert done.stdout.startswith("<!doctype html>\n")
    assert done.stdout.endswith("</html>\n")
    for check in (each for each in database["checks"] if each["count"]):
        assert f'<span class="soft small">{check["count"]} found</span>' in done.stdout
    assert "a private word" not in done.stdout
    assert "Resuming" in done.stdout
    # The second scan knows of the first.
    assert "How it has gone" in doctor(tmp_path, "scan", "--format", "html", home).stdout


def test_a_store_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "state.db").write_bytes(b"SQLite format 3\0 and no more")
    done = doctor(tmp_path, "scan", "--format", "html", tmp_path / "state.db")
    assert done.returncode == 4
    assert "What to do next" in done.stdout
    assert done.stdout.endswith("</html>\n")


def test_in_a_browser_it_fits_and_asks_for_nothing(page: Path, tab: Page) -> None:
    for dark in (False, True):
        for width in (390, 1280):
            tab.resize(width, dark=dark)
            tab.open(page)
            assert tab.run(CONTRAST) == []
            assert tab.run("document.documentElement.scrollWidth") <= width
            assert tab.run(WIDER) == []
    # Seen as it is meant to be: the style was taken, in both themes.
    assert tab.run("getComputedStyle(document.body).backgroundColor") == "rgb(19, 23, 26)"
    tab.resize(1280)
    assert tab.run("getComputedStyle(document.body).backgroundColor") == "rgb(250, 249, 245)"
    assert {address.split(":")[0] for address in tab.requests} == {"file"}
    assert {address.rsplit("/", 1)[1] for address in tab.requests} == {"report.html"}
    assert tab.said == []
    assert tab.run("document.querySelectorAll('script, img').length") == 0
    assert tab.run("document.title").endswith("hermes-state-doctor")
    assert tab.run("document.body.innerText").count(r"</p><script>alert(1)</script>\u202e\x1b[31m") >= 2
    # The commands can be copied as they are typed.
    assert tab.run("document.querySelector('.next pre').innerText").startswith("doctor fix ")


def test_by_keyboard_everything_can_be_reached_and_opened(page: Path, tab: Page) -> None:
    tab.resize(1280)
    tab.open(page)
    summaries = tab.run("[...document.querySelectorAll('summary')].map(each => each.textContent.slice(0, 60))")
    links = tab.run("[...document.querySelectorAll('a')].length")
    assert len(summaries) >= 5
    reached: list[str] = []
    for place in range(len(summaries) + links):
        tab.press("Tab")
        kind, text, outlined = tab.run(FOCUSED)
        assert outlined
        if place == 0:
            assert text == "Skip to the stores"
        if kind == "SUMMARY":
            reached.append(text)
            tab.press("Enter")
    assert reached == summaries
    assert tab.run("[...document.querySelectorAll('details')].every(each => each.open)") is True
