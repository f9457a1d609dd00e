"""The application has the paths that are answered by HTTP: metrics and health (H19), the API and the console."""

from __future__ import annotations

from http import HTTPStatus

from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import PlainTextResponse
from prometheus_client.exposition import choose_encoder
from starlette.exceptions import HTTPException

from coordinator.http import acting, console
from coordinator.http.access import CHALLENGE, Access
from coordinator.http.api import Asking, routes
from coordinator.http.document import Documented
from coordinator.http.entrance import entrance
from coordinator.http.forms import forms
from coordinator.http.live import Live, events
from coordinator.http.problems import Problem, Refused, invalid
from coordinator.http.sessions import Sessions
from coordinator.http.underway import Underway
from coordinator.operations import ROOT
from coordinator.process.measuring import Measuring
from coordinator.process.metrics import registry
from coordinator.version import VERSION

_METHODS = ["GET", "HEAD"]
_EXPECTED = {
    HTTPStatus.NOT_FOUND: f"/metrics, /healthz, /readyz, /console or {ROOT}/openapi.json",
    HTTPStatus.METHOD_NOT_ALLOWED: "GET or HEAD",
    HTTPStatus.HTTP_VERSION_NOT_SUPPORTED: "HTTP/1.0 or HTTP/1.1",
}


def application(measuring: Measuring, access: Access, asking: Asking, acts: acting.Acting) -> FastAPI:
    """Return what answers requests: for metrics with the last poll of ``measuring``, for the API with what the store
    has.
    """
    app = Documented(
        title="coordinator",
        version=VERSION,
        openapi_url=f"{ROOT}/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        dependencies=[Depends(_speaks_http_1)],
    )
    app.add_exception_handler(HTTPException, _not_here)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(Refused, _refused)

    # In the loop's own thread, as all that asks the store nothing: other threads may wait for the store.
    @app.api_route("/metrics", methods=_METHODS, include_in_schema=False)
    async def metrics(request: Request) -> Response:
        if not access.shown(request):
            return PlainTextResponse("expected the token of metrics.token\n", 401, CHALLENGE)
        seen = measuring.figures()
        if seen is None:
            return PlainTextResponse("the store is not looked at yet\n", 503)
        encode, kind = choose_encoder(request.headers.get("Accept", ""))
        figures = registry(seen, measuring.workers, disk_low=measuring.disk_low)
        return Response(encode(figures), media_type=kind)

    @app.api_route("/livez", methods=_METHODS, include_in_schema=False)
    @app.api_route("/healthz", methods=_METHODS, include_in_schema=False)
    async def healthz() -> Response:
        return PlainTextResponse("ok\n")

    @app.api_route("/readyz", methods=_METHODS, include_in_schema=False)
    async def readyz() -> Response:
        lines = measuring.wanting()
        return PlainTextResponse("".join(f"{line}\n" for line in lines or ["ok"]), 503 if lines else 200)

    app.state.asking, app.state.acting = asking, acts
    for router in (routes, acting.routes):
        app.include_router(router, dependencies=[Depends(access.admit)])
    app.state.access, app.state.measuring, app.state.sessions = access, measuring, Sessions()
    app.state.underway, app.state.live = Underway(acts), Live(measuring)
    for pages in (entrance, console.pages, forms, events):
        app.include_router(pages)
    return app


async def _speaks_http_1(request: Request) -> None:
    if request.scope["http_version"] not in ("1.0", "1.1"):
        raise HTTPException(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED)


async def _not_here(request: Request, error: Exception) -> Response:
    """Answer another path or method, without quoting it."""
    assert isinstance(error, HTTPException)
    status = HTTPStatus(error.status_code)
    answer: Response
    if request.url.path.startswith(f"{ROOT}/"):
        answer = Problem(status, f"expected what {ROOT}/openapi.json has")
    else:
        answer = PlainTextResponse(f"expected {_EXPECTED[status]}\n", status)
    answer.headers.update(error.headers or {})
    return answer


async def _invalid(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return await _refused(_request, invalid(error.errors()))


async def _refused(_request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    answer = Problem(error.status, str(error))
    answer.headers.update(CHALLENGE if error.status is HTTPStatus.UNAUTHORIZED else {})
    return answer
