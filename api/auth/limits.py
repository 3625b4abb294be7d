"""How often: a bucket per token, and a bounded memory of addresses that send wrong tokens."""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from typing import Final

ADDRESSES_MAX: Final = 10_000
# One customer has at least this much of the IPv6 space.
_IPV6_PREFIX: Final = 64


class TokenBucket:
    """``rate`` a second on average, and as many (at least one) at once after a pause."""

    __slots__ = ("_burst", "_filled_at_s", "_level", "_rate")

    def __init__(self, rate: float, burst: float | None = None) -> None:
        self._rate = rate
        self._burst = max(1.0, rate if burst is None else burst)
        self._level = self._burst
        self._filled_at_s: float | None = None

    def wait_s(self, now_s: float) -> float:
        """0 if one can be taken now, or how many seconds to wait for it."""
        if self._filled_at_s is not None:
            earned = max(0.0, now_s - self._filled_at_s) * self._rate
            self._level = min(self._burst, self._level + earned)
        self._filled_at_s = now_s
        return 0.0 if self._level >= 1.0 else (1.0 - self._level) / self._rate

    def take(self, now_s: float) -> float:
        """Take one if there is one; returns what `wait_s` says."""
        wait_s = self.wait_s(now_s)
        if not wait_s:
            self._level -= 1.0
        return wait_s


class FailureTable:
    """Who has sent wrong tokens of late. Only further wrong ones are slowed down, so that nobody is
    locked out by a neighbour behind the same address; and it forgets the quietest address first.
    """

    def __init__(self, per_minute: int, *, addresses_max: int = ADDRESSES_MAX) -> None:
        self._per_minute = per_minute
        self._addresses_max = addresses_max
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def count(self, address: str, now_s: float) -> float:
        """Note a failure; returns 0, or the seconds to wait when there were too many."""
        key = group_of(address)
        bucket = self._buckets.get(key)
        if bucket is None:
            if len(self._buckets) >= self._addresses_max:
                self._buckets.popitem(last=False)
            bucket = TokenBucket(self._per_minute / 60, self._per_minute)
            self._buckets[key] = bucket
        self._buckets.move_to_end(key)
        return bucket.take(now_s)


def group_of(address: str) -> str:
    """The addresses that count as one: itself, or the network a customer gets in IPv6."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, _IPV6_PREFIX), strict=False))
