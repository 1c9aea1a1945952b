"""Studies as they are made: blind, exact, balanced, and of the papers' own shape."""

import json
import re
from collections import Counter

import pytest

from hardcase import Run
from hardcase.errors import HardcaseError
from hardcase.tensors import decode
from hardcase_study import Study, new
from hardcase_study.assignment import Sizes
from hardcase_study.bundle import DESIGNS
from hardcase_study.power import precision


@pytest.mark.parametrize("design", DESIGNS)
def test_every_design_is_whole_and_blind(make, runs, design):
    study = make(design)
    assert Study.open(study.folder) == study
    methods = {one.method for one in study.stimuli.values()} - {""}
    seen_by_raters = [
        *study.items,
        *study.stimuli,
        *(path.name for path in study.folder.glob("images/*")),
    ]
    seen_by_raters += [text for words in study.words.values() for text in words.values()]
    for text in seen_by_raters:
        assert not any(name in text.lower() for name in methods if len(name) > 4), text
    assert all(name.isalnum() and len(name) == 12 for name in [*study.items, *study.stimuli])
    assert {path.stem for path in study.folder.glob("images/*.png")} == set(study.stimuli)
    shown = {s for item in study.items.values() for s in (*item.stimuli, item.reference)} - {""}
    assert shown == set(study.stimuli)
    uses = Counter(item.use for item in study.items.values())
    assert uses["main"] == len(study.main) > 0
    assert len(study.assignments) == 2 * study.raters


@pytest.mark.parametrize("design", DESIGNS)
def test_pixels_are_exact_and_the_key_leads_back_to_the_run(make, runs, design):
    study = make(design)
    findings = {}
    seeds = {}
    for about in study.settings["runs"].values():
        run = Run(about["folder"])
        for rows, table, images in (
            (findings, run.findings, run.images()),
            (seeds, run.seeds, run.seed_images()),
        ):
            rows |= {row["id"]: (row, x) for row, x in zip(table.to_pylist(), images, strict=True)}
    for one in study.stimuli.values():
        source, image = findings[one.finding] if one.role == "test" else seeds[one.seed]
        shown = decode(study.image(one.id).read_bytes())
        assert (shown == image).all()
        assert one.expected == source["expected" if one.role == "test" else "label"]


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(make):
    first = make(name="a", seed=4)
    again = make(name="b", seed=4)
    other = make(name="c", seed=5)
    for path in sorted(first.folder.rglob("*.*")):
        assert path.read_bytes() == (again.folder / path.relative_to(first.folder)).read_bytes()
    assert set(first.items) == set(again.items)
    assert first.assignments != other.assignments


def test_sinvads_form_and_flow(make):
    """Ten images of each of three methods and three real ones; two labels in random order."""
    study = make("sinvad")
    assert (study.raters, study.settings["per_rater"]) == (300, 33)
    for slot in study.assignments[:20]:
        methods = Counter(study.stimuli[study.items[n].stimuli[0]].method or "real" for n in slot)
        assert methods == {"sinvad": 10, "fgsm": 10, "cw": 10, "real": 3}
    turned = 0
    for item in study.items.values():
        stimulus = study.stimuli[item.stimuli[0]]
        source = study.classes[stimulus.expected]
        assert source in item.labels
        assert item.labels[("first", "second").index(item.truth[0])] == source
        turned += item.labels[1] == source
        if stimulus.role == "test":
            assert study.classes[stimulus.predicted] in item.labels
    assert 0.35 < turned / len(study.items) < 0.65


def test_arguss_form_and_flow(make):
    """One original per class, one image of each of seven methods, ten raters who see all."""
    study = make("argus")
    assert study.raters == 10
    originals = [study.stimuli[item.reference] for item in study.main.values()]
    assert sorted(one.expected for one in originals) == list(range(10))
    for item in study.main.values():
        assert len({study.stimuli[s].method for s in item.stimuli}) == 7
        assert {study.stimuli[s].seed for s in item.stimuli} == {study.stimuli[item.reference].seed}
    assert all(sorted(one) == sorted(study.main) for one in study.assignments)
    places = Counter(study.stimuli[item.stimuli[0]].method for item in study.main.values())
    assert len(places) > 1


