"""Shrinking: every test still fails, none is further away, the smallest change is found where it is known."""

import pytest
import torch
from aftermath import subject, write_run
from hypothesis import HealthCheck, given, settings, strategies as st

from hardcase.errors import HardcaseError
from hardcase.suite.shrink import shrink
from hardcase.tensors import from_bytes
from hardcase.types import Images

LEVELS = [10, 60, 100]


def levels(run):
    return run.images()[:, 0, 0, 0].tolist()


def test_tests_stop_at_the_edge(tmp_path):
    run = write_run(tmp_path / "run", levels=LEVELS, found={0: [255, 200], 2: [180]})
    small = shrink(run, subject(), tmp_path / "small")
    assert levels(small) == [128, 128, 128]
    way = [2 * 118 / 255, 2 * 118 / 255, 2 * 28 / 255]
    assert small.findings["l2"].to_pylist() == pytest.approx(way, abs=1e-5)
    assert small.record["shrink"]["queries"] == 3 * (1 + 12 + 1)
    assert small.record["method"] == "made+shrink"
    assert small.record["search_results"]["failing"] == 2
    assert small.record["judge"] is None
    assert levels(run) == [255, 200, 180]


ANY_SCOPE = [HealthCheck.function_scoped_fixture]


@settings(max_examples=15, deadline=None, suppress_health_check=ANY_SCOPE)
@given(st.lists(st.integers(129, 255), min_size=1, max_size=4), st.integers(1, 12))
def test_all_still_fail_and_none_is_further_away(tmp_path_factory, tests, steps):
    home = tmp_path_factory.mktemp("shrink")
    run = write_run(home / "run", levels=LEVELS, found={1: tests})
    small = shrink(run, subject(), home / "small", steps=steps)
    logits = subject()(from_bytes(small.images())).logits
    assert logits.argmax(1).tolist() == [1] * len(tests)
    assert all(after <= before for before, after in zip(tests, levels(small)))


class Doubled:
    """A space whose code is twice the grey level, one number for each image; it needs to be told the `floor`."""

    name, keeps_code = "doubled", True

    def encode(self, x, y, rng):
        return 2 * x.mean((1, 2, 3))[:, None], {}

    def decode(self, z, origin):
        lowest = origin.context.get("floor", torch.zeros(len(z)))[:, None]
        return torch.maximum(z / 2, lowest)[:, :, None, None].expand(-1, 1, 2, 2)

    def project(self, z, origin):
        return z

    def distance(self, z, origin):
        return z.flatten()


def test_the_space_comes_first_where_the_code_gives_the_image(tmp_path):
    codes = [[2 * 255 / 255], [0.0]]
    run = write_run(tmp_path / "run", levels=LEVELS, found={0: [255], 1: [200]}, codes=codes)
    small = shrink(run, subject(), tmp_path / "small", space=Doubled())
    assert levels(small) == [128, 128]
    # the second code is of another image: pixels only
    assert small.record["shrink"]["queries"] == 2 + 12 * 1 + 12 * 2 + 2


def test_what_is_known_of_the_seeds_reaches_the_space(tmp_path):
    run = write_run(tmp_path / "run", levels=LEVELS, found={0: [255]}, codes=[[2.0]])
    x = torch.tensor(LEVELS, dtype=torch.uint8)[:, None, None, None].expand(3, 1, 2, 2)
    floor = {"floor": torch.full((3,), 0.8)}
    y = torch.zeros(3, dtype=torch.int64)
    seeds = Images(x, y, ("s0", "s1", "s2"), ("dark", "light"), context=floor)
    small = shrink(run, subject(), tmp_path / "small", space=Doubled(), seeds=seeds, steps=1)
    assert levels(small) == [round((10 + 204) / 2)] or levels(small) == [204]


def test_nothing_to_shrink_is_a_problem(tmp_path):
    run = write_run(tmp_path / "run", levels=LEVELS, found={0: [140]})
    with pytest.raises(HardcaseError, match="fails none of the 1 stored failures"):
        shrink(run, subject(0.9), tmp_path / "small")
    with pytest.raises(HardcaseError, match="not empty"):
        shrink(run, subject(), tmp_path / "run")
    empty = write_run(tmp_path / "empty", levels=LEVELS, found={})
    with pytest.raises(HardcaseError, match="no failures to"):
        shrink(empty, subject(), tmp_path / "small")
    assert not (tmp_path / "small").exists()


def test_needless_kinds_of_change_are_taken_away_and_the_rest_is_said_in_words(tmp_path):
    import hardcase as hc
    from hardcase.spaces.appearance import appearance
    from hardcase.testing.toys import toy_images, toy_subject

    given = {"options": {"space": "camera*light", "bisections": 0}, "witnesses": (), "judge": False}
    out = tmp_path / "run"
    run = hc.run(toy_subject(), toy_images(6), method="natural", out=out, **given)
    assert len(run.findings)
    space = appearance("camera*light", shape=tuple(run.record["shape"]))
    small = shrink(run, toy_subject(), tmp_path / "small", space=space)
    before, after = (torch.tensor(one.findings["code"].to_pylist()) for one in (run, small))
    left = (space.severity(after) > 0).sum(1)
    assert bool((left <= (space.severity(before) > 0).sum(1)).all())
    assert bool((left >= 1).all())
    assert bool((space.severity(after).norm(dim=1) <= space.severity(before).norm(dim=1)).all())
    needed = small.record["shrink"]["needed"]
    assert sum(needed.values()) == int(left.sum())
    assert all(small.changes())
    logits = toy_subject()(from_bytes(small.images())).logits
    assert bool((logits.argmax(1) != torch.tensor(small.findings["expected"].to_pylist())).all())


def test_memory_does_not_grow_with_the_findings_and_parts_change_nothing(tmp_path, monkeypatch):
    found = {0: [255, 200, 140], 1: [180], 2: [190, 240]}
    codes = [[2 * level / 255] for tests in found.values() for level in tests]
    run = write_run(tmp_path / "run", levels=LEVELS, found=found, codes=codes)
    whole = shrink(run, subject(), tmp_path / "whole", space=Doubled())
    asked, read = [], type(run).images
    monkeypatch.setattr(
        type(run), "images", lambda s, rows: asked.append(len(rows)) or read(s, rows)
    )
    monkeypatch.setattr("hardcase.suite.shrink.TOGETHER", 2 * 4)  # two images of four pixels
    parts = shrink(run, subject(), tmp_path / "parts", space=Doubled())
    assert max(asked) == 2
    monkeypatch.undo()
    assert parts.findings.equals(whole.findings)
    assert parts.record["shrink"] == whole.record["shrink"]


def test_an_image_that_its_code_does_not_give_loses_the_words_alone(tmp_path):
    import hardcase as hc
    from hardcase.spaces.appearance import appearance
    from hardcase.suite.shrink import CodeWay
    from hardcase.testing.toys import toy_images, toy_subject

    given = {"options": {"space": "camera*light", "bisections": 0}, "witnesses": (), "judge": False}
    run = hc.run(toy_subject(), toy_images(6), method="natural", out=tmp_path / "run", **given)
    space = appearance("camera*light", shape=tuple(run.record["shape"]))
    first = CodeWay.of

    def doubted(tests, *rest):
        way = first(tests, *rest)
        way.given[0] = False
        return way

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CodeWay, "of", staticmethod(doubted))
        small = shrink(run, toy_subject(), tmp_path / "small", space=space)
    words = small.changes()
    assert len(words) - 1 == sum(map(bool, words[1:])) > words.index(None) == 0
    assert len(small.findings) == small.record["shrink"]["failing"]
