"""The pages and what they are made of: files of the package, read once."""

from importlib.resources import files
from pathlib import PurePath

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from chatmill.app.server.errors import Refusal

KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
PAGES = {"/": "chat.html", "/runs": "runs.html"}


def routes() -> list[Route]:
    """A route for each page, and one for all that they are made of."""
    here = files("chatmill.app.server").joinpath("static").iterdir()
    contents = {file.name: file.read_bytes() for file in here if PurePath(file.name).suffix in KINDS}

    async def asset(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in contents:
            raise Refusal(404, f"{name!r:.100}: there is no such file")
        return _response(name, contents[name])

    def page(name: str) -> Route:
        async def show(_: Request) -> Response:
            return _response(PAGES[name], contents[PAGES[name]])

        return Route(name, show)

    return [*(page(name) for name in PAGES if PAGES[name] in contents), Route("/assets/{name}", asset)]


def _response(name: str, content: bytes) -> Response:
    return Response(content, media_type=KINDS[PurePath(name).suffix], headers={"Cache-Control": "no-cache"})
