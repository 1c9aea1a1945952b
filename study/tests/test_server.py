"""The pages, called without a socket: blind, protected, and nothing is lost or asked twice."""

import re
from urllib.parse import urlencode

import pytest
from asking import field, first_answer

from hardcase_study.answers import rater_id
from hardcase_study.bundle import DESIGNS
from hardcase_study.forms import questions
from hardcase_study.site import item_page

pytest.importorskip("starlette", reason="needs hardcase[study]")


@pytest.mark.parametrize("design", DESIGNS)
def test_a_whole_session_of_every_design(make, browse, design):
    study = make(design, raters=4, per_rater=5, checks=0, repeats=0)
    here = browse(study)
    token = here.begin()
    count = 0
    while True:
        status, path, page = here.get(f"/r/{token}")
        assert status == 200
        if path.endswith("/done"):
            break
        told, answer = here.send(page, path, first_answer(study, page))
        assert (told, answer["state"]) == (200, "stored")
        count += 1
        assert answer["next"] == f"/r/{token}/{count + 1}"
        assert len(here.store.all()) == count
    assert count == len(study.assignments[0])
    assert "Thank you" in page
    assert re.search(r'class="code">[0-9A-F]{8}<', page)


@pytest.mark.parametrize("design", DESIGNS)
def test_nothing_a_rater_is_sent_tells_who_made_an_image(make, browse, design):
    study = make(design)
    here = browse(study)
    _, _, page = here.first()
    shown = study.stimuli.values()
    own = {word for one in shown for word in (one.method, one.finding, one.seed)}
    own |= {*study.settings["runs"]}
    own |= {"confirmed", "rejected", "attention", "repeat", "placebo", "faulty"}
    for word in own - {""}:
        assert not re.search(rf"\b{re.escape(word)}\b", page), word
    assert not re.search(r"https?://", page)
    for name in ("items.json", "study.json", "secret.json", "answers.sqlite", "../study.json"):
        assert here.ask("GET", f"/static/{name}")[0] == 404
        assert here.ask("GET", f"/image/{name}")[0] == 404
        assert here.ask("GET", f"/{name}")[0] == 404


@pytest.mark.parametrize("design", DESIGNS)
def test_checks_repeats_and_real_images_look_like_all_others(make, browse, design):
    """Pages of one form differ in ids, images and words of classes, in nothing else."""
    study = make(design)
    here = browse(study)
    shapes = {}
    rater = here.store.enter(rater_id("token"), kind="person", language="en")
    for item in list(study.items.values())[:70]:
        page = item_page(here.site, rater, "token", 2, item, {}).body.decode()
        for name in filter(None, (item.id, item.reference, *item.stimuli)):
            page = page.replace(name, "X")
        page = re.sub("“[^”]+”", "", page)
        page = re.sub(r'name="(csrf|key)" value="\w+"', "", page)
        shapes.setdefault(item.form, {}).setdefault(page, item)
    for form, kinds in shapes.items():
        assert len(kinds) == 1, (form, [item.use for item in kinds.values()])


def test_headers_tell_nothing_of_an_image(make, browse):
    study = make()
    here = browse(study)
    told = set()
    for name in study.stimuli:
        _, headers, _ = here.ask("GET", f"/image/{name}.png")
        told.add(tuple(sorted((k, v) for k, v in headers.items() if k != "content-length")))
    assert len(told) == 1
    assert not {"etag", "last-modified", "server"} & {name for name, _ in told.pop()}


def test_images_to_be_ordered_start_in_an_order_of_the_raters_own(make, browse):
    study = make("argus")
    here = browse(study)
    starts = set()
    for _ in range(6):
        page = here.get(f"/r/{here.begin()}")[2]
        item = study.items[field(page, "item")]
        order = re.findall(r'class="card" data-id="(\w+)" data-letter="(\w)"', page)
        assert [letter for _, letter in order] == list("ABCDEFG")
        starts.add(tuple(item.stimuli.index(name) for name, _ in order))
    assert len(starts) > 3


