"""Networks that must keep the label: what the search climbs, what is kept, who pays, what is counted."""

import json

import by_hand
import pytest
import torch

import hardcase as hc
from hardcase.campaign.record import Keep
from hardcase.errors import HardcaseError
from hardcase.methods import pgd
from hardcase.models.subject import Subject
from hardcase.objectives import KeptByWitnesses, Margin, NearestFailing, TargetMargin, joint
from hardcase.oracles import LeavesLabel, Reaches, Witnessed, witness_margin
from hardcase.report import report
from hardcase.statistics import count
from hardcase.testing.toys import CLASSES, Counting, Quarters, toy_images, toy_subject
from hardcase.types import Probe, Seeds


def corners():
    """A witness that looks only at the outer corner of each quarter, and is surer than the model."""
    net = Quarters(sharpness=40.0)
    weight = torch.zeros(4, 8, 8)
    for i, (top, left) in enumerate([(0, 0), (0, 6), (6, 0), (6, 6)]):
        weight[i, top : top + 2, left : left + 2] = 1 / 4
    net.mean.weight.data = weight.flatten(1)
    return Subject(net, classes=CLASSES, name="corners")


def inside(x):
    """The images mirrored, except for their outer corners: the model errs, the witness does not."""
    made = x.flip(3).clone()
    ends = torch.tensor([0, 1, 6, 7])
    made[:, :, ends[:, None], ends] = x[:, :, ends[:, None], ends]
    return made


def evaluator(witnesses=None, **how):
    return by_hand.evaluator(witnesses=(corners(),) if witnesses is None else witnesses, **how)


def probe(own, *others, z=None):
    """One row with these logits of the model and of the witnesses."""
    x, zero = torch.zeros(1, 1, 2, 2), torch.tensor([0])
    origin = Seeds(torch.zeros(1, 2), x, zero, zero)
    logits, *told = (torch.tensor([one], requires_grad=True) for one in (own, *others))
    return Probe(origin.z if z is None else z, x, logits, origin, witnesses=tuple(told))


def test_the_worst_witness_speaks_for_all():
    seen = probe([0.0, 1.0], [5.0, 1.0], [3.0, 2.5])
    assert witness_margin(seen).item() == pytest.approx(0.5)
    assert witness_margin(probe([0.0, 1.0])).item() == torch.inf


def test_a_witness_that_answers_no_number_keeps_nothing():
    seen = probe([0.0, 1.0], [float("nan"), 1.0])
    assert witness_margin(seen).item() == -torch.inf
    assert not Witnessed(LeavesLabel())(seen).item()


def test_the_joint_score_subtracts_what_the_witnesses_lack():
    score = KeptByWitnesses(Margin(), margin=2.0, weight=3.0)
    assert score(probe([2.0, 0.0], [4.0, 0.0])).item() == pytest.approx(-2.0)
    assert score(probe([2.0, 0.0], [1.0, 0.0])).item() == pytest.approx(-2.0 - 3.0 / 4)
    both = score(probe([2.0, 0.0], [1.0, 0.0], [0.0, 0.0])).item()
    assert both == pytest.approx(-2.0 - 3.0 * (1 + 4) / 4), "each of them speaks"
    assert score(probe([2.0, 0.0])).item() == pytest.approx(-2.0), "without any nothing is lacking"


def graded(objective, own, other):
    seen = probe(own, other)
    objective(seen).sum().backward()
    return seen.logits.grad, seen.witnesses[0].grad


def test_the_subject_is_left_alone_once_it_fails_and_then_only_witnesses_pull():
    objective = KeptByWitnesses(Margin(), weight=1.0)
    subject, witness = graded(objective, [2.0, 0.0, -1.0], [1.0, 0.0, -1.0])
    assert subject.tolist() == [[-1.0, 1.0, 0.0]]
    assert witness.tolist() == [[0.5, -0.5, 0.0]]
    _, losing = graded(objective, [2.0, 0.0, -1.0], [0.0, 0.0, -1.0])
    assert losing.tolist()[0][0] == pytest.approx(1.0), "who has lost the label pulls most"
    subject, witness = graded(objective, [0.0, 2.0, 0.0], [1.0, 0.0, -1.0])
    assert not subject.any()
    assert witness.any()
    subject, witness = graded(objective, [2.0, 0.0, -1.0], [9.0, 0.0, -1.0])
    assert subject.any()
    assert not witness.any()


def test_a_targeted_search_goes_on_until_it_reaches_its_target():
    objective = joint(TargetMargin(2), Reaches(2), 2.0)
    elsewhere, _ = graded(objective, [0.0, 3.0, 1.0], [1.0, 0.0, -1.0])
    assert elsewhere.any()
    there, _ = graded(objective, [0.0, 1.0, 3.0], [1.0, 0.0, -1.0])
    assert not there.any()


