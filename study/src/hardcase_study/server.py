"""The study in a browser: Starlette pages over `Session`, one page per item.

An answer is on disk before the page of the next item is sent. Pages load nothing from elsewhere,
hold no personal data, and work without JavaScript (then without times and without keys).
"""

from __future__ import annotations

import json
import logging
import re
import resource
import secrets
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote

from hardcase.errors import HardcaseError
from hardcase.plain import read_plain
from hardcase.runs.files import read_json
from hardcase_study.answers import Answers, Rater, rater_id
from hardcase_study.bundle import Study, private
from hardcase_study.forms import Item, questions
from hardcase_study.session import Session
from hardcase_study.site import HEADERS, Site, item_page, same

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

log = logging.getLogger(__name__)
LARGEST = 64 * 1024
"""Bytes of a request body."""
FILES = 4096
"""Files and connections that the server may have open, where the system allows as many."""


class MalformedRequest(ValueError):  # noqa: N818 - what happened
    """A request that no page of the study sends."""


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

            if not site.is_own(request.headers.get("host", "")):
                return PlainTextResponse("this server has another name (see --name)", 421)
            body = b""
            async for part in request.stream():
                body += part
                if len(body) > LARGEST:
                    return PlainTextResponse("too large", 413)
            try:
                return await run_in_threadpool(handler, site, request, body)
            except MalformedRequest as error:
                return PlainTextResponse(str(error), 400)
            except HardcaseError as problem:  # its words are for whoever runs the study
                log.error("%s", problem)
                later = {"Retry-After": "2"}
                return PlainTextResponse("not available now, please try again", 503, headers=later)

        return answer

    routes = [
        Route("/", door(entrance), methods=["GET"]),
        Route("/begin", door(begin), methods=["POST"]),
        Route("/r/{token}", door(resume), methods=["GET"]),
        Route("/r/{token}/done", door(done), methods=["GET"]),
        Route("/r/{token}/{position}", door(show), methods=["GET"]),
        Route("/r/{token}/{position}", door(receive), methods=["POST"]),
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
    if site.token and not same(given, site.token):
        return site.message("link", language, 403)
    count = int(site.study.settings["per_rater"])
    minutes = max(1, round(count * (1.0 if site.study.design in ("argus", "rank") else 8 / 60)))
    return site.page(
        "entrance.html",
        language,
        count=count,
        minutes=minutes,
        token=given,
        languages={name: words.get("language", name) for name, words in site.study.words.items()},
        csrf=site.sign("begin", given),
    )


def begin(site: Site, request: Request, body: bytes) -> Response:
    """Consent given: a fresh link for this rater."""
    from starlette.responses import RedirectResponse

    form = _form(body)
    given = form.get("t", "")
    language = form.get("lang", "")
    language = language if language in site.study.words else str(site.study.settings["language"])
    invited = not site.token or same(given, site.token)
    own = _own_form(site, request, form, "begin", given)
    if not (invited and own and form.get("agree") == "yes"):
        return site.message("link", language, 403)
    if not site.entering.allows(given):
        return site.message("slow", language, 429, Retry_After="60")
    token = secrets.token_urlsafe(16)
    rater = site.session.enter(token, language)
    if rater is None:
        return site.message("full", language, 200)
    return RedirectResponse(f"/r/{token}", 303, headers=HEADERS)


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
    return RedirectResponse(f"/r/{token}/{end}", 303, headers=HEADERS)


def show(site: Site, request: Request, body: bytes) -> Response:
    """The page of one item; those after the first unanswered one are not shown yet."""
    from starlette.responses import RedirectResponse

    rater = _rater(site, request)
    if rater is None:
        return site.message("link", site.language(request), 404)
    token = request.path_params["token"]
    if not site.asking.allows(rater.id):
        return site.message("slow", rater.language, 429, Retry_After="5")
    position = _position(request)
    answers = site.session.store.of(rater.id)
    frontier = len(answers) + 1
    item = site.session.item(rater, position) if 1 <= position <= frontier else None
    if item is None:
        return RedirectResponse(f"/r/{token}", 303, headers=HEADERS)
    old = answers.get(item.id)
    return item_page(site, rater, token, position, item, old.value if old else {})


def receive(site: Site, request: Request, body: bytes) -> Response:
    """Store an answer, then say where to go: as JSON to the script, as a redirect to a form."""
    from starlette.responses import JSONResponse, RedirectResponse

    rater = _rater(site, request)
    token = request.path_params["token"]
    scripted = request.headers.get("content-type", "").startswith("application/json")
    position = _position(request)
    sent: dict[str, Any] = _sent(body) if scripted else dict(_form(body))
    if rater is None or not _own_form(site, request, sent, "answer", token):
        return site.message("link", site.language(request), 403)
    if not site.asking.allows(rater.id):
        return site.message("slow", rater.language, 429, Retry_After="5")
    item = site.session.shown(rater, position)
    if item is None or sent.get("item") != item.id:
        return JSONResponse({"state": "elsewhere", "next": f"/r/{token}"}, 409, headers=HEADERS)
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
    except HardcaseError as problem:
        if "is no answer" not in problem.what:
            raise
        if scripted:
            return JSONResponse({"state": "incomplete"}, 400)
        return item_page(site, rater, token, position, item, value, missing=True)
    following = f"/r/{token}/{position + 1}"
    if scripted:
        return JSONResponse({"state": state, "next": following}, headers=HEADERS)
    return RedirectResponse(following, 303, headers=HEADERS)


def done(site: Site, request: Request, body: bytes) -> Response:
    from starlette.responses import RedirectResponse

    rater = _rater(site, request)
    if rater is None:
        return site.message("link", site.language(request), 404)
    if rater.finished is None:
        return RedirectResponse(f"/r/{request.path_params['token']}", 303, headers=HEADERS)
    code = site.sign("code", rater.id)[:8].upper()
    return site.page("message.html", rater.language, key="thanks", code=code)


def picture(site: Site, request: Request, body: bytes) -> Response:
    """An exact PNG by its opaque name."""
    from starlette.responses import PlainTextResponse, Response as Plain

    name = request.path_params["name"]
    if name not in site.study.stimuli:
        return PlainTextResponse("not here", 404)
    cached = {**HEADERS, "Cache-Control": "private, max-age=86400, immutable"}
    return Plain(site.study.png(name), media_type="image/png", headers=cached)


_STATIC = {"study.css": "text/css", "study.js": "text/javascript"}


def static(site: Site, request: Request, body: bytes) -> Response:
    from starlette.responses import PlainTextResponse, Response as Plain

    name = request.path_params["name"]
    if name not in _STATIC:
        return PlainTextResponse("not here", 404)
    data = resources.files("hardcase_study").joinpath("pages", name).read_bytes()
    return Plain(data, media_type=_STATIC[name], headers={**HEADERS, "Cache-Control": "no-cache"})


def dashboard(site: Site, request: Request, body: bytes) -> Response:
    """Progress, agreement, suspicious raters and precision, for whoever runs the study."""
    from hardcase_study.progress import progress

    if not same(request.path_params["desk"], site.desk):
        return site.message("link", site.language(request), 404)
    facts = progress(site.study, site.session.store)
    decision = site.session.decision()
    return site.page("desk.html", "en", facts=facts, desk=site.desk, decision=decision)


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
    names: Sequence[str] = (),
    token: str | None = None,
    database: str = "",
    pilot: bool = False,
    limits: bool = True,
    say: Callable[[str], None] = lambda text: None,
) -> None:
    """Serve a study until it is stopped.

    Args:
        folder: The study.
        names: Names by which browsers reach the server; numbers and ``localhost`` need none.
        token: What the entrance link carries; made at random by default, ``none`` for no token.
        database: ``postgresql://…``; by default ``answers.sqlite`` in the study's folder.
        pilot: Whoever enters takes part in a trial that the analysis leaves out.
        limits: Whether requests are limited; a test of the speed turns this off.
        say: Told the addresses, once they can be opened.
    """
    try:
        import uvicorn
    except ModuleNotFoundError as error:
        raise HardcaseError(
            "serving a study needs starlette and uvicorn, which are not installed.",
            fix="pip install 'hardcase[study]'",
        ) from error
    from hardcase_study.connections import BoundedConnection

    study = Study.open(folder)
    study.make_private()
    kept = _secrets(study.folder)
    word = "" if token == "none" else (token or kept["token"])
    site = Site(
        Session(study, Answers(database or study.folder), pilot=pilot),
        token=word,
        desk=kept["desk"],
        secret=kept["secret"].encode(),
        names=(host, *names),
        limits=limits,
    )
    BoundedConnection.most = min(BoundedConnection.most, _allowed_files(FILES) // 2)
    line = _listening(host, port)
    name = f"[{host}]" if ":" in host else host
    address = f"http://{name}:{line.getsockname()[1]}"
    say(f"raters     {address}/{f'?t={quote(word)}' if word else ''}")
    say(f"dashboard  {address}/desk/{kept['desk']}")
    config = uvicorn.Config(
        application(site),
        http=BoundedConnection,
        ws="none",
        log_level="error",
        access_log=False,
        server_header=False,
    )
    with private(), suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[line])


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        raise HardcaseError(
            f"{host} port {port} cannot be listened on: {error}.", fix=f"--port {port + 1}"
        ) from error


