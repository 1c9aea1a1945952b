"""The study in a browser: Starlette pages over `Session`, one page per item.

An answer is on disk before the page of the next item is sent. Pages load nothing from elsewhere,
hold no personal data, and work without JavaScript (then without times and without keys).
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import string
import struct
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote

from hardcase.errors import Problem
from hardcase.study.answers import Answers, Rater, rater_id
from hardcase.study.bundle import Study
from hardcase.study.forms import Item, Question, questions
from hardcase.study.session import Session

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

LETTERS = string.ascii_uppercase
SMALL = 280
LARGE = 392
"""Pixels that an image has at least, beside others and alone; 28 pixels become 280 and 392."""
LARGEST = 64 * 1024
"""Bytes of a request body."""
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; img-src 'self'; style-src 'self'; "
    "script-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
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
    """Everything the pages need.

    Args:
        token: What the entrance asks for (``?t=``); empty for an open study.
        desk: The secret part of the dashboard's address.
        secret: Signs forms and completion codes.
    """

    def __init__(
        self, session: Session, *, token: str, desk: str, secret: bytes, limits: bool = True
    ) -> None:
        from jinja2 import Environment, PackageLoader, StrictUndefined

        self.session = session
        self.study = session.study
        self.token = token
        self.desk = desk
        self.secret = secret
        loader = PackageLoader("hardcase.study", "pages")
        self.pages = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
        self.entering = Bucket(0.5, 30) if limits else Bucket(1e9, 1e9)
        self.answering = Bucket(5, 40) if limits else Bucket(1e9, 1e9)
        self.looking = Bucket(20, 200) if limits else Bucket(1e9, 1e9)

    def size(self, stimulus: str, large: bool) -> tuple[int, int]:
        """Width and height to show an image at: a whole number of times its own."""
        with open(self.study.image(stimulus), "rb") as file:
            width, height = struct.unpack(">II", file.read(24)[16:])
        times = max(1, -(-(LARGE if large else SMALL) // max(width, height)))
        return width * times, height * times

    def sign(self, *parts: str) -> str:
        text = "/".join(parts).encode()
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
            text = words.get(key, key)
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
        return HTMLResponse(body, status, headers={**_HEADERS, "Cache-Control": "no-store"})

    def message(self, key: str, language: str, status: int, **headers: str) -> Response:
        response = self.page("message.html", language, status, key=key, code="")
        for name, value in headers.items():
            response.headers[name.replace("_", "-")] = value
        return response

    def language(self, request: Request) -> str:
        asked = request.query_params.get("lang", "")
        return asked if asked in self.study.words else str(self.study.settings["language"])


def application(site: Site) -> Starlette:
    """The pages as an ASGI application."""
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.routing import Route

    Handler = Callable[[Site, Any, bytes], "Response"]

    def door(handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        """Handlers are plain functions run in a thread; bodies are read here, within bounds."""

        async def answer(request: Request) -> Response:
            from starlette.responses import PlainTextResponse

            body = b""
            async for part in request.stream():
                body += part
                if len(body) > LARGEST:
                    return PlainTextResponse("too large", 413)
            try:
                return await run_in_threadpool(handler, site, request, body)
            except Problem as problem:
                return PlainTextResponse(str(problem), 503, headers={"Retry-After": "2"})

        return answer

    routes = [
        Route("/", door(entrance), methods=["GET"]),
        Route("/begin", door(begin), methods=["POST"]),
        Route("/r/{token}", door(resume), methods=["GET"]),
        Route("/r/{token}/{position:int}", door(show), methods=["GET"]),
        Route("/r/{token}/{position:int}", door(receive), methods=["POST"]),
        Route("/r/{token}/done", door(done), methods=["GET"]),
        Route("/image/{name}.png", door(picture), methods=["GET"]),
        Route("/static/{name}", door(static), methods=["GET"]),
        Route("/desk/{desk}", door(dashboard), methods=["GET"]),
        Route("/favicon.ico", door(no_icon), methods=["GET"]),
        Route("/health", door(health), methods=["GET"]),
    ]
    return Starlette(routes=routes)


def entrance(site: Site, request: Request, body: bytes) -> Response:
    language = site.language(request)
    given = request.query_params.get("t", "")
    if site.token and not hmac.compare_digest(given.encode(), site.token.encode()):
        return site.message("link", language, 403)
    count = int(site.study.settings["per_rater"])
    minutes = max(1, round(count * (1.0 if site.study.design in ("argus", "rank") else 8 / 60)))
    return site.page(
        "entrance.html",
        language,
        count=count,
        minutes=minutes,
        token=given,
        languages={name: words["language"] for name, words in site.study.words.items()},
        csrf=site.sign("begin", given),
    )


def begin(site: Site, request: Request, body: bytes) -> Response:
    """Consent given: a fresh link for this rater."""
    from starlette.responses import RedirectResponse

    form = _form(body)
    given = form.get("t", "")
    language = form.get("lang", "")
    language = language if language in site.study.words else str(site.study.settings["language"])
    right = hmac.compare_digest(given.encode(), site.token.encode()) or not site.token
    if (
        not right
        or not _own_form(site, request, form, "begin", given)
        or form.get("agree") != "yes"
    ):
        return site.message("link", language, 403)
    if not site.entering.allows(request.client.host if request.client else ""):
        return site.message("slow", language, 429, Retry_After="60")
    token = secrets.token_urlsafe(16)
    rater = site.session.enter(token, language)
    if rater is None:
        return site.message("full", language, 200)
    return RedirectResponse(f"/r/{token}", 303, headers=_HEADERS)


def resume(site: Site, request: Request, body: bytes) -> Response:
    """Where this rater goes on."""
    from starlette.responses import RedirectResponse

    rater = _rater(site, request)
    if rater is None:
        return site.message("link", site.language(request), 404)
    asked = request.query_params.get("lang", "")
    if asked in site.study.words and asked != rater.language:
        site.session.store.set_language(rater.id, asked)
    token = request.path_params["token"]
    place = site.session.frontier(rater)
    item = site.session.item(rater, place)
    end = "done" if item is None else str(place)
    return RedirectResponse(f"/r/{token}/{end}", 303, headers=_HEADERS)


def show(site: Site, request: Request, body: bytes) -> Response:
    """The page of one item; those after the first unanswered one are not shown yet."""
    from starlette.responses import RedirectResponse

    rater = _rater(site, request)
    if rater is None:
        return site.message("link", site.language(request), 404)
    token = request.path_params["token"]
    if not site.looking.allows(token):
        return site.message("slow", rater.language, 429, Retry_After="5")
    position = request.path_params["position"]
    answers = site.session.store.of(rater.id)
    frontier = len(answers) + 1
    item = site.session.item(rater, position) if 1 <= position <= frontier else None
    if item is None:
        return RedirectResponse(f"/r/{token}", 303, headers=_HEADERS)
    old = answers.get(item.id)
    return _item_page(site, rater, token, position, item, old.value if old else {})


def _item_page(
    site: Site,
    rater: Rater,
    token: str,
    position: int,
    item: Item,
    old: Mapping[str, Any],
    **more: Any,
) -> Response:
    asked = questions(item, site.study.thing)
    letters = dict(zip(item.stimuli, LETTERS))
    order = old.get("order") or list(item.stimuli)
    several = len(item.stimuli) > 2
    status = 400 if more.get("missing") else 200
    return site.page(
        "item.html",
        rater.language,
        status,
        item=item,
        token=token,
        position=position,
        all=site.session.length(rater),
        questions=asked,
        letters=letters,
        order=order,
        old=old,
        keys={question.name: shortcuts(question) for question in asked},
        several=several,
        csrf=site.sign("answer", token),
        missing=bool(more.get("missing")),
        key=secrets.token_hex(8),
        size=site.size,
    )


def shortcuts(question: Question) -> tuple[str, ...]:
    """A key for each option: the label itself where it is one character, else 1, 2, 3 ...

    >>> from hardcase.study.forms import Item, questions
    >>> shortcuts(questions(Item("a", "label", ("x",), labels=("7", "9")))[0])
    ('7', '9', 'n', 'u')
    """
    plain = [word for word in question.words if not word.startswith("@")]
    single = all(len(word) == 1 for word in plain)
    numbers = "123456789" + "abcdefghij"
    keys = [word.lower() for word in plain] if single else list(numbers[: len(plain)])
    special = {"none": "n", "unsure": "u", "yes": "y", "no": "n", "more": "m", "less": "l"}
    rest = [one for one, word in zip(question.options, question.words) if word.startswith("@")]
    for place, option in enumerate(rest, 1):
        keys.append(special.get(option, str(place)))
    return tuple(keys)


def receive(site: Site, request: Request, body: bytes) -> Response:
    """Store an answer, then say where to go: as JSON to the script, as a redirect to a form."""
    from starlette.responses import JSONResponse, RedirectResponse

    rater = _rater(site, request)
    token = request.path_params["token"]
    scripted = request.headers.get("content-type", "").startswith("application/json")
    sent: dict[str, Any] = _sent(body) if scripted else dict(_form(body))
    if rater is None or not _own_form(site, request, sent, "answer", token):
        return site.message("link", site.language(request), 403)
    if not site.answering.allows(token):
        return site.message("slow", rater.language, 429, Retry_After="5")
    position = request.path_params["position"]
    item = site.session.item(rater, position) if position <= site.session.frontier(rater) else None
    if item is None or sent.get("item") != item.id:
        return JSONResponse({"state": "elsewhere", "next": f"/r/{token}"}, 409)
    value: dict[str, Any] = sent["value"] if scripted else _plain_value(sent, item, site.study)
    try:
        state = site.session.save(
            rater,
            item.id,
            value,
            key=sent.get("key", ""),
            seconds=sent.get("seconds"),
            hidden=sent.get("hidden"),
            lost=sent.get("lost"),
            revise=sent.get("revise") in (True, "yes"),
        )
    except Problem as problem:
        if "is no answer" not in problem.what:
            raise
        if scripted:
            return JSONResponse({"state": "incomplete"}, 400)
        return _item_page(site, rater, token, position, item, value, missing=True)
    following = f"/r/{token}/{position + 1}"
    if scripted:
        return JSONResponse({"state": state, "next": following}, headers=_HEADERS)
    return RedirectResponse(following, 303, headers=_HEADERS)


def done(site: Site, request: Request, body: bytes) -> Response:
    from starlette.responses import RedirectResponse

    rater = _rater(site, request)
    if rater is None:
        return site.message("link", site.language(request), 404)
    if rater.finished is None:
        return RedirectResponse(f"/r/{request.path_params['token']}", 303, headers=_HEADERS)
    code = site.sign("code", rater.id)[:8].upper()
    return site.page("message.html", rater.language, key="thanks", code=code)


def picture(site: Site, request: Request, body: bytes) -> Response:
    """An exact PNG by its opaque name."""
    from starlette.responses import PlainTextResponse
    from starlette.responses import Response as Plain

    name = request.path_params["name"]
    if name not in site.study.stimuli:
        return PlainTextResponse("not here", 404)
    cached = {**_HEADERS, "Cache-Control": "private, max-age=86400, immutable"}
    return Plain(site.study.image(name).read_bytes(), media_type="image/png", headers=cached)


_STATIC = {"study.css": "text/css", "study.js": "text/javascript"}


def static(site: Site, request: Request, body: bytes) -> Response:
    from starlette.responses import PlainTextResponse
    from starlette.responses import Response as Plain

    name = request.path_params["name"]
    if name not in _STATIC:
        return PlainTextResponse("not here", 404)
    data = resources.files("hardcase.study").joinpath("pages", name).read_bytes()
    return Plain(data, media_type=_STATIC[name], headers={**_HEADERS, "Cache-Control": "no-cache"})


def dashboard(site: Site, request: Request, body: bytes) -> Response:
    """Progress, agreement, suspicious raters and precision, for whoever runs the study."""
    from hardcase.study.progress import progress

    if not hmac.compare_digest(request.path_params["desk"].encode(), site.desk.encode()):
        return site.message("link", site.language(request), 404)
    facts = progress(site.study, site.session.store)
    return site.page("desk.html", "en", facts=facts, desk=site.desk)


def no_icon(site: Site, request: Request, body: bytes) -> Response:
    from starlette.responses import Response as Plain

    return Plain(status_code=204, headers={"Cache-Control": "max-age=86400"})


def health(site: Site, request: Request, body: bytes) -> Response:
    from starlette.responses import PlainTextResponse

    site.session.store.raters()
    return PlainTextResponse("ok")


def serve(
    folder: str | Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    database: str = "",
    pilot: bool = False,
    limits: bool = True,
    say: Callable[[str], None] = lambda text: None,
) -> None:
    """Serve a study until it is stopped.

    Args:
        folder: The study.
        token: What the entrance link carries; made at random by default, ``none`` for no token.
        database: ``postgresql://…``; by default ``answers.sqlite`` in the study's folder.
        pilot: Whoever enters takes part in a trial that the analysis leaves out.
        limits: Whether requests are limited; a test of the speed turns this off.
        say: Told the addresses, once they can be opened.
    """
    try:
        import uvicorn
    except ModuleNotFoundError as error:
        raise Problem(
            "serving a study needs starlette and uvicorn, which are not installed.",
            fix="pip install 'hardcase[study]'",
        ) from error
    study = Study.open(folder)
    kept = _secrets(study.folder)
    word = "" if token == "none" else (token or kept["token"])
    site = Site(
        Session(study, Answers(database or study.folder), pilot=pilot),
        token=word,
        desk=kept["desk"],
        secret=kept["secret"].encode(),
        limits=limits,
    )
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    say(f"raters     {address}/{f'?t={quote(word)}' if word else ''}")
    say(f"dashboard  {address}/desk/{kept['desk']}")
    uvicorn.run(application(site), host=host, port=port, log_level="warning", access_log=False)


def _secrets(folder: Path) -> dict[str, str]:
    """The study's tokens and signing key, made once and readable by the owner alone."""
    from hardcase.cache import write_atomically

    path = folder / "secret.json"
    if not path.exists():
        made = {name: secrets.token_urlsafe(16) for name in ("token", "desk", "secret")}
        write_atomically(path, json.dumps(made).encode())
        path.chmod(0o600)
    return dict(json.loads(path.read_text(encoding="utf-8")))


