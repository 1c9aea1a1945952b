"""The yardstick: equal cost, one judge, and rows that others add."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from judged import QUICK

from hardcase.campaign.record import Campaign
from hardcase.errors import HardcaseError
from hardcase.methods.pgd import pgd
from hardcase.registry import resolve
from hardcase.tensors import from_bytes
from hardcase.testing import check_method
from hardcase.testing.toys import toy_images, toy_subject
from hardcase_studies import rivals, yardstick, yardstick_table as files
from hardcase_studies.commands import yardstick as verb

STORED = sorted((Path(__file__).parents[2] / "results" / "yardstick").glob("*.json"))


def row(method="pgd", *, accepted=0.5, failing=0.8, passes=100, spent=90.0, seeds="a"):
    def share(value):
        return {"value": value, "low": max(0, value - 0.1), "high": min(1, value + 0.1)}

    return files.YardstickRow(
        method=method, data="mnist5k", subject="lenet5", passes=passes, trainings=1, attempted=20,
        failing=share(failing), accepted=share(accepted), again=None, l2=3.0, groups=4, cells=5, spent=spent,
        milliseconds=2.0, p=None, seeds=seeds, commit=None,
    )  # fmt: skip


def test_square_attack_is_lawful():
    check_method(resolve("method", f"{rivals.__file__}:square"))


def test_a_square_shrinks_with_the_budget_that_is_spent():
    search = rivals.RandomSquares(epsilon=0.3, share=0.8, queries=1000)
    sides = [search._side(step, 28, 28) for step in (1, 30, 300, 900)]
    assert sides == sorted(sides, reverse=True)
    assert sides[0] == 25
    assert sides[-1] >= 1


def test_every_network_that_is_asked_is_paid_for():
    subject = toy_subject()
    alone = Campaign(subject=subject, method=pgd(), batch=32)
    many = Campaign(subject=subject, method=pgd(), peers=(subject, subject), batch=32)
    assert yardstick._weight(alone, toy_images(4)) == 1
    assert yardstick._weight(many, toy_images(4)) == 3


def test_every_method_has_as_many_settings_to_choose_from():
    tuned = [len(entry.settings) for entry in yardstick.ROWS if entry.option]
    assert set(tuned) == {3}
    assert [entry.name for entry in yardstick.ROWS if not entry.option] == [files.NULL]


def test_a_budget_by_the_clock_is_as_many_passes_as_the_time_bought(bench, monkeypatch):
    took = SimpleNamespace(columns={"seconds": torch.tensor([0.25])})
    monkeypatch.setattr(yardstick, "_cell", lambda *given: took)
    one = object.__new__(yardstick.Setting)
    object.__setattr__(one, "other", toy_images(2))
    assert yardstick._bought(bench(), one, yardstick.ROWS[0], {}, 100) == 100
    assert yardstick._bought(bench(seconds=1.0), one, yardstick.ROWS[0], {}, 100) == 400


def test_methods_with_the_same_time_are_compared_whatever_their_passes(tmp_path):
    timed = [
        one.model_copy(update={"seconds": 0.5})
        for one in (row(files.NULL, accepted=0.1, passes=400), row(passes=100))
    ]
    table = files.merged(files.YardstickTable(schema=1), timed)
    assert {one.budget for one in table.rows} == {"0.5 s"}
    with pytest.raises(ValueError, match="no row of random conditions"):
        files.merged(files.YardstickTable(schema=1), [timed[0], row(passes=100)])


def test_mcnemar_counts_seeds_that_differ():
    none, every = torch.zeros(10, 1), torch.ones(10, 1)
    assert yardstick._pvalue(every, none) == pytest.approx(2 * 0.5**10)
    assert yardstick._pvalue(none, none) == 1


def test_a_table_is_read_back_and_rows_measured_again_replace_old_ones(tmp_path):
    table = files.merged(files.YardstickTable(schema=1), [row(files.NULL, accepted=0.1), row()])
    table = files.merged(table, [row(accepted=0.7)])
    path = files.write(tmp_path / "yardstick.json", table)
    found = files.read(path)
    assert {one.method: one.accepted.value for one in found.rows} == {files.NULL: 0.1, "pgd": 0.7}


BROKEN = {
    "no share": lambda rows: rows[0].update(accepted={"value": 2, "low": 0, "high": 1}),
    "over budget": lambda rows: rows[0].update(passes=10),
    "more accepted than failing": lambda rows: rows[0]["failing"].update(value=0.0, low=0.0),
    "twice": lambda rows: rows.append(rows[0]),
    "no null beside": lambda rows: rows[0].update(seeds="others"),
    "unknown key": lambda rows: rows[0].update(colour="red"),
}


@pytest.mark.parametrize("rule", BROKEN)
def test_a_table_that_breaks_a_rule_is_refused(tmp_path, rule):
    table = files.YardstickTable(schema=1, rows=(row(), row(files.NULL, accepted=0.1)))
    path = files.write(tmp_path / "yardstick.json", table)
    content = json.loads(path.read_text())
    content["rows"].sort(key=lambda one: one["method"])
    BROKEN[rule](content["rows"])
    path.write_text(json.dumps(content))
    with pytest.raises(HardcaseError):
        files.read(path)


def test_a_page_escapes_names_and_asks_nobody():
    table = files.YardstickTable(schema=1, rows=(row("<b>mine"), row(files.NULL, accepted=0.1)))
    page = files.page(table)
    assert "<b>mine" not in page
    assert "&lt;b&gt;mine" in page
    assert "http" not in page


@pytest.mark.long
def test_a_method_of_ones_own_enters_in_one_command(tmp_path, monkeypatch):
    from hardcase.__main__ import main

    assert callable(verb)
    monkeypatch.chdir(tmp_path)
    own = Path("mine.py")
    own.write_text(Path(rivals.__file__).read_text())
    sets = ("--set", "seeds=10", "--set", "tuned_on=3", "--set", "passes=[40]")
    assert main(["yardstick", "add", "mine.py:square", *sets]) == 0
    assert main(["yardstick", "check", "yardstick.json"]) == 0
    assert main(["yardstick", "page", "yardstick.json"]) == 0
    assert {one.method for one in files.read(Path("yardstick.json")).rows} == {files.NULL, "square"}
    assert Path("yardstick.html").is_file()


def test_trainings_share_seeds_that_all_subjects_read_rightly(bench):
    """Else rows of the crossed interval would be other images in every training."""
    options = {"trainings": 2, "seeds": 12, "tuned_on": 5, "epochs": 2}
    one, two = yardstick.settings_of(bench(**options, judge_training=QUICK))
    assert one.seeds.id == two.seeds.id
    assert not set(one.seeds.id) & set(one.other.id)
    assert one.world.judges == two.world.judges
    for each in (one, two):
        said = each.world.subject(from_bytes(each.seeds.x)).logits.argmax(1)
        assert torch.equal(said, each.seeds.y)
    worlds = (one.world, two.world)
    assert len({net.hash for each in worlds for net in (each.subject, *each.scorers)}) == 4


def test_a_share_of_seeds_without_spread_has_wilsons_interval_over_seeds():
    assert yardstick.seed_rate(torch.zeros(30, 8)) == yardstick.seed_rate(torch.zeros(30, 1))
    assert 0.1 < yardstick.seed_rate(torch.zeros(30, 8)).high < 0.12
    crossed = yardstick.seed_rate((torch.arange(240).reshape(30, 8) % 7 == 0).double())
    assert 0 <= crossed.low < crossed.value < crossed.high


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_the_stored_tables_are_in_order(path):
    rows = files.read(path).rows
    assert {row.method for row in rows} <= {entry.name for entry in yardstick.ROWS}
    assert all(row.commit for row in rows)


def test_the_site_shows_every_stored_table(monkeypatch):
    monkeypatch.syspath_prepend(str(STORED[0].parents[2] / "docs"))
    from make_site import yardstick as whole

    shown = whole()
    settings = {row.setting for path in STORED for row in files.read(path).rows}
    assert shown.count("<h2>") == len(settings)


def test_what_the_page_concludes_holds_in_the_stored_rows():
    """Its numbers are checked with all pages'; here the words: nearest, most, at most, rather."""
    path = STORED[0].parent / "mnist5k-trainings.json"
    rows = {row.method: row for row in files.read(path).rows}
    accepted = {name: row.accepted.value for name, row in rows.items()}
    best = ["pgd", "cw", "deepxplore", "natural"]
    assert sorted(best, key=accepted.__getitem__, reverse=True) == best
    codes = ("sinvad", "sinvad@paper", "sinvad@code", "argus", "argus-adaptive", "latte")
    assert max(rows[name].accepted.high for name in codes) < rows["natural"].accepted.low
    painted = {entry.name for entry in yardstick.ROWS if entry.fresh}
    sizes = {name: row.l2 for name, row in rows.items() if row.l2 and name not in painted}
    assert min(sizes, key=sizes.__getitem__) == "cw"
    chance = [rows[name].again.low for name in ("square", "deephunter")]
    assert max(rows[name].again.high for name in ("cw", "pgd")) < min(chance)


def test_what_the_page_concludes_of_colour_holds_in_the_stored_rows():
    path = STORED[0].parent / "cifar10.json"
    rows = {row.method: row for row in files.read(path).rows}
    chance = rows.pop(files.NULL).accepted.value
    best = sorted(rows, key=lambda name: -rows[name].accepted.value)
    assert best[:3] == ["natural", "pgd", "cw"]
    told_apart = {name for name, row in rows.items() if row.p is not None and row.p < 0.05}
    below = {name for name in told_apart if rows[name].accepted.value < chance}
    codes = {"sinvad@paper", "sinvad@code", "argus", "argus-adaptive", "latte"}
    assert below == {*codes, "tensorfuzz", "diffchaser"}
    assert told_apart - below == {"natural", "pgd"}
    assert min(rows, key=lambda name: rows[name].l2 or float("inf")) == "pgd"