def test_every_option_has_a_key_of_its_own():
    from hardcase_study.forms import Item
    from hardcase_study.site import shortcuts

    names = [tuple("0123456789"), tuple("abnu"), ("a", "A"), tuple(f"thing {i}" for i in range(20))]
    for labels in names:
        (question,) = questions(Item("i", "label", ("x",), labels=labels))
        keys = shortcuts(question)
        assert len(set(keys)) == len(keys) == len(labels) + 2


def test_images_are_the_exact_files_and_come_enlarged_by_whole_numbers(make, browse):
    study = make()
    here = browse(study)
    _, _, page = here.get(f"/r/{here.begin()}")
    name, width = re.search(r'src="/image/(\w+)\.png" width="(\d+)"', page).groups()
    assert int(width) >= 280
    assert int(width) % 28 == 0
    status, headers, _ = here.ask("GET", f"/image/{name}.png")
    assert (status, headers["content-type"]) == (200, "image/png")
    assert int(headers["content-length"]) == study.image(name).stat().st_size
    assert "image-rendering: pixelated" in here.ask("GET", "/static/study.css")[2]


def test_refreshing_changes_nothing_and_later_items_wait(make, browse):
    here = browse(make())
    token = here.begin()
    first = [field(here.get(f"/r/{token}")[2], "item") for _ in range(3)]
    assert len(set(first)) == 1
    for ahead in (2, 7, 33, 10**6, 0):
        assert here.get(f"/r/{token}/{ahead}")[1] == f"/r/{token}/1"


def test_going_back_shows_the_answer_and_may_change_it(make, browse):
    here = browse(make("likert"))
    token, path, page = here.first()
    here.send(page, path, {"score": "2"})
    _, again, page = here.get(f"/r/{token}/1")
    assert again == f"/r/{token}/1"
    assert re.search(r'value="2"[^>]*checked', page)
    assert field(page, "revise") == "yes"
    assert here.send(page, again, {"score": "4"})[1]["state"] == "stored"
    (row,) = here.store.all()
    assert (row.value, row.revision) == ({"score": "4"}, 1)
    assert here.get(f"/r/{token}")[1].endswith("/2")


def test_two_windows(make, browse):
    here = browse(make("likert"))
    token = here.begin()
    _, path, one = here.get(f"/r/{token}")
    _, _, two = here.get(f"/r/{token}")
    assert here.send(one, path, {"score": "2"})[1]["state"] == "stored"
    assert here.send(one, path, {"score": "2"})[1]["state"] == "known"
    assert here.send(two, path, {"score": "5"})[1]["state"] == "kept"
    assert here.store.all()[0].value == {"score": "2"}
    assert here.send(two, f"/r/{token}/2", {"score": "5"}) == (409, {"state": "elsewhere", "next": f"/r/{token}"})  # fmt: skip


def test_without_a_script_a_form_does(make, browse):
    study = make("rank")
    here = browse(study)
    token, path, page = here.first()
    item = study.items[field(page, "item")]
    form = {name: field(page, name) for name in ("csrf", "item", "key", "revise")}
    places = {f"place-{name}": str(3 - i) for i, name in enumerate(item.stimuli)}
    doubled = {f"place-{name}": "1" for name in item.stimuli}
    status, _, text = here.ask("POST", path, urlencode({**form, **doubled}).encode())
    assert status == 400
    assert "Please answer every question" in text
    status, headers, _ = here.ask("POST", path, urlencode({**form, **places}).encode())
    assert (status, headers["location"]) == (303, f"/r/{token}/2")
    assert here.store.all()[0].value["order"] == list(item.stimuli)[::-1]


