"""The page at /: three files, read once. They hold no secret, so they need no key; nothing of other origins runs."""

from __future__ import annotations

from importlib.resources import files

from starlette.types import Receive, Scope, Send

from octavo.server.config import ServerConfig
from octavo.server.exchange import Exchange

# path -> (file beside this module, its type)
FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}
# Scripts and styles are files of this origin alone; no text becomes markup (trusted types), nothing may frame the page.
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    )
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}


class Page:
    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        root = files("octavo.server") / "page"
        self._files = {path: ((root / name).read_bytes(), kind) for path, (name, kind) in FILES.items()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, kind = self._files[scope["path"]]
        await Exchange(scope, receive, send, self._config).answer_bytes(body, kind, headers=HEADERS)
