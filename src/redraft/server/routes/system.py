"""Models, tokens, health, version, metrics."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from starlette.responses import PlainTextResponse, Response

import redraft
from redraft.server.errors import ApiError
from redraft.server.metrics import CONTENT_TYPE
from redraft.server.protocol.messages import template_messages
from redraft.server.protocol.text import Detokenized, DetokenizeRequest, Tokenized, TokenizeRequest
from redraft.server.routes.common import new_router, service_of
from redraft.server.service import Service
from redraft.server.wire import JsonResponse

router = new_router("Operations")


def _model(service: Service) -> dict[str, Any]:
    """OpenAI's object, and under `redraft` what a reader of the canvas channel needs to know of the model."""
    own = {
        "version": redraft.__version__,
        "special_ids": sorted(service.prompts.tokenizer.special_ids),
        "modes": service.modes,
    }
    return {"id": service.name, "object": "model", "created": service.created, "owned_by": "redraft", "redraft": own}


@router.get("/v1/models")
async def models(request: Request) -> Response:
    """The one model that is served."""
    return JsonResponse({"object": "list", "data": [_model(service_of(request))]})


@router.get("/v1/models/{model:path}")
async def model(request: Request, model: str) -> Response:
    service = service_of(request)
    service.require_model(model)
    return JsonResponse(_model(service))


@router.post("/tokenize", response_model=Tokenized)
async def tokenize(request: Request, body: TokenizeRequest) -> Response:
    """Token ids of a text, or of a conversation as the model would be given it."""
    service = service_of(request)
    service.require_model(body.model)
    if (body.text is None) == (body.messages is None):
        raise ApiError(400, "give either text or messages", param="text")
    if body.messages is not None:
        ids = await service.prompts.chat(template_messages(body.messages))
    else:
        ids = await service.prompts.encode(body.text or "")
    return JsonResponse({"tokens": ids, "count": len(ids), "texts": [service.prompts.text_of(token) for token in ids]})


@router.post("/detokenize", response_model=Detokenized)
async def detokenize(request: Request, body: DetokenizeRequest) -> Response:
    """The text of token ids; control ids, and those that are no token, give none."""
    service = service_of(request)
    service.require_model(body.model)
    return JsonResponse({"text": await service.prompts.decode(body.tokens)})


@router.get("/health")
async def health(request: Request) -> Response:
    """200 while the engine answers, 503 while it loads and when it is gone."""
    trouble = service_of(request).trouble
    if trouble is not None:
        raise ApiError(503, trouble, code="unhealthy")
    return JsonResponse({"status": "ok"})


@router.get("/ready")
async def ready(request: Request) -> Response:
    """200 while new requests are taken; 503 also while the server is being stopped."""
    service_of(request).engine  # noqa: B018 - raises
    return JsonResponse({"status": "ready"})


@router.get("/version")
async def version() -> Response:
    return JsonResponse({"version": redraft.__version__})


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(request: Request) -> Response:
    """For Prometheus."""
    return Response(await service_of(request).statistics_page(), headers={"Content-Type": CONTENT_TYPE})
