"""The risk of a stored run: kept with it, told, held against a limit and against a baseline."""

import json

import pytest
import torch

import hardcase as hc
from hardcase.analysis.conditions import doubt_in_words, in_words, shown_draws
from hardcase.analysis.references import against
from hardcase.cli.main import main
from hardcase.errors import Problem
from hardcase.runs.results import Run
from hardcase.runs.verify import CONDITIONS, keep_beside, read_beside
from hardcase.suite.gate import GateLimits, checks, compare_baseline, gate
from hardcase.tensors import decode_all
from hardcase.testing.toys import toy_images, toy_subject

DECLARED = {"rotation": "±40 deg", "exposure": "±1 stops"}
ALONE = {"method": "none", "judge": False, "conditions": DECLARED, "allow_low_accuracy": True}


def run(folder, *, sharpness=20.0, shift=0.0, **settings):
    subject = toy_subject(sharpness)
    if shift:
        subject.net.out.weight.data[:, 0] += shift * torch.tensor([0.0, 1, 1, 1])
    given = {"method": "pgd", "judge": False, "conditions": DECLARED, **settings}
    return hc.run(subject, toy_images(60), out=folder, **given)


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    return run(tmp_path_factory.mktemp("runs") / "first")


def test_a_run_keeps_the_risk_of_all_its_seeds(stored):
    record = json.loads((stored.folder / "run.json").read_text())
    assert record["conditions"] == {**DECLARED, "name": "declared"}
    assert record["risk"]["seeds"] == 60
    assert 0 < record["risk"]["value"] < 1
    low, high = record["risk"]["images_like_these"]
    assert low < record["risk"]["value"] < high
    assert stored.verification.state == "verified"
    told = in_words(stored.record)
    assert f"{100 * record['risk']['value']:.1f} % of random declared conditions" in told["risk"]
    assert "no judge was asked" in told["labels"]


def test_the_gate_holds_the_interval_against_the_limit(stored):
    low, high = stored.record["risk"]["images_like_these"]
    limits = {"pass": high + 0.01, "fail": low / 2, "cannot tell": (low + high) / 2}
    for outcome, limit in limits.items():
        found = {check.name: check.outcome for check in gate(stored, GateLimits(risk=limit))}
        assert found["risk"] == outcome


def test_two_runs_are_compared_seed_by_seed(stored, tmp_path):
    again = run(tmp_path / "again")
    same = against(stored, again, margin=0.1)
    assert same.difference == 0
    assert compare_baseline(stored, again, 0.1).outcome == "pass"
    assert compare_baseline(stored, again, 0.0001).outcome == "cannot tell"
    assert main(f"gate {stored.folder} --baseline {again.folder} -q".split()) in (0, 4)


def test_runs_without_risk_or_under_other_conditions_are_refused(stored, tmp_path):
    none = run(tmp_path / "none", conditions="none")
    assert none.record.get("risk") is None
    with pytest.raises(Problem, match="no risk"):
        against(stored, none, margin=0.01)
    with pytest.raises(Problem, match="no risk"):
        gate(none, GateLimits(risk=0.1))
    shown = {check.name: check.outcome for check in checks(none, GateLimits(risk=0.1))}
    assert shown["risk"] == "cannot tell", "a report is made all the same"
    other = run(tmp_path / "other", conditions={"rotation": "±5 deg"})
    with pytest.raises(Problem, match="other conditions"):
        against(stored, other, margin=0.01)


def noisy(size, seed):
    """The toy's network with noise on its weights, as another training would have."""
    net = toy_subject(20.0).net
    weight = net.mean.weight.data
    weight += size * torch.randn(weight.shape, generator=torch.Generator().manual_seed(seed))
    return hc.Subject(net, classes=toy_subject().class_names, name=f"noise {size} {seed}")


@pytest.fixture(scope="module")
def versions(tmp_path_factory):
    """Two trainings of one recipe, and a ruined one: run folders of 300 common seeds."""
    home = tmp_path_factory.mktemp("versions")
    made = {"first": noisy(0.004, 1), "second": noisy(0.004, 2), "ruined": noisy(0.1, 3)}
    given = {**ALONE, "references": "none"}
    images = toy_images(300)
    return {name: hc.run(one, images, out=home / name, **given) for name, one in made.items()}


def test_the_gate_passes_the_better_fails_the_worse_and_cannot_tell_equals(versions, capsys):
    def gated(new, old):
        code = main(f"gate {versions[new].folder} --baseline {versions[old].folder}".split())
        return code, capsys.readouterr().out

    for pair, expected, words in (
        (("first", "ruined"), 0, "pass  risk minus that of the baseline: -"),
        (("ruined", "first"), 1, "FAIL  risk minus that of the baseline: +"),
        (("second", "first"), 4, "what would decide it: more seeds: --seeds "),
    ):
        code, said = gated(*pair)
        assert (code, said.count(words)) == (expected, 1)
    run = versions["first"]  # without a search
    assert len(run) == 0
    assert run.record["risk"]["seeds"] == 300
    assert run.record["totals"]["queries"] == 0


