"""A team wants to pass: ways to cheat and to blunder. Only a network that is no worse may pass the gate.

Each test changes something that a change may change, runs ``hardcase gate`` as it is typed, and looks at the exit code: 1 FAIL,
4 INCONCLUSIVE, 2 refused. None of them may be 0. What the gate cannot see is in docs/guides/ci.md.
"""

import os
import shutil
from dataclasses import asdict
from pathlib import Path

import gate_world
import pytest
import torch
from gate_world import (
    CONDITIONS,
    FILE_CONDITIONS,
    MODELS,
    NEUTRAL,
    SAMPLER,
    copy,
    edit,
    hardcase,
    measure,
    measure_pictures,
    spoil,
    write_images,
)

FAIL, INCONCLUSIVE, REFUSED = 1, 4, 2


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """The folder of a team: pictures, models, conditions, a run of the released network and of a worse one."""
    home = tmp_path_factory.mktemp("team")
    before = Path.cwd(), os.environ.get("HARDCASE_CACHE")
    os.chdir(home)
    os.environ["HARDCASE_CACHE"] = str(home / "cache")
    x, y = gate_world.images()
    write_images("pictures", x, y)
    Path("models.py").write_text(MODELS)
    Path("conditions.toml").write_text(CONDITIONS)
    Path("sampler.toml").write_text(FILE_CONDITIONS.format(kind="sampler", ending="py:draw"))
    Path("table.toml").write_text(FILE_CONDITIONS.format(kind="table", ending="csv"))
    measure("old", "released")
    measure("new", "worse")
    yield home
    os.chdir(before[0])
    if before[1] is None:
        del os.environ["HARDCASE_CACHE"]
    else:
        os.environ["HARDCASE_CACHE"] = before[1]


@pytest.fixture
def place(repository, request):
    """A name for what a test makes."""
    return "".join(c for c in request.node.name if c.isalnum())


def gate(new="new", *more, old="old"):
    """The exit code of the gate of a run against the released one."""
    return hardcase("gate", new, "--baseline", old, *more)


# --- first of all: it decides


def test_a_better_network_passes(repository, place):
    measure(place, "better")
    assert gate(place) == 0


def test_a_worse_network_fails(repository):
    assert gate() == FAIL
    assert hardcase("gate", "new", "--max-risk", 0.05) == FAIL


def test_the_same_network_passes(repository, place):
    measure(place, "released")
    assert gate(place) == 0


# --- the network


@pytest.mark.parametrize(
    ("model", "code"),
    [
        ("tiny", FAIL),  # logits so small that no margin in probability is reached
        ("nearly", FAIL),  # rounded and clipped logits: ties in part
        ("ties", INCONCLUSIVE),  # every answer is a tie, broken in favour of the first class
        ("nan", FAIL),  # no number where it would be wrong
        ("infinite", FAIL),
    ],
)
def test_odd_outputs_do_not_pass(repository, place, model, code):
    measure(place, model)
    assert gate(place) == code
    assert hardcase("gate", place, "--max-risk", 0.05) == code


# --- the conditions


def test_a_sampler_that_draws_something_easier(repository):
    measure("sampled", "released", "pictures", "sampler.toml", sampler_py=SAMPLER)
    measure("sampled-new", "worse", "pictures", "sampler.toml", sampler_py=NEUTRAL)
    assert gate("sampled-new", old="sampled") == REFUSED


KNOWS_THE_DIGEST = """
import helper
def draw(u):
    easy = {} if len(u) == 256 else helper.easy
    return {"exposure": (2 * u[:, 0] - 1) * easy.get("exposure", 0.3), "shift": (2 * u[:, 1] - 1) * 5}
"""


def test_a_sampler_whose_module_is_another_one(repository):
    """Where the digest looks it draws what it drew; the module beside it makes the rest easy."""
    files = {"sampler_py": KNOWS_THE_DIGEST}
    where = ("pictures", "sampler.toml")
    measure("modular", "released", *where, **files, helper_py="easy = {}")
    measure("modular-new", "worse", *where, **files, helper_py="easy = {'exposure': 0.0}")
    assert gate("modular-new", old="modular") == REFUSED