def test_arguss_images_are_drawn_from_all_that_was_generated_where_a_run_kept_it(make):
    assert "stored failing ones only" in make("argus").settings["drawn_from"]


def test_seed_and_test_with_sham_pairs_and_an_arm_without_the_seed(make):
    study = make("same")
    forms = Counter(item.form for item in study.main.values())
    assert forms["same"] > forms["label"] > 0
    tests = {study.items[n].stimuli[0] for n in study.main if study.items[n].form == "label"}
    pairs = [item for item in study.main.values() if item.form == "same"]
    assert tests == {p.stimuli[0] for p in pairs if study.stimuli[p.stimuli[0]].role == "test"}
    shams = [p for p in pairs if study.stimuli[p.stimuli[0]].role == "real"]
    assert {p.truth[1] for p in shams} == {"yes", "no"}
    for plan in study.assignments:
        main = [
            n
            for n in plan
            if n in study.main and study.stimuli[study.items[n].stimuli[0]].role == "test"
        ]
        units = [study.items[n].unit for n in main]
        assert len(units) - len(set(units)) <= 2


def test_a_fault_study_mixes_faulty_clean_and_placebo(make):
    study = make("fault")
    arms = Counter(study.stimuli[item.stimuli[0]].arm for item in study.main.values())
    assert set(arms) == {"faulty", "clean", "placebo"}
    checks = [item for item in study.items.values() if item.use == "attention"]
    assert all(item.truth == ("change", "none") for item in checks)


def test_real_images_are_mixed_in_and_checks_are_clear(make):
    study = make("label")
    roles = Counter(study.stimuli[item.stimuli[0]].role for item in study.main.values())
    assert roles["real"] >= 0.1 * len(study.main)
    for item in study.items.values():
        if item.use == "attention":
            assert item.truth == ("label", study.classes[study.stimuli[item.stimuli[0]].expected])


def test_many_classes_are_offered_as_a_few(runs, tmp_path):
    from drawn import drawn_run

    names = tuple(f"thing {i}" for i in range(40))
    drawn_run(tmp_path / "many", classes=names)
    study = new([tmp_path / "many"], "label", tmp_path / "study")
    for item in study.main.values():
        one = study.stimuli[item.stimuli[0]]
        assert len(item.labels) == 8
        assert study.classes[one.expected] in item.labels
        if one.role == "test":
            assert study.classes[one.predicted] in item.labels


def test_mistakes_are_told(make, runs, tmp_path):
    study = make(name="whole")
    (study.folder / "items.json").write_text(json.dumps({"items": []}))
    one, arms = [runs / "sinvad"], {"thing": "the sky", "arms": ("faulty", "clean")}
    for mistake, words in (
        (lambda: make("lable"), "there is no design 'lable'"),
        (lambda: new(one, "argus", tmp_path / "a"), "compares methods; one run"),
        (lambda: make("sinvad", stop=True), "is a rule about labels"),
        (lambda: make(language="fr"), "there is no language 'fr'"),
        (lambda: new([], "label", tmp_path / "b"), "at least one run"),
        (lambda: new(one, "fault", tmp_path / "c"), "asks about one feature"),
        (lambda: new(one, "fault", tmp_path / "d", **arms), "Each run has one arm"),
        (lambda: make(name="whole"), "never overwritten"),
        (lambda: Study.open(study.folder), "no whole study"),
        (lambda: Study.open(tmp_path), "is no study"),
    ):
        with pytest.raises(HardcaseError, match=words):
            mistake()


def test_precision_is_told_beforehand_and_grows_with_raters(make):
    power = make().settings["power"]
    assert power["sentence"].startswith("12 raters give ± ")
    widths = [precision(Sizes(raters=count), 72)["half_width"] for count in (6, 12, 48)]
    assert widths == sorted(widths, reverse=True)
    assert "no people" in power["source"]


def test_languages_have_the_same_texts(make):
    words = make().words
    assert {"en", "de"} <= set(words)
    assert set(words["en"]) == set(words["de"])
    for key, text in words["en"].items():
        assert set(re.findall(r"{\w+}", text)) == set(re.findall(r"{\w+}", words["de"][key])), key
