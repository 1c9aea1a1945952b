"""A judge from training to verdicts, on bars: what it says, what it refuses, what it leaves in the run."""

import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from judged import made_run, quick_judge, splits, test_run

import hardcase as hc
from hardcase import companions
from hardcase.cli.main import main
from hardcase.errors import HardcaseError
from hardcase.judges import held_out, judge as panel_judges, panel, verdicts
from hardcase.judges.calibration import Calibration
from hardcase.judges.controls import UNCHANGED, plant_controls
from hardcase.judges.held_out import check
from hardcase.judges.judge import FILE, JudgeRequest
from hardcase.judges.samples import judge_samples
from hardcase.judges.verdicts import judge_named, judge_run, pairs_of
from hardcase.models.subject import Subject
from hardcase.runs.results import Run
from hardcase.suite.gate import GateLimits, gate, outcome
from hardcase.tensors import from_bytes
from hardcase.testing import check_judge
from hardcase.testing.toys import toy_images, toy_subject
from hardcase.types import ImagePairs
from tiny import bars, global_state


def test_training_is_kept_and_touches_no_global_state(judge):
    before = global_state()
    again = quick_judge()
    assert global_state() == before
    assert again.card == judge.card
    assert judge.card["accuracy"] > 0.9
    assert judge.card["kind"] == "judge"
    assert set(judge.card["members"]) == {*(f"member {i}" for i in range(1, 7)), "density"}
    assert {"label_kept", "domain"} == set(judge.card["rules"])


def same_values(first, second):
    try:
        return json.loads(bytes(first)) == json.loads(bytes(second))
    except ValueError:  # no JSON
        return False


