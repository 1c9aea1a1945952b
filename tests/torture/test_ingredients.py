"""Any ingredient of a run, swapped between its beginning and its going on, is noticed and named."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import world

import hardcase as hc
from hardcase.campaign.record import parse_keep
from hardcase.config import parse
from hardcase.context import Context
from hardcase.errors import HardcaseError
from hardcase.models.subject import Subject
from hardcase.runs import identity
from hardcase.runs.folder import Store
from hardcase.runs.plan import plan_of
from hardcase.runs.results import Run
from hardcase.runs.start import resume, start
from hardcase.testing.toys import Counting, Quarters, toy_images, toy_subject
from tiny import MODEL, save_toys

CARD = {"weights": "00ff", "kind": "supplied"}


def full(subject=None, **changes):
    """A run with one of everything."""
    campaign = world.campaign(subject)
    method = replace(campaign.method, details={"generator": changes.pop("card", CARD)})
    given = {"method": method, "peers": (toy_subject(),), "witnesses": ()}
    return replace(campaign, **{**given, **changes})


def plan(campaign=full, **changes):
    given = {"source": campaign, "ingredients": {"model source": "a", "training data": "b"}}
    return world.plan(**{**given, **changes})


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    start(plan(seeds=8), folder)
    return folder


class Flipped(Counting):
    """The same weights and the same words, other answers."""

    def __init__(self):
        super().__init__(toy_subject())
        self.hash = toy_subject().hash

    def __call__(self, x, taps=None):
        answer = super().__call__(x, taps)
        return type(answer)(-answer.logits)


OTHER = {"training data": "other", "model source": "a"}
SWAPS = {
    "model": ({"campaign": lambda: full(Subject(Quarters(30.0)))}, "model"),
    "model source": ({"ingredients": {**OTHER, "model source": "z", "training data": "b"}}, "model source"),
    "training data": ({"ingredients": OTHER}, "training data"),
    "peer": ({"campaign": lambda: full(peers=(Subject(Quarters(30.0)),))}, "peer 1"),
    "no peer": ({"campaign": lambda: full(peers=())}, "peer 1"),
    "witness": ({"campaign": lambda: full(witnesses=(Subject(Quarters(30.0)),))}, "witness 1"),
    "margin of the witnesses": ({"campaign": lambda: full(margin=4.0)}, "settings (margin)"),
    "what is kept": ({"campaign": lambda: full(keep=parse_keep("best"))}, "settings (keep"),
    "tile": ({"campaign": lambda: full(tile=48)}, "tile (48, then 16)"),
    "precision": ({"config": 'model = "toy"\nprecision = "tf32"\n'}, "precision (tf32, then strict)"),
    "rounds": ({"rounds": 5}, "settings (rounds)"),
    "order of the images": ({"images": toy_images(8).take(torch.arange(7, -1, -1))}, "images"),
    "generator": ({"campaign": lambda: full(card={"weights": "other"})}, "generator"),
    "images": ({"seeds": 9}, "images"),
    "random seed": ({"campaign": lambda: full(seed=5)}, "settings (seed)"),
    "shard": ({"shard": 2}, "settings (shard)"),
    "budget": ({"budget": world.Budget(queries=9)}, "settings (budget.queries"),
    "configuration": ({"config": 'model = "other"\n'}, "settings (model)"),
    "answers": ({"campaign": lambda: full(Flipped())}, "answers 8 of 8 images differently"),
}  # fmt: skip


@pytest.mark.parametrize("what", SWAPS)
def test_a_swapped_ingredient_is_named(what, finished):
    changes, words = SWAPS[what]
    with pytest.raises(HardcaseError) as caught:
        resume(plan(**{"seeds": 8, **changes}), finished)
    assert words in caught.value.what


class Metadata:
    version = staticmethod(lambda package: "0.0.0")


MACHINE = {"hardcase": ("VERSION", "0.0.0"), "tile": ("TILE", 7), "torch": ("metadata", Metadata)}


@pytest.mark.parametrize("name", MACHINE)
def test_another_machine_or_version_is_named(whole, monkeypatch, name):
    monkeypatch.setattr(identity, *MACHINE[name])
    with pytest.raises(HardcaseError, match=rf"the {name} \(.*, then .*\) is not the one"):
        resume(plan(seeds=8), whole)


def test_another_kind_of_device_is_named(whole):
    then = identity.Identity.from_json(Run(whole).record["identity"])
    now = identity.Identity({**then.parts, "device": "cuda"})
    assert then.differences(now) == ["device (cuda, then cpu)"]
    assert then.differences(now, but=identity.MACHINE) == []


def test_the_same_ingredients_go_on_and_where_it_computes_may_change(whole, finished):
    """With a shard that the run does not have, too."""
    store = Store.open(finished)
    store.ledger.add(99, store.ledger.read()[0])
    shutil.copy(finished / "findings/part-00000.parquet", finished / "findings/part-00077.parquet")
    resume(plan(seeds=8, workers=2), finished)
    assert world.left(finished) == world.left(whole)
    assert (finished / "findings/part-00077.parquet.damaged").exists()


def test_a_run_without_identity_does_not_go_on(finished):
    for name in ("begun", "search"):
        (finished / f"state/{name}.json").unlink()
    store = Store.open(finished)
    record = store.record()
    del record["phases"]["search"]["identity"]
    store.write_record(record)
    with pytest.raises(HardcaseError, match="does not say which ingredients"):
        resume(plan(seeds=8), finished)


def code_of(folder):
    return identity.code_digests({"model": str(folder / "model.py")})


def test_source_text_is_followed_to_the_modules_beside_it(tmp_path):
    (tmp_path / "pack").mkdir()
    expected = {
        "helper.py": "x = 1\n", "pack/__init__.py": "from . import other\n",
        "pack/deep.py": "y = 1\n", "pack/other.py": "z = 1\n",
    }  # fmt: skip
    model = "import torch, helper\nfrom pack import deep\n"
    for name, text in {**expected, "model.py": model, "stranger.py": "not imported\n"}.items():
        (tmp_path / name).write_text(text)
    names = [str(p.relative_to(tmp_path)) for p in identity.source_files(tmp_path / "model.py")]
    assert names == ["model.py", *expected]
    before = code_of(tmp_path)
    for name, text in expected.items():
        (tmp_path / name).write_text(text + "# changed\n")
        assert code_of(tmp_path) != before
        (tmp_path / name).write_text(text)
    (tmp_path / "stranger.py").write_text("changed\n")
    assert code_of(tmp_path) == before


def test_a_module_that_cannot_be_read_hides_no_other(tmp_path):
    tried = "try:\n    import odd\nexcept (SyntaxError, ValueError):\n    pass\nimport helper\n"
    (tmp_path / "model.py").write_text(tried)
    for odd in (b"def (", b"x = 1\0", b"# coding: none\n", b"\xff\xfe", b"(" * 5000):
        (tmp_path / "odd.py").write_bytes(odd)
        (tmp_path / "helper.py").write_text("a = 1\n")
        before = code_of(tmp_path)
        (tmp_path / "helper.py").write_text("a = 2\n")
        assert code_of(tmp_path) != before, odd[:9]


def test_weights_in_a_file_of_any_name_belong_to_an_onnx_model(tmp_path):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    from onnx import TensorProto, helper, numpy_helper

    from hardcase_teams.onnx import Onnx

    weights = numpy_helper.from_array(np.ones((256, 4), np.float32), "w")
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 256])
    wanted = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "g", [given], [wanted], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = tmp_path / "m.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    before = Onnx(path, 4).hash
    data = bytearray((tmp_path / "weights.bin").read_bytes())
    data[3] ^= 1
    (tmp_path / "weights.bin").write_bytes(data)
    assert Onnx(path, 4).hash != before


def doubtful(pairs):
    return hc.Verdicts(["unsure"] * len(pairs))


def test_a_judge_belongs_to_the_verdicts_and_judging_again_is_no_change(whole, finished):
    first = hc.judge(finished, by=world.trusting).judged_by
    assert hc.judge(finished, by=world.trusting).judged_by == first
    other = hc.judge(finished, by=doubtful)
    changed = first.differences(other.judged_by)
    assert changed == ["judge", "judge's source"]
    assert other.record["identity"] == Run(whole).record["identity"]
    assert other.verification.state == "verified"
    resume(plan(seeds=8), finished)
    assert Run(finished).verification.state == "verified"


def test_verdicts_of_another_run_are_not_believed(tmp_path):
    for name, seed in (("one", 0), ("two", 1)):
        hc.run(toy_subject(), toy_images(8), method="pgd", out=tmp_path / name, seed=seed, judge=False)  # fmt: skip
        hc.judge(tmp_path / name, by=world.trusting)
    record = Run(tmp_path / "two").record["verdicts"]
    for name in record:
        shutil.copy(tmp_path / "two/verdicts" / name, tmp_path / "one/verdicts" / name)
    store = Store.open(tmp_path / "one")
    store.write_record({**store.record(), "verdicts": record})
    assert "the verdicts are of another run" in Run(tmp_path / "one").verification.notes


@pytest.mark.parametrize("ledger", [True, False])
def test_shards_of_another_run_are_not_believed(tmp_path, whole, ledger):
    """All shards of a run with another random seed, with the ledger that fits them or with none."""
    mine, other = tmp_path / "mine", tmp_path / "other"
    shutil.copytree(whole, mine)
    start(plan(lambda: full(seed=5), seeds=8), other)
    for path in (*other.glob("findings/*"), *other.glob("state/*-0*")):
        shutil.copy(path, mine / path.relative_to(other))
    shutil.copy(other / "images.parquet", mine)
    shutil.copy(other / "state/ledger.jsonl", mine / "state")
    assert Run(mine).verification.state == "damaged"
    if not ledger:
        (mine / "state/ledger.jsonl").unlink()
    resume(plan(seeds=8), mine)
    assert world.left(mine) == world.left(whole)
    assert Run(mine).verification.state == "verified"


def test_the_profile_of_guides_is_an_ingredient(user):
    """What guides know before the search comes from the training split."""
    images = toy_images(40)
    pixels = {"test": images.x.numpy(), "train": toy_images(40, seed=1).x.numpy()}

    def now():
        arrays = {f"x_{name}": x for name, x in pixels.items()}
        arrays |= {f"y_{name}": images.y.numpy() for name in pixels}
        np.savez("toy.npz", **arrays)
        named = {"model": "model.py:make", "data": "npz:toy.npz", "method": "deephunter"}
        context = Context(parse({**named, "images": 4, "allow_low_accuracy": True}))
        return plan_of(context).identity(context.campaign)

    before = now()
    pixels["train"] = 255 - pixels["train"]
    assert before.differences(now()) == ["training data"]


RUN = "run --model model.py:make --data npz:toy.npz --method pgd --images 8 --out out -q"


@pytest.fixture
def commanded(user, command):
    """A finished run of the command line, and the command line."""
    assert command(RUN)[0] == 0
    return command


def test_an_edited_model_file_is_refused_or_starts_a_run_of_its_own(commanded):
    before = Path("out/run.json").read_bytes()
    assert commanded("resume out -q")[0] == 0
    Path("model.py").write_text(MODEL.replace("forward(x)\n", "forward(x) * 1\n"))
    for verb in ("resume", "shrink", "repair"):
        code, said = commanded(f"{verb} out -q")
        assert code == 2
        assert "the model source is not the one this run began with" in said
    assert Run("out").record["identity"] == json.loads(before)["identity"]
    code, said = commanded("resume out --allow-changes --trust -q")
    assert (code, Path("out-2/run.json").is_file()) == (0, True), said
    assert Run("out-2").seeds["id"] == Run("out").seeds["id"]


def test_a_replay_names_what_differs_beside_the_model(commanded, monkeypatch):
    words = "replay out --model model.py:make -q"
    assert commanded(words)[0] == 0
    monkeypatch.setattr(identity, "VERSION", "0.0.0")
    code, said = commanded(words)
    assert (code, "another hardcase (0.0.0, then" in said) == (0, True), said
    save_toys(Path(), 40, seed=3)
    code, said = commanded(words)
    assert (code, "the images, the images' names are not those" in said) == (2, True), said
    assert commanded(f"{words} --allow-changes")[0] == 0


def test_ones_own_run_needs_no_consent_and_that_of_others_does(commanded, monkeypatch, tmp_path):
    assert commanded("resume out -q")[0] == 0
    monkeypatch.setenv("HARDCASE_CACHE", str(tmp_path / "another account"))
    code, said = commanded("resume out -q")
    assert code == 2
    assert f"run the Python file {tmp_path / 'model.py'}" in said
    assert commanded("resume out --trust -q")[0] == 0
    assert commanded("resume out -q")[0] == 0


def test_rights_are_read_off_settings():
    peers = ["http://host/v2/models/m/infer", "zoo:lenet5", "hf:someone/net"]
    values = {"model": "w.pt@net.py:make", "peers": peers, "method": {"name": "mine.py:search"}}
    values |= {"trust_pickle": True, "cluster": "ray://10.0.0.1"}
    words = [right.what.split()[0] for right in identity.rights(values)]
    assert sorted(words) == ["ask", "load", "run", "run", "send", "send"]
    assert identity.rights({"model": "zoo:lenet5", "data": "mnist5k"}) == []


def test_a_disk_that_spoils_what_it_stores_ends_the_run(tmp_path, monkeypatch):
    put = Store.put

    def spoiling(store, number, packed, summary=None):
        put(store, number, packed, summary)
        if number == 1:
            path = store.folder / "findings/part-00001.parquet"
            path.write_bytes(path.read_bytes()[:-9])

    monkeypatch.setattr(Store, "put", spoiling)
    with pytest.raises(HardcaseError, match=r"part-00001\.parquet is damaged"):
        start(plan(seeds=8), tmp_path / "run")