def test_an_answer_that_is_none_is_refused(make, browse):
    here = browse(make())
    token, path, page = here.first()
    assert here.send(page, path, {"label": "fish"}) == (400, {"state": "incomplete"})
    assert here.send(page, path, {})[0] == 400
    assert here.send(page, path, [1, 2])[0] == 400
    assert here.ask("POST", path, b"\xff\xfe")[0] == 400
    assert here.ask("POST", path, b"x" * 70_000)[0] == 413
    for body in (b"\xff\xfe", b"[" * 60_000, b"{}", b"[]", b"1" * 9_000, b'{"value": NaN}'):
        assert here.ask("POST", path, body, content_type="application/json")[0] == 400
    for word in ("\udc80", "é", "\0", None, 7, ["x"]):
        refused = 403 if isinstance(word, str) else 400
        assert here.send(page, path, {"label": "3"}, csrf=word)[0] == refused
        assert here.send(page, path, {"label": word})[0] == 400
    for place in ("9" * 5_000, "-1", "1e3", "٣"):
        assert here.ask("GET", f"/r/{token}/{place}")[0] == 400
    assert here.store.all() == []
    assert here.send(page, path, {"label": "3"}, seconds=10**400)[0] == 200


def test_forms_of_other_sites_and_other_raters_are_refused(make, browse):
    here = browse(make("likert"))
    token, other = here.begin(), here.begin()
    _, path, page = here.get(f"/r/{token}")
    assert here.send(page, path, {"score": "2"}, csrf="0" * 32)[0] == 403
    _, _, theirs = here.get(f"/r/{other}")
    assert here.send(page, path, {"score": "2"}, csrf=field(theirs, "csrf"))[0] == 403
    form = {"csrf": field(page, "csrf"), "item": field(page, "item"), "score": "2"}
    body = urlencode(form).encode()
    for origin in ("http://evil.example", "null", "", "http://here.evil.example"):
        assert here.ask("POST", path, body, origin=origin)[0] == 403
    for host in ("evil.example", "", "here.evil.example", "[", "127.0.0.1.evil.example"):
        assert here.ask("GET", "/desk/desk", host=host)[0] == 421
    for host in ("127.0.0.1:8000", "[::1]:8000", "localhost", "HERE:80"):
        assert here.ask("GET", "/health", host=host)[0] == 200
    assert here.store.all() == []
    assert here.ask("POST", path, body, origin="http://here")[0] == 303


def test_the_entrance_asks_for_the_token_and_for_consent(make, browse):
    here = browse(make())
    assert here.ask("GET", "/")[0] == 403
    assert here.ask("GET", "/?t=wrong")[0] == 403
    status, _, page = here.get("/?t=door")
    assert status == 200
    form = {"csrf": field(page, "csrf"), "t": "door", "lang": "en"}
    assert here.ask("POST", "/begin", urlencode(form).encode())[0] == 403
    wrong = {**form, "agree": "yes", "t": "x"}
    assert here.ask("POST", "/begin", urlencode(wrong).encode())[0] == 403
    assert here.store.raters() == []
    assert here.get("/r/not-a-link")[0] == 404
    assert browse(make(name="open"), token="").ask("GET", "/")[0] == 200


def test_requests_are_limited(make, browse):
    from hardcase_study.site import Bucket

    here = browse(make("likert"), limits=True)
    token = here.begin()
    here.site.asking = Bucket(1e-6, 3)
    assert [here.ask("GET", f"/r/{token}/1")[0] for _ in range(4)] == [200, 200, 200, 429]
    here.site.asking = Bucket(1e-6, 2)
    _, path, page = here.get(f"/r/{token}")
    assert here.send(page, path, {"score": "2"})[0] == 200
    assert here.send(page, path, {"score": "2"})[0] == 429
    here.site.entering = Bucket(1e-6, 0)
    with pytest.raises(AssertionError):
        here.begin()


def test_a_school_behind_one_address_gets_in(make, browse):
    here = browse(make("likert"), limits=True)
    tokens = [here.begin() for _ in range(500)]
    assert len(set(tokens)) == 500
    assert {here.get(f"/r/{token}")[0] for token in tokens[:50]} == {200}


