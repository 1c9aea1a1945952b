"""The pages in a real Chromium: keys alone, clicks, a phone, refreshing, two tabs, no connection, axe-core."""

import json
import shutil
import time
from pathlib import Path

import pytest
from browser import PROGRAM, Browser, axe_core
from killing_study import Server, free_port

from hardcase_study.answers import Answers

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(PROGRAM is None, reason="needs Chromium (Debian: apt-get install chromium)"),
]
pytest.importorskip("uvicorn", reason="needs hardcase[study]")


class Page:
    """A browser on the pages of one study."""

    def __init__(self, study, browser):
        self.study = study
        self.browser = browser
        self.server = Server(study.folder, free_port())
        self.server.start()
        self.home = f"http://127.0.0.1:{self.server.port}"

    def open(self, path, **size):
        class Address:
            def as_uri(_):  # noqa: N805 - `self` is the page
                return path if path.startswith("http") else self.home + path

        self.browser.open(Address(), **size)
        self.wait(f"location.origin === '{self.home}' && document.readyState === 'complete'")

    def leave(self):
        """Nothing of this study's pages is under way any more."""
        self.browser.call("Page.navigate", url="about:blank")
        self.wait("location.href === 'about:blank' && document.readyState === 'complete'")
        self.server.kill()

    def wait(self, condition, seconds=60):
        for _ in range(int(seconds * 20)):
            try:
                if self.browser.js(condition):
                    return
            except AssertionError:  # the page is on its way to another
                pass
            time.sleep(0.05)
        raise AssertionError(
            f"never: {condition}; {self.browser.js('document.body.innerText')[:300]}"
        )

    def begin(self, **size):
        self.open("/?t=door", **size)
        self.browser.js("document.querySelector('[name=agree]').click()")
        self.browser.js("document.querySelector('form').requestSubmit()")
        self.reach(1)

    @property
    def position(self):
        return self.browser.js("location.pathname.split('/').pop()")

    def press(self, key):
        """A key of the keyboard, as a person would press it."""
        code = {"Enter": 13, "Tab": 9}.get(key, ord(key.upper()[0]))
        text = {"Enter": "\r", "Tab": ""}.get(key, key)
        common = {"key": key, "windowsVirtualKeyCode": code}
        self.browser.call("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        self.browser.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def choose(self, key, value=None):
        """Press the key of an answer; returns when it is chosen."""
        self.press(key)
        self.wait(f"document.querySelector('input:checked')?.value === '{value or key}'")

    def reach(self, position):
        """Until the page of an item is there and listens."""
        self.wait(
            f"location.pathname.endsWith('/{position}') && document.readyState === 'complete' "
            "&& !!document.getElementById('form')"
        )

    def send(self, position):
        """Press Enter; returns when the page of the next item is there."""
        self.press("Enter")
        self.reach(position)

    def answers(self):
        return Answers(self.study.folder).all()


@pytest.fixture(scope="module")
def browser():
    one = Browser()
    yield one
    one.close()


@pytest.fixture
def page(make, browser):
    pages = []

    def opened(design="label", **options):
        pages.append(Page(make(design, **options), browser))
        return pages[-1]

    yield opened
    for one in pages:
        one.leave()


def test_a_person_finishes_33_items_with_the_keyboard_alone(page):
    here = page()
    here.open("/?t=door")
    for _ in range(10):
        if here.browser.js("document.activeElement.name") == "agree":
            break
        here.press("Tab")
    here.press(" ")
    here.press("Tab")
    here.press("Enter")
    for position in range(1, 34):
        here.wait(f"location.pathname.endsWith('/{position}') && !!document.getElementById('form')")
        here.wait("document.readyState === 'complete'")
        here.press(str(position % 10) if position % 4 else "u")
        assert here.browser.js("document.querySelectorAll('input:checked').length") == 1
        here.press("Enter")
    here.wait("location.pathname.endsWith('/done')")
    given = here.answers()
    assert len(given) == 33
    assert [one.value["label"] for one in given] == [
        str(i % 10) if i % 4 else "unsure" for i in range(1, 34)
    ]
    assert all(0 < one.seconds < 60 for one in given)
    assert here.browser.complaints() == []


def test_nothing_is_loaded_from_elsewhere(page):
    here = page("argus")
    here.begin()
    assert here.browser.requests()
    assert all(url.startswith(here.home) for url in here.browser.requests())
    assert here.browser.complaints() == []


def test_on_a_phone_with_clicks_nothing_is_wider_than_the_screen(page):
    here = page("sinvad")
    here.begin(width=360, height=740)
    assert here.browser.js("document.documentElement.scrollWidth") <= 360
    assert (
        here.browser.js("document.querySelector('.picture img').getBoundingClientRect().width")
        >= 280
    )
    for name in ("first", "second"):
        here.browser.click(f"input[name={name}][value='3']")
    here.browser.click("#next")
    here.wait("location.pathname.endsWith('/2')")
    assert here.answers()[0].value == {"first": "3", "second": "3"}


def test_images_are_enlarged_without_smoothing(page):
    here = page()
    here.begin()
    style = "getComputedStyle(document.querySelector('.picture img')).imageRendering"
    assert here.browser.js(style) == "pixelated"
    assert here.browser.js("document.querySelector('.picture img').width") % 28 == 0


def test_refreshing_in_the_middle_keeps_the_item_and_its_time(page):
    here = page()
    here.begin()
    item = here.browser.js("document.getElementById('form').dataset.item")
    time.sleep(0.6)
    here.browser.call("Page.reload")
    here.wait("document.readyState === 'complete' && !!document.getElementById('form')")
    assert here.browser.js("document.getElementById('form').dataset.item") == item
    here.press("3")
    here.press("Enter")
    here.wait("location.pathname.endsWith('/2')")
    assert here.answers()[0].seconds >= 0.5


def test_without_a_connection_the_answer_waits(page):
    here = page()
    here.begin()
    here.browser.call("Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=-1, uploadThroughput=-1)  # fmt: skip
    here.press("3")
    here.press("Enter")
    here.wait("document.getElementById('status').textContent.includes('no connection')")
    assert here.answers() == []
    assert here.position == "1"
    here.browser.call("Network.emulateNetworkConditions", offline=False, latency=0, downloadThroughput=-1, uploadThroughput=-1)  # fmt: skip
    here.wait("location.pathname.endsWith('/2')")
    assert [one.value for one in here.answers()] == [{"label": "3"}]


def test_two_tabs_and_the_back_button(page):
    here = page()
    here.begin()
    address = here.browser.js("location.href")
    other = Browser()
    try:
        there = Page.__new__(Page)
        there.study = here.study
        there.browser = other
        there.home = here.home
        there.open(address)
        there.reach(1)
        there.choose("5")
        here.choose("3")
        here.send(2)
        there.send(2)
    finally:
        other.close()
    assert [one.value for one in here.answers()] == [{"label": "3"}]
    here.browser.js("history.back()")
    here.reach(1)  # a page kept in memory asks for itself anew
    here.wait("document.getElementById('form').elements.revise.value === 'yes'")
    here.reach(1)
    assert here.browser.js("document.querySelector('input:checked').value") == "3"
    here.choose("7")
    here.send(2)
    (row,) = here.answers()
    assert (row.value, row.revision) == ({"label": "7"}, 1)


def test_an_order_by_keys_buttons_and_dragging(page):
    here = page("argus")
    here.begin(width=1280, height=2400)
    order = "[...document.querySelectorAll('.card')].map(card => card.dataset.id)"
    first = here.browser.js(order)
    here.browser.js("document.querySelector('.handle').focus()")
    here.browser.key("ArrowRight")
    assert here.browser.js(order)[:2] == [first[1], first[0]]
    assert "number 2 of 7" in here.browser.js("document.getElementById('status').textContent")
    assert here.browser.js("document.activeElement.closest('.card').dataset.id") == first[0]
    here.browser.click(f".card[data-id='{first[0]}'] .move[data-step='-1']")
    assert here.browser.js(order) == first
    centre = "(() => { const b = document.querySelectorAll('.handle')[%d].getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; })()"
    (x0, y0), (x1, y1) = (here.browser.js(centre % i) for i in (0, 2))
    mouse = {"button": "left", "buttons": 1, "clickCount": 1}
    here.browser.call("Input.dispatchMouseEvent", type="mousePressed", x=x0, y=y0, **mouse)
    for step in range(1, 9):
        here.browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=x0 + (x1 - x0) * step / 8, y=y0 + (y1 - y0) * step / 8, **mouse)  # fmt: skip
    here.browser.call("Input.dispatchMouseEvent", type="mouseReleased", x=x1, y=y1, **mouse)
    dragged = here.browser.js(order)
    assert dragged != first
    assert sorted(dragged) == sorted(first)
    here.press("Enter")
    assert here.position == "1"
    here.browser.js(
        "document.querySelectorAll('.grade input[value=\"2\"]').forEach(one => one.click())"
    )
    here.press("Enter")
    here.wait("location.pathname.endsWith('/2')")
    (row,) = here.answers()
    assert row.value["order"] == dragged


def test_time_out_of_sight_is_measured_apart(page):
    here = page()
    here.begin()
    here.browser.js("window.dispatchEvent(new Event('blur'))")
    time.sleep(0.5)
    here.browser.js("window.dispatchEvent(new Event('focus'))")
    here.press("3")
    here.press("Enter")
    here.wait("location.pathname.endsWith('/2')")
    (row,) = here.answers()
    assert row.lost >= 1
    assert row.hidden >= 0.4


@pytest.fixture(scope="session")
def axe(tmp_path_factory):
    return axe_core(tmp_path_factory.mktemp("axe"))


@pytest.mark.parametrize("design", ["label", "sinvad", "argus", "compare", "fault"])
def test_axe_finds_nothing_serious(page, axe, design):
    from hardcase_study import analyse, simulate

    here = page(design)
    desk = json.loads((here.study.folder / "secret.json").read_text())["desk"]
    here.begin()
    pages = [here.browser.js("location.href"), "/?t=door", f"/desk/{desk}"]
    report = here.study.folder.parent / "again"
    shutil.copytree(here.study.folder, report, ignore=shutil.ignore_patterns("answers*"))
    from hardcase_study import Study

    simulate(Study.open(report), cheats=0.2)
    analyse(report)
    pages.append((report / "analysis" / "index.html").as_uri())
    for address in pages:
        here.open(address) if not address.startswith("file") else here.browser.open(Path(report / "analysis" / "index.html"))  # fmt: skip
        here.browser.js(axe + "; 0")
        found = here.browser.js(
            "axe.run().then(r => r.violations.map(v => [v.id, v.impact, v.nodes[0].html]))"
        )
        serious = [one for one in found if one[1] in ("serious", "critical")]
        assert serious == [], (address, serious)


def test_a_study_that_asks_shows_how_far_its_decision_is(page):
    here = page(ask=6)
    here.begin()
    bar = "+document.getElementById('decision').value"
    before = here.browser.js(bar)
    for position in range(1, 5):
        here.reach(position)
        here.choose("3")
        here.send(position + 1)
    assert here.browser.js(bar) > before == 0
    assert len(Answers(here.study.folder).drawn()) >= 4
    assert here.browser.complaints() == []