def _allowed_files(wanted: int) -> int:
    """Raise the number of files that this process may open, as far as the system allows; return how
    many that is.
    """
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY:
        wanted = min(wanted, most)
    if now != resource.RLIM_INFINITY and now < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
        return wanted
    return wanted


def _secrets(folder: Path) -> dict[str, str]:
    """The study's tokens and signing key, made once."""
    from hardcase.cache import write_atomically

    path = folder / "secret.json"
    if not path.exists():
        made = {name: secrets.token_urlsafe(16) for name in ("token", "desk", "secret")}
        with private():
            write_atomically(path, json.dumps(made).encode())
    return dict(json.loads(read_plain(path)))


def _rater(site: Site, request: Request) -> Rater | None:
    return site.session.store.rater(rater_id(request.path_params["token"]))


def _own_form(site: Site, request: Request, form: Mapping[str, Any], *parts: str) -> bool:
    """Whether a form was made by this server for this rater, and sent from one of its pages."""
    origin = request.headers.get("origin")
    if origin is not None:
        place = origin.partition("://")[2]
        if not place or (place != request.headers.get("host") and not site.is_named(place)):
            return False
    return same(form.get("csrf", ""), site.sign(*parts))


def _position(request: Request) -> int:
    text = request.path_params["position"]
    if not re.fullmatch("[0-9]{1,9}", text):
        raise MalformedRequest("no position of a list")
    return int(text)


def _form(body: bytes) -> dict[str, str]:
    try:
        return {k: v[-1] for k, v in parse_qs(body.decode(), max_num_fields=100).items()}
    except ValueError as error:
        raise MalformedRequest("no form") from error


def _sent(body: bytes) -> dict[str, Any]:
    """What the script of a page sends."""
    try:
        sent = read_json(body)
        words = [sent[name] for name in ("csrf", "item", "key")]
        if isinstance(sent["value"], dict) and all(isinstance(word, str) for word in words):
            return dict(sent)
    except (ValueError, TypeError, LookupError, RecursionError):
        pass
    raise MalformedRequest("no answer of a page")


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
