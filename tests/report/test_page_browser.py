"""The page in a real browser: filtering, keyboard, tabs, dark mode, print, no complaint, no request."""

import json
import os

import pytest
from browser import PROGRAM, Browser, axe_core
from drawn import drawn_curves, drawn_run, judge

import hardcase as hc
from hardcase.report.page import write
from hardcase.runs.verify import CURVES, write_side_file
from hardcase.testing.toys import toy_images, toy_subject

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(PROGRAM is None, reason="needs Chromium (Debian: apt-get install chromium)"),
]

HOSTILE = ("<script>document.title='hacked'</script>", '"><img src=x onerror="document.title=1">', *"2345678", "http://a.invalid/x")  # fmt: skip
SHOWN = "[...document.querySelectorAll('#run-1 .gallery li')].filter(e => e.offsetParent).map(e => [+e.dataset.expected, +e.dataset.predicted])"  # fmt: skip
FEW = 24
"""Failures that the gallery shows before somebody asks for all."""
RUNS = "[...document.querySelectorAll('.run')].map(e => !!e.offsetParent)"
FOCUSED = "[document.activeElement.dataset.expected, document.activeElement.dataset.predicted]"
STATUS = "document.querySelector('#run-1 [role=status]').textContent"


@pytest.fixture(scope="module")
def browser():
    one = Browser()
    yield one
    one.close()


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("browser")
    return write([drawn_run(folder / "run", per_seed=4)], folder / "run" / "report")


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    folder = tmp_path_factory.mktemp("browser")
    runs = [drawn_run(folder / name, method=name, seeds=40) for name in ("sinvad", "pgd", "cw")]
    return write(runs, folder / "report")


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A page of a run that measured and did not search."""
    given = {"method": "none", "conditions": {"shift": "±50 %"}, "judge": False}
    folder = tmp_path_factory.mktemp("browser")
    return hc.report(hc.run(toy_subject(), toy_images(60), out=folder / "run", **given))


@pytest.fixture(autouse=True)
def _quiet(browser):
    """Whatever a test does, the page complains about nothing and asks for nothing but itself."""
    yield
    assert browser.complaints() == []
    for url in browser.requests():
        assert url.startswith("file://") and url.endswith("index.html")  # noqa: PT018


def busiest(page):
    return json.loads((page.parent / "report.json").read_text())["runs"][0]["weak"]["pairs"][0]


def test_a_click_on_a_number_filters_the_gallery_and_the_button_undoes_it(browser, page):
    browser.open(page)
    first = browser.js(SHOWN)
    before = browser.js(STATUS)
    assert len(first) == FEW
    browser.click(".all")
    everything = browser.js(SHOWN)
    assert len(everything) == 200
    pair = busiest(page)
    cell = f".matrix [data-expected='{pair['expected']}'][data-predicted='{pair['predicted']}']"
    browser.click(cell)
    shown = browser.js(SHOWN)
    assert shown == [[pair["expected"], pair["predicted"]]] * len(shown)
    assert 0 < len(shown) == everything.count([pair["expected"], pair["predicted"]])
    told = f"{len(shown)} of {pair['failures']} failures shown."
    assert browser.js(STATUS) == f"{pair['expected']} → {pair['predicted']}: {told}"
    one = f"document.querySelector({json.dumps(cell)})"
    assert browser.js(f"{one}.getAttribute('aria-pressed')") == "true"
    assert browser.js("document.activeElement.className") == "clear"
    browser.click(".filter .clear")
    assert browser.js(SHOWN) == everything
    assert browser.js(STATUS) == before
    assert browser.js(f"document.activeElement === {one}")
    assert browser.js("!document.querySelector('[aria-pressed=true]')")
    assert browser.js("document.querySelector('.clear').hidden")


def test_choosing_the_same_number_again_clears_the_filter(browser, page):
    browser.open(page)
    browser.click(".matrix .cell")
    assert len({tuple(pair) for pair in browser.js(SHOWN)}) == 1
    assert browser.js("document.querySelectorAll('[aria-pressed=true]').length") == 1
    browser.click(".matrix .cell")
    assert len(browser.js(SHOWN)) == FEW


def test_a_class_filters_the_gallery_too(browser, measured):
    browser.open(measured)
    browser.click(".cell.name")
    shown = browser.js(SHOWN)
    assert len({expected for expected, _ in shown}) == 1
    assert len({predicted for _, predicted in shown}) >= 1
    assert str(len(shown)) in browser.js(STATUS)


def test_the_matrix_is_worked_by_keys_alone(browser, page):
    browser.open(page)
    for _ in range(60):
        browser.key("Tab")
        if browser.js("document.activeElement.matches('.matrix .cell')"):
            break
    assert browser.js("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    assert browser.js("parseFloat(getComputedStyle(document.activeElement).outlineWidth)") >= 2
    start = browser.js(FOCUSED)
    browser.key("ArrowRight")
    moved = browser.js(FOCUSED)
    assert moved[0] == start[0]
    assert int(moved[1]) > int(start[1])
    browser.key("ArrowDown")
    assert int(browser.js("document.activeElement.dataset.expected")) > int(moved[0])
    browser.key("ArrowUp")
    assert browser.js(FOCUSED) == moved
    browser.key("Enter")
    shown = browser.js(SHOWN)
    assert {tuple(pair) for pair in shown} == {(int(moved[0]), int(moved[1]))}
    browser.key("Enter")  # the focus is on the clear button
    assert len(browser.js(SHOWN)) == FEW
    browser.key(" ")  # and back on the number
    assert browser.js(SHOWN) == shown


def test_everything_that_scrolls_or_is_pressed_can_be_reached_by_keys(browser, page):
    browser.open(page, width=390)
    stuck = browser.js(
        "[...document.querySelectorAll('*')].filter(e => e.scrollWidth > e.clientWidth + 1 &&"
        " ['auto', 'scroll'].includes(getComputedStyle(e).overflowX) && e.tabIndex < 0).length"
    )
    assert stuck == 0
    assert browser.js("[...document.querySelectorAll('button, a')].every(e => e.tabIndex >= 0)")


@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_nothing_sticks_out_of_the_page(browser, page, three, width):
    for path in (page, three):
        browser.open(path, width=width)
        assert browser.js("document.documentElement.scrollWidth") <= width


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    folder = tmp_path_factory.mktemp("browser")
    run = judge(drawn_run(folder / "run", per_seed=4), card={"accuracy": 0.97})
    return write([run], folder / "report")


WORDS = "[...document.querySelectorAll('.run')].find(e => e.offsetParent).innerText"
LOWEST = "document.querySelector('.first-pairs .pairs').getBoundingClientRect().bottom + scrollY"


def test_a_tab_is_read_in_minutes_and_the_pairs_lie_on_the_first_screen(
    browser, page, three, measured, judged
):
    for path in (page, three, measured, judged):
        browser.open(path, width=1200)
        assert len(browser.js(WORDS).split()) <= 900
        assert browser.js(LOWEST) <= 1200


def test_tables_are_cards_on_a_phone(browser, measured):
    browser.open(measured, width=400)
    assert browser.js("getComputedStyle(document.querySelector('.cards td')).display") == "block"
    outside = "[...document.querySelectorAll('.cards *')].filter(e => e.getBoundingClientRect().right > 400).length"  # fmt: skip
    assert browser.js(outside) == 0


def luminance(colour):
    parts = [float(v) / 255 for v in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("dark", [False, True])
def test_dark_mode_is_dark_and_both_modes_can_be_read(browser, page, dark):
    browser.open(page, dark=dark)
    paper = luminance(browser.js("getComputedStyle(document.body).backgroundColor"))
    assert (paper < 0.05) if dark else (paper > 0.85)
    for selector in ("body", ".said b", ".small", "figcaption", "thead th", ".label", "summary"):
        one = f"document.querySelector({json.dumps(selector)})"
        ink = luminance(browser.js(f"getComputedStyle({one}).color"))
        contrast = (max(ink, paper) + 0.05) / (min(ink, paper) + 0.05)
        assert contrast >= 4.5, (selector, contrast)


def test_pictures_are_loaded_and_pixelated(browser, page):
    browser.open(page)
    loaded = "i.complete && i.naturalWidth === 28 && i.alt"
    assert browser.js(f"[...document.images].every(i => {loaded})")
    assert browser.js("getComputedStyle(document.images[0]).imageRendering") == "pixelated"


def test_runs_are_tabs_that_links_and_keys_open(browser, three):
    browser.open(three)
    assert browser.js(RUNS) == [True, False, False]
    browser.click(".tabs a:nth-child(3)")
    assert browser.js(RUNS) == [False, False, True]
    browser.key("ArrowLeft")
    assert browser.js(RUNS) == [False, True, False]
    assert browser.js("document.activeElement.getAttribute('aria-selected')") == "true"
    for _ in range(2):  # also where the address already names that run
        browser.click("table a[href='#run-1']")
        assert browser.js(RUNS) == [True, False, False]
        browser.click(".tabs a:nth-child(1)")
        browser.key("ArrowRight")
        assert browser.js(RUNS) == [False, True, False]


def test_a_filter_touches_only_its_own_run(browser, three):
    browser.open(three)
    others = "[...document.querySelectorAll('#run-2 .gallery li')].map(e => e.hidden)"
    before = browser.js(others)
    browser.click("#run-1 .matrix .cell")
    assert browser.js(others) == before
    assert browser.js("document.querySelector('#run-2 .clear').hidden")


def test_print_shows_every_run_and_leaves_out_the_controls(browser, three):
    browser.open(three)
    browser.emulate(media="print")
    assert browser.js(RUNS) == [True] * 3
    hidden = "['.tabs', '.skip'].every(s => getComputedStyle(document.querySelector(s)).display === 'none')"
    assert browser.js(hidden)
    assert browser.js("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    browser.emulate()
    data = browser.pdf()
    assert data.startswith(b"%PDF")
    pages = (b"/Type /Page\n", b"/Type/Page\n", b"/Type /Page ")
    assert sum(map(data.count, pages)) >= 6


def test_without_scripts_all_runs_follow_each_other(browser, three):
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(three)
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)
    assert browser.js(RUNS) == [True] * 3


def test_hostile_names_do_nothing(browser, tmp_path):
    run = drawn_run(tmp_path / "run", seeds=60, classes=HOSTILE, model=HOSTILE[0])
    browser.open(write([run], tmp_path / "run" / "report"))
    assert browser.js("document.title").endswith("hardcase report")
    browser.click(".matrix .cell")
    assert len(browser.js(SHOWN)) > 0
    assert browser.js("document.scripts.length") == 1
    assert browser.js("[...document.images].every(i => i.src.startsWith('data:'))")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A page with everything: a map, curves, limits and conditions."""
    folder = tmp_path_factory.mktemp("browser")
    ends = {"brightness": (0.0, 0.5), "slant": (-1.0, 1.0)}
    axes = [{"name": n, "low": a, "high": b, "cells": 6} for n, (a, b) in ends.items()]
    run = drawn_run(folder / "run", seeds=300, map={"kind": "figure", "axes": axes})
    write_side_file(run.store, CURVES, drawn_curves())
    (run.folder / "config.toml").write_text("[limits]\naccepted_rate = 0.05\n")
    return write([run], folder / "report")


