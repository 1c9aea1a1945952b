"""The coverage matrix at the size of a toy."""

from dataclasses import replace

import pytest
import torch

from hardcase.criteria.criterion import parse
from hardcase.models import zoo
from hardcase.registry import parts
from hardcase.types import Probe, Seeds
from hardcase_studies import coverage, maxplore
from hardcase_studies.bench import Bench
from hardcase_studies.coverage import Balanced, Sizes, Trial, found_table, gained_tables
from tiny import bars, weights

MODELS = """
from hardcase.models import zoo
def lenet1(): return zoo.build_classifier("lenet1", channels=1, size=12, classes=3)
def lenet4(): return zoo.build_classifier("lenet4", channels=1, size=12, classes=3)
"""


@pytest.fixture(scope="module")
def networks(bars_file):
    """Two networks that learnt the bars in a second, as files."""
    train, test = bars(240, seed=1), bars(90, seed=2, split="test")
    folder, names = bars_file.parent, ("lenet1", "lenet4")
    (folder / "models.py").write_text(MODELS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARDCASE_CACHE", str(folder / "cache"))
        for name in names:
            (folder / f"{name}.safetensors").write_bytes(
                weights(zoo.trained_classifier(name, train, test, epochs=12)[0])
            )
    return [f"{folder}/{name}.safetensors@{folder}/models.py:{name}" for name in names]


@pytest.fixture(scope="module")
def matrix(bars_file, networks, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARDCASE_CACHE", str(bars_file.parent / "cache"))
        chosen = {"models": networks, "witnesses": networks[1], "scorers": networks[1]}
        chosen |= {"seeds": 6, "gradients": 4, "shares": [0.1, 0.3], "measured": ["nc", "snac"]}
        chosen |= {"guides": ["nc", "ssc:channels=true"], "counted": ["tknp"]}
        out, data = tmp_path_factory.mktemp("matrix"), f"npz:{bars_file}"
        bench = Bench(out=out, data=data, repeats=2, options=chosen)
        return bench, coverage.run(bench)


def test_each_generator_meets_each_guide_and_each_control(matrix):
    _, outcome = matrix
    titles = [table.title.split(":")[0] for table in outcome.tables]
    assert titles == ["deepxplore"] * 4 + ["dlfuzz"] * 4
    sweep = outcome.tables[0]
    assert [row[0] for row in sweep.rows] == ["nc", "ssc", "random neuron"]
    assert sweep.columns[-2:] == ["chosen", "bracketed"]
    assert all(row[-2] in (0.1, 0.3) for row in sweep.rows)
    for table in (*outcome.tables[1:4], *outcome.tables[5:]):
        names = [row[0] for row in table.rows]
        assert names[:4] == ["nc", "ssc", "random neuron", "no coverage"]
        queue = ["queue everything, push nothing"] if table in outcome.tables[5:] else []
        assert names[4:] == [*queue, "PGD", "witnesses, no coverage"]
        assert all(len(row) == len(table.columns) for row in table.rows)
    assert outcome.tables[2].columns == ["guide", "nc", "snac"]
    assert outcome.tables[3].columns == ["guide", "tknp"]


def test_the_control_without_coverage_queues_every_candidate(matrix):
    """More candidates of a queue fail than without one, and no unit was pushed."""
    _, outcome = matrix
    table = outcome.tables[5]
    column = table.columns.index("kept: more than queueing everything")
    held = {row[0] for row in table.rows if row[column]}
    assert held == {"nc", "ssc", "witnesses, no coverage"}
    x, y = torch.zeros(3, 1, 2, 2), torch.zeros(3, dtype=torch.int64)
    probe = Probe(x, x, torch.zeros(3, 2), Seeds(x, x, y, torch.arange(3)))
    assert coverage.QueueEverything().gain(probe).tolist() == [1, 1, 1]


def test_fewer_controls_can_be_asked_for_and_the_images_of_a_repeat_are_drawn_once(matrix):
    bench, _ = matrix
    fewer = replace(bench, options={**bench.options, "controls": ["random", "none"]})
    world = coverage._world(fewer)
    assert world.controls("dlfuzz") == ("random", "none")
    assert world.seeds(0) is world.seeds(0)
    assert world.seeds(0).id != world.seeds(1).id


def test_guides_are_held_against_witnesses_by_what_others_keep(matrix):
    _, outcome = matrix
    for table in (outcome.tables[1], outcome.tables[5]):
        place = {name: i for i, name in enumerate(table.columns)}
        kept = [str(row[place["seeds a run, label kept"]]) for row in table.rows]
        assert all(kept)
        told = {row[0]: str(row[place["kept: more than witnesses"]]) for row in table.rows}
        assert {name for name, said in told.items() if said} == {"nc", "ssc"}
        assert all("2 runs" in said for said in told.values() if said)


def test_parts_of_the_matrix_are_read_by_the_whole(matrix, monkeypatch):
    """A process with other parts in the same folder measures nothing again."""
    bench, outcome = matrix
    monkeypatch.setattr(coverage, "search", None)
    part = replace(bench, options={**bench.options, "generators": "dlfuzz", "guides": ["nc"]})
    again = coverage.run(part).tables[1]
    assert again.rows[0][:9] == outcome.tables[5].rows[0][:9]
    filled = replace(bench, options={**part.options, "guides": ["none", "nc"], "fill": True})
    assert not coverage.run(filled).tables


def test_every_criterion_of_the_catalogue_is_a_guide_or_shares_the_gradient_of_one():
    assert {parse(name).name for name in coverage.GUIDES} == set(parts("criterion")) - {
        "layer-snac"
    }


def test_a_share_at_the_edge_of_the_grid_is_not_bracketed():
    def trials(made):
        return [Trial(10, 5, made, 6, 1, 2.0, 100, 1.0, {})] * 2

    def told(*made):
        sweep = {"nc": {share: trials(n) for share, n in zip((0.0, 0.3, 3.0), made, strict=True)}}
        sizes = Sizes(10, 20, 2, (0.0, 0.3, 3.0), ("nc",), ())
        return coverage.sweep_table("dlfuzz", sweep, sizes).rows[0][-2:]

    assert told(1, 5, 2) == [0.3, "yes"]
    assert told(1, 2, 5) == [3.0, "no"]
    assert told(5, 2, 1) == [0.0, "yes"], "no share is below none"


def test_small_samples_give_the_deltas_counted_by_hand():
    def trial(made, share):
        return Trial(10, 5, made, 6, made / 2, 2.0, 100, 1.0, {"nc": share})

    trials = {"nc": [trial(4, 0.5), trial(8, 0.7)], "none": [trial(2, 0.1), trial(4, 0.1)]}
    trials["random"] = [trial(3, 0.1), trial(6, 0.1)]
    sizes = Sizes(10, 20, 2, (1.0,), ("nc",), ("nc",))

    row = found_table("dlfuzz", trials, sizes, ()).rows[0]
    assert row[3].startswith("6 (")
    assert row[4] == "+0.75 large", "of four pairs three are won and one is even"
    assert row[7] == pytest.approx(200 / 12)
    assert row[9].startswith("3 (")
    assert row[10].startswith("+1.5 ("), "one and two more than a random neuron"
    assert row[11].startswith("+0.75 (")
    (table,) = gained_tables("dlfuzz", trials, sizes)
    assert table.rows[0][1].startswith("60 (")
    assert table.rows[0][1].endswith("(+1.00)")


@pytest.mark.long
def test_maxplore_tells_each_claim_apart(bench, networks, monkeypatch):
    monkeypatch.setattr(maxplore, "_independent", lambda here: here.peers[0])
    few = bench(models=networks, one_seeds=2, seeds=4, units=6)
    outcome = maxplore.run(few)
    first, second, third, against, sweep = outcome.tables
    assert first.rows[0] == ["walks (seeds x units)", 12]
    assert [row[0] for row in second.rows] == ["One", "Topk, per filter", "Topk, per layer"]
    assert second.rows[0][3] == "+0.00 negligible", "One against itself"
    assert [row[0].split(",")[0] for row in third.rows] == ["Multi-Topk"] * 2 + ["DeepXplore"] * 2
    assert len(against.rows) == len(maxplore.AGAINST)
    assert [row[0] for row in sweep.rows] == list(maxplore.SWEEP)
    distances = [float(str(row[3]).split()[0]) for row in sweep.rows]
    assert distances[-1] > distances[0], "more units pushed, more pixels moved"


def test_of_photographs_maxplore_asks_the_questions_of_one_network(bench, networks, monkeypatch):
    """A few at a time where all their units would not fit, with the same answer."""
    few = bench(models=networks[0], one_seeds=1, units=2)
    monkeypatch.setattr(maxplore, "PHOTOGRAPH", 8)
    tables = maxplore.run(few).tables
    assert [table.title[:3] for table in tables] == ["RQ1", "RQ2"]
    monkeypatch.setattr(maxplore, "VALUES", 1)
    assert [table.rows for table in maxplore.run(few).tables] == [table.rows for table in tables]


def test_what_stands_beside_has_its_share_of_the_gradient_whatever_its_size():
    z = torch.randn(5, 2, generator=torch.Generator().manual_seed(0)).requires_grad_()
    x, y = torch.zeros(5, 1, 2, 2), torch.zeros(5, dtype=torch.int64)
    probe = Probe(z, x, torch.zeros(5, 2), Seeds(z.detach(), x, y, torch.arange(5)))
    sizes = torch.tensor([1e-3, 1.0, 50.0, 1e4, 0.0])
    beside = ((0.5, lambda probe: probe.z[:, 1] * sizes),)
    score = Balanced(lambda probe: probe.z[:, 0] * 3, beside)
    (gradient,) = torch.autograd.grad(score(probe).sum(), z)
    assert gradient[:, 0].tolist() == pytest.approx([3.0] * 5)
    assert gradient[:, 1].tolist() == pytest.approx([1.5] * 4 + [0.0])
    assert not score(replace(probe, z=z.detach())).requires_grad
