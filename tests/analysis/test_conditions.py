"""The failure rate of a stored run: kept with it, held against a limit and against a baseline, with
failing samples to look at.
"""

import json

import pytest
import torch

import hardcase as hc
from hardcase.analysis.conditions import shown_samples
from hardcase.analysis.references import rate_difference
from hardcase.cli.main import main
from hardcase.conditions import Conditions
from hardcase.errors import HardcaseError
from hardcase.report import report
from hardcase.runs.phases import measured_rows
from hardcase.runs.results import Run
from hardcase.runs.verify import CONDITIONS, read_side_file, write_side_file
from hardcase.suite.gate import GateLimits, gate
from hardcase.testing.toys import toy_images, toy_subject
from hardcase.wording.checks import lost_in_words

DECLARED = {"rotation": "±40 deg", "exposure": "±1 stops"}
ALONE = {"method": "none", "judge": False, "conditions": DECLARED, "allow_low_accuracy": True}


def run(folder, *, sharpness=20.0, **settings):
    given = {"method": "pgd", "judge": False, "conditions": DECLARED, **settings}
    return hc.run(toy_subject(sharpness), toy_images(60), out=folder, **given)


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    return run(tmp_path_factory.mktemp("runs") / "first")


def test_a_run_keeps_the_failure_rate_of_all_its_images(stored):
    record = json.loads((stored.folder / "run.json").read_text())
    risk = record["risk"]
    assert record["conditions"] == Conditions(DECLARED).to_record()
    assert (risk["images"], risk["of"], risk["samples"], risk["settled"]) == (60, 60, 4, "all")
    assert 0 < risk["low"] < risk["value"] < risk["high"] < 1
    assert risk["value"] == risk["failing"] / 240
    assert record["phases"]["measure"]["totals"]["queries"] == 60 * 5
    assert stored.verification.state == "verified"
    assert "no judge was asked" in lost_in_words(risk)


def test_the_gate_holds_the_interval_against_the_limit(stored):
    low, high = (stored.record["risk"][end] for end in ("low", "high"))
    limits = {"pass": high + 0.01, "fail": low / 2, "inconclusive": (low + high) / 2}
    for outcome, limit in limits.items():
        (check,) = gate(stored, GateLimits(risk=limit))
        assert (check.name, check.outcome) == ("failure rate", outcome)


def test_two_runs_are_compared_image_by_image(stored, tmp_path):
    again = run(tmp_path / "again")
    assert rate_difference(stored, again)["value"] == 0
    for margin, outcome in ((0.1, "pass"), (0.0001, "inconclusive")):
        (check,) = gate(stored, GateLimits(margin=margin), again)
        assert check.outcome == outcome
    assert main(f"gate {stored.folder} --baseline {again.folder} -q".split()) in (0, 4)


def test_runs_under_other_conditions_are_not_compared(stored, tmp_path):
    none = run(tmp_path / "none", conditions="none")
    risk = none.record["risk"]
    assert (risk["samples"], risk["value"]) == (0, risk["unmodified"]["value"])
    with pytest.raises(HardcaseError, match="without declared conditions"):
        gate(none, GateLimits(risk=1.0))
    other = run(tmp_path / "other", conditions={"rotation": "±5 deg"})
    for unlike in (none, other):
        with pytest.raises(HardcaseError, match="other conditions"):
            rate_difference(stored, unlike)


def noisy(size, seed):
    """The toy's network with noise on its weights, as another training would have."""
    net = toy_subject(20.0).net
    weight = net.mean.weight.data
    weight += size * torch.randn(weight.shape, generator=torch.Generator().manual_seed(seed))
    return hc.Subject(net, classes=toy_subject().class_names, name=f"noise {size} {seed}")


@pytest.fixture(scope="module")
def versions(tmp_path_factory):
    """Two trainings of one recipe, and a ruined one: runs of the same 300 images."""
    home = tmp_path_factory.mktemp("versions")
    made = {"first": noisy(0.004, 1), "second": noisy(0.004, 2), "ruined": noisy(0.1, 3)}
    images = toy_images(300)
    return {name: hc.run(one, images, out=home / name, **ALONE) for name, one in made.items()}


