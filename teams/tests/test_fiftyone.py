"""The plug-in of FiftyOne with the real package and its database; `make teams` says how."""

import asyncio
import importlib.util
from pathlib import Path

import pytest
import torch

fo = pytest.importorskip("fiftyone", reason="in an environment of its own: docs/teams/fiftyone.md")

import hardcase as hc  # noqa: E402
from claims.toys import SIDE, Windows, scenes  # noqa: E402
from hardcase.claims.annotations import AnnotatedImages  # noqa: E402
from hardcase.runs.results import finding_claims  # noqa: E402

PLUGIN = Path(__file__).parents[2] / "teams" / "fiftyone"
NET = """
import torch

class Bright(torch.nn.Module):
    def forward(self, x):
        mean = x.mean((1, 2, 3))
        return 40 * torch.stack([0.4 - mean, mean - 0.4], 1)

def make():
    return Bright()
"""


@pytest.fixture
def plugin(code):
    try:
        fo.list_datasets()
    except Exception as error:
        pytest.skip(f"FiftyOne's database does not start: {error}")
    return code


@pytest.fixture
def dataset(tmp_path):
    from PIL import Image

    (tmp_path / "net.py").write_text(NET)
    torch.manual_seed(0)
    samples = []
    for i in range(24):
        bright = i % 2
        x = torch.randint(70 + 40 * bright, 90 + 40 * bright, (16, 16, 3), dtype=torch.uint8)
        path = tmp_path / f"{i}.png"
        Image.fromarray(x.numpy()).save(path)
        label = fo.Classification(label=("dark", "light")[bright])
        samples.append(fo.Sample(filepath=str(path), ground_truth=label))
    name = f"hardcase-test-{tmp_path.name}"
    made = fo.Dataset(name)
    made.add_samples(samples)
    yield made
    for one in (name, f"{name}-run"):
        if fo.dataset_exists(one):
            fo.delete_dataset(one)


def executed(operator, dataset, **params):
    from fiftyone.operators.executor import ExecutionContext, Executor, do_execute_operator

    request = {"dataset_name": dataset.name, "params": params, "view": []}
    context = ExecutionContext(request, executor=Executor(), operator_uri=operator.uri)
    return asyncio.run(do_execute_operator(operator, context))


@pytest.fixture(scope="module")
def code():
    """The plug-in's own module, which needs no database."""
    spec = importlib.util.spec_from_file_location("hardcase_fiftyone", PLUGIN / "__init__.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_both_operators_are_found_by_the_plugin_system(plugin, monkeypatch):
    import fiftyone.plugins as fop

    monkeypatch.setattr(fo.config, "plugins_dir", str(PLUGIN.parent))
    found = fop.get_plugin("@hardcase/hardcase")
    assert set(found.operators) == {"find_failures", "load_run"}
    assert set(found.operators) == {plugin.FindFailures().config.name, plugin.LoadRun().config.name}


def test_failures_of_a_view_are_marked_and_the_run_is_loaded(plugin, dataset, tmp_path):
    given = {
        "model": f"{tmp_path / 'net.py'}:make",
        "label": "ground_truth",
        "conditions": "handheld",
        "seeds": 20,
    }
    told = executed(plugin.FindFailures(), dataset, out=str(tmp_path / "run"), **given)
    shares = dataset.values(plugin.FAILING)
    shares = [share for share in shares if share is not None]
    assert len(shares) == 20
    assert told["risk"] == pytest.approx(sum(shares) / len(shares))
    assert told["failing"] == len(dataset.match_tags(plugin.TAG)) == sum(map(bool, shares))
    assert told["failing"] > 0
    loaded = executed(plugin.LoadRun(), dataset, run=told["run"], name=f"{dataset.name}-run")
    groups = fo.load_dataset(loaded["dataset"])
    assert set(groups.group_slices) == {"seed", "finding"}
    assert loaded["groups"] == len(list(plugin.failures(hc.Run(told["run"]))))
    for sample in groups.select_group_slices("finding"):
        assert sample.prediction.label != sample.ground_truth.label
        assert Path(sample.filepath).is_file()
        assert all(
            0 <= part <= 1 for box in sample.difference.detections for part in box.bounding_box
        )
    assert groups.count_sample_tags()["condition"] > 0


def test_boxes_of_a_detectors_run_are_those_that_are_claimed(code, tmp_path):
    """By the samples alone: without a data set there is no database."""
    given = {"conditions": "handheld", "judge": False, "method": "natural-blackbox"}
    options = {"queries": 40}
    run = hc.run(
        Windows(), AnnotatedImages(*scenes(6)), out=tmp_path / "run", options=options, **given
    )
    assert len(run) > 0
    samples = code.grouped_samples(run, tmp_path / "media")
    found = [one for one in samples if one.group.name == "finding" and "finding" in one.tags]
    boxes = finding_claims(run).box / SIDE
    assert len(found) == len(run)
    for sample, box in zip(found, boxes.tolist(), strict=True):
        [claimed] = sample.claimed.detections
        left, top, width, height = claimed.bounding_box
        assert [left, top, left + width, top + height] == pytest.approx(box, abs=1e-6)
        assert claimed.label == sample.ground_truth.label != sample.prediction.label
        assert not sample.has_field("difference") or sample.difference is None
    for sample in samples:
        if sample.group.name == "seed":
            assert len(sample.claimed.detections) == 1
