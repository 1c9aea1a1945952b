"""Seeds that stay in their files: the same run as from memory, never all of them decoded at once."""

import shutil

import numpy as np
import pytest
import torch

import hardcase as hc
from hardcase.data import files as streams
from hardcase.data.files import Stream
from hardcase.errors import HardcaseError
from hardcase.judges import verdicts
from hardcase.runs import phases, plan, tables, verify
from hardcase.tensors import digest
from hardcase.testing.toys import toy_images, toy_subject

COUNT = 600
"""More than one row group."""
IMAGES = toy_images(COUNT)


class Files:
    """Images that are read one by one."""

    def __init__(self):
        self.x = IMAGES.x.numpy().copy()

    def __call__(self, row):
        return self.x[row, 0]


def streamed(files):
    names = (IMAGES.id.__getitem__, IMAGES.name, IMAGES.split)
    return Stream(files, torch.arange(COUNT), IMAGES.y, IMAGES.classes, 1, *names)


def stored(folder):
    names = ["images.parquet", *(f"findings/{path.name}" for path in folder.glob("findings/*"))]
    return {name: (folder / name).read_bytes() for name in sorted(names)}


GIVEN = {"method": "pgd", "images": COUNT, "execution": hc.Execution(shard=100), "judge": False}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run from memory, at sizes at which everything counts as too large for it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "HELD", 0)
        patch.setattr(tables, "GROUP", 1)
        patch.setattr(tables, "SMALL", 0)
        yield hc.run(toy_subject(), IMAGES, out=tmp_path_factory.mktemp("whole") / "run", **GIVEN)


def test_seeds_in_files_give_the_bytes_of_seeds_in_memory(whole, tmp_path, monkeypatch):
    sizes = []
    for module, name, size in ((streams, "HELD", 0), (phases, "CHECKED", 0)):
        monkeypatch.setattr(module, name, size)
    monkeypatch.setattr(plan, "_measured_at_once", lambda *of: 128)
    before = Stream.images
    monkeypatch.setattr(Stream, "images", lambda self: sizes.append(len(self)) or before(self))
    done = hc.run(toy_subject(), streamed(Files()), out=tmp_path / "files", **GIVEN)
    assert max(sizes) <= verify.ASKED < COUNT, "never all of them at once"
    assert stored(tmp_path / "files") == stored(whole.folder)
    assert done.record["hashes"] == whole.record["hashes"]
    assert done.verification.state == "verified"
    assert torch.equal(done.seed_images([259, 0, 100]), whole.seed_images([259, 0, 100]))
    again = hc.resume(tmp_path / "files", toy_subject(), streamed(Files()), **GIVEN)
    assert stored(tmp_path / "files") == stored(whole.folder)
    assert len(again) == len(whole) > 100


def test_a_judge_sees_all_findings_in_parts(whole, tmp_path, monkeypatch):
    run = hc.Run(shutil.copytree(whole.folder, tmp_path / "run"))
    monkeypatch.setattr(verdicts, "AT_ONCE", 1)
    sizes = []

    def trusting(pairs):
        sizes.append(len(pairs))
        return hc.Verdicts([("lost", "kept")[one] for one in pairs.expected.eq(1).tolist()])

    said = hc.judge(run, by=trusting).verdicts
    *sizes, _ = sizes  # the last are the controls
    assert len(sizes) > 1
    assert sum(sizes) == len(run)
    expected = run.findings["expected"].to_pylist()
    assert [row["verdict"] == "kept" for row in said.values()] == [label == 1 for label in expected]


def test_images_that_change_under_a_run_are_told(whole, tmp_path):
    files = Files()
    images = streamed(files)
    assert images.hash == IMAGES.hash
    files.x[17] ^= np.uint8(1)
    with pytest.raises(HardcaseError, match="has changed since it was first read"):
        hc.run(toy_subject(), images, out=tmp_path / "run", **GIVEN)


def test_every_image_is_found_in_its_part_and_row_group_whatever_the_order(whole):
    run = hc.Run(whole.folder)
    names = run.seeds["id"].to_pylist()
    assert 250 < len(names) < 350, "the other half is reserved"
    order = torch.randperm(len(names), generator=torch.Generator().manual_seed(0)).tolist()
    places = [IMAGES.id.index(names[row]) for row in order]
    assert torch.equal(run.seed_images(order), IMAGES.x[places])
    rows = [row for row in order if row < len(run.findings)]
    found = run.findings.take(rows).select(["original", "kind", "id"]).to_pylist()
    for one, image in zip(found, run.stored_images(rows), strict=True):
        own = digest((one["original"], one["kind"], image))
        assert own == one["id"], "an id is made of the image"
