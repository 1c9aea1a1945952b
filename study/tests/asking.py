"""What tests of the study share: a way to call the pages without a socket, and answers as if of people."""

from __future__ import annotations

import asyncio
import json
from urllib.parse import urlencode

import pytest
from killing_study import field

from hardcase_study import simulate
from hardcase_study.answers import Answers

METHODS = ("alpha-0.1", "alpha-0.2", "alpha-0.3", "beta", "gamma", "delta", "epsilon")
NAMES = ("sinvad", "fgsm", "cw")


class Browsing:
    """Requests to the pages of a study, as one rater's browser would send them."""

    def __init__(self, study, **options):
        pytest.importorskip("starlette", reason="needs hardcase[study]")
        from hardcase_study.server import Site, application
        from hardcase_study.session import Session

        self.study = study
        self.store = Answers(options.pop("place", study.folder), durable=False)
        session = Session(study, self.store, pilot=options.pop("pilot", False))
        usual = {
            "token": "door",
            "desk": "desk",
            "secret": b"s",
            "names": ["here"],
            "limits": False,
        }
        self.site = Site(session, **{**usual, **options})
        self.app = application(self.site)

    def ask(self, method, path, body=b"", **headers):
        """(status, headers, text)"""
        where, _, query = path.partition("?")
        scope = {
            "type": "http", "http_version": "1.1", "method": method, "path": where, "raw_path": where.encode(),
            "query_string": query.encode(), "root_path": "", "scheme": "http", "server": ("here", 80),
            "client": ("1.2.3.4", 1), "asgi": {"version": "3.0"},
            "headers": [(k.replace("_", "-").encode(), v.encode()) for k, v in {"host": "here", **headers}.items()],
        }  # fmt: skip
        sent, asked = [], []

        async def receive():
            asked.append(1)
            if len(asked) > 1:
                return {"type": "http.disconnect"}
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message):
            sent.append(message)

        asyncio.run(self.app(scope, receive, send))
        start = next(one for one in sent if one["type"] == "http.response.start")
        text = b"".join(one.get("body", b"") for one in sent if one["type"].endswith("body"))
        told = {k.decode(): v.decode() for k, v in start["headers"]}
        return start["status"], told, text.decode("utf-8", "replace")

    def get(self, path):
        status, headers, text = self.ask("GET", path)
        while status == 303:
            path = headers["location"]
            status, headers, text = self.ask("GET", path)
        return status, path, text

    def begin(self):
        """Consent; returns the rater's token."""
        _, _, page = self.get("/?t=door")
        form = {"csrf": field(page, "csrf"), "t": "door", "lang": "en", "agree": "yes"}
        status, headers, _ = self.ask("POST", "/begin", urlencode(form).encode())
        assert status == 303
        return headers["location"].split("/")[2]

    def first(self):
        """Begin; the rater's token, and the path and the page of the first item."""
        token = self.begin()
        _, path, page = self.get(f"/r/{token}")
        return token, path, page

    def send(self, page, path, value, **more):
        """An answer as the script sends it."""
        body = {
            "csrf": field(page, "csrf"), "item": field(page, "item"), "key": field(page, "key"),
            "value": value, "seconds": 1.5, "hidden": 0.0, "lost": 0,
            "revise": field(page, "revise") == "yes", **more,
        }  # fmt: skip
        status, _, text = self.ask(
            "POST", path, json.dumps(body).encode(), content_type="application/json"
        )
        return status, json.loads(text) if text.startswith("{") else text


def first_answer(study, page):
    """Some well-formed answer to the item of a page."""
    from hardcase_study.forms import questions

    item = study.items[field(page, "item")]
    return {
        q.name: list(q.options) if q.kind == "order" else q.options[0]
        for q in questions(item, study.thing)
    }


def as_people(study, **options):
    """Answers of a simulated crowd under the kind of people, for what is refused to a crowd."""
    store = Answers(study.folder)
    store._transact(lambda run: [run("DELETE FROM rater"), run("DELETE FROM answer")])
    simulate(study, seed=2, **options)
    store._transact(lambda run: run("UPDATE rater SET kind = 'person'"))
    return store
