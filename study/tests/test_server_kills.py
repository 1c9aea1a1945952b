"""The server is killed at random moments: every acknowledged answer is there afterwards, once."""

import os
import random
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from killing_study import Rater, Server, free_port

from hardcase_study.answers import Answers, rater_id

pytest.importorskip("uvicorn", reason="needs hardcase[study]")
LONG = os.environ.get("HARDCASE_TORTURE") == "long"
KILLS = 200 if LONG else 4


def tortured(study, kills, hurt, *, database="", raters=4):
    """Raters answer while `hurt` does something to the server; returns the raters."""
    server = Server(study.folder, free_port(), database)
    server.start()
    people = []
    moments = random.Random(0)
    for _ in range(kills):
        while sum(one.is_alive() for one in people) < raters:
            people.append(Rater(server.port, len(people), pause=0.05))
            people[-1].start()
        time.sleep(moments.random() * 0.4)
        hurt(server)
    for one in people:
        one.join(120)
    server.kill()
    assert {one.error for one in people} == {None}
    assert not any(one.is_alive() for one in people)
    return people


def check(study, people, *, database=""):
    store = Answers(database or study.folder)
    for one in people:
        found = store.of(rater_id(one.token))
        assert {name: given.value["label"] for name, given in found.items()} == one.acknowledged
        shown = store.shown(rater_id(one.token))
        assert len(set(shown)) == len(shown)
        assert len(found) == len(study.assignments[0])
    store.close()


def test_no_answer_is_lost_when_the_server_is_killed(make):
    study = make(raters=300 if LONG else 12, per_rater=33 if LONG else 12, checks=1, repeats=1)

    def hurt(server):
        server.kill()
        server.start()

    people = tortured(study, KILLS, hurt)
    check(study, people)
    assert sum(len(one.acknowledged) for one in people) >= 4 * 12


@pytest.fixture
def postgres(tmp_path):
    """A real PostgreSQL server of this machine's own package."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    initdb = shutil.which("initdb") or (str(folders[-1] / "initdb") if folders else None)
    if initdb is None:
        pytest.skip("needs PostgreSQL (Debian: apt-get install postgresql)")
    binaries = os.path.dirname(os.path.realpath(initdb))
    user = {} if os.geteuid() else {"user": "postgres", "group": "postgres"}
    if user and subprocess.run(["id", "postgres"], capture_output=True).returncode:
        pytest.skip("PostgreSQL does not run as root and there is no user postgres")
    import tempfile

    place = tempfile.mkdtemp(prefix="study-pg-")
    if user:
        shutil.chown(place, "postgres", "postgres")
    data = f"{place}/data"
    quiet = {"capture_output": True, "text": True, "cwd": "/", **user}
    made = subprocess.run(
        [f"{binaries}/initdb", "-D", data, "-A", "trust", "-U", "postgres"], **quiet
    )
    assert made.returncode == 0, made.stderr
    port = free_port()
    control = [f"{binaries}/pg_ctl", "-D", data, "-w"]
    options = f"-p {port} -k {place} -c listen_addresses=127.0.0.1"
    start = [*control, "-l", f"{place}/log", "-o", options, "start"]
    assert subprocess.run(start, **{**quiet, "capture_output": False}).returncode == 0
    yield f"postgresql://postgres@127.0.0.1:{port}/postgres", control, start, quiet
    subprocess.run([*control, "-m", "immediate", "stop"], **quiet)
    shutil.rmtree(place, ignore_errors=True)


@pytest.mark.browser
def test_no_answer_is_lost_when_the_database_goes_away(make, postgres):
    pytest.importorskip("pg8000", reason="needs hardcase[study]")
    url, control, start, quiet = postgres
    study = make(raters=12, per_rater=12, checks=1, repeats=1)

    def hurt(server):
        if random.random() < 0.5:
            subprocess.run([*control, "-m", "immediate", "stop"], **quiet)
            subprocess.run(start, **{**quiet, "capture_output": False})
        else:
            import pg8000.dbapi

            line = pg8000.dbapi.connect(
                user="postgres", host="127.0.0.1", port=int(url.split(":")[-1].split("/")[0])
            )
            line.autocommit = True
            line.cursor().execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
                "AND datname = 'postgres'"
            )
            line.close()

    check(study, tortured(study, 6, hurt, database=url), database=url)
