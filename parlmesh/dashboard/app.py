"""Serves the page over HTTP: translates requests, checks access and renders. `pages` finds the contents."""

import json
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode

from jinja2 import Environment, FileSystemLoader, select_autoescape
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from parlmesh.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    FleetError,
    InvalidInput,
    NotFound,
    PermissionDenied,
    Unauthenticated,
    Unavailable,
)
from parlmesh.telemetry import get_logger

from . import number_format as figures
from .access import COOKIE, SESSION_SECONDS, Access, Visitor, same_origin
from .actions import ACTIONS
from .answer_cache import SharedAnswers
from .config import DashboardConfig
from .export import exported
from .fleet_calls import FRESH_SECONDS, Fleet
from .live_updates import MOST_STREAMS, Pulse
from .page_request import View
from .pages import NAVIGATION, PAGES

FOLDER = Path(__file__).parent
LARGEST_FORM_BYTES = 1 << 20
KEPT_SENTENCES = 100
STATUS: Mapping[type[FleetError], int] = {
    InvalidInput: 400,
    FailedPrecondition: 409,
    NotFound: 404,
    PermissionDenied: 403,
    Unauthenticated: 502,
    Unavailable: 503,
    DeadlineExceeded: 504,
}
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}

log = get_logger("parlmesh.dashboard")


