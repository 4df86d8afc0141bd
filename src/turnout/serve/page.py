"""The page that shows federations, rounds and fairness: three files, and nothing from elsewhere."""

from __future__ import annotations

from importlib.resources import files

from fastapi import APIRouter, Response

router = APIRouter(include_in_schema=False)

_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


@router.get("/")
def index() -> Response:
    """Return the page."""
    return _file("page.html", "text/html")


@router.get("/page.js")
def script() -> Response:
    """Return its script."""
    return _file("page.js", "text/javascript")


@router.get("/page.css")
def style() -> Response:
    """Return its style."""
    return _file("page.css", "text/css")


def _file(name: str, media_type: str) -> Response:
    content = files("turnout.serve").joinpath("pagefiles", name).read_bytes()
    return Response(content, media_type=f"{media_type}; charset=utf-8", headers=_HEADERS)
