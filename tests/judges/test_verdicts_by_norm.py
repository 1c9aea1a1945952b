"""Changes too small to change a label are kept and valid by construction, and say so."""

from dataclasses import replace

import hardcase as hc
from hardcase.suite.gate import GateLimits, gate, outcome
from hardcase.testing.toys import toy_images, toy_subject


def flat_images():
    """Toys of little contrast: a few grey levels change what the toy network says."""
    images = toy_images(24)
    return replace(images, x=(112 + images.x.float() / 16).to(images.x.dtype))


def run(folder, levels):
    options = {"epsilon": levels / 255}
    return hc.run(toy_subject(), flat_images(), method="pgd", options=options, out=folder)


def refusing(findings):
    no = [False] * len(findings)
    return hc.Verdicts(no, no)


def small_findings(folder):
    """A run whose findings changed by at most 8 grey levels."""
    found = run(folder, 8)
    assert len(found), "no toy seed fails within 8 grey levels"
    return found


def test_a_run_of_small_changes_is_confirmed_without_a_judge(tmp_path):
    found = small_findings(tmp_path / "run")
    said = found.verdicts
    assert said is not None
    assert {one["by"] for one in said.values()} == {"norm"}
    funnel = found.record["funnel"]
    assert funnel["confirmed"] == funnel["failing"] > 0
    assert "by norm" in found.summary()
    assert found.record["judge"]["name"] == "norm"


def test_no_judge_may_refuse_them(tmp_path):
    found = hc.judge(small_findings(tmp_path / "run"), by=refusing)
    assert found.record["funnel"]["confirmed"] == found.record["funnel"]["failing"]


def test_larger_changes_are_left_to_a_judge(tmp_path):
    options = {"epsilon": 0.3}
    found = hc.run(
        toy_subject(), toy_images(8), method="pgd", options=options, out=tmp_path / "run"
    )
    large = [row["id"] for row in found.findings.to_pylist() if row["linf"] > 8.5 / 255]
    assert large
    judged = hc.judge(found, by=refusing)
    assert all(judged.verdicts[name]["label_kept"] is False for name in large)
    assert all(judged.verdicts[name]["by"] == "judge" for name in large)


def test_the_gate_fails_a_model_that_small_changes_break(tmp_path):
    found = small_findings(tmp_path / "run")
    assert outcome(gate(found, GateLimits(confirmed_rate=0.0, usable=1))) == "fail"
    assert outcome(gate(found, GateLimits(confirmed_rate=1.0, usable=1))) == "cannot tell"