def test_searches_for_the_nearest_failure_look_for_the_nearest_witnessed_one():
    objective = joint(NearestFailing(LeavesLabel()), LeavesLabel(), 2.0)
    near = torch.tensor([[1.0, 0.0]])
    assert objective(probe([0.0, 3.0], [4.0, 0.0], z=near)).item() == -1.0
    assert objective(probe([0.0, 3.0], [1.0, 0.0], z=near)).item() < -900.0


def test_the_gradient_of_a_look_is_that_of_the_joint_score():
    evaluate = evaluator()
    rows = torch.arange(5)
    z = inside(evaluate.seeds.x) * 0.5 + evaluate.seeds.x * 0.5
    _, gradient = evaluate.gradient(z, rows)
    own, witness = toy_subject(), corners()
    x = z.clone().requires_grad_()
    rounded = x + ((x * 255).round() / 255 - x).detach()
    seen = Probe(x, x, own(rounded).logits, evaluate.seeds, witnesses=(witness(rounded).logits,))
    (expected,) = torch.autograd.grad(KeptByWitnesses(Margin())(seen).sum(), x)
    assert torch.allclose(gradient, expected, atol=1e-5)


def test_a_witnessed_finding_comes_before_a_nearer_one_that_is_not():
    evaluate = evaluator()
    rows = torch.arange(5)
    near = 0.35 * evaluate.seeds.x + 0.65 * evaluate.seeds.x.flip(3)
    assert not evaluate(near, rows).failed.any()
    found = evaluate.recorder.findings()
    assert found.seed.tolist() == [0, 1, 2, 3, 4]
    assert not found.witnessed.any()
    assert evaluate(inside(evaluate.seeds.x), rows).failed.all()
    better = evaluate.recorder.findings()
    assert better.witnessed.all()
    assert bool((better.distance > found.distance).all())
    assert bool((better.witness_margin >= 2).all())
    evaluate(near, rows)
    assert torch.equal(evaluate.recorder.findings().distance, better.distance)


def test_the_nearest_that_witnesses_keep_by_the_aim_is_kept_else_what_they_keep_best():
    keep = Keep(target_margin=2.0)
    seed = torch.zeros(4, dtype=torch.int64)
    near = torch.tensor([1.0, 3.0, 2.0, 0.5])
    for margins, row in (([-1.0, 5.0, 2.0, 1.9], 2), ([-1.0, 1.5, 1.0, 0.0], 1)):
        assert keep.rows(seed, seed, seed, near, torch.tensor(margins)).tolist() == [row]


def test_a_seed_ends_at_its_first_witnessed_failure_not_at_any_failure():
    evaluate = evaluator(until="first")
    rows = torch.arange(5)
    evaluate(evaluate.seeds.x.flip(3), rows)
    assert evaluate.live.all()
    evaluate(inside(evaluate.seeds.x), rows)
    assert not evaluate.live.any()


def test_rows_given_to_witnesses_are_never_charged_to_the_budget():
    witness = Counting(corners())
    evaluate = evaluator((witness, corners()))
    rows = torch.arange(5)
    evaluate(evaluate.seeds.x, rows)
    evaluate.gradient(evaluate.seeds.x, rows)
    assert evaluate.counts.queries.tolist() == [2] * 5
    assert evaluate.counts.gradients.tolist() == [1] * 5
    assert evaluate.counts.peer_queries.tolist() == [0] * 5
    assert evaluate.counts.witness_queries.tolist() == [4] * 5
    assert evaluate.counts.witness_gradients.tolist() == [2] * 5
    assert witness.rows == 10


def test_a_black_box_witness_is_asked_without_gradients():
    evaluate = evaluator((Counting(corners(), offers="scores"),))
    _, gradient = evaluate.gradient(evaluate.seeds.x, torch.arange(5))
    assert gradient.abs().sum() > 0
    assert evaluate.counts.witness_queries.tolist() == [1] * 5
    assert evaluate.counts.witness_gradients.tolist() == [0] * 5


def test_without_witnesses_nothing_changes():
    evaluate = evaluator(())
    evaluate(evaluate.seeds.x.flip(3), torch.arange(5))
    assert evaluate.counts.witness_queries.tolist() == [0] * 5
    assert not evaluate.recorder.findings().witnessed.any()


def test_the_subject_cannot_be_its_own_witness():
    with pytest.raises(HardcaseError, match="is the model and a witness: "):
        evaluator((toy_subject(),))
    renamed = Subject(torch.nn.Sequential(Quarters()), classes=CLASSES, name="hf:same")
    assert renamed.hash != toy_subject().hash
    with pytest.raises(HardcaseError, match='is the model and a witness, as "hf:same"'):
        evaluator((renamed,))


