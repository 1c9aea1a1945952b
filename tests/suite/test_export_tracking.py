"""A run in MLflow: a real tracking store in a SQLite file, written by the command line and read by MLflow itself."""

import json
from pathlib import Path

import pytest

from hardcase.cli.main import main
from hardcase.runs.results import Run
from hardcase.suite.export import metrics, parameters
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


def test_without_mlflow_the_install_command_is_named(folder, monkeypatch, capsys):
    monkeypatch.setitem(__import__("sys").modules, "mlflow.exceptions", None)
    assert main(["export", str(folder), "--to", "mlflow"]) == 2
    assert "pip install 'hardcase[mlflow]'" in capsys.readouterr().err


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
    assert json.loads(copy.read_bytes()) == run.record


def test_a_store_that_cannot_be_written_is_told(folder, tmp_path, monkeypatch, capsys):
    pytest.importorskip("mlflow", reason="mlflow is an extra: pip install 'hardcase[mlflow]'")
    monkeypatch.chdir(tmp_path)
    assert main(["export", str(folder), "--to", "mlflow", "--uri", "nonsense://somewhere"]) == 2
    assert "nonsense://somewhere" in capsys.readouterr().err
