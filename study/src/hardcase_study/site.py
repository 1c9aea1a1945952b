"""What the pages of a study are made with: templates, words, signatures, rate limits."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import string
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from hardcase_study.answers import Rater
from hardcase_study.bundle import opaque
from hardcase_study.forms import Item, Question, questions
from hardcase_study.session import Session

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

LETTERS = string.ascii_uppercase
SMALL = 280
LARGE = 392
"""Pixels that an image has at least, beside others and alone; 28 pixels become 280 and 392."""
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; img-src 'self'; style-src 'self'; "
    "script-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    # not "no-referrer", under which browsers send forms with "Origin: null", as strangers' do
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Opener-Policy": "same-origin",
    "X-Robots-Tag": "noindex",
}


@dataclass
class Bucket:
    """A rate limit: `rate` requests a second on average for each key, `burst` at once.

    >>> bucket = Bucket(rate=1, burst=2)
    >>> [bucket.allows("a", now=0.0) for _ in range(3)], bucket.allows("a", now=1.0)
    ([True, True, False], True)
    """

    rate: float
    burst: float
    level: dict[str, tuple[float, float]] = field(default_factory=dict)

    def allows(self, key: str, now: float | None = None) -> bool:
        moment = time.monotonic() if now is None else now
        left, last = self.level.get(key, (self.burst, moment))
        left = min(self.burst, left + (moment - last) * self.rate)
        if len(self.level) > 10_000:
            self.level.clear()
        self.level[key] = (left - 1 if left >= 1 else left, moment)
        return left >= 1


class Site:
    """Everything the pages need."""

    def __init__(
        self,
        session: Session,
        *,
        token: str,
        desk: str,
        secret: bytes,
        names: Sequence[str] = (),
        limits: bool = True,
    ) -> None:
        from jinja2 import Environment, PackageLoader, StrictUndefined

        self.session = session
        self.study = session.study
        self.token = token
        self.desk = desk
        self.secret = secret
        self.names = {"localhost", *(name.lower() for name in names)}
        loader = PackageLoader("hardcase_study", "pages")
        self.pages = Environment(
            loader=loader, autoescape=True, undefined=StrictUndefined, auto_reload=False
        )
        free = Bucket(1e9, 1e9)
        self.entering = Bucket(20, 1000) if limits else free
        self.asking = Bucket(20, 200) if limits else free

    def is_named(self, place: str) -> bool:
        """Whether a host, with or without a port, is a name that was given to this server."""
        return _hostname(place) in self.names

    def is_own(self, place: str) -> bool:
        """Whether a browser that asks for this host means this server: it is named, or a number,
        which no stranger's name server can point here.
        """
        try:
            return self.is_named(place) or bool(ip_address(_hostname(place)))
        except ValueError:
            return False

    def size(self, stimulus: str, large: bool) -> tuple[int, int]:
        """Width and height to show an image at: a whole number of times its own."""
        width, height = struct.unpack(">II", self.study.png(stimulus)[16:24])
        times = max(1, -(-(LARGE if large else SMALL) // max(width, height)))
        return width * times, height * times

    def sign(self, *parts: str) -> str:
        text = "/".join(parts).encode("utf-8", "replace")
        return hmac.new(self.secret, text, hashlib.sha256).hexdigest()[:32]

    def words(self, language: str) -> dict[str, str]:
        """Texts in `language`; what a translation lacks is read from the first one that has it."""
        known = self.study.words
        chosen = known.get(language) or known.get(str(self.study.settings["language"])) or {}
        return {**known.get("en", {}), **chosen}

    def page(self, name: str, language: str, status: int = 200, **values: Any) -> Response:
        from starlette.responses import HTMLResponse

        words = self.words(language)

        def say(key: str, **fill: Any) -> str:
            text = str(words.get(key, key))
            for word, value in fill.items():
                text = text.replace("{" + word + "}", str(value))
            return text

        body = self.pages.get_template(name).render(
            say=say,
            language=language,
            study=self.study,
            title=self.study.settings["title"] or say("title"),
            pilot=self.session.kind == "pilot",
            **values,
        )
        return HTMLResponse(body, status, headers={**HEADERS, "Cache-Control": "no-store"})

    def message(self, key: str, language: str, status: int, **headers: str) -> Response:
        response = self.page("message.html", language, status, key=key, code="")
        for name, value in headers.items():
            response.headers[name.replace("_", "-")] = value
        return response

    def language(self, request: Request) -> str:
        asked = request.query_params.get("lang", "")
        return asked if asked in self.study.words else str(self.study.settings["language"])


def _hostname(place: str) -> str:
    return (urlsplit(f"//{place}").hostname or "").lower()


def same(given: object, right: str) -> bool:
    """Whether somebody sent the right secret, in a time that does not tell how much is right."""
    return hmac.compare_digest(str(given).encode("utf-8", "replace"), right.encode())


def item_page(
    site: Site,
    rater: Rater,
    token: str,
    position: int,
    item: Item,
    old: Mapping[str, Any],
    *,
    missing: bool = False,
) -> Response:
    """The page of one item; images to be ordered start in an order of the rater's own."""
    asked = questions(item, site.study.thing)
    shown = list(item.stimuli)
    if asked[0].kind == "order":
        shown.sort(key=lambda one: opaque(rater.id, one))
    return site.page(
        "item.html",
        rater.language,
        400 if missing else 200,
        item=item,
        token=token,
        position=position,
        all=len(site.session.plan(rater)),
        decision=site.session.decision(),
        questions=asked,
        letters=dict(zip(shown, LETTERS)),
        order=old.get("order") or shown,
        old=old,
        keys={question.name: shortcuts(question) for question in asked},
        csrf=site.sign("answer", token),
        missing=missing,
        key=secrets.token_hex(8),
        size=site.size,
    )


def shortcuts(question: Question) -> tuple[str, ...]:
    """A key for each option: the label itself where that is one key of its own, else 1, 2, 3 ...

    >>> from hardcase_study.forms import Item, questions
    >>> shortcuts(questions(Item("a", "label", ("x",), labels=("7", "9")))[0])
    ('7', '9', 'n', 'u')
    """
    plain = [word.lower() for word in question.words if not word.startswith("@")]
    alone = all(len(word) == 1 for word in plain) and len({*plain, "n", "u"}) == len(plain) + 2
    keys = plain if alone else list("123456789abcdefghijk"[: len(plain)])
    special = {"none": "n", "unsure": "u", "yes": "y", "no": "n", "more": "m", "less": "l"}
    rest = [one for one, word in zip(question.options, question.words) if word.startswith("@")]
    for place, option in enumerate(rest, 1):
        keys.append(special.get(option, str(place)))
    return tuple(keys)