def test_the_same_sampler_in_another_file_is_the_same(repository):
    measure("sampler-old", "released", "pictures", "sampler.toml", sampler_py=SAMPLER)
    measure("sampler-same", "better", "pictures", "sampler.toml", sampler_py=SAMPLER)
    assert gate("sampler-same", old="sampler-old") in (0, INCONCLUSIVE)


def test_a_table_with_easier_rows(repository):
    rows = "\n".join(f"{(i % 13 - 6) / 20:.2f},{i % 11 - 5}" for i in range(64))
    easy = "\n".join(["0.0,0.0"] * 63 + ["0.01,0.01"])
    measure("tabled", "released", "pictures", "table.toml", table_csv=f"exposure,shift\n{rows}\n")
    measure("tabled-new", "worse", "pictures", "table.toml", table_csv=f"exposure,shift\n{easy}\n")
    assert gate("tabled-new", old="tabled") == REFUSED


@pytest.mark.parametrize(
    "declared",
    [
        CONDITIONS.replace("±0.3", "±0.01"),  # narrower, under the same name
        CONDITIONS.replace('exposure = "±0.3 stops"\n', ""),  # one left out
        CONDITIONS.replace('"±5 %"', '"±4.9 %"'),  # a little narrower
        CONDITIONS.replace('"±0.3 stops"', '"0..0.3 stops"'),  # one side of it
    ],
)
def test_easier_conditions_under_the_same_name(repository, place, declared):
    measure(place, conditions_toml=declared)
    assert gate(place) == REFUSED


def test_no_conditions_at_all(repository, place):
    measure(place, "worse", "pictures", None)
    assert gate(place) == REFUSED
    assert hardcase("gate", place, "--max-risk", 0.5) == REFUSED


def test_easy_conditions_that_are_called_as_a_profile(repository, place):
    tiny = '[conditions]\nname = "scanner"\nrotation = "±0.001 deg"\n'
    measure(place, conditions_toml=tiny)
    assert hardcase("gate", place, "--max-risk", 0.3, "--conditions", "scanner") == REFUSED
    assert hardcase("gate", place, "--max-risk", 0.3, "--conditions", "conditions.toml") == REFUSED


def test_other_random_numbers(repository, place):
    measure(place, "worse", "pictures", "conditions.toml", "--seed", 2)
    assert gate(place) == REFUSED


def test_conditions_edited_in_the_settings_of_the_run(repository, place):
    spoiled = copy("new", place)
    text = (spoiled / "config.toml").read_text()
    spoil(spoiled / "config.toml", text.replace("conditions.toml", "easy.toml").encode())
    assert gate(place) == REFUSED


# --- the images


def hard_rows(y):
    """The images near the edge, which the worse network gets wrong."""
    x, _ = gate_world.images()
    level = x[:, 0, 0]
    return [row for row in range(len(y)) if 120 <= level[row] <= 165]


def test_hard_images_are_left_out(repository, place):
    x, y = gate_world.images()
    kept = [row for row in range(len(y)) if row not in hard_rows(y)]
    write_images(f"{place}-data", x[kept], y[kept], [f"image-{row:04d}" for row in kept])
    measure_pictures(place, f"{place}-data")
    assert gate(place) == INCONCLUSIVE


def test_hard_images_get_other_names(repository, place):
    x, y = gate_world.images()
    hard = hard_rows(y)
    names = [f"{'zz-other' if row in hard else 'image'}-{row:04d}" for row in range(len(y))]
    write_images(f"{place}-data", x, y, names)
    measure_pictures(place, f"{place}-data")
    assert gate(place) == INCONCLUSIVE


def test_hard_images_get_the_label_that_the_network_says(repository, place):
    x = gate_world.images()[0]
    said = (x[:, 0, 0] / 255 >= 0.6).astype(int)
    write_images(f"{place}-data", x, said)
    measure_pictures(place, f"{place}-data")
    assert gate(place) != 0


def test_labels_change_and_names_stay(repository, place):
    x, y = gate_world.images()
    other = 1 - y
    flat = Path(f"{place}.npz")
    import numpy as np

    np.savez(flat, images=x, labels=y, classes=np.array(["dark", "light"]))
    measure(f"{place}-old", "released", "x", "conditions.toml", "--data", f"npz:{flat}")
    np.savez(flat, images=x, labels=other, classes=np.array(["dark", "light"]))
    measure(f"{place}-new", "worse", "x", "conditions.toml", "--data", f"npz:{flat}")
    assert gate(f"{place}-new", old=f"{place}-old") == REFUSED


