"""Where answers are kept: SQLite by default, PostgreSQL by URL. What was acknowledged is on disk.

A rater is known by a hash of the link that was given out, and by nothing else: no name, no
address. Every answer has a key made by the page, so sending it twice stores it once.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from hardcase.errors import HardcaseError
from hardcase.runs.files import require_plain
from hardcase_study.bundle import ANSWERS, opaque

TRIES = 5
KINDS = ("person", "pilot", "simulated", "imported")
_TABLES = (
    """CREATE TABLE IF NOT EXISTS rater (id TEXT PRIMARY KEY, slot INTEGER UNIQUE, kind TEXT NOT
    NULL, language TEXT NOT NULL, started DOUBLE PRECISION NOT NULL, finished DOUBLE PRECISION)""",
    """CREATE TABLE IF NOT EXISTS shown (rater TEXT NOT NULL, position INTEGER NOT NULL, item TEXT
    NOT NULL, PRIMARY KEY (rater, position), UNIQUE (rater, item))""",
    """CREATE TABLE IF NOT EXISTS answer (rater TEXT NOT NULL, item TEXT NOT NULL, position INTEGER
    NOT NULL, value TEXT NOT NULL, seconds DOUBLE PRECISION NOT NULL, hidden DOUBLE PRECISION NOT
    NULL, lost INTEGER NOT NULL, revision INTEGER NOT NULL, send_key TEXT NOT NULL,
    stored DOUBLE PRECISION NOT NULL, PRIMARY KEY (rater, item))""",
    """CREATE TABLE IF NOT EXISTS revision (rater TEXT NOT NULL, item TEXT NOT NULL, number INTEGER
    NOT NULL, value TEXT NOT NULL, stored DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (rater, item, number))""",
    """CREATE TABLE IF NOT EXISTS draw (number INTEGER PRIMARY KEY, item TEXT NOT NULL UNIQUE,
    rater TEXT NOT NULL, probability DOUBLE PRECISION NOT NULL, predicted DOUBLE PRECISION NOT NULL,
    knew INTEGER NOT NULL, rule TEXT NOT NULL, stored DOUBLE PRECISION NOT NULL)""",
    "CREATE INDEX IF NOT EXISTS answer_item ON answer (item)",
)
_COLUMNS = ("rater", "item", "position", "value", "seconds", "hidden", "lost", "revision")


@dataclass(frozen=True, slots=True)
class Given:
    """One answer as it is stored."""

    rater: str
    item: str
    position: int
    value: dict[str, Any]
    seconds: float = 0.0
    hidden: float = 0.0
    lost: int = 0
    revision: int = 0


@dataclass(frozen=True, slots=True)
class ChosenItem:
    """A question that was chosen by what had been answered, stored before it was shown."""

    number: int
    item: str
    rater: str
    probability: float
    predicted: float
    knew: int
    rule: str
    stored: float


@dataclass(frozen=True, slots=True)
class Rater:
    """`slot` numbers the raters; it chooses the list this one works through."""

    id: str
    slot: int
    kind: str
    language: str
    started: float
    finished: float | None


def rater_id(token: str) -> str:
    """The opaque id of whoever holds the link with this token; the token itself is never stored."""
    return opaque("rater", hashlib.sha256(token.encode()).hexdigest())


class Answers:
    """All answers of one study."""

    def __init__(self, place: str | Path, *, durable: bool = True) -> None:
        self.postgres = str(place).startswith(("postgresql://", "postgres://"))
        self.place = str(place) if self.postgres else str(Path(place) / ANSWERS)
        self.durable = durable
        self._own = threading.local()
        self._begin = "BEGIN" if self.postgres else "BEGIN IMMEDIATE"
        self._transact(lambda run: [run(table) for table in _TABLES])

    def enter(self, rater: str, *, kind: str, language: str) -> Rater:
        """A new rater with the lowest free slot, or the one who has entered with this id."""

        def work(run: Run) -> Rater:
            if self.postgres:  # SQLite has one writer at a time anyway
                run("LOCK TABLE rater IN EXCLUSIVE MODE")
            known = run(f"{_RATER} WHERE id = ?", rater)
            if known:
                return Rater(*known[0])
            taken = {row[0] for row in run("SELECT slot FROM rater")}
            free = next(slot for slot in count() if slot not in taken)
            now = time.time()
            entered = Rater(rater, free, kind, language, now, None)
            _insert(run, "rater", asdict(entered))
            return entered

        entered: Rater = self._transact(work)
        return entered

    def rater(self, rater: str) -> Rater | None:
        found = self._transact(lambda run: run(f"{_RATER} WHERE id = ?", rater), read=True)
        return Rater(*found[0]) if found else None

    def raters(self) -> list[Rater]:
        rows = self._transact(lambda run: run(f"{_RATER} ORDER BY slot"), read=True)
        return [Rater(*row) for row in rows]

    def finish(self, rater: str) -> None:
        text = "UPDATE rater SET finished = ? WHERE id = ? AND finished IS NULL"
        self._transact(lambda run: run(text, time.time(), rater))

    def set_language(self, rater: str, language: str) -> None:
        text = "UPDATE rater SET language = ? WHERE id = ?"
        self._transact(lambda run: run(text, language, rater))

    def shown(self, rater: str) -> list[str]:
        """Items this rater was shown, in order."""
        text = "SELECT item FROM shown WHERE rater = ? ORDER BY position"
        return [row[0] for row in self._transact(lambda run: run(text, rater), read=True)]

    def show(self, rater: str, position: int, item: str) -> str:
        """Enter that `item` stands at `position` of a rater; returns what does (the first wins)."""

        def work(run: Run) -> str:
            place = {"rater": rater, "position": position, "item": item}
            _insert(run, "shown", place, again=True)
            text = "SELECT item FROM shown WHERE rater = ? AND position = ?"
            return str(run(text, rater, position)[0][0])

        return str(self._transact(work))

    def drawn(self) -> list[ChosenItem]:
        """The questions that were chosen by what had been answered, in their order."""
        return list(self._transact(_draws, read=True))

    def draw(
        self, choose: Callable[[list[ChosenItem], list[Given], float], ChosenItem | str | None]
    ) -> str | None:
        """Choose a question and store its draw, with nobody else choosing meanwhile."""

        def work(run: Run) -> str | None:
            if self.postgres:  # SQLite has one writer at a time anyway
                run("LOCK TABLE draw IN EXCLUSIVE MODE")
            given = [_given(row) for row in run(f"{_ANSWER} ORDER BY stored")]
            made = choose(_draws(run), given, time.time())
            if not isinstance(made, ChosenItem):
                return made
            _insert(run, "draw", asdict(made))
            return made.item

        chosen: str | None = self._transact(work)
        return chosen

    def save(self, given: Given, key: str, *, revise: bool = False) -> str:
        """Store an answer; when this returns it is on disk."""
        value = json.dumps(given.value, sort_keys=True)
        now = time.time()

        def work(run: Run) -> str:
            text = "SELECT send_key, revision FROM answer WHERE rater = ? AND item = ?"
            old = run(text, given.rater, given.item)
            if old and (old[0][0] == key or not revise):
                return "known" if old[0][0] == key else "kept"
            number = 0
            if old:
                number = old[0][1] + 1
                run("DELETE FROM answer WHERE rater = ? AND item = ?", given.rater, given.item)
            row = {**asdict(given), "value": value, "revision": number}
            _insert(run, "answer", {**row, "send_key": key, "stored": now})
            log = {"rater": given.rater, "item": given.item, "number": number}
            _insert(run, "revision", {**log, "value": value, "stored": now})
            return "stored"

        return str(self._transact(work))

    def add(self, raters: Iterable[Rater], given: Sequence[Given]) -> None:
        """Many raters and answers in one transaction: from a file, or from a simulated crowd."""

        def work(run: Run) -> None:
            now = time.time()
            for one in raters:
                _insert(run, "rater", asdict(one), again=True)
            for row in given:
                place = {"rater": row.rater, "position": row.position, "item": row.item}
                _insert(run, "shown", place, again=True)
                value = json.dumps(row.value, sort_keys=True)
                sent = {"send_key": f"{row.rater}{row.item}", "stored": now}
                _insert(run, "answer", {**asdict(row), "value": value, **sent}, again=True)

        self._transact(work)

    def of(self, rater: str) -> dict[str, Given]:
        """This rater's answers by item."""
        found = self._transact(lambda run: run(f"{_ANSWER} WHERE rater = ?", rater), read=True)
        return {row[1]: _given(row) for row in found}

    def all(self) -> list[Given]:
        """Every answer, ordered by rater and position."""
        text = f"{_ANSWER} ORDER BY rater, position"
        return [_given(row) for row in self._transact(lambda run: run(text), read=True)]

    def votes(self, items: Iterable[str] | None = None) -> dict[str, list[dict[str, Any]]]:
        """Answers by item, of those named or of all; without who gave them."""
        names = None if items is None else list(items)
        where = "" if names is None else f" WHERE item IN ({', '.join('?' * len(names))})"
        text = f"SELECT item, value FROM answer{where}"
        found: dict[str, list[dict[str, Any]]] = {}
        for item, value in self._transact(lambda run: run(text, *(names or ())), read=True):
            found.setdefault(item, []).append(json.loads(value))
        return found

    def close(self) -> None:
        """Close this thread's connection."""
        connection = getattr(self._own, "connection", None)
        self._own.connection = None
        if connection is not None:
            connection.close()

    def _transact(self, work: Callable[[Run], Any], *, read: bool = False) -> Any:
        """`work` inside one transaction, again on a fresh connection where one was lost."""
        error: Exception | None = None
        for attempt in range(TRIES):
            try:
                connection = self._connection()
                return self._once(connection, work, read)
            except HardcaseError:
                raise
            except Exception as lost:  # drivers share no class of errors
                error = lost
                self._drop()
                time.sleep(0.05 * 2**attempt)
        raise HardcaseError(
            f"answers cannot be stored or read: {error}", fix="is the database there?"
        )

    def _once(self, connection: Any, work: Callable[[Run], Any], read: bool) -> Any:
        cursor = connection.cursor()

        def run(text: str, *values: Any) -> list[tuple[Any, ...]]:
            cursor.execute(text.replace("?", "%s") if self.postgres else text, values)
            return [tuple(row) for row in cursor.fetchall()] if cursor.description else []

        if read:
            return work(run)
        cursor.execute(self._begin)
        result = work(run)
        cursor.execute("COMMIT")
        return result

    def _drop(self) -> None:
        connection = getattr(self._own, "connection", None)
        self._own.connection = None
        try:
            if connection is not None:
                connection.close()
        except Exception:  # it was lost already
            return

    def _connection(self) -> Any:
        known = getattr(self._own, "connection", None)
        if known is None:
            known = _postgres(self.place) if self.postgres else _sqlite(self.place, self.durable)
            self._own.connection = known
        return known


