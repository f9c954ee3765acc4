"""API keys: their digests, whose they are, and what each may ask. A key itself is forgotten once it is read.

A key file has one key a line, and after it what is said of it alone:

    KEY [name=NAME] [max-requests=N] [max-queued-tokens=N] [requests-per-minute=N] [tokens-per-minute=N]
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

from octavo.errors import ConfigError, MissingFileError

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """Of one key; None is no limit. max_requests: open at once. max_queued_tokens: of prompts that wait.

    requests_per_minute, tokens_per_minute (prompts and outputs): filled evenly, and saved up for a minute at most.
    """

    max_requests: int | None = None
    max_queued_tokens: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None

    def over(self, common: KeyLimits) -> KeyLimits:
        """Those of all keys, where this one has none of its own."""
        own = {name: value for name in LIMITS if (value := getattr(self, name)) is not None}
        return replace(common, **own)

    def checked(self, where: str) -> KeyLimits:
        """Raises ConfigError."""
        for name in LIMITS:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{where}{name.replace('_', '-')} must be at least 1, not {value}", param=name)
        return self


NO_LIMITS = KeyLimits()
LIMITS = tuple(each.name for each in fields(KeyLimits))


@dataclass(frozen=True, slots=True)
class Key:
    """owner: a name, or the beginning of the digest: what logs and caches know of it."""

    digest: bytes
    owner: str
    limits: KeyLimits = NO_LIMITS

    @classmethod
    def of(cls, key: str, name: str = "", limits: KeyLimits | None = None) -> Key:
        digest = key_digest(key)
        return cls(digest, name or digest.hex()[:16], limits or NO_LIMITS)


def key_digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def owner_of(key: str, keys: Iterable[Key]) -> str | None:
    """None for a key that is none of them. Takes as long whichever it is."""
    given, owner = key_digest(key), None
    for known in keys:
        if hmac.compare_digest(given, known.digest):
            owner = known.owner
    return owner


def read_keys(file: str | None, environ: Mapping[str, str]) -> tuple[Key, ...]:
    """From a file and from OCTAVO_API_KEY, never from arguments that `ps` shows. Raises ConfigError,
    MissingFileError, which say the line and never a key."""
    keys = [Key.of(environ["OCTAVO_API_KEY"].strip())] if environ.get("OCTAVO_API_KEY", "").strip() else []
    if file is None:
        return tuple(keys)
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise MissingFileError(f"{file}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: not UTF-8 (offset {error.start})") from None
    found = [_parsed(line, f"{file}: line {number}: ") for number, line in enumerate(lines, 1) if _holds_key(line)]
    if not found:
        raise ConfigError(f"{file}: no key in it")
    for each in found:
        if sum(other.digest == each.digest or other.owner == each.owner for other in found) > 1:
            raise ConfigError(f"{file}: two lines have the same key or name: {each.owner}")
    return (*keys, *(each for each in found if all(each.digest != key.digest for key in keys)))


def _holds_key(line: str) -> bool:
    return bool(line.strip()) and not line.startswith("#")


def _parsed(line: str, where: str) -> Key:
    key, *words = line.split()
    name, limits = "", {}
    for word in words:
        field, equals, value = word.partition("=")
        known = field.replace("-", "_")
        if not equals or (field != "name" and known not in LIMITS):
            names = ", ".join(("name", *(each.replace("_", "-") for each in LIMITS)))
            raise ConfigError(f"{where}after the key come {names}, each with = and a value")
        if field == "name":
            if _NAME.fullmatch(value) is None:
                raise ConfigError(f"{where}a name is up to 64 letters, digits and . _ -")
            name = value
        elif not re.fullmatch("[0-9]{1,12}", value):
            raise ConfigError(f"{where}{field} is a whole number")
        else:
            limits[known] = int(value)
    return Key.of(key, name, KeyLimits(**limits).checked(where))
