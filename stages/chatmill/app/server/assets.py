"""The pages and their scripts and styles: files of the package, read once."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import PurePath

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from chatmill.app.server.api_errors import ApiError

SCRIPT = "text/javascript"
MEDIA_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": SCRIPT,
    ".mjs": SCRIPT,
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".webmanifest": "application/manifest+json",
}
PAGES = {"/": "chat/chat.html", "/runs": "runs/runs.html"}
WORKER = "offline/worker.js"


def routes() -> list[Route]:
    """One route for each page, and one for all scripts and styles."""
    contents = dict(sorted(_contents(files("chatmill.app.server").joinpath("static"))))
    if WORKER in contents:
        contents[WORKER] = _release(contents) + contents[WORKER]

    async def asset(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in contents:  # a name is looked up, never opened, so no path leads out of the folder
            raise ApiError(404, f"{name!r:.100}: no such file")
        return _response(name, contents[name])

    def page(name: str) -> Route:
        async def show(_: Request) -> Response:
            return _response(PAGES[name], contents[PAGES[name]])

        return Route(name, show)

    return [*(page(name) for name in PAGES if PAGES[name] in contents), Route("/assets/{name:path}", asset)]


def _contents(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        name = f"{prefix}{entry.name}"
        if entry.is_dir():
            yield from _contents(entry, f"{name}/")
        elif PurePath(name).suffix in MEDIA_TYPES:
            yield name, entry.read_bytes()


def _release(contents: Mapping[str, bytes]) -> bytes:
    """The first line of the service worker: the addresses of all files, and a version that changes with any of them."""
    version = hashlib.sha256(b"".join(b"%b %d %b" % (name.encode(), len(one), one) for name, one in contents.items()))
    addresses = [*PAGES, *(f"/assets/{name}" for name in contents if name not in (WORKER, *PAGES.values()))]
    return (
        f"globalThis.RELEASE = {json.dumps({'version': version.hexdigest()[:16], 'addresses': addresses})};\n".encode()
    )


def _response(name: str, content: bytes) -> Response:
    headers = {"Cache-Control": "no-cache"} | ({"Service-Worker-Allowed": "/"} if name == WORKER else {})
    return Response(content, media_type=MEDIA_TYPES[PurePath(name).suffix], headers=headers)