@pytest.mark.parametrize("name", ["weights.safetensors", "card.json", FILE])
def test_a_flipped_bit_in_a_kept_judge_is_noticed(judge, tmp_path, name):
    folder = tmp_path / "judge"
    shutil.copytree(judge.folder, folder)
    measured = {"images": 9, "label_kept": {}}
    panel_judges.keep_calibration(panel.read(folder), Calibration(judge.rules, measured))
    whole = (folder / name).read_bytes()
    assert panel.read(folder).calibration["images"] == 9
    digits = [i for i, byte in enumerate(whole) if chr(byte) in "123456789"]
    places = [len(whole) // 3, len(whole) // 2, *digits[:: len(digits) // 12 + 1], len(whole) - 3]
    for place in places:
        flipped = bytearray(whole)
        flipped[place] ^= 1
        if same_values(flipped, whole):
            continue  # the last of seventeen digits of a number
        (folder / name).write_bytes(flipped)
        with pytest.raises(HardcaseError, match=r"calibrate again|train again"):
            panel.read(folder)
    (folder / name).write_bytes(whole)
    assert panel.read(folder).rules == judge.rules


def test_a_card_without_its_checksum_is_no_judge(judge, tmp_path):
    (tmp_path / "card.json").write_text(json.dumps(dict(judge.card)))
    with pytest.raises(HardcaseError, match="checksum"):
        panel.read(tmp_path)


def test_a_run_gets_verdicts_a_funnel_and_the_judges_card(judge, tmp_path):
    run = judge_run(test_run(tmp_path / "run"), judge)
    funnel = run.record["search_results"]
    assert funnel["failing"] == 12
    assert funnel["accepted"] + funnel["unsure"] <= 12
    assert funnel["confirmed"] is None
    rows = pq.read_table(tmp_path / "run/verdicts/part-00000.parquet").to_pylist()
    assert [row["id"] for row in rows] == run.findings["id"].to_pylist()
    p_kept = [row["p_kept"] for row in rows]
    assert np.mean(p_kept[:4]) > np.mean(p_kept[8:]) + 0.2
    assert {row["verdict"] for row in rows} <= {"kept", "lost", "unsure", "foreign"}
    assert "kept" not in {row["verdict"] for row in rows[8:]}
    assert all(row["noise"] >= 0 and row["root_mean_square"] > 0 for row in rows)
    said = run.record["judge"]
    assert said["calibrated"] is False
    assert said["status"].startswith("uncalibrated")
    named = {group["name"] for group in said["groups"]}
    assert {row["group"] for row in rows if row["group"]} == named
    assert funnel["clusters"] == len(said["groups"])
    json.dumps(said)
    run.store.write("verdicts/part-00007.parquet", b"old")
    first = (tmp_path / "run/verdicts/part-00000.parquet").read_bytes()
    judge_run(Run(tmp_path / "run"), judge)
    (again,) = (tmp_path / "run/verdicts").iterdir()
    assert (again.name, again.read_bytes()) == ("part-00000.parquet", first)


def test_a_run_without_findings_is_judged_too(judge, tmp_path):
    _, test = splits()
    empty = made_run(tmp_path / "run", test.x[:3], test.y[:3], torch.zeros(0, 1, 12, 12))
    funnel = judge_run(empty, judge).record["search_results"]
    assert (funnel["accepted"], funnel["clusters"]) == (0, 0)


@pytest.mark.parametrize("role", ["model", "peers", "generator"])
def test_a_search_that_used_a_member_is_refused(judge, tmp_path, role):
    one, other, *_ = (Subject(member).hash for member in judge.panel.members)
    used = {"model": one, "peers": [other], "generator": judge.card["members"]["density"]}
    none = {"model": "s", "peers": [], "generator": None, "guides": {}, "data": "d"}
    run = test_run(tmp_path / "run", record={"hashes": {**none, role: used[role]}})
    with pytest.raises(HardcaseError, match=role):
        judge_run(run, judge)
    assert not list((tmp_path / "run/verdicts").iterdir())


def test_seeds_it_has_learned_from_and_images_of_another_kind_are_refused(judge, tmp_path):
    train, _ = splits()
    run = made_run(tmp_path / "run", train.x[:6], train.y[:6], from_bytes(train.x[:6]))
    with pytest.raises(HardcaseError, match="trained on 6 of the 6 seeds"):
        check(run, judge.provenance)
    other = bars(9, size=10, split="test")
    run = made_run(tmp_path / "other", other.x, other.y, from_bytes(other.x))
    with pytest.raises(HardcaseError, match="10 x 10"):
        judge_run(run, judge)


def test_a_verdict_does_not_hang_on_company(judge, tmp_path):
    """Half of the run, the run doubled, turned round, and every image by itself."""
    run = test_run(tmp_path / "run")
    pairs = pairs_of(run, range(len(run)))
    check_judge(judge, pairs)
    whole = judge_run(run, judge).verdicts
    x, y = pairs.original, pairs.expected
    half = made_run(tmp_path / "half", x[:6], y[:6], from_bytes(pairs.x[:6]))
    twice = (torch.cat([one, one]) for one in (x, y, from_bytes(pairs.x)))
    double = made_run(tmp_path / "double", *twice)
    first = [whole[name]["verdict"] for name in run.findings["id"].to_pylist()]
    for other in (half, double):
        judged = judge_run(other, judge)
        words = [judged.verdicts[name]["verdict"] for name in judged.findings["id"].to_pylist()]
        assert words == (first + first)[: len(words)]


def test_the_command_says_the_same_of_the_run_of_half_of_it_and_of_the_run_doubled(
    judge, tmp_path, monkeypatch, capsys
):
    """``hardcase judge RUN --judge DIR``, as somebody types it, and what it leaves in the folders."""
    monkeypatch.chdir(tmp_path)
    whole = test_run(tmp_path / "whole")
    pairs = pairs_of(whole, range(len(whole)))
    x, y, found = pairs.original, pairs.expected, from_bytes(pairs.x)
    made_run(tmp_path / "half", x[::2], y[::2], found[::2])
    made_run(tmp_path / "doubled", *(torch.cat([each, each]) for each in (x, y, found)))
    answers = {}
    for name in ("whole", "half", "doubled"):
        typed = ["judge", name, "--judge", str(judge.folder), "--progress", "none"]
        assert main(typed) == 0, capsys.readouterr().err
        rows = pq.read_table(tmp_path / name / "verdicts/part-00000.parquet").to_pylist()
        answers[name] = [(row["verdict"], row["p_kept"]) for row in rows]
    assert len({word for word, _ in answers["whole"]}) > 1
    assert answers["half"] == answers["whole"][::2]
    assert answers["doubled"] == answers["whole"] * 2


def test_controls_are_judged_blind_and_counted(judge, tmp_path):
    run = judge_run(test_run(tmp_path / "run"), judge)
    entry = run.record["judge"]["controls"]
    assert entry["planted"] == 36
    assert entry["kinds"][UNCHANGED]["planted"] == 12
    assert entry["found"] >= 12
    assert entry["kinds"][UNCHANGED]["kept"] > entry["accepted"]
    controls = plant_controls(run)
    assert len(controls.pairs) == len(controls.kind) == 48
    labels = {tuple(x.flatten().tolist()): y for x, y in zip(run.seed_images(), run.seeds["label"])}
    for kind, original, label in zip(
        controls.kind, controls.pairs.original, controls.pairs.expected
    ):
        assert labels[tuple(original.flatten().tolist())].as_py() == int(label), kind


def test_samples_are_judged_one_by_one_and_unreadable_images_apart(judge):
    """Samples of which a third are kept, a third another class, a third of images that are blank."""
    _, test = splits()
    original = test.x[:30].clone()
    original[20:] = 0
    x = torch.cat([test.x[:10], test.x[11:21], original[20:]])
    found = judge_samples(judge, ImagePairs(x, original, test.y[:30].long()))
    assert found["unreadable"] == 10
    assert found["shown"] == 20
    assert found["lost"] >= 8
    assert found["decided"] - found["lost"] >= 5


@pytest.mark.parametrize("name", ["panel", "photographs", "reserved", "norm"])
def test_every_listed_judge_is_made_for_a_run_by_its_name(judge, tmp_path, monkeypatch, name):
    train, test = splits()
    monkeypatch.setattr(panel, "trained", lambda *_, **__: judge)
    request = JudgeRequest(images={"train": train, "test": test}.__getitem__)
    run = test_run(tmp_path / "run")
    if name in ("photographs", "reserved"):  # small images have no pretrained network
        with pytest.raises(HardcaseError, match="pretrained networks"):
            judge_named(name, run, request)
    else:
        made = judge_named(name, run, request)
        assert judge_run(run, made).verdicts is not None
    with pytest.raises(HardcaseError, match="nobody"):
        judge_named("nobody", run, request)


def rated_file(path, count=60):
    _, test = splits()
    x, y = test.x[:count].clone(), test.y[:count].numpy()
    rater = y.copy()
    x[::3] = 20
    rater[::3] = -1
    x[1::3] = test.x[:count][(torch.arange(count) + 1) % count][1::3]
    rater[1::3] = np.roll(y, -1)[1::3]
    np.savez(
        path, images=x[:, 0].numpy(), expected=y, predicted=(y + 1) % 3, rater1=rater, rater2=rater,
        generator=np.array(["a", "b"])[np.arange(count) % 2],
    )  # fmt: skip
    return path


def test_calibration_is_kept_beside_the_judge_and_used_from_then_on(judge, tmp_path):
    fitted = judge.calibrate(rated_file(tmp_path / "rated.npz"))
    try:
        assert fitted.calibration["label_kept"]["auroc"]["value"] > 0.9
        again = quick_judge()
        assert again.rules == fitted.rules
        assert again.standing.startswith("calibrated on 60 images")
        assert panel.read(judge.folder).rules == fitted.rules
        run = judge_run(test_run(tmp_path / "run"), again)
        assert run.record["judge"]["calibrated"] is True
        assert run.record["judge"]["calibration"]["label_kept"]["precision"]["total"] >= 0
    finally:
        (judge.folder / FILE).unlink()


def as_study(file, monkeypatch, count=60):
    """The folder of a study whose people rated the first images of a file."""
    with np.load(file) as stored:
        arrays = {name: stored[name][:count] for name in stored.files}
    arrays["seed"] = np.arange(len(arrays["expected"])).astype(str)
    reader = SimpleNamespace(rated=lambda folder: arrays, record=lambda folder, runs: None)
    monkeypatch.setattr(companions, "reader", lambda: reader)
    return file.parent


def test_a_study_calibrates_the_judge_as_a_file_does(judge, tmp_path, monkeypatch):
    """The same rated images, as a study: fitted to one half of the raters, measured on the other."""
    study = as_study(rated_file(tmp_path / "rated.npz"), monkeypatch)
    fitted = judge.calibrate(study)
    try:
        assert fitted.standing.startswith("calibrated on 60 images")
        assert "two halves of the raters" in fitted.calibration["pooled_over"]
        assert fitted.calibration["label_kept"]["auroc"]["value"] > 0.9
    finally:
        (judge.folder / FILE).unlink()


def test_a_study_with_too_few_answers_leaves_the_judge_as_it_is(judge, tmp_path, monkeypatch):
    study = as_study(rated_file(tmp_path / "rated.npz"), monkeypatch, count=12)
    np.savez(tmp_path / "few.npz", **companions.reader().rated(study))
    told = []
    run = test_run(tmp_path / "run")
    assert verdicts.with_people(judge, study, [run], log=told.append) is judge
    assert "the judge stays as it was: people agree" in told[0]
    assert not (judge.folder / FILE).exists()
    assert "people" not in run.record
    with pytest.raises(HardcaseError, match="10 of each are needed"):
        verdicts.with_people(judge, tmp_path / "few.npz", [run])


def test_a_judge_that_was_moved_keeps_its_own_calibration(judge, tmp_path):
    shutil.copytree(judge.folder, tmp_path / "moved")
    moved = panel.read(tmp_path / "moved")
    fitted = moved.calibrate(rated_file(tmp_path / "rated.npz"))
    assert (tmp_path / "moved" / FILE).is_file()
    assert not (judge.folder / FILE).exists()
    assert panel.read(tmp_path / "moved").rules == fitted.rules


@pytest.mark.parametrize("content", [None, b"no arrays"])
def test_bad_files_of_ratings_are_told(judge, tmp_path, content):
    path = tmp_path / "rated.npz"
    if content:
        path.write_bytes(content)
    with pytest.raises(HardcaseError, match=r"rated\.npz"):
        judge.calibrate(path)


def test_the_judge_of_a_run_learns_from_the_other_split(judge, tmp_path, monkeypatch):
    train, test = splits()
    asked = []

    def stub(first, second, **given):
        asked.append((first.split, second.split))
        return judge

    both = {"train": train, "test": test}
    monkeypatch.setattr(held_out, "load", lambda name, *, split, offline=False: both[split])
    monkeypatch.setattr(panel, "trained", stub)
    request = JudgeRequest()
    held_out.default_judge(test_run(tmp_path / "run"), request)
    assert asked == [("train", "test")]
    changed = made_run(tmp_path / "other", 255 - test.x[:4], test.y[:4], from_bytes(test.x[:4]))
    with pytest.raises(HardcaseError, match="other data"):
        held_out.default_judge(changed, request)
    strange = made_run(tmp_path / "strange", train.x[:70], train.y[:70], from_bytes(train.x[:4]))
    with pytest.raises(HardcaseError, match="test-60"):
        held_out.default_judge(strange, request)


def test_the_end_of_a_run_judges_if_it_can_and_says_so_if_not(judge, tmp_path, monkeypatch):
    said = []
    other = {"train": bars(30, seed=9), "test": splits()[1]}
    run = test_run(tmp_path / "run")
    assert verdicts.finish(run, log=said.append, images=other.__getitem__).verdicts is None
    assert "hardcase judge" in said[0]
    monkeypatch.setattr(verdicts, "default_judge", lambda run, request: judge)
    assert verdicts.finish(run, log=said.append, train=True).verdicts is not None
    train, _ = splits()
    known = made_run(tmp_path / "known", train.x[:6], train.y[:6], 0.8 * from_bytes(train.x[:6]))
    assert verdicts.finish(known, log=said.append, train=True).verdicts is None
    assert "trained on 6" in said[1]


def test_photographs_that_may_all_be_seeds_leave_nothing_to_learn_from():
    record = {"data": "folder:photos?split=all", "split": "all", "shape": [3, 224, 224]}
    run = object.__new__(Run)
    vars(run)["record"] = record
    asked = []

    def images(split):
        asked.append(split)
        return bars(6)

    first, second = held_out._splits_of(run, JudgeRequest(images=images))
    assert asked == ["test"]
    assert (len(first), len(second)) == (0, 6)
    record["shape"] = [1, 28, 28]
    held_out._splits_of(run, JudgeRequest(images=images))
    assert asked == ["test", "test", "train"]


def attacked(folder, images, epsilon):
    options = {"epsilon": epsilon}
    return hc.run(toy_subject(), images, method="pgd", options=options, out=folder / "run")


def refusing(pairs):
    return hc.Verdicts(["lost"] * len(pairs))


def test_no_judge_may_refuse_what_changed_too_little(tmp_path):
    """Toys of little contrast: eight grey levels change what the toy network says."""
    images = toy_images(24)
    flat = replace(images, x=(112 + images.x.float() / 16).to(images.x.dtype))
    found = attacked(tmp_path, flat, 8 / 255)
    assert found.verdicts is None, "a run without a cached judge ends unjudged"
    for by in (refusing, "norm"):
        found = hc.judge(found, by=by)
        assert {one["by"] for one in found.verdicts.values()} == {"norm"}
        funnel = found.record["search_results"]
        assert funnel["accepted"] == funnel["failing"] > 0
        assert "by norm" in found.summary()
    assert outcome(gate(found, GateLimits(accepted_rate=0.0))) == "fail"
    assert outcome(gate(found, GateLimits(accepted_rate=1.0))) == "inconclusive"


def test_larger_changes_are_left_to_a_judge(tmp_path):
    found = attacked(tmp_path, toy_images(8), 0.3)
    large = [row["id"] for row in found.findings.to_pylist() if row["linf"] > 8.5 / 255]
    assert large
    said = hc.judge(found, by=refusing).verdicts
    assert {(said[name]["verdict"], said[name]["by"]) for name in large} == {("lost", "judge")}
