import json
import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from hardcase.errors import Problem
from hardcase_study import Study, analyse, export, load, rated, read_npz, simulate
from hardcase_study.analysis import outcomes
from hardcase_study.answers import Answers
from hardcase_study.bundle import DESIGNS


def answers(study):
    return {(one.rater, one.item): one for one in Answers(study.folder).all()}


@pytest.mark.parametrize("to", ["csv", "label-studio"])
@pytest.mark.parametrize("design", DESIGNS)
def test_answers_come_back_as_they_went(make, tmp_path, design, to):
    study = make(design, raters=3)
    simulate(study)
    file = export(study, to, tmp_path / "answers.json")
    empty = make(design, raters=3, name="again")
    assert load(empty, file) == len(answers(study)) > 0
    assert load(empty, file) == 0
    found = answers(empty)
    for key, one in answers(study).items():
        assert found[key].value == one.value
        assert found[key].position == one.position
        assert found[key].seconds == pytest.approx(one.seconds, abs=1e-3)
    assert {one.kind for one in Answers(empty.folder).raters()} == {"simulated"}


def test_label_studios_tasks_are_blind_and_hold_their_images(make, tmp_path):
    study = make()
    simulate(study, raters=2)
    file = export(study, "label-studio", tmp_path / "tasks.json")
    text = file.read_text()
    assert not any(word in text for word in ("sinvad", "drawn/", '"expected', "attention"))
    task = json.loads(text)[0]
    assert task["data"]["image0"].startswith("data:image/png;base64,")
    xml = (tmp_path / "tasks.xml").read_text()
    assert '<Choice value="unsure"/>' in xml


def test_an_export_of_label_studio_itself(make, tmp_path):
    """Raters by number, no times, no meta: what the tool's own JSON export holds."""
    study = make()
    item = next(iter(study.main))
    result = {
        "from_name": "label",
        "to_name": "image0",
        "type": "choices",
        "value": {"choices": ["3"]},
    }
    task = {
        "id": 7,
        "data": {"item": item},
        "annotations": [{"completed_by": 4, "result": [result]}],
    }
    (tmp_path / "x.json").write_text(json.dumps([task]))
    assert load(study, tmp_path / "x.json") == 1
    (row,) = Answers(study.folder).all()
    assert (row.rater, row.value) == ("4", {"label": "3"})
    assert Answers(study.folder).raters()[0].kind == "imported"


def test_wrong_files_are_told_and_leave_nothing(make, tmp_path):
    study = make()
    bad = tmp_path / "bad"
    for text, why in (
        ("rater,item\na,b\n", "no column 'question'"),
        ("rater,item,question,value\na,nowhere,label,3\n", "no item 'nowhere'"),
        (f"rater,item,question,value\na,{next(iter(study.main))},label,fish\n", "is no answer"),
        ('[{"data": {}}]', "no export of Label Studio"),
        (
            f"rater,kind,item,question,value\na,boss,{next(iter(study.main))},label,3\n",
            "no kind of rater 'boss'",
        ),
        (
            f"rater,kind,item,question,value\na,simulated,{next(iter(study.main))},label,3\n"
            f"b,person,{next(iter(study.main))},label,3\n",
            "would mix a simulated crowd with people",
        ),
    ):
        bad.write_text(text)
        with pytest.raises(Problem, match=why):
            load(study, bad)
    assert answers(study) == {}
    with pytest.raises(Problem, match="there is no format 'xls'"):
        export(study, "xls", tmp_path / "x")
    with pytest.raises(Problem, match="cannot be read"):
        load(study, tmp_path / "nothing")


@pytest.fixture
def rated_file(tmp_path):
    """Forty small images, two raters who mostly see what was expected."""
    rng = np.random.default_rng(0)
    expected = rng.integers(0, 10, 40)
    kept = rng.random(40) < 0.6
    seen = np.where(kept, expected, (expected + 1) % 10)
    seen[:4] = -1
    path = tmp_path / "rated.npz"
    np.savez(
        path,
        images=rng.integers(0, 255, (40, 8, 8), dtype=np.uint8),
        expected=expected,
        predicted=(expected + 1) % 10,
        generator=np.array(["a", "b"] * 20),
        rater1=seen,
        rater2=np.where(rng.random(40) < 0.9, seen, expected),
    )
    return path


def test_a_file_of_rated_images_is_a_study(rated_file, tmp_path):
    study = read_npz(rated_file, tmp_path / "study")
    assert len(study.main) == 40
    assert study.raters == 2
    found = analyse(study.folder)
    assert not found["simulated"]
    assert found["all"]["agreement"]["alpha"]["value"] > 0.7
    assert {row["method"] for row in found["all"]["labels"]["methods"]} == {"a", "b"}
    assert Study.open(study.folder).settings["imported"] == "rated.npz"


def test_and_comes_out_as_it_went_in(rated_file, tmp_path):
    study = read_npz(rated_file, tmp_path / "study")
    out = export(study, "npz", tmp_path / "out.npz")
    with np.load(rated_file) as before, np.load(out) as after:
        order = np.argsort([str(i) for i in range(40)])
        back = np.argsort([str(name) for name in after["finding"]])
        assert (after["images"][back][:, 0] == before["images"][order]).all()
        for name in ("expected", "predicted", "generator"):
            assert (after[name][back] == before[name][order]).all()
        pair = np.sort(np.stack([after["rater1"], after["rater2"]]), axis=0)[:, back]
        assert (
            pair == np.sort(np.stack([before["rater1"], before["rater2"]]), axis=0)[:, order]
        ).all()


PEOPLE = os.environ.get("HARDCASE_PEOPLE", "")


@pytest.mark.skipif(
    not Path(PEOPLE).is_file(),
    reason="needs HARDCASE_PEOPLE=FILE.npz: 500 digits rated by two people (ICSE 2023)",
)
def test_the_rated_digits_are_a_study(tmp_path):
    """V. Riccio, P. Tonella, ICSE 2023: both raters saw the expected digit in 362 images, neither in 70."""
    study = read_npz(PEOPLE, tmp_path / "study")
    said = outcomes(study, Answers(study.folder).all())
    assert Counter(said.values()) == {"confirmed": 362, "undecided": 68, "rejected": 70}
    kept = Counter(study.stimuli[name].method for name, word in said.items() if word == "confirmed")
    assert kept == {
        "dlfuzz": 98, "deepjanus": 89, "deepxplore": 69, "sinvad": 56, "feature-perturbation": 50,
    }  # fmt: skip
    arrays = rated(study.folder)
    assert len(arrays["images"]) == 500
    assert ((arrays["rater1"] < 0) & (arrays["rater2"] < 0)).sum() == 20


def test_files_that_are_none(tmp_path):
    np.savez(tmp_path / "x.npz", images=np.zeros((2, 4, 4), np.uint8))
    with pytest.raises(Problem, match="has no expected"):
        read_npz(tmp_path / "x.npz", tmp_path / "study")
    with pytest.raises(Problem, match="cannot be read"):
        read_npz(tmp_path / "nowhere.npz", tmp_path / "study")
    assert rated.__doc__ is not None