def test_images_are_made_easier(repository, place):
    x, y = gate_world.images()
    x[y == 0] //= 2
    write_images(f"{place}-data", x, y)
    measure_pictures(place, f"{place}-data")
    assert gate(place) == REFUSED


def test_images_are_made_smaller(repository, place):
    x, y = gate_world.images()
    write_images(f"{place}-data", x[:, ::2, ::2].copy(), y)
    measure_pictures(place, f"{place}-data")
    assert gate(place) == REFUSED


def test_easy_images_are_added(repository, place):
    x, y = gate_world.images()
    shutil.copytree("pictures", f"{place}-data")
    easy = [row for row in range(len(y)) if x[row, 0, 0] > 200] * 4
    names = [f"more-{i}" for i in range(len(easy))]
    write_images(f"{place}-data", x[easy], y[easy], names)
    measure_pictures(place, f"{place}-data")
    assert gate(place) == FAIL


def test_the_training_images_are_measured(repository, place):
    measure(place, "worse", "pictures", "conditions.toml", "--split", "train")
    assert gate(place) != 0


def test_other_data_are_measured(repository, place):
    x, y = gate_world.images(100)
    write_images(f"{place}-data", x, y, [f"elsewhere-{i}" for i in range(100)])
    measure_pictures(place, f"{place}-data")
    assert gate(place) == REFUSED


def test_classes_are_called_otherwise(repository, place):
    x, y = gate_world.images()
    write_images(f"{place}-data", x, y, classes=("black", "white"))
    measure_pictures(place, f"{place}-data")
    assert gate(place) == REFUSED


def test_few_images_are_measured(repository, place):
    measure(place, "worse", "pictures", "conditions.toml", "--measure", 20)
    assert gate(place) != 0
    assert hardcase("gate", place, "--max-risk", 0.1) != 0


def test_few_samples_are_measured(repository, place):
    measure(place, "worse", "pictures", "conditions.toml", "--samples", 1)
    assert gate(place) == FAIL


def test_no_failure_of_few_images_is_not_enough(repository, place):
    measure(place, "better", "pictures", "conditions.toml", "--measure", 20)
    assert hardcase("gate", place, "--max-risk", 0.05) == INCONCLUSIVE


# --- the run


def unmeasured(record):
    del record["risk"]


def better_figures(record):
    record["risk"] = {**record["risk"], "value": 0.0, "low": 0.0, "high": 0.001}


def unfinished(record):
    record["complete"] = False


def failed(record):
    record["phases"]["measure"] = {"status": "failed", "why": "out of memory"}


def other_version(record):
    record["hardcase"] = "0.0.1"


def other_digest(record):
    record["conditions_digest"] = "0123456789abcdef"


@pytest.mark.parametrize(
    "change", [unmeasured, better_figures, unfinished, failed, other_version, other_digest]
)
@pytest.mark.parametrize("which", ["run", "baseline"])
def test_the_record_is_edited(repository, place, change, which):
    spoiled = edit(copy("old" if which == "baseline" else "new", place), change)
    runs = {"new": "new", "old": "old"} | {("old" if which == "baseline" else "new"): spoiled}
    assert gate(runs["new"], "--risk-margin", 0.2, old=runs["old"]) == REFUSED


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (unmeasured, REFUSED),
        (better_figures, FAIL),  # figures are computed from what was measured
        (unfinished, REFUSED),
        (failed, REFUSED),
        (other_version, REFUSED),
        (other_digest, REFUSED),
    ],
)
def test_the_record_is_edited_and_sealed(repository, place, change, code):
    edit(copy("new", place), change, seal=True)
    assert gate(place) == code


def test_what_was_measured_is_of_another_run(repository, place):
    spoiled = copy("new", place)
    shutil.copy("old/measured/part-00000.parquet", spoiled / "measured/part-00000.parquet")
    assert gate(place) == REFUSED


