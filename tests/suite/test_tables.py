"""Tables as text and pages, numbers as cells, options of a study."""

import json
from math import isnan

import pytest
import torch

from hardcase.suite.tables import Bench, Outcome, Table, csv_text, delta, finite_mean, mean, share


def test_an_outcome_is_written_as_text_page_and_numbers(tmp_path):
    table = Table("A <table>", ["what", "ours"], [["seeds", 3], ["success", 0.12345], ["x", None]])
    Outcome("toy", [table]).write(tmp_path, "hardcase reproduce toy")
    text = (tmp_path / "results.md").read_text()
    assert "| success | 0.1235 |" in text
    assert "| x | not run |" in text
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "A &lt;table&gt;" in page
    assert "hardcase reproduce toy" in page
    assert json.loads((tmp_path / "results.json").read_text())["tables"][0]["rows"][0][1] == 3


def test_two_columns_of_one_name_are_refused():
    """Where cells are kept one of them would hide the other."""
    with pytest.raises(ValueError, match="two columns have one name"):
        Table("odd", ["guide", "delta", "delta"], [])


def test_options_of_a_study_have_two_defaults_and_lists_may_be_single_names(tmp_path):
    bench = Bench(out=tmp_path, full=True, repeats=2, options={"seeds": 7, "models": "one"})
    assert bench.size("seeds", 1, 2) == 7
    assert bench.size("others", 1, 2) == 2
    assert bench.names("models", ("a", "b")) == ("one",)
    assert bench.names("peers", ("a", "b")) == ("a", "b")
    assert "--full --repeats 2 --set 'seeds=7'" in bench.command("toy")


def test_numbers_become_cells():
    half = torch.tensor([True, False])
    assert share(half).startswith("1 of 2 = 50.0% [")
    assert mean(torch.ones(4), scale=100) == "100 in all 4"
    assert mean(torch.ones(1)) == "none"
    assert delta(torch.ones(3), torch.zeros(3)) == "+1.00 large"
    assert delta(torch.ones(0), torch.zeros(3)) is None
    assert csv_text([["a", 1], ["b,c", 2]]) == b'a,1\n"b,c",2\n'


def test_the_mean_of_finite_values_has_an_interval_from_two_on():
    known = finite_mean(torch.tensor([1.0, 3.0, float("nan")]))
    assert known.value == 2
    assert known.low <= 2 <= known.high
    assert isnan(finite_mean(torch.tensor([1.0])).low)
    assert isnan(finite_mean(torch.zeros(0)).value)


def test_a_cell_is_measured_once_and_shared_by_parts_of_a_study(tmp_path):
    made = []

    def measured():
        made.append(1)
        return [0.5, 2]

    one = Bench(out=tmp_path, options={"faults": "tint", "queries": 4})
    other = Bench(out=tmp_path, options={"faults": "size", "queries": 4})
    assert one.cell("a 0", measured, but=("faults",)) == [0.5, 2.0]
    assert other.cell("a 0", measured, but=("faults",)) == [0.5, 2.0]
    assert len(made) == 1
    other.cell("a 1", measured, but=("faults",))
    Bench(out=tmp_path, options={"queries": 5}).cell("a 0", measured, but=("faults",))
    Bench(out=tmp_path, options={"queries": 4}, seed=1).cell("a 0", measured, but=("faults",))
    assert len(made) == 4