def test_costs_whose_order_says_nothing_say_so():
    def row(name, cost, half):
        return {"condition": name, "cost": cost, "low": cost - half, "high": cost + half}

    def doubt(*halves):
        costs = [row(name, cost, half) for name, cost, half in zip("abc", (0.5, 0.4, 0.1), halves)]
        return doubt_in_words(costs, 60)

    assert doubt(0.05, 0.05, 0.05) == ""
    assert "more than others" in doubt(0.05, 0.05, 0.3)
    assert "whether b costs anything" in doubt(0.05, 0.45, 0.05)
    assert doubt_in_words([], 60) == ""


def test_failing_draws_are_kept_with_an_example_of_what_costs_most(versions):
    run = versions["ruined"]
    kept = shown_draws(run)
    assert 0 < len(kept["shown"]) <= 60
    dearest = run.record["risk"]["costs"][0]["condition"]
    example = kept["shown"][kept["examples"][dearest]]
    assert example["label"] != example["predicted"]
    image = decode_all([example["image"]])
    seed = run.seed_images([run.seed_rows[example["seed"]]])
    assert image.shape == seed.shape
    assert not torch.equal(image, seed)
    page = run.report()
    text = page.read_text()
    first = text[: text.index('id="r1-funnel"')]
    assert "The conditions that cost most" in first
    assert first.count('class="flip"') == len(kept["examples"])
    assert "confirmed" not in first.partition("<nav")[0].partition("<main")[2]


def test_the_judge_says_which_labels_are_lost(versions):
    run = versions["first"]
    shown = len(shown_draws(run)["shown"])

    def lost(kept):
        def judge(pairs):
            unmodified = (pairs.x == pairs.original).flatten(1).all(1).tolist()
            return hc.Verdicts(["kept" if one else word for one, word in zip(unmodified, kept)])

        return hc.judge(run, by=judge).record["risk"]["lost_labels"]

    said = lost([("lost", "kept")[i % 2 == 0] for i in range(shown)])
    assert (said["lost"], said["decided"], said["shown"]) == (shown // 2, shown, shown)
    assert said["low"] < 0.5 < said["high"]
    assert f"{shown // 2} lost" in in_words(Run(run.folder).record)["labels"]
    said = lost(["lost", *["unsure"] * (shown - 1)])
    assert said["low"] < 1 / shown < 0.99 < said["high"], "what is unsure may be either"


def test_without_limits_the_reference_decides(tmp_path):
    def decided(subject, **given):
        run = hc.run(subject, toy_images(300), out=tmp_path / subject.name, **ALONE, **given)
        return gate(run, GateLimits(risk_margin=0.05))[-1]

    plain = toy_subject(20.0)
    assert decided(noisy(0.1, 3), references=[plain]).outcome == "fail"
    assert decided(plain, references=[noisy(0.1, 3)]).outcome == "pass"
    none = decided(noisy(0.004, 1), references="none")
    assert none.outcome == "cannot tell"
    assert "no reference" in none.text


def test_a_run_takes_the_profile_for_its_images_unless_told_otherwise(tmp_path, capsys):
    run = hc.run(toy_subject(), toy_images(8), out=tmp_path / "usual", method="none", judge=False)
    assert run.record["conditions"]["name"] == "scanner"


def test_worst_case_and_rare_failures_are_measured_on_request_and_reported(tmp_path):
    declared = {"exposure": "±1 stops", "noise": "0..20 levels", "worst": True}
    given = {**ALONE, "conditions": declared, "rare": True}
    run = hc.run(toy_subject(), toy_images(3), out=tmp_path / "run", **given)
    assert run.record["worst_case"]["seeds"] == 3
    rare = run.record["rare"]
    assert (rare["of"], rare["repeats"], rare["floor"]) == (3, 20, 1e-6)
    assert run.verification.state == "verified"
    assert "no probability in the field" in in_words(run.record)["rare"]
    assert gate(run, GateLimits(least_scale=1.0))[-1].outcome in ("pass", "fail")
    told = json.loads((run.report().parent / "report.json").read_text())["runs"][0]
    keys = ("conditions", "risk", "risk_excess", "least_scale", "worst_case", "rare")
    assert {key: told[key] for key in keys} == {key: run.record[key] for key in keys}


@pytest.mark.parametrize(
    "shown",
    [3, [3], [{"seed": "nobody"}], [{"seed": "toy-0", "label": 99, "predicted": 0, "words": ""}]],
)
def test_kept_draws_that_are_none_are_left_out(stored, shown):
    kept = read_beside(stored.store, CONDITIONS)
    try:
        keep_beside(stored.store, CONDITIONS, {**kept, "shown": shown, "examples": {"rotation": 7}})
        assert shown_draws(stored) == {"shown": [], "examples": {}}
        assert stored.report().is_file()
    finally:
        keep_beside(stored.store, CONDITIONS, kept)
