"""Every criterion of the registry, and variants of its options, under the laws it declares."""

import pytest
import torch
from worlds import World

from hardcase.criteria.criterion import toward
from hardcase.registry import parts
from hardcase.tensors import from_bytes
from hardcase.testing import check_criterion, check_pull

VARIANTS = (
    "nc:threshold=0.3,scale=input",
    "nc:threshold=0.3,scale=input,order=scale-mean,layers=activated-softmax",
    "kmnc:k=7,mode=unit",
    "kmnc:k=5,cuts=left-open",
    "kmnc:k=5,cuts=closed,constant=all,layers=activated",
    "kmnc:k=5,top=corner,constant=never",
    "nbc:count=both,mode=unit",
    "nbc:count=either,widen=0.2,equal=both",
    "layer-snac:mode=unit,widen=-0.5",
    "tknc:k=6,mode=unit",
    "tknp:k=2,ordered=true,mode=unit",
    "ssc:channels=true",
    "ssc:pairs=seed-test",
    "vsc:pairs=seed-test",
    "svc:factor=1.2",
    "vvc:factor=1.2",
    "lsc:n=5,per=all",
    "dsc:n=7,lower=0,upper=1",
    "mdsa:per=all,squared=true",
    "neighbour:threshold=0.05",
)
SPECS = (*parts("criterion"), *VARIANTS)


@pytest.fixture(scope="module")
def world():
    return World()


@pytest.mark.parametrize("spec", SPECS)
def test_laws(world, spec):
    make = world.make(spec)
    check_criterion(make, world.looks(make()), laws=make().laws)


@pytest.mark.parametrize("spec", SPECS)
def test_something_is_covered(world, spec):
    """The laws would also hold for a criterion that never sees anything."""
    criterion = world.make(spec)()
    for probe in world.looks(criterion, sizes=(40, 40, 40, 40)):
        criterion.update(probe)
    assert criterion.value() > 0


@pytest.mark.parametrize("spec", SPECS)
def test_gradients(world, spec):
    make = world.make(spec)
    seen = make()
    for probe in world.looks(seen):
        seen.update(probe)
    x0 = x = from_bytes(world.images.x[:6])
    for criterion in (make(), seen):
        check_pull(
            lambda c=criterion: c,
            toward,
            lambda x, rows, c=criterion: world.evaluate(x, c, seeds=x0[rows], ids=rows),
            x,
        )


def test_an_unknown_law_is_refused(world):
    make = world.make("nc")
    with pytest.raises(AssertionError, match="unknown laws"):
        check_criterion(make, world.looks(make()), laws=("cheap",))


def test_laws_notice_a_merge_that_replaces(world, monkeypatch):
    from hardcase.criteria.memory import Bits

    def replace(self, deltas):
        self.base = self.table = torch.zeros_like(self.table)

    make = world.make("nc")
    monkeypatch.setattr(Bits, "merge", replace)
    with pytest.raises(AssertionError, match="shards"):
        check_criterion(make, world.looks(make()), laws=make().laws)
