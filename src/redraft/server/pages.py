"""What browsers get: the playground, and the API's description. Nothing comes from elsewhere, and no page may load
anything from elsewhere."""

from __future__ import annotations

import importlib.resources
from pathlib import Path

from fastapi import APIRouter, FastAPI
from starlette.datastructures import Headers
from starlette.responses import HTMLResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Message, Receive, Scope, Send

WEB = Path(__file__).parent / "web"
STRICT = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "font-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
)
WITH_STYLES = STRICT.replace("style-src 'self'", "style-src 'self' 'unsafe-inline'")  # Swagger UI sets some itself
DOCS = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>Redraft API</title>
<link rel="stylesheet" href="docs/static/swagger-ui.css">
</head>
<body>
<div id="swagger-ui"></div>
<script src="docs/static/swagger-ui-bundle.js"></script>
<script src="docs/start.js"></script>
</body>
</html>
"""
START = 'SwaggerUIBundle({url: "openapi.json", dom_id: "#swagger-ui", deepLinking: true})\n'

docs = APIRouter(include_in_schema=False)


class LockedFiles:
    """Static files under a Content-Security-Policy; a folder's index.html stands for it."""

    def __init__(self, folder: Path) -> None:
        self._files = StaticFiles(directory=folder, html=True)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def locked(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = Headers(raw=message["headers"]).mutablecopy()
                headers["content-security-policy"] = STRICT
                headers["cache-control"] = "no-cache"
                message = {**message, "headers": headers.raw}
            await send(message)

        await self._files(scope, receive, locked)


@docs.get("/docs")
async def docs_page() -> Response:
    return HTMLResponse(DOCS, headers={"content-security-policy": WITH_STYLES})


@docs.get("/docs/start.js")
async def docs_start() -> Response:
    return Response(START, media_type="text/javascript")


def add_pages(app: FastAPI, web: Path = WEB) -> None:
    """To be called last, since the playground's folder answers to every path that nothing else does."""
    app.include_router(docs)
    swagger = Path(str(importlib.resources.files("fastapi_offline"))) / "static"
    app.mount("/docs/static", StaticFiles(directory=swagger))
    if web.is_dir():
        app.mount("/", LockedFiles(web))


def public(path: str, web: Path = WEB) -> bool:
    """Whether a path needs no key: health, and the files of the playground, which hold nothing of anybody's."""
    if path in ("/health", "/ready"):
        return True
    target = (web / path.lstrip("/")).resolve()
    return (path == "/" or target.is_file()) and target.is_relative_to(web.resolve()) and web.is_dir()
