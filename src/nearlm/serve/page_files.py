"""The inspector page's files: read once from the package, so that no path of a request reaches the file system."""

from importlib.resources import files
from typing import NamedTuple

from fastapi import FastAPI, Response
from starlette.exceptions import HTTPException

_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
}


class PageFile(NamedTuple):
    """A file of the page."""

    content: bytes
    media_type: str


def read_page() -> dict[str, PageFile]:
    """Read the files of the page, by name."""
    found = [path for path in files("nearlm.serve").joinpath("page").iterdir() if path.is_file()]
    return {
        path.name: PageFile(path.read_bytes(), _TYPES[path.name.rpartition(".")[2]])
        for path in found
        if path.name.rpartition(".")[2] in _TYPES
    }


def add_page(app: FastAPI) -> None:
    """Serve the page at / and its other files at /assets/NAME."""
    page = read_page()

    def respond(name: str) -> Response:
        if name not in page:
            raise HTTPException(404, "the page has no such file")
        return Response(page[name].content, media_type=page[name].media_type, headers=HEADERS)

    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        return respond("index.html")

    @app.get("/assets/{name}", include_in_schema=False)
    async def asset(name: str) -> Response:
        return respond(name)
