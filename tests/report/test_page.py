"""The page as text: complete, escaped, self-contained, honest, and small and quick enough."""

import json
import re
import time
from html.parser import HTMLParser

import pytest
from drawn import DIGITS, drawn_run, judge
from hypothesis import HealthCheck, example, given, settings, strategies as st

import hardcase as hc
from hardcase.environment import one_line
from hardcase.errors import HardcaseError
from hardcase.report import words
from hardcase.report.page import write
from hardcase.runs.results import Run
from hardcase.testing.toys import toy_images, toy_subject
from tiny import rewrite

HOSTILE = (
    "<script>alert(1)</script>", '"><img src=x onerror=alert(2)>', "'; alert(3); //", "{{ 7 * 7 }}", "</style><b>", "&amp;",
    "http://example.org/a.png", "-->", "\u202eevil", "javascript:alert(4)",
)  # fmt: skip
BLOCKS = {"p", "li", "td", "th", "dd", "figcaption", "dl"}
EMPTY = {"meta", "link", "img", "br", "hr", "input"}


class Page(HTMLParser):
    """Elements with their attributes, and the text of every block."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.stack, self.blocks = [], [], {}
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in EMPTY:
            self.stack.append((tag, dict(attrs), len(self.elements)))

    def handle_endtag(self, tag):
        assert self.stack[-1][0] == tag, (tag, self.stack[-3:])
        self.stack.pop()

    def handle_data(self, data):
        tags = [tag for tag, _, _ in self.stack]
        if not {"script", "style", "pre", "title"} & set(tags) and not self._scale():
            block = [0, *(number for tag, _, number in self.stack if tag in BLOCKS)][-1]
            self.blocks[block] = self.blocks.get(block, "") + data

    def _scale(self):
        return any(attrs.get("class") in ("tick", "axis") for _, attrs, _ in self.stack)

    def all(self, tag):
        return [attrs for name, attrs in self.elements if name == tag]

    @property
    def text(self):
        return " ".join(" ".join(self.blocks.values()).replace("\u00a0", " ").split())


def written(runs, folder):
    path = write(runs, folder)
    return Page(path.read_text()), path, json.loads((folder / "report.json").read_text())


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return tmp_path_factory.mktemp("page")


@pytest.fixture(scope="module")
def one(base):
    return written([drawn_run(base / "one", per_seed=3)], base / "one" / "report")


def test_what_nobody_judged_is_not_called_confirmed_nor_a_fault(one):
    page, _, data = one
    search = data["runs"][0]["search"]
    assert (search["accepted"], search["searched"]) == (None, 91)
    assert "confirmed" not in page.text
    assert not re.search(r"\bfaults?\b", page.text)
    assert "What the label check says" not in page.text, "a phase that did not run has no section"


def test_pictures_have_words_and_lie_in_the_page_and_links_arrive(one):
    page, _, data = one
    pictures = page.all("img")
    run = data["runs"][0]
    assert len(run["pairs"]) == 6
    assert len(pictures) == 2 * 6 + 2 * len(run["gallery"]["failures"])
    assert all(picture["alt"].strip() for picture in pictures)
    assert all(picture["src"].startswith("data:image/png;base64,") for picture in pictures)
    ids = [attrs["id"] for _, attrs in page.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    names = ("aria-labelledby", "aria-controls")
    named = [attrs[name] for _, attrs in page.elements for name in names if name in attrs]
    assert {*named, *(link["href"][1:] for link in page.all("a"))} <= set(ids)


def test_nothing_is_fetched_from_anywhere(one):
    page, path, _ = one
    links = [attrs[name] for _, attrs in page.elements for name in ("src", "href") if name in attrs]
    assert all(link.startswith(("data:", "#")) for link in links)
    fetching = {"iframe", "object", "embed", "base", "form", "video", "audio", "source"}
    assert not {tag for tag, _ in page.elements} & fetching
    assert not re.search(r"url\(|@import|fetch\(|XMLHttpRequest|import\(", path.read_text())
    policies = [attrs for attrs in page.all("meta") if "http-equiv" in attrs]
    assert policies[0]["content"].startswith("default-src 'none'; img-src data:;")


def numbers(text):
    return set(re.findall(r"(?<![\w.])\d[\d,]*(?:\.\d+)?", text.replace("\u00a0", " ")))


def forms(value):
    """Every way in which the page may write what a report says."""
    if isinstance(value, dict):
        return set().union(*map(forms, value.values()), *(forms(str(key)) for key in value))
    if isinstance(value, list):
        return set().union({str(len(value))}, *(forms(inner) for inner in value))
    if isinstance(value, str):
        return numbers(value) | numbers(words.moment(value))
    if isinstance(value, bool) or value is None:
        return set()
    ways = (words.number, words.decimal, words.duration, words.percent, lambda one: f"{one:,.0f}")
    return set().union(*(numbers(way(value)) for way in ways))


def test_every_number_of_the_page_is_in_the_json(one):
    page, _, data = one
    said = numbers(page.text) - {"95"}  # "95 % interval"
    assert len(said) > 20
    assert said <= forms(data)


def test_the_interval_is_explained_once_and_no_heading_is_empty(base):
    runs = [judge(drawn_run(base / "rates", per_seed=2)), drawn_run(base / "rates2", seed=3)]
    page, path, _ = written(runs, base / "rates-report")
    assert page.text.count("95 % interval") <= 10
    assert not re.search(r"</h[23]>\s*</section>", path.read_text())


def test_a_phase_that_did_not_run_has_no_section(base):
    given = {"method": "none", "conditions": {"shift": "±50 %"}, "judge": False}
    run = hc.run(toy_subject(), toy_images(60), out=base / "measured", **given)
    page, _, data = written([run], base / "measured-report")
    section = data["runs"][0]
    assert section["search"] is section["check"] is None
    for text in ("What the search did", "What the label check says", "searched"):
        assert text not in page.text
    assert "Where the model is weak" in page.text
    said = numbers(page.text) - {"95"}
    assert said <= forms(data)


@pytest.mark.parametrize("judged", [False, True])
def test_hostile_names_stay_text(base, judged):
    folder = base / f"<b>hostile&{judged}"
    run = drawn_run(
        folder, classes=HOSTILE, model="<script>alert(5)</script>", data='"onload="alert(6)', method="<i>pgd</i>",
        argv=["hardcase", "run", "</pre><script>alert(7)</script>"], notes=["<script>alert(8)</script>"],
        hashes={"<b>": "<script>"}, citations=["<u>nobody</u>"], generator={"kind": "<vae>", "name": "</p>", "ssim": 0.5},
        coverage=[{"criterion": "<nc>", "before": 0.1, "after": 0.2, "convention": {"<k>": "</table>"}}],
    )  # fmt: skip
    run = judge(run, card={"<script>": "</dl>"}) if judged else run
    page, path, _ = written([run, run], folder / "report")
    assert len(page.all("script")) == 1
    assert len(page.all("style")) == 1
    assert not {name for _, attrs in page.elements for name in attrs if name.startswith("on")}
    assert all(picture["src"].startswith("data:") for picture in page.all("img"))
    assert all(tag not in ("i", "u", "vae", "nc") for tag, _ in page.elements)
    for text in (*HOSTILE, "<script>alert(5)</script>", "<script>alert(8)</script>"):
        words = one_line(text)  # no sign among them that turns the direction of reading
        assert words in page.text or words in str(page.elements), text
    assert "{{ 7 * 7 }}" in page.text
    assert "alert(1)" not in re.findall(r"<script>(.*?)</script>", path.read_text(), re.S)[0]


@pytest.mark.parametrize(("side", "seeds"), [(96, 70), (32, 100)])
def test_images_are_reduced_only_as_far_as_5_mb_ask(base, side, seeds):
    run = drawn_run(base / f"large{side}", seeds=seeds, channels=3, side=side, per_seed=4)
    _, path, data = written([run], base / f"large{side}" / "report")
    assert len(data["runs"][0]["gallery"]["failures"]) == 200
    assert path.stat().st_size < 5_000_000
    if side == 32:
        assert data["reduced_to"] == {"pairs": None, "gallery": None}
    else:
        assert data["reduced_to"]["gallery"] < side


def test_ten_thousand_findings_are_reported_in_under_20_seconds(base):
    run = drawn_run(base / "many", seeds=2100, per_seed=6)
    assert len(run) >= 10_000
    start = time.monotonic()
    _, path, data = written([Run(run.folder)], base / "many" / "report")
    assert time.monotonic() - start < 20
    assert path.stat().st_size < 5_000_000
    assert data["runs"][0]["gallery"]["left_out"] == len(run) - 200


def test_only_what_is_shown_or_measured_is_decoded(base, monkeypatch):
    from hardcase import tensors
    from hardcase.report import where

    monkeypatch.setattr(where, "TESTS", 100)
    run, decoded = drawn_run(base / "decoding", seeds=50, per_seed=20), []
    plain = tensors.decode
    counted = lambda data, *side: decoded.append(data) or plain(data, *side)  # noqa: E731
    monkeypatch.setattr(tensors, "decode", counted)
    write([run], base / "decoding" / "report")
    assert len(run) > 500
    measured = 50 + 24 + 100 + 50  # the images of the measured tests are read again
    shown = 2 * 6 + 200 + 50  # each is made anew
    assert len(decoded) <= measured + shown < len(run)


def test_the_same_run_gives_the_same_report(base):
    run = drawn_run(base / "same", seeds=30)
    pages = [write([Run(run.folder)], base / "same" / name) for name in "ab"]
    for name in ("index.html", "report.json"):
        first, again = (page.with_name(name).read_bytes() for page in pages)
        assert first == again


def test_runs_with_nothing_to_show_are_reported(base):
    none = drawn_run(base / "none", failing=0.0, history=False)
    page, _, data = written([none], base / "none" / "report")
    assert data["runs"][0]["gallery"] == {"total": 0, "left_out": 0, "failures": []}
    assert data["runs"][0]["search"]["broken"] == 0
    assert "no proof" in page.text
    assert "Gallery" not in page.text
    unknown = {"finished": None, "accuracy": None, "elapsed": 0.0}
    run = drawn_run(base / "nothing", seeds=4, failing=0.0, complete=False, **unknown)
    for part in run.folder.glob("*/*00000*"):
        part.unlink()
    page, _, _ = written([Run(run.folder)], base / "nothing" / "report")
    assert "not finished" in page.text
    bare = drawn_run(base / "bare", seeds=20)
    names = ("schema", "classes", "shape", "method", "model", "data", "split")
    bare.store.write_record({name: bare.record[name] for name in names})
    _, _, data = written([Run(bare.folder)], base / "bare" / "report")
    assert data["runs"][0]["search"]["broken"] > 0
    with pytest.raises(HardcaseError, match="no run to report"):
        write([], base / "empty")


PART = {"hits": 9, "total": 10, "share": 0.9, "low": 0.6, "high": 0.98}
ROW = dict.fromkeys(("precision", "precision_where_agreed", "recall", "lost_right", "unsure"), PART)
MEASURED = {
    "images": 500,
    "label_kept": {**ROW, "auroc": {"value": 0.946}},
    "methods": {"sinvad": ROW},
}


@pytest.mark.parametrize(
    ("card", "shown"),
    [
        ({"calibrated": True, "calibration": MEASURED}, "9 of 10 (90.0 %"),
        ({"accuracy": 0.659}, "66% of real test images"),
        ({"accuracy": 0.97}, "not calibrated"),
        ({"label_kept": {"auroc": 0.8841}, "accuracy": 0.97}, "label kept · auroc"),
    ],
)
def test_a_label_check_is_shown_with_its_error_rates(base, card, shown):
    home = base / f"judged{len(list(base.iterdir()))}"
    run = judge(drawn_run(home), card=card)
    page, _, data = written([run], home / "report")
    assert data["runs"][0]["search"]["accepted"] > 0
    assert shown in page.text


def test_other_kinds_of_findings_are_named(base):
    run = drawn_run(base / "kinds", seeds=40)
    from hardcase.runs.tables import FINDINGS, read, to_parquet

    table = read(run.folder / "findings/part-00000.parquet", FINDINGS)
    kinds = ["label"] * (len(table) - 3) + ["disagreement", "non_finite", "surprise"]
    changed = table.set_column(table.schema.get_field_index("kind"), "kind", [kinds])
    rewrite(run.folder, "findings/part-00000.parquet", to_parquet(changed))
    page, _, data = written([Run(run.folder)], base / "kinds" / "report")
    assert all(word in page.text for word in ("models disagree", "not a number", "surprising"))
    assert sum(pair["failures"] for pair in data["runs"][0]["weak"]["pairs"]) == len(table) - 3


def test_several_runs_share_one_page(base):
    runs = [drawn_run(base / name, method=name, seeds=40) for name in ("sinvad", "pgd", "cw")]
    page, path, data = written(runs, base / "three")
    assert [run["method"] for run in data["runs"]] == ["sinvad", "pgd", "cw"]
    assert [attrs["id"] for attrs in page.all("article")] == ["run-1", "run-2", "run-3"]
    assert (
        "All runs share the model, the data, the images, the conditions and the budget."
        in page.text
    )
    assert path.stat().st_size < 5_000_000
    ids = [attrs["id"] for _, attrs in page.elements if "id" in attrs]
    assert len(ids) == len(set(ids))


def test_runs_whose_images_share_names_keep_their_own_pictures(base):
    runs = [drawn_run(base / f"names{i}", seeds=20, seed=i) for i in range(2)]
    _, path, data = written(runs, base / "names")
    first, second = path.read_text().split("<article")[1:]
    names = [{one["id"] for one in run["gallery"]["failures"]} for run in data["runs"]]
    pictures = [set(re.findall(r"data:image[^\"]+", part)) for part in (first, second)]
    assert all(names)
    assert not pictures[0] & pictures[1]


def test_coverage_is_shown_before_and_after_and_is_no_pass_mark(base):
    both = {"criterion": "nc", "before": 0.412, "after": 0.533, "convention": {"units": "channels"}}
    one = {"criterion": "tknc", "before": 0.1, "after": None, "convention": "k = 3"}
    run = drawn_run(base / "coverage", seeds=30, coverage=[both, one])
    page, _, _ = written([run], base / "coverage" / "report")
    assert "nc0.4120.533unitschannels" in page.text.replace(" ", "")
    assert "k = 3" in page.text
    assert "it is no pass mark" in page.text


FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"
ODD = ["\ufeffa", "soft\xadhyphen", "\u200fright", "\x85\x7f", "\u2028line", "\U000e0080"]
ANY_NAME = st.text(st.characters(codec="utf-8"), min_size=1, max_size=6)


ANY_SCOPE = [HealthCheck.function_scoped_fixture]


@settings(max_examples=6, deadline=None, suppress_health_check=ANY_SCOPE)
@given(st.lists(ANY_NAME, min_size=6, max_size=6, unique=True), st.lists(st.text(st.characters())))
@example(ODD, [FAMILY, "\ud800", *ODD])
def test_a_page_is_made_whatever_images_and_classes_are_called(tmp_path_factory, names, classes):
    """Images are looked up by their place in the run; names are cleaned where they are shown."""
    folder = tmp_path_factory.mktemp("named")
    run = drawn_run(folder / "run", seeds=6, classes=(*classes, *DIGITS)[:10], names=names)
    text = write([run], folder / "report").read_text(encoding="utf-8")
    shown = json.loads((folder / "report/report.json").read_text(encoding="utf-8"))["runs"][0]
    assert len(shown["pairs"]) == len({row["row"] for row in shown["pairs"]}) > 0
    assert text.count("data:image/") >= 2 * len(shown["pairs"])
