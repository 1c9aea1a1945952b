import csv
import io
import json
import os

import pytest

from hardcase.errors import HardcaseError
from hardcase_study import exchange, export, load, simulate
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
    result = {"from_name": "label", "to_name": "image0", "type": "choices"}
    said = {"completed_by": 4, "result": [{**result, "value": {"choices": ["3"]}}]}
    task = {"id": 7, "data": {"item": item}, "annotations": [said]}
    (tmp_path / "x.json").write_text(json.dumps([task]))
    assert load(study, tmp_path / "x.json") == 1
    (row,) = Answers(study.folder).all()
    assert (row.rater, row.value) == ("4", {"label": "3"})
    assert Answers(study.folder).raters()[0].kind == "imported"


def test_wrong_files_are_told_and_leave_nothing(make, tmp_path):
    study = make()
    bad, item = tmp_path / "bad", next(iter(study.main))
    head, kinds = "rater,item,question,value\n", "rater,kind,item,question,value\n"
    both = f"a,simulated,{item},label,3\nb,person,{item},label,3\n"
    for text, why in (
        ("rater,item\na,b\n", "no column 'question'"),
        (f"{head}a,nowhere,label,3\n", "no item 'nowhere'"),
        (f"{head}a,{item},label,fish\n", "is no answer"),
        ('[{"data": {}}]', "no export of Label Studio"),
        (f"{kinds}a,boss,{item},label,3\n", "no kind of rater 'boss'"),
        (f"{kinds}{both}", "would mix a simulated crowd with people"),
    ):
        bad.write_text(text)
        with pytest.raises(HardcaseError, match=why):
            load(study, bad)
    assert answers(study) == {}
    with pytest.raises(HardcaseError, match="there is no format 'xls'"):
        export(study, "xls", tmp_path / "x")
    with pytest.raises(HardcaseError, match="cannot be read"):
        load(study, tmp_path / "nothing")


def test_what_is_imported_is_a_plain_file_of_bounded_size_and_numbers(make, tmp_path, monkeypatch):
    """Neither a pipe, nor a file without end, nor a number that no clock shows is read as answers."""
    study = make(raters=2)
    simulate(study)
    file = export(study, "csv", tmp_path / "answers.csv")
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(HardcaseError):
        load(study, tmp_path / "pipe.csv")
    text = file.read_text(encoding="utf-8")
    rows = list(csv.DictReader(io.StringIO(text)))
    for number in ("nan", "inf", "1e300"):
        with file.open("w", newline="", encoding="utf-8") as out:
            writer = csv.DictWriter(out, rows[0])
            writer.writeheader()
            writer.writerow({**rows[0], "seconds": number})
        with pytest.raises(HardcaseError):
            load(make(raters=2, name=f"other-{number}"), file)
    file.write_text(text, encoding="utf-8")
    monkeypatch.setattr(exchange, "LARGEST_EXPORT", len(text) // 2)
    with pytest.raises(HardcaseError):
        load(make(raters=2, name="small"), file)