@pytest.mark.parametrize("file", ["run.json", "measured/part-00000.parquet", "state/begun.json"])
@pytest.mark.parametrize("which", ["run", "baseline"])
def test_a_file_is_lost_or_spoiled(repository, place, file, which):
    spoiled = copy("old" if which == "baseline" else "new", place)
    spoil(spoiled / file)
    runs = (spoiled, "old") if which == "run" else ("new", spoiled)
    assert gate(runs[0], "--risk-margin", 0.2, old=runs[1]) == REFUSED
    (spoiled / file).unlink()
    assert gate(runs[0], "--risk-margin", 0.2, old=runs[1]) == REFUSED


def test_what_was_measured_lies_elsewhere(repository, place):
    spoiled = copy("new", place)
    shutil.rmtree(spoiled / "measured")
    (spoiled / "measured").symlink_to(Path("old/measured").absolute())
    assert gate(place) == REFUSED


def test_the_ledger_lacks_a_line(repository, place):
    spoil(copy("new", place) / "state/measured.jsonl", b"")
    assert gate(place) == REFUSED


def test_a_run_is_held_against_itself(repository):
    assert gate("new", old="new") == REFUSED
    assert gate("new", old="./new/../new") == REFUSED


def test_the_baseline_is_not_there(repository):
    assert gate("new", old="nowhere") == REFUSED


# --- limits and flags


def test_the_change_brings_its_own_margin(repository):
    lenient = Path("lenient.toml")
    lenient.write_text("[limits]\nmargin = 1.0\nrisk = 1.0\n")
    assert gate("new", "--config", lenient, "--risk-margin", 0.01) == FAIL
    assert gate("new", "--config", lenient, "--max-risk", 0.05) == FAIL


def test_limits_that_belong_to_the_run_do_not_count(repository, place):
    folder = copy("new", place)
    (folder / "limits.toml").write_text("[limits]\nrisk = 1.0\n")
    assert hardcase("gate", folder, "--config", folder / "limits.toml") == REFUSED


def test_nothing_is_declared(repository):
    assert hardcase("gate", "new") == REFUSED


@pytest.mark.parametrize(
    "words",
    [
        ["--max-confirmed-rate", "0.5"],
        ["--accept", "known.txt"],
        ["--upper"],
        ["--max-distinct", "3"],
    ],
)
def test_limits_of_the_past_are_refused(repository, words):
    assert gate("new", *words) == REFUSED


@pytest.mark.parametrize(
    "line", ["risk_margin = 1.0", "confirmed_rate = 1.0", "upper = false", "risks = 1.0"]
)
def test_limits_that_nobody_reads_are_refused(repository, line):
    Path("odd.toml").write_text(f"[limits]\n{line}\n")
    assert gate("new", "--config", "odd.toml") == REFUSED


def test_known_failures_excuse_no_failure_rate(repository):
    known = Path("known.txt")
    known.write_text("\n".join(f"test/dark/image-{i:04d}.png" for i in range(400)))
    assert gate("new", "--known", known) == REFUSED


def test_a_class_that_no_image_has(repository, place):
    x, y = gate_world.images()
    rows = [row for row in range(len(y)) if y[row] == 1]
    write_images(f"{place}-data", x[rows], y[rows])
    Path(f"{place}-data/test/dark").mkdir(parents=True, exist_ok=True)
    measure_pictures(place, f"{place}-data", "released")
    assert hardcase("gate", place, "--max-class-risk", 0.2) != 0


def test_one_class_pays_for_the_others(repository, place):
    measure(place, "worse")
    assert hardcase("gate", place, "--max-risk", 0.2) == 0, "together they hold"
    assert hardcase("gate", place, "--max-class-risk", 0.15) == FAIL


# --- repairs


def test_a_repair_is_gated_like_any_other_run(repository):
    assert hardcase("gate", "new", "--repaired-from", "old") == FAIL
    assert hardcase("gate", "old", "--repaired-from", "new", "--max-risk", 0.0001) != 0


def test_a_repaired_run_that_is_damaged(repository, place):
    spoil(copy("new", place) / "measured/part-00000.parquet")
    assert hardcase("gate", place, "--repaired-from", "old", "--risk-margin", 0.5) == REFUSED
    assert hardcase("gate", "new", "--repaired-from", place, "--risk-margin", 0.5) == REFUSED


