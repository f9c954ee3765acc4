"""A running server as commands see it: GETs with the key of the environment; what goes wrong is one line."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlsplit

from octavo.errors import EngineError, PolicyError, RequestError, ResourceError, UsageError

HOME = "http://127.0.0.1:8737"
HELP = f"of the server (default: OCTAVO_URL, else {HOME}); its key is OCTAVO_API_KEY"
SECONDS = 10.0


class Remote:
    """url: with or without /v1. Raises UsageError for what is no address."""

    def __init__(self, url: str | None) -> None:
        self.url = (url or os.environ.get("OCTAVO_URL") or HOME).rstrip("/").removesuffix("/v1")
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"{self.url}: a server's address is like {HOME}", param="url")
        self._key = os.environ.get("OCTAVO_API_KEY", "").strip()

    def json(self, path: str) -> Any:
        return json.loads(self.text(path))

    def text(self, path: str) -> str:
        """Raises ResourceError (nobody answers), PolicyError (the key), RequestError (what the server says)."""
        headers = {"authorization": f"Bearer {self._key}"} if self._key else {}
        asked = urllib.request.Request(f"{self.url}/{path}", headers=headers)
        try:
            with urllib.request.urlopen(asked, timeout=SECONDS) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as error:
            raise self._refusal(error) from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            reason = getattr(reason, "strerror", None) or reason  # without the number that the system gives it
            raise ResourceError(
                f"no server answers at {self.url} ({reason}): start one with `octavo serve MODEL`, or name its URL",
                code="no_server",
            ) from None

    def _refusal(self, error: urllib.error.HTTPError) -> Exception:
        if error.code == 401:
            return PolicyError(f"{self.url} needs an API key: put it into OCTAVO_API_KEY", code="invalid_api_key")
        try:
            said = json.loads(error.read())["error"]["message"]
        except (ValueError, KeyError, TypeError):
            said = f"{self.url} answered {error.code}; is it an Octavo server?"
        return RequestError(said) if error.code < 500 else EngineError(said)