@dataclass
class Site:
    """State that the handlers share."""

    config: DashboardConfig
    access: Access
    fleet: Fleet
    pulse: Pulse

    def __post_init__(self) -> None:
        self.streams = 0
        self._bodies = SharedAnswers(self.fleet.clock)
        self.stopping = False
        self._said: OrderedDict[str, str] = OrderedDict()
        self._number = 0
        self._templates = Environment(
            loader=FileSystemLoader(FOLDER / "templates"),
            autoescape=select_autoescape(default=True, default_for_string=True),
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters |= {"number": figures.number, "json": json.dumps}

    def view(self, page: str, query: Mapping[str, str], visitor: Visitor) -> View:
        return View(page, query, visitor, self.fleet, self.pulse, self.config)

    def say(self, sentence: str) -> str:
        """Keeps the sentence for the next page; returns its number."""
        self._number += 1
        self._said[str(self._number)] = sentence
        while len(self._said) > KEPT_SENTENCES:
            self._said.popitem(last=False)
        return str(self._number)

    async def body(self, view: View) -> tuple[str, int]:
        """The body of a page and its status; shared by all who view the same page at the same time."""
        key = ("body", view.page, tuple(sorted(view.query.items())), view.visitor.csrf, view.visitor.may_act)
        page = PAGES[view.page]

        async def render() -> tuple[str, int]:
            try:
                contents, status = await page.contents(view), 200
            except FleetError as error:
                contents = {"sentence": error.message}
                return self.render("trouble.html", view, contents), STATUS.get(type(error), 500)
            return self.render(page.template, view, contents), status

        # A separate cache: the questions a page asks are limited by the fleet's own.
        return await self._bodies.get(key, FRESH_SECONDS / 2, render)

    def render(self, template: str, view: View | None, contents: Mapping[str, Any]) -> str:
        return self._templates.get_template(template).render(view=view, **contents)

    async def whole(self, view: View) -> tuple[str, int]:
        """A whole page, with head and navigation."""
        body, status = await self.body(view)
        page = PAGES[view.page]
        return self.render(
            "layout.html",
            view,
            {
                "body": body,
                "page": page,
                "navigation": [(name, PAGES[name].title) for name in NAVIGATION],
                "said": self._said.get(view.asked("said"), ""),
                "live": view.link()[len(view.page) :],
                "login": self.access.needs_login,
            },
        ), status


def build(site: Site) -> Starlette:
    """The application under its prefix."""
    routes: list[BaseRoute] = [
        Route("/healthz", lambda request: PlainTextResponse("ok\n")),
        Route("/login", _bound(site, _login), methods=["GET", "POST"]),
        Route("/logout", _bound(site, _logout), methods=["POST"]),
        Route("/events", _bound(site, _events)),
        Route("/export", _bound(site, _export)),
        Route("/do/{action}", _bound(site, _act), methods=["POST"]),
        Mount("/static", StaticFiles(directory=FOLDER / "static")),
        *[Route(f"/{name}", _bound(site, _page), name=name or "overview") for name in PAGES],
    ]
    prefix = site.config.prefix.rstrip("/")
    if prefix:
        routes = [
            Route(prefix, lambda request: RedirectResponse(f"{prefix.rpartition('/')[2]}/", 308)),
            Mount(prefix, routes=routes),
        ]
    return Starlette(routes=routes, exception_handlers={HTTPException: _http_error})


def _bound(site: Site, handler: Any) -> Any:
    """Wraps the handler in the checks that all pages share."""

    async def checked(request: Request) -> Response:
        if not site.access.admits_host(request.headers.get("host", "")):
            return _safe(PlainTextResponse("this page is only for this machine; open it as http://127.0.0.1\n", 421))
        try:
            return _safe(await handler(site, request))
        except FleetError as error:
            return _safe(PlainTextResponse(error.message + "\n", STATUS.get(type(error), 500)))

    return checked


def _safe(response: Response) -> Response:
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    return response


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _safe(PlainTextResponse(f"{error.detail}\n", error.status_code))


def _name(request: Request) -> str:
    return str(request.url.path).rpartition("/")[2]


def _redirect(where: str) -> Response:
    """Redirects to a sibling page, whatever the path prefix is."""
    return RedirectResponse(where or "./", 303)


async def _page(site: Site, request: Request) -> Response:
    visitor = site.access.visitor(request.cookies)
    name = _name(request)
    if visitor is None:
        query = f"{name}?{request.url.query}" if request.url.query else name
        return _redirect(f"login?{urlencode({'to': query})}")
    with site.pulse.watched():
        await site.pulse.fresh()
        html, status = await site.whole(site.view(name, dict(request.query_params), visitor))
    return HTMLResponse(html, status)


async def _events(site: Site, request: Request) -> Response:
    visitor = site.access.visitor(request.cookies)
    name = request.query_params.get("page", "")
    if visitor is None:
        return PlainTextResponse("log in first\n", 401)
    if name not in PAGES:
        return PlainTextResponse("there is no such page\n", 404)
    if site.streams >= MOST_STREAMS or site.stopping:
        return PlainTextResponse("too many pages are open\n", 503, headers={"retry-after": "10"})
    query = {key: value for key, value in request.query_params.items() if key != "page"}
    return StreamingResponse(
        _stream(site, site.view(name, query, visitor), request),
        media_type="text/event-stream",
        headers={"x-accel-buffering": "no"},
    )


async def _stream(site: Site, view: View, request: Request) -> AsyncIterator[str]:
    """Sends the body of the page whenever it has changed, else a comment, so that a dead connection is noticed."""
    site.streams += 1
    last = ""
    seen = site.pulse.looks
    try:
        with site.pulse.watched():
            while not site.stopping:
                seen = await site.pulse.next(seen)
                if site.access.visitor(request.cookies) is None:
                    # Logged out, or the token was removed.
                    yield "event: end\ndata: {}\n\n"
                    return
                body, _ = await site.body(view)
                yield f"data: {json.dumps(body)}\n\n" if body != last else ": nothing new\n\n"
                last = body
    finally:
        site.streams -= 1


async def _export(site: Site, request: Request) -> Response:
    visitor = site.access.visitor(request.cookies)
    if visitor is None:
        return PlainTextResponse("log in first\n", 401)
    text, kind, file = await exported(site.view("tasks", dict(request.query_params), visitor))
    return Response(text, media_type=kind, headers={"content-disposition": f'attachment; filename="{file}"'})


async def _act(site: Site, request: Request) -> Response:
    visitor = site.access.visitor(request.cookies)
    action = request.path_params["action"]
    if visitor is None or action not in ACTIONS:
        return PlainTextResponse("log in first\n", 401) if visitor is None else PlainTextResponse("unknown\n", 404)
    form = await _form(request)
    if not site.access.own_form(visitor, "".join(form.get("csrf", ())), request.headers):
        log.warning("form_refused", action=action, visitor=visitor.name, origin=request.headers.get("origin", ""))
        return PlainTextResponse("this form is not from a page of ours, or is too old; open the page again\n", 403)
    if not visitor.may_act:
        log.warning("action_refused", action=action, visitor=visitor.name)
        return PlainTextResponse("only operators may change something here\n", 403)
    perform, page = ACTIONS[action]
    query = {key: values[0] for key, values in parse_qs("".join(form.get("query", ()))).items()}
    view = site.view(page, query, visitor)
    try:
        sentence = await perform(view, form)
    except FleetError as error:
        sentence = f"nothing was changed: {error.message}"
    log.info("acted", action=action, visitor=visitor.name, result=sentence)
    where = view.link()
    said = site.say(sentence)
    # One folder up from do/…, whatever the path prefix is.
    return _redirect(f"../{where}{'&' if '?' in where else '?'}said={said}")


async def _form(request: Request) -> dict[str, list[str]]:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > LARGEST_FORM_BYTES:
            raise InvalidInput(f"the form is larger than {LARGEST_FORM_BYTES:,} bytes")
    try:
        return parse_qs(body.decode(), max_num_fields=20_000)
    except ValueError:
        raise InvalidInput("the form cannot be read") from None


async def _login(site: Site, request: Request) -> Response:
    to = request.query_params.get("to", "")[:1_000]
    # Only one of our own pages, so that the redirect cannot lead elsewhere.
    target = to if to.partition("?")[0] in PAGES else ""
    if not site.access.needs_login or site.access.visitor(request.cookies) is not None:
        return _redirect(target)
    sentence, status = "", 200
    if request.method == "POST":
        peer = site.access.address(request.client.host if request.client is not None else "", request.headers)
        if site.access.throttled(peer) or not same_origin(request.headers):
            return PlainTextResponse("too many wrong tokens, or a form of another site; try again in a minute\n", 429)
        token = "".join((await _form(request)).get("token", ())).strip()
        session_id = site.access.log_in(token, peer)
        if session_id:
            log.info("logged_in", peer=peer)
            response = _redirect(target)
            response.set_cookie(
                COOKIE,
                session_id,
                max_age=int(SESSION_SECONDS),
                path=None,
                secure=site.access.secure,
                httponly=True,
                samesite="strict",
            )
            return response
        log.warning("login_refused", peer=peer)
        sentence, status = "this token gives no access here; it must be an operator's or a reader's", 403
    return HTMLResponse(site.render("login.html", None, {"sentence": sentence, "to": to}), status)


async def _logout(site: Site, request: Request) -> Response:
    visitor = site.access.visitor(request.cookies)
    form = await _form(request)
    if visitor is not None and site.access.own_form(visitor, "".join(form.get("csrf", ())), request.headers):
        site.access.log_out(visitor.session)
    return _redirect("login")