def _rater(site: Site, request: Request) -> Rater | None:
    return site.session.store.rater(rater_id(request.path_params["token"]))


def _own_form(site: Site, request: Request, form: Mapping[str, Any], *parts: str) -> bool:
    """Whether a form was made by this server for this rater, and sent from one of its pages."""
    origin = request.headers.get("origin")
    host = request.headers.get("host", "")
    if origin not in (None, "null") and origin.split("://")[-1] != host:
        return False
    return hmac.compare_digest(str(form.get("csrf", "")), site.sign(*parts))


def _form(body: bytes) -> dict[str, str]:
    try:
        return {k: v[-1] for k, v in parse_qs(body.decode(), max_num_fields=100).items()}
    except ValueError:
        return {}


def _sent(body: bytes) -> dict[str, Any]:
    try:
        sent = json.loads(body)
        return sent if isinstance(sent, dict) and isinstance(sent.get("value"), dict) else {}
    except ValueError:
        return {}


def _plain_value(sent: Mapping[str, str], item: Item, study: Study) -> dict[str, Any]:
    """An answer from a form without a script: an order comes as a place for each image."""
    value: dict[str, Any] = {}
    for question in questions(item, study.thing):
        if question.kind == "choice":
            value[question.name] = sent.get(question.name)
            continue
        places = {one: sent.get(f"place-{one}", "") for one in question.options}
        if sorted(places.values()) == sorted(str(i + 1) for i in range(len(places))):
            value[question.name] = sorted(places, key=lambda one: int(places[one]))
    return value