Run = Callable[..., list[tuple[Any, ...]]]


def _insert(run: Run, table: str, row: Mapping[str, Any], *, again: bool = False) -> None:
    """Add a row; `again`: one that is there already is left as it is."""
    ending = " ON CONFLICT DO NOTHING" * again
    marks = ", ".join("?" * len(row))
    run(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks}){ending}", *row.values())


def _draws(run: Run) -> list[ChosenItem]:
    names = ", ".join(ChosenItem.__slots__)
    return [ChosenItem(*row) for row in run(f"SELECT {names} FROM draw ORDER BY number")]


_RATER = "SELECT id, slot, kind, language, started, finished FROM rater"
_ANSWER = f"SELECT {', '.join(_COLUMNS)} FROM answer"


def _sqlite(place: str, durable: bool) -> sqlite3.Connection:
    if not Path(place).parent.is_dir():
        raise HardcaseError(
            f"{Path(place).parent} is no folder.", fix="hardcase study new ... --out DIR"
        )
    require_plain(Path(place))
    if not Path(place).exists():  # what SQLite writes beside it has the same rights
        os.close(os.open(place, os.O_CREAT | os.O_WRONLY, 0o600))
    connection = sqlite3.connect(place, timeout=30, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'OFF'}")
    return connection


def _postgres(url: str) -> Any:
    try:
        import pg8000.dbapi
    except ModuleNotFoundError as error:
        raise HardcaseError(
            "a PostgreSQL database needs pg8000, which is not installed.",
            fix="pip install 'hardcase[study]'",
        ) from error
    parts = urlsplit(url)
    connection = pg8000.dbapi.connect(
        user=unquote(parts.username or "postgres"),
        password=unquote(parts.password) if parts.password else None,
        host=parts.hostname or "localhost",
        port=parts.port or 5432,
        database=parts.path.lstrip("/") or "postgres",
        timeout=10,
    )
    connection.autocommit = True
    return connection


def _given(row: Sequence[Any]) -> Given:
    fields: Mapping[str, Any] = dict(zip(_COLUMNS, row))
    return Given(**{**fields, "value": json.loads(fields["value"])})