PGD = pgd(epsilon=0.3, gradients=30)
GIVEN = {"method": PGD, "judge": False, "execution": hc.Execution(shard=2)}


def run(out, **how):
    given = {**GIVEN, "witnesses": [corners()], **how}
    return hc.run(toy_subject(), toy_images(8), out=out, **given)


def resume(out, witness):
    return hc.resume(out, toy_subject(), toy_images(8), witnesses=[witness], **GIVEN)


def parts(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for kind in ("findings", "state")
        for path in sorted((folder / kind).rglob("part-*"))
    }


def test_a_run_stores_who_witnessed_and_what_it_cost(tmp_path):
    done = run(tmp_path / "a")
    funnel = done.record["search_results"]
    assert 0 < funnel["witnessed"] <= funnel["failing"]
    assert done.record["witnesses"]["models"] == ["corners"]
    assert done.record["hashes"]["witnesses"] == [corners().hash]
    totals = done.record["totals"]
    assert totals["witness_queries"] == totals["queries"] > 0
    assert totals["witness_gradients"] == totals["gradients"] > 0
    rows = done.findings.to_pylist()
    assert {row["kind"] for row in rows} == {"label"}
    assert all(row["witnessed"] == (row["witness_margin"] >= 2.0) for row in rows)
    assert f"witnessed: {funnel['witnessed']} of" in done.summary()
    page = json.loads((report(done).parent / "report.json").read_text())
    assert page["runs"][0]["search"]["witnessed"] == funnel["witnessed"]


def test_a_run_without_witnesses_counts_none_and_its_identity_says_what_was_climbed(tmp_path):
    done = run(tmp_path / "a", witnesses=())
    both = [one.record["phases"]["search"] for one in (run(tmp_path / "b"), done)]
    kinds = [set(one["identity"]["parts"].values()) for one in both]
    assert {"KeptByWitnesses", "Witnessed"} <= kinds[0] - kinds[1]
    assert done.record["search_results"]["witnessed"] is None
    assert done.record["totals"]["witness_queries"] == 0
    assert set(done.findings["witnessed"].to_pylist()) == {None}
    assert "witnessed" not in done.summary()


def test_a_run_that_finds_nothing_witnessed_counts_zero(tmp_path):
    done = run(tmp_path / "a", witnesses=hc.Witnesses(models=[corners()], margin=1000.0))
    assert done.record["search_results"]["witnessed"] == 0
    assert done.record["search_results"]["failing"] > 0
    assert not any(done.findings["witnessed"].to_pylist())


def test_witnessed_accepted_and_unsure_are_counted_each_among_failing():
    seeds = [{"id": s, "status": "done", "evaluated": 1, "failing": 1} for s in "abcd"]
    findings = [{"id": s, "original": s, "kind": "label", "witnessed": s in "ab"} for s in "abc"]
    verdicts = {
        "a": {"verdict": "lost", "by": "judge", "group": None},
        "b": {"verdict": "unsure", "by": "judge", "group": None},
        "c": {"verdict": "kept", "by": "judge", "group": "g"},
    }
    results = count(seeds, findings, verdicts, witnesses=True)["search_results"]
    assert (results["failing"], results["witnessed"]) == (3, 2)
    assert (results["accepted"], results["unsure"], results["confirmed"]) == (1, 1, None)


def test_the_same_bytes_in_one_process_in_two_and_after_a_stop(tmp_path):
    first = run(tmp_path / "a")
    assert first.record["search_results"]["witnessed"] > 2
    run(tmp_path / "b", execution=hc.Execution(shard=2, workers=2))
    assert parts(tmp_path / "a") == parts(tmp_path / "b")
    run(tmp_path / "c", execution=hc.Execution(shard=2, batch=48))
    assert parts(tmp_path / "a") == parts(tmp_path / "c")
    sorted((tmp_path / "c/findings").glob("part-*.parquet"))[1].unlink()
    resume(tmp_path / "c", corners())
    assert parts(tmp_path / "a") == parts(tmp_path / "c")


def test_another_witness_is_another_campaign(tmp_path):
    run(tmp_path / "a")
    other = Subject(Quarters(33.0), classes=CLASSES, name="other")
    with pytest.raises(HardcaseError, match="witness 1 is not the one this run began with"):
        resume(tmp_path / "a", other)


def test_a_search_in_memory_has_witnesses_too():
    witnesses = hc.Witnesses(models=[corners()], margin=1.0)
    found = hc.search(toy_subject(), toy_images(8), method=PGD, witnesses=witnesses)
    assert found.witnessed.any()
    assert bool((found.witness_margin[found.witnessed] >= 1).all())