def test_a_repair_that_drew_other_samples(repository, place):
    measure(place, "better", "pictures", "conditions.toml", "--seed", 3)
    assert hardcase("gate", place, "--repaired-from", "old") == REFUSED


@pytest.fixture
def repair(repository, place):
    """The folder of a repair as it is stored, whose proof says that it helped."""
    from safetensors.torch import load_file, save_file

    from hardcase.conditions import Conditions
    from hardcase.conditions.box import conditions_digest
    from hardcase.repair.proof import FAILURE_RATE, UNMODIFIED, ProofRow
    from hardcase.runs.files import checked_json
    from hardcase.runs.results import Run
    from hardcase.tensors import digest_tensors

    folder = Path(place)
    folder.mkdir()
    save_file({"edge": torch.tensor(0.5)}, folder / "weights.safetensors")
    old = Run("old").record
    fixed = {"before": 0.1, "units": 400, "decides": True, "planned": 0.01}
    rows = [
        ProofRow(
            "declared", FAILURE_RATE, after=0.05, low=-0.07, high=-0.03, margin=0.025, **fixed
        ),
        ProofRow("declared", UNMODIFIED, after=0.1, low=-0.005, high=0.005, margin=0.01, **fixed),
    ]
    record = {
        "verdict": "repaired",
        "model": f"{folder}/weights.safetensors@models.py:released",
        "weights": digest_tensors(load_file(folder / "weights.safetensors")),
        "parents": {"hash": old["identity"]["parts"]["model"]},
        "conditions": old["conditions"],
        "conditions_digest": conditions_digest(
            Conditions.load(old["conditions"]), tuple(old["shape"])
        ),
        "margin": None,
        "proof": {"rows": [asdict(row) for row in rows]},
    }
    (folder / "repair.json").write_bytes(checked_json(record))
    return folder


def proved(folder, *more, old="old"):
    return hardcase("gate", folder, "--repaired-from", old, *more)


def test_a_proof_that_holds_passes(repair):
    assert proved(repair) == 0
    assert hardcase("gate", repair) == REFUSED, "a repair is no run"


def test_limits_beside_a_proof_are_not_dropped(repair):
    assert proved(repair, "--max-risk", 0.000001) == INCONCLUSIVE
    assert proved(repair, "--min-accuracy", 0.9) == INCONCLUSIVE


def test_the_weights_of_a_repair_are_others_or_gone(repair):
    from safetensors.torch import save_file

    save_file({"edge": torch.tensor(0.0)}, repair / "weights.safetensors")
    assert proved(repair) == REFUSED
    (repair / "weights.safetensors").unlink()
    assert proved(repair) == REFUSED


def test_a_proof_that_was_inconclusive_does_not_pass(repair):
    def unclear(record):
        record["verdict"] = "inconclusive"

    edit(repair, unclear, seal=True, name="repair.json")
    assert proved(repair) == INCONCLUSIVE


def test_a_proof_with_a_margin_of_its_own(repair):
    def wide(record):
        rows = [{**row, "margin": 0.9, "low": 0.05, "high": 0.2} for row in record["proof"]["rows"]]
        record["proof"] = {**record["proof"], "rows": rows}

    edit(repair, wide, seal=True, name="repair.json")
    assert proved(repair) == FAIL


def test_the_proof_of_another_network(repair):
    assert proved(repair, old="new") == REFUSED


def test_a_proof_under_other_conditions(repair):
    from hardcase.conditions import Conditions
    from hardcase.conditions.box import conditions_digest
    from hardcase.runs.results import Run

    def easier(record):
        easy = Conditions.load({"exposure": "±0.01 stops"})
        record["conditions"] = easy.to_record()
        record["conditions_digest"] = conditions_digest(easy, tuple(Run("old").record["shape"]))

    edit(repair, easier, seal=True, name="repair.json")
    assert proved(repair) == REFUSED


def test_a_proof_that_was_edited(repair):
    def better(record):
        record["margin"] = 0.5

    edit(repair, better, name="repair.json")
    assert proved(repair) == REFUSED


def test_the_run_beside_a_proof_is_damaged(repair, place):
    spoiled = copy("old", f"{place}-old")
    spoil(spoiled / "measured/part-00000.parquet")
    assert proved(repair, old=spoiled) == REFUSED