def test_files_are_the_owners_and_links_are_not_followed(make, browse, tmp_path):
    study = make()
    here = browse(study)
    here.begin()
    files = [path for path in study.folder.rglob("*") if path.is_file()]
    assert (study.folder / "answers.sqlite") in files
    assert {path.stat().st_mode & 0o077 for path in (study.folder, *files)} == {0}
    first, second = list(study.stimuli)[:2]
    private = tmp_path / "private.png"
    private.write_bytes(study.image(first).read_bytes())
    study.image(first).unlink()
    study.image(first).symlink_to(private)
    assert here.ask("GET", f"/image/{first}.png")[0] == 503
    assert here.ask("GET", f"/image/{second}.png")[0] == 200
    (study.folder / "images").rename(tmp_path / "elsewhere")
    (study.folder / "images").symlink_to(tmp_path / "elsewhere")
    assert here.ask("GET", f"/image/{second}.png")[0] == 503


def test_a_study_nested_without_end_is_no_study(make):
    from hardcase.errors import HardcaseError
    from hardcase_study.bundle import Study

    study = make()
    for depth in (100, 100_000):
        (study.folder / "study.json").write_text('{"a":' * depth + "1" + "}" * depth)
        with pytest.raises(HardcaseError, match="cannot be read"):
            Study.open(study.folder)


def test_pages_keep_to_themselves(make, browse):
    here = browse(make())
    for path in ("/?t=door", f"/r/{here.begin()}/1", "/desk/desk"):
        _, headers, page = here.ask("GET", path)
        assert headers["content-security-policy"].startswith("default-src 'none'")
        assert headers["referrer-policy"] == "same-origin"
        assert headers["cache-control"] == "no-store"
        assert not re.search(r'(?:src|href|action)="(?!/)', page)
        assert "<script>" not in page
        assert "style=" not in page


def test_languages_can_be_changed_and_edited(make, browse):
    study = make()
    words = study.folder / "words" / "de.json"
    words.write_text(words.read_text().replace("Was sehen Sie?", "Was ist das?"))
    from hardcase_study import Study

    here = browse(Study.open(study.folder))
    page = here.get("/?t=door&lang=de")[2]
    assert '<html lang="de">' in page
    assert "Was ist das?" in page
    token = here.begin()
    assert "Was zeigt dieses Bild?" in here.get(f"/r/{token}?lang=de")[2]
    assert "Was zeigt dieses Bild?" in here.get(f"/r/{token}")[2]


def test_the_dashboard(make, browse):
    from hardcase_study import simulate

    study = make(stop=True)
    here = browse(study)
    assert here.get("/desk/wrong")[0] == 404
    assert "Nobody has answered yet" in here.get("/desk/desk")[2]
    simulate(study, cheats=0.2)
    page = here.get("/desk/desk")[2]
    assert "A simulated crowd answered this study. No person did." in page
    assert "12 of 12" in page
    assert "need no more answers" in page
    assert "the crowd" in page


def test_hostile_names_stay_text(runs, tmp_path, browse):
    from drawn import drawn_run

    from hardcase_study import new

    names = ("<script>alert(1)</script>", '" onerror="x', *"23456789")
    drawn_run(tmp_path / "run", classes=names)
    study = new([tmp_path / "run"], "label", tmp_path / "study", title="<b>hi</b>")
    here = browse(study)
    page = here.get(f"/r/{here.begin()}")[2]
    assert "<script>alert" not in page
    assert "<b>hi" not in page
    assert '" onerror="x' not in page


def test_a_database_that_is_gone_is_said_so_and_nothing_is_acknowledged(make, browse, monkeypatch):
    from hardcase_study import answers

    monkeypatch.setattr(answers, "TRIES", 2)
    here = browse(make("likert"))
    _, path, page = here.first()

    def gone(place, durable):
        raise OSError("gone")

    here.store.close()
    monkeypatch.setattr(answers, "_sqlite", gone)
    status, told = here.send(page, path, {"score": "2"})
    assert status == 503
    assert "gone" not in told, "what a database says is not for raters"
