import json
import subprocess
import sys

import pytest

from hardcase.cli.main import main


def run(capsys, *words):
    code = main(["study", *map(str, words)])
    out, err = capsys.readouterr()
    return code, out, err


def test_from_runs_to_a_report(runs, tmp_path, capsys):
    study = tmp_path / "study"
    (tmp_path / "report").mkdir()
    folders = (runs / "sinvad", tmp_path / "report")
    code, out, _ = run(capsys, "new", *folders, "--design", "label", "--out", study)
    assert code == 0
    assert f"left out, as it is no run: {tmp_path / 'report'}" in out
    assert run(capsys, "new", tmp_path / "report", "--out", tmp_path / "other")[0] == 2
    assert "12 raters give ± " in out
    assert "sinvad/confirmed: " in out
    assert run(capsys, "analyse", study)[0] == 2
    assert "No person did" in run(capsys, "simulate", study, "--cheats", "0.1")[1]
    code, out, _ = run(capsys, "analyse", study)
    assert code == 0
    assert "No person did" in out
    assert "searched images confirmed" in out
    assert (study / "analysis" / "index.html").exists()
    assert json.loads(run(capsys, "analyse", study, "--format", "json")[1])["simulated"] is True
    assert run(capsys, "export", study, tmp_path / "a.csv")[0] == 0
    assert "0 new answers" in run(capsys, "import", tmp_path / "a.csv", study)[1]


@pytest.mark.parametrize(
    ("design", "methods"),
    [
        ("sinvad", ("sinvad", "fgsm", "cw")),
        ("argus", ("alpha-0.1", "alpha-0.2", "alpha-0.3", "beta", "gamma", "delta", "epsilon")),
    ],
)
def test_each_papers_study_is_one_command(runs, tmp_path, capsys, design, methods):
    folders = [runs / name for name in methods]
    code, out, _ = run(capsys, "new", *folders, "--design", design, "--out", tmp_path / "study")
    assert code == 0
    assert f"design {design}" in out


def test_mistakes_have_a_remedy(runs, tmp_path, capsys):
    code, _, err = run(capsys, "new", runs / "sinvad", "--design", "lable", "--out", tmp_path / "x")
    assert code == 2
    assert "try: label" in err
    assert run(capsys, "serve", tmp_path)[0] == 2
    assert run(capsys, "simulate", tmp_path, "--cheats", "7")[0] == 2


def test_help_and_server_load_no_torch():
    code = (
        "import sys; from hardcase.cli.main import main; main(['study', '--help']); "
        "import hardcase_study.server, hardcase_study.progress; assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