def test_a_finding_that_is_pressed_shows_its_seed_and_itself_again(browser, page):
    browser.open(page)
    image = "document.querySelector('.pair .flip img')"
    own = browser.js(f"[{image}.src, {image}.alt]")
    seed = browser.js("document.querySelector('.pair img').src")
    browser.click(".pair .flip")
    assert browser.js(f"{image}.src") == seed != own[0]
    flip = "document.querySelector('.pair .flip')"
    assert browser.js(f"{flip}.getAttribute('aria-pressed')") == "true"
    browser.js(f"{flip}.focus()")
    browser.key("Enter")
    assert browser.js(f"[{image}.src, {image}.alt]") == own


@pytest.mark.parametrize("width", [1280, 400])
def test_map_and_curves_fit_the_page_and_have_tables(browser, whole, width):
    browser.open(whole, width=width)
    assert browser.js("document.querySelectorAll('.heat td').length") == 36
    assert browser.js("document.querySelectorAll('.heat img').length") > 0
    assert browser.js("document.querySelectorAll('.small-charts svg').length") == 2
    assert browser.js("document.documentElement.scrollWidth") <= width


@pytest.mark.skipif("HARDCASE_BROWSER" not in os.environ, reason="make browser")
@pytest.mark.parametrize("dark", [False, True])
def test_axe_finds_nothing_serious(browser, whole, three, tmp_path_factory, dark):
    axe = axe_core(tmp_path_factory.mktemp("axe"))
    for page in (whole, three):
        browser.open(page, dark=dark)
        browser.js("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        browser.js(axe + "; 0")
        told = "r.violations.map(v => [v.id, v.impact, v.nodes[0].html])"
        found = browser.js(f"axe.run().then(r => {told})")
        assert [one for one in found if one[1] in ("serious", "critical")] == []
