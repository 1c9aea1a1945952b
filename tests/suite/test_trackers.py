"""A run in tracking stores: real ones in temporary folders, written by the command line and read by their own libraries."""

import sys
from pathlib import Path

import pytest

from hardcase.cli.main import main
from hardcase.errors import Problem
from hardcase.runs.results import Run
from hardcase.suite.trackers import TRACKERS, metrics, parameters, track
from hardcase.testing.toys import toy_images, toy_subject


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    import hardcase as hc

    folder = tmp_path_factory.mktemp("tracked") / "run"
    hc.run(toy_subject(), toy_images(12), method="pgd", budget=hc.Budget(gradients=8), out=folder)
    return folder


def test_settings_and_counts_are_those_of_the_run(folder):
    run = Run(folder)
    settings = parameters(run)
    assert settings["method"] == "pgd"
    assert settings["hashes.subject"] == run.record["hashes"]["subject"]
    last = {name: value for name, value, _, _ in metrics(run)}
    assert last["funnel.failing"] == run.counts()["funnel"]["failing"]
    assert last["history.findings"] == len(run)
    assert "funnel.confirmed" not in last, "what nobody judged is not a number"


@pytest.mark.parametrize(
    ("store", "library"),
    [("mlflow", "mlflow.tracking"), ("wandb", "wandb"), ("tensorboard", "torch.utils.tensorboard")],
)
def test_without_the_library_the_install_command_is_named(
    folder, monkeypatch, capsys, store, library
):
    monkeypatch.setitem(sys.modules, library, None)
    assert main(["export", str(folder), "--to", store]) == 2
    assert f"pip install 'hardcase[{store}]'" in capsys.readouterr().err


def test_unknown_stores_are_refused(folder):
    with pytest.raises(Problem, match="mlflow, wandb, tensorboard"):
        track(Run(folder), "paper")


def test_a_store_of_ones_own_is_given_settings_numbers_and_files(folder, monkeypatch):
    seen = []

    def notebook(entry, uri, experiment):
        seen.append((uri, experiment, entry.settings["method"]))
        seen.append({point.name for point in entry.points})
        seen.append({f"{place}/{path.name}" for path, place in entry.files if path.is_file()})
        return "page 7"

    monkeypatch.setitem(TRACKERS, "notebook", notebook)
    assert track(Run(folder), "notebook", uri="shelf", experiment="toys") == "page 7"
    assert seen[0] == ("shelf", "toys", "pgd")
    assert {"funnel.failing", "history.findings", "elapsed"} <= seen[1]
    assert {"/run.json", "report/index.html", "report/report.json"} <= seen[2]


def test_tensorboard_reads_the_curves(folder, tmp_path, capsys):
    events = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="tensorboard is an extra: pip install 'hardcase[tensorboard]'",
    )
    assert main(["export", str(folder), "--to", "tensorboard", "--uri", str(tmp_path)]) == 0
    place = capsys.readouterr().out.strip().splitlines()[-1]
    read = events.EventAccumulator(place)
    read.Reload()
    run = Run(folder)
    (last,) = read.Scalars("funnel/failing")
    assert last.value == run.counts()["funnel"]["failing"]
    assert read.Scalars("history/findings")[-1].value == len(run)


def test_wandb_keeps_the_run_offline(folder, tmp_path, monkeypatch, capsys):
    pytest.importorskip("wandb", reason="wandb is an extra: pip install 'hardcase[wandb]'")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("WANDB_SILENT", "true")
    assert main(["export", str(folder), "--to", "wandb", "--uri", str(tmp_path)]) == 0
    place = Path(capsys.readouterr().out.strip().splitlines()[-1])
    assert place.is_relative_to(tmp_path)
    assert "offline-run" in place.name
    assert list(place.glob("run-*.wandb"))
    stored = next(place.glob("run-*.wandb")).read_bytes()
    assert b"funnel.failing" in stored
    assert (place / "files/run.json").read_bytes() == (folder / "run.json").read_bytes()


def test_a_real_store_holds_the_run(folder, tmp_path, monkeypatch, capsys):
    pytest.importorskip("mlflow", reason="mlflow is an extra: pip install 'hardcase[mlflow]'")
    from mlflow.tracking import MlflowClient

    monkeypatch.chdir(tmp_path)
    uri = f"sqlite:///{tmp_path / 'store.db'}"
    assert (
        main(["export", str(folder), "--to", "mlflow", "--uri", uri, "--experiment", "digits"]) == 0
    )
    number = capsys.readouterr().out.strip().splitlines()[-1]
    client, run = MlflowClient(tracking_uri=uri), Run(folder)
    stored = client.get_run(number)
    assert client.get_experiment(stored.info.experiment_id).name == "digits"
    assert stored.info.status == "FINISHED"
    assert stored.info.run_name == folder.name
    assert stored.data.params == {name: text[:500] for name, text in parameters(run).items()}
    assert stored.data.metrics["funnel.failing"] == run.record["funnel"]["failing"]
    curve = client.get_metric_history(number, "history.queries")
    assert [point.value for point in curve][-1] == run.record["totals"]["queries"]
    names = {item.path for item in client.list_artifacts(number, "report")}
    assert {"report/index.html", "report/report.json"} <= names
    copy = Path(client.download_artifacts(number, "run.json", str(tmp_path)))
    assert copy.read_bytes() == (folder / "run.json").read_bytes()


def test_a_store_that_cannot_be_written_is_told(folder, tmp_path, monkeypatch, capsys):
    pytest.importorskip("mlflow", reason="mlflow is an extra: pip install 'hardcase[mlflow]'")
    monkeypatch.chdir(tmp_path)
    assert main(["export", str(folder), "--to", "mlflow", "--uri", "nonsense://somewhere"]) == 2
    assert "nonsense://somewhere" in capsys.readouterr().err
