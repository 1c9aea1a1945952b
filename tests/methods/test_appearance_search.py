"""Natural failures: bent and lit images that witnesses still read, said in words."""

import json

import torch

import hardcase as hc
from hardcase.methods.appearance_search import natural, natural_blackbox
from hardcase.randomness import Rng
from hardcase.report import report
from hardcase.spaces.appearance import Appearance
from hardcase.spaces.latent import WithResidual, latent
from hardcase.tensors import from_bytes, to_bytes
from hardcase.testing.toys import toy_images, toy_subject
from hardcase.types import Seeds
from tiny import beside

SHAPE = (1, 8, 8)


def test_the_space_follows_the_images():
    assert natural(shape=(1, 28, 28)).space.name == "warp"
    assert natural(shape=(3, 32, 32)).space.name == "warp*light"
    assert natural(shape=(3, 224, 224)).space.name == "warp*light"
    assert natural(shape=SHAPE, space="camera").space.name == "camera"
    assert natural_blackbox(shape=SHAPE).needs == "label"


def test_findings_are_the_seed_under_their_code_and_witnesses_still_read_them():
    method = natural(shape=SHAPE, space="warp*light")
    images = toy_images(6)
    found = hc.search(toy_subject(), images, method=method, seed=1, conditions="none")
    assert len(found) >= 4
    x = from_bytes(images.x[found.seed])
    seeds = Seeds(torch.zeros_like(found.code), x, found.expected, found.seed)
    again = to_bytes(method.space.decode(found.code, seeds))
    assert torch.equal(again, found.x)
    keep = hc.Witnesses(models=[beside(1)], margin=0.5)
    given = {"witnesses": keep, "seed": 1, "conditions": "none"}
    found = hc.search(toy_subject(), toy_images(8), method=method, **given)
    assert bool((found.witness_margin[found.witnessed] >= 0.5).all())


def test_a_run_says_in_words_what_it_took(tmp_path):
    method = natural(shape=SHAPE, space="warp*light")
    given = {"method": method, "conditions": "none", "judge": False}
    run = hc.run(toy_subject(), toy_images(6), out=tmp_path / "run", **given)
    assert Appearance.from_record(run.record["space"]) == method.space
    said = run.changes()
    assert all(isinstance(text, str) and text for text in said)
    page = report(run)
    content = json.loads((page.parent / "report.json").read_text())
    shown = [one["change"] for one in content["runs"][0]["gallery"]["failures"]]
    assert set(shown) <= set(said)
    assert shown[0] in page.read_text(encoding="utf-8").replace("&#39;", "'")


class Blurred:
    """A generator that reconstructs badly."""

    def encode(self, x):
        return x.flatten(1), x.flatten(1)

    def decode(self, z):
        return (0.5 * z + 0.1).reshape(-1, *SHAPE)


def test_with_its_residual_a_seed_is_its_own_reconstruction():
    x = from_bytes(toy_images(4).x)
    y = torch.zeros(4, dtype=torch.int64)
    space = WithResidual(latent(Blurred()))
    z, context = space.encode(x, y, Rng.numbered(0, "space", 4))
    seeds = Seeds(z, x, y, torch.arange(4), context)
    assert torch.equal(to_bytes(space.decode(z, seeds)), to_bytes(x))
    moved = space.decode(z + 1, seeds) - x
    assert torch.allclose(moved, torch.full_like(moved, 0.5), atol=1e-6)
    assert space.distance(z + 1, seeds).tolist() == [64.0] * 4


def test_declared_conditions_are_the_box_that_is_searched(tmp_path):
    declared = {"rotation": "±90 deg", "exposure": "0..2 stops"}
    given = {"method": "natural", "witnesses": (), "judge": False}
    run = hc.run(toy_subject(), toy_images(12), out=tmp_path / "box", conditions=declared, **given)
    codes = torch.tensor(run.findings["code"].to_pylist())
    assert codes.shape == (len(run), 2)
    assert len(run) > 0
    assert bool((codes[:, 1] >= 0).all()), "darker was not declared"
    told = run.changes()
    assert all("clockwise" in words or "brighter" in words for words in told)
    assert not any("bent" in words for words in told)
    usual = hc.run(toy_subject(), toy_images(12), out=tmp_path / "usual", **given)
    none = hc.run(toy_subject(), toy_images(12), out=tmp_path / "none", conditions="none", **given)
    assert usual.record["conditions"]["name"] == "scanner"
    assert usual.record["space"]["columns"], "the usual conditions bound it like declared ones"
    assert "columns" not in none.record["space"]