def test_the_gate_passes_the_better_fails_the_worse_and_cannot_tell_equals(versions, capsys):
    for new, old, code in (("first", "ruined", 0), ("ruined", "first", 1), ("second", "first", 4)):
        assert (
            main(f"gate {versions[new].folder} --baseline {versions[old].folder}".split()) == code
        )
    capsys.readouterr()
    (equals,) = gate(versions["second"], GateLimits(margin=0.01), versions["first"])
    assert any(char.isdigit() for char in equals.decide), "how many images"
    alone = versions["first"]
    assert len(alone) == 0
    assert alone.record["totals"]["queries"] == 0, "nothing was searched"
    assert not (alone.folder / "images.parquet").exists()


def test_failing_samples_are_kept_to_be_looked_at_and_none_is_reserved(versions):
    alone = versions["ruined"]
    shown = shown_samples(alone)
    assert 0 < len(shown) <= 60
    rows = measured_rows(alone.store)
    held = {name for name, reserved in zip(rows.id, rows.reserved) if reserved}
    assert len(held) == pytest.approx(150, abs=40)
    failing = {name for name, failed in zip(rows.id, rows.failed) if failed.any()}
    for sample in shown:
        assert sample["label"] != sample["predicted"]
        assert sample["image"] != sample["unmodified"]
        assert sample["original"] in failing - held
    assert report(alone).is_file()


def test_the_judge_says_which_labels_are_lost(versions):
    alone = versions["first"]
    shown = len(shown_samples(alone))

    def lost(kept):
        def judge(pairs):
            unmodified = (pairs.x == pairs.original).flatten(1).all(1).tolist()
            return hc.Verdicts(["kept" if one else word for one, word in zip(unmodified, kept)])

        return hc.judge(alone, by=judge).record["risk"]["lost_labels"]

    said = lost([("lost", "kept")[i % 2 == 0] for i in range(shown)])
    assert (said["lost"], said["decided"], said["shown"]) == (shown // 2, shown, shown)
    assert said["low"] < 0.5 < said["high"]
    assert f"{shown // 2} lost" in lost_in_words(Run(alone.folder).record["risk"])
    said = lost(["lost", *["unsure"] * (shown - 1)])
    assert said["low"] < 1 / shown < 0.99 < said["high"], "what is unsure may be either"


def test_without_limits_the_baseline_decides(tmp_path):
    def decided(subject, name, **given):
        done = hc.run(subject, toy_images(300), out=tmp_path / name, **ALONE, **given)
        return [check.outcome for check in gate(done, GateLimits(margin=0.05))]

    plain = toy_subject(20.0)
    assert decided(noisy(0.1, 3), "worse", baseline=[plain]) == ["fail"]
    assert decided(plain, "better", baseline=[noisy(0.1, 3)]) == ["pass"]
    with pytest.raises(HardcaseError, match="no limit"):
        decided(noisy(0.004, 1), "alone")


def test_a_run_takes_the_profile_for_its_images_unless_told_otherwise(tmp_path):
    run = hc.run(toy_subject(), toy_images(8), out=tmp_path / "usual", method="none", judge=False)
    assert run.record["conditions"]["name"] == "scanner"
    assert run.record["given"].get("conditions", "default") == "default"


@pytest.mark.parametrize(
    "shown",
    [
        3,
        [3],
        [{"original": "nobody"}],
        [{"original": "toy-0", "label": 99, "predicted": 0, "words": ""}],
    ],
)
def test_kept_samples_that_are_none_are_left_out(stored, shown):
    kept = read_side_file(stored.store, CONDITIONS)
    try:
        write_side_file(stored.store, CONDITIONS, {**kept, "shown": shown})
        assert shown_samples(stored) == []
        assert report(stored).is_file()
    finally:
        write_side_file(stored.store, CONDITIONS, kept)
