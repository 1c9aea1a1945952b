"""Options of a study, and its numbers as cells."""

import torch

from hardcase_studies.bench import Bench, delta, mean, share


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
    assert mean(torch.ones(0)) == "none"
    assert delta(torch.ones(3), torch.zeros(3)) == "+1.00 large"
    assert delta(torch.ones(0), torch.zeros(3)) is None


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
