"""What browsers get: the playground, and the API's description. Nothing comes from elsewhere, and no page may load
anything from elsewhere."""

from __future__ import annotations

import importlib.resources
from collections.abc import Awaitable, Callable
from pathlib import Path

from fastapi import APIRouter, FastAPI
from starlette.responses import FileResponse, HTMLResponse, Response
from starlette.staticfiles import StaticFiles

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


@docs.get("/docs")
async def docs_page() -> Response:
    return HTMLResponse(DOCS, headers={"content-security-policy": WITH_STYLES})


@docs.get("/docs/start.js")
async def docs_start() -> Response:
    return Response(START, media_type="text/javascript")


def add_pages(app: FastAPI, web: Path = WEB) -> frozenset[str]:
    """Adds the API's description, and each file of the playground under its own path, its index.html as `/` too.
    Returns the paths of the playground: they hold nothing of anybody's, and need no key."""
    app.include_router(docs)
    swagger = Path(str(importlib.resources.files("fastapi_offline"))) / "static"
    app.mount("/docs/static", StaticFiles(directory=swagger))
    files = {f"/{file.relative_to(web).as_posix()}": file for file in sorted(web.rglob("*")) if file.is_file()}
    if "/index.html" in files:
        files["/"] = files["/index.html"]
    for path, file in files.items():
        app.add_api_route(path, _sender(file), include_in_schema=False)
    return frozenset(files)


def _sender(file: Path) -> Callable[[], Awaitable[Response]]:
    async def send() -> Response:
        return FileResponse(file, headers={"content-security-policy": STRICT, "cache-control": "no-cache"})

    return send
