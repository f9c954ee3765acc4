"""Wrong keys by address: who has tried too many is believed no new key for a while.

A key that the address has used before goes on being let in, so that one client with an old key locks out nobody who
shares its address; any other key is not looked at, right or wrong. What is remembered is bounded.
"""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import TypeVar

from octavo.server.bucket import Bucket

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
REMEMBERED = 4096  # addresses, and keys that were right


class Attempts:
    """per_minute: wrong keys of one address, 0 for no bound. clock: seconds, any origin."""

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._wrong: OrderedDict[str, Bucket] = OrderedDict()
        self._right: OrderedDict[tuple[str, str], None] = OrderedDict()

    def wait(self, address: str, owner: str | None) -> int:
        """Seconds until a key from there is looked at again, 0 for one that is looked at now. owner: None for a wrong
        one, which counts."""
        place = _place(address)
        if owner is not None and (place, owner) in self._right:
            self._right.move_to_end((place, owner))
            return 0
        wrong = self._wrong.get(place)
        if wrong is not None and (seconds := wrong.wait(1)) > 0:
            return seconds
        if owner is not None:
            _remember(self._right, (place, owner), None)
        elif self._per_minute:
            wrong = wrong or Bucket(self._per_minute, self._clock)
            wrong.take(1)
            _remember(self._wrong, place, wrong)
        return 0


def _remember(kept: OrderedDict[K, V], key: K, value: V) -> None:
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > REMEMBERED:
        kept.popitem(last=False)


def _place(address: str) -> str:
    """An IPv6 client has a whole /64 to choose from."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    return str(parsed) if parsed.version == 4 else str(ipaddress.ip_network((parsed, 64), strict=False))
