"""The application: routes, and what stands around them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response

import redraft
from redraft.server.errors import of_route, of_validation
from redraft.server.guard import Guard
from redraft.server.logs import log
from redraft.server.pages import add_pages
from redraft.server.routes import chat, completions, responses, system
from redraft.server.service import Service
from redraft.server.store import Store
from redraft.server.wire import error_response

ROUTERS = (chat.router, completions.router, responses.router, system.router)


def make_app(service: Service, failed: Callable[[Exception], None]) -> FastAPI:
    """The ASGI application over a service, whose engine it starts and stops. failed: told when that can't be loaded."""

    store = Store(service.settings.stored_responses)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None, None]:
        loading = asyncio.create_task(_load(service, failed))
        try:
            yield
        finally:
            loading.cancel()
            await asyncio.wait({loading})
            await store.close()
            await service.close()

    app = FastAPI(
        title="Redraft", version=redraft.__version__, docs_url=None, redoc_url=None, lifespan=lifespan,
        description="Editable block-diffusion language models behind OpenAI's API.",
    )  # fmt: skip
    app.state.service, app.state.store = service, store
    for router in ROUTERS:
        app.include_router(router)
    app.openapi = lambda: _described(app)
    open_to_all = add_pages(app) | {"/health", "/ready"}
    app.add_exception_handler(RequestValidationError, _refused)
    app.add_exception_handler(HTTPException, _told)
    app.add_middleware(Guard, settings=service.settings, metrics=service.metrics, open_to_all=open_to_all)
    if service.settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(service.settings.cors_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type", "X-Request-ID"],
            expose_headers=["X-Request-ID", "Retry-After"],
        )
    return app


def _described(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document. What doesn't fit its schema is a 400 here, like all else that can't be."""
    if app.openapi_schema is None:
        app.openapi_schema = FastAPI.openapi(app)
        for path in app.openapi_schema["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
    return app.openapi_schema


async def _load(service: Service, failed: Callable[[Exception], None]) -> None:
    try:
        await service.load()
    except Exception as error:  # noqa: BLE001 - whatever it is, the server ends with it
        log.error("the model can't be loaded: %s", error)
        failed(error)


async def _refused(_: Request, error: Any) -> Response:
    return error_response(of_validation(error.errors(), error.body))


async def _told(request: Request, error: Exception) -> Response:
    return error_response(of_route(error, request.method, request.url.path))
