"""The HTTP application: OpenAI's routes, and those that show the memory."""

import asyncio
import json
import math
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.exceptions import HTTPException

from nearlm.serve.answers import Json
from nearlm.serve.catalog import Catalog
from nearlm.serve.completion import Counter, Order, answer, as_error, chunks, echoed, events
from nearlm.serve.errors import APIError
from nearlm.serve.guard import Guard
from nearlm.serve.limits import Limits
from nearlm.serve.metrics import Metrics
from nearlm.serve.page_files import add_page
from nearlm.serve.requests import ChatRequest, CompletionRequest, ScoreRequest
from nearlm.serve.tasks import PromptRead

_TYPES = ("str", "int", "float", "bool")
Number = Annotated[int, Query(ge=0, le=1 << 31)]


def make_app(
    catalog: Catalog, limits: Limits, metrics: Metrics, key: str | None = None, *, any_host: bool = False
) -> FastAPI:
    """Make the application for a catalog whose engines run."""
    app = FastAPI(title="nearlm", docs_url=None, redoc_url=None, openapi_url="/openapi.json")
    counter = Counter(catalog, limits)
    _add_errors(app)
    _add_openai(app, catalog, counter)
    _add_memory(app, catalog, counter)
    _add_operation(app, metrics)
    add_page(app)
    app.add_middleware(Guard, metrics=metrics, max_body_bytes=limits.max_body_bytes, key=key, any_host=any_host)
    return app


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(APIError)
    async def refused(request: Request, error: APIError) -> JSONResponse:
        return JSONResponse(error.to_json(), error.status, error.headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        return await refused(request, _invalid(error.errors()))

    @app.exception_handler(HTTPException)
    async def unknown(request: Request, error: HTTPException) -> JSONResponse:
        return await refused(request, APIError(error.status_code, str(error.detail)))

    @app.exception_handler(Exception)
    async def broken(request: Request, error: Exception) -> JSONResponse:
        return await refused(request, APIError(500, "the server failed; its log says why", code="internal_error"))


def _invalid(errors: Sequence[Any]) -> APIError:
    """Say what is wrong with the first wrong field; of a field of several types, what each of them expects."""
    places = [_place(one["loc"]) for one in errors]
    wrong = [one["msg"] for one, place in zip(errors, places, strict=True) if place == places[0]]
    param = places[0][:100] or None
    message = " or ".join(dict.fromkeys(map(str, wrong)))
    return APIError(400, (f"{param}: {message}" if param else message)[:500], param, "invalid_value")


def _place(location: Sequence[Any]) -> str:
    """Return the path of a field in a body, without the names of types that pydantic adds."""
    parts = (str(part) for part in location if part not in ("body", "query", "path"))
    return ".".join(part for part in parts if part not in _TYPES and "[" not in part)


def _add_openai(app: FastAPI, catalog: Catalog, counter: Counter) -> None:
    @app.get("/v1/models")
    async def models() -> Json:
        return {"object": "list", "data": [_model(name) for name in catalog.names]}

    @app.get("/v1/models/{name}")
    def model(name: str) -> Json:
        catalog.choose(name)
        return _model(name)

    @app.post("/v1/completions")
    async def completions(request: Request, asked: CompletionRequest) -> Response:
        order = await asyncio.to_thread(counter.completion, asked)
        return await _respond(request, order, bool(asked.stream), asked.with_usage)

    @app.post("/v1/chat/completions")
    async def chat(request: Request, asked: ChatRequest) -> Response:
        order = await asyncio.to_thread(counter.chat, asked)
        return await _respond(request, order, bool(asked.stream), asked.with_usage)


def _model(name: str) -> Json:
    return {"id": name, "object": "model", "created": 0, "owned_by": "nearlm"}


def _add_memory(app: FastAPI, catalog: Catalog, counter: Counter) -> None:
    @app.post("/v1/nearlm/score")
    async def score(request: Request, asked: ScoreRequest) -> Response:
        order = await asyncio.to_thread(counter.score, asked.model, asked.text, asked.nearlm)
        return JSONResponse(await _while_listening(request, _score(order, asked.text)))

    @app.get("/v1/nearlm/stores")
    def stores() -> Json:
        return {"stores": [served.describe() for served in catalog.stores.values()], "together": catalog.together}

    @app.get("/v1/nearlm/stores/{name}/documents")
    def documents(
        name: str,
        query: Annotated[str, Query(max_length=200)] = "",
        offset: Number = 0,
        limit: Annotated[int, Query(ge=0, le=500)] = 50,
    ) -> Json:
        found = catalog.store(name).documents
        hits = found.search(query)
        shown = [found.describe(number) for number in hits.numbers[offset : offset + limit]]
        return {"total": len(hits.numbers), "complete": hits.complete, "documents": shown}

    @app.get("/v1/nearlm/stores/{name}/documents/{number}")
    def document(name: str, number: int) -> Json:
        found = catalog.store(name).documents
        text = found.text(number)
        return {"name": found.names[number], "text": text}


def _add_operation(app: FastAPI, metrics: Metrics) -> None:
    @app.get("/health")
    async def health() -> Json:
        return {"status": "ok"}

    @app.get("/metrics")
    async def prometheus() -> Response:
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


async def _respond(request: Request, order: Order, stream: bool, with_usage: bool) -> Response:
    if not stream:
        return JSONResponse(await _while_listening(request, answer(order)))
    parts = chunks(order, with_usage)
    first = await _while_listening(request, anext(parts))  # what is refused is refused before a stream begins
    return StreamingResponse(_lines(first, parts), media_type="text/event-stream")


async def _lines(first: Json, parts: AsyncIterator[Json]) -> AsyncIterator[bytes]:
    """Write the parts of an answer as server-sent events; an error is the last of them."""
    try:
        yield _line(first)
        async for part in parts:
            yield _line(part)
        yield b"data: [DONE]\n\n"
    except Exception as error:
        yield _line(as_error(error).to_json())
    finally:
        await parts.aclose()  # type: ignore[attr-defined]


def _line(part: Json) -> bytes:
    return b"data: " + json.dumps(part, ensure_ascii=False).encode("utf-8", "replace") + b"\n\n"


async def _while_listening(request: Request, work: Any) -> Any:
    """Do some work unless the client goes away before it is done."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise APIError(499, "the client went away")
        return task.result()
    finally:
        task.cancel()
        gone.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _score(order: Order, text: str) -> Json:
    """Score a text: every token explained, and what that makes for all of them."""
    tokens = []
    async for _, event in events(order):
        if isinstance(event, PromptRead):
            tokens = order.style.explained(echoed(order, 0, event).tokens)
    log_p = sum(math.log(max(token["p"], 1e-300)) for token in tokens)
    log_lm = sum(math.log(max(token["p_lm"], 1e-300)) for token in tokens)
    return {
        "model": order.style.model,
        "tokens": tokens,
        "tokens_count": len(tokens),
        "bits_per_byte": -log_p / math.log(2) / max(1, len(text.encode("utf-8", "replace"))),
        "perplexity": math.exp(-log_p / len(tokens)),
        "perplexity_lm": math.exp(-log_lm / len(tokens)),
    }
