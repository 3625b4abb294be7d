"""What a caller may do: actions on stream names. Pure, and the same for keys, JWTs and the secret.

A permission is written ``read,append:orders/``: actions, a colon, and where they hold: a stream's
exact name, everything below a prefix (``orders/`` or ``orders/*``), or ``*`` for all. A prefix ends
at a slash, so ``a/`` never reaches ``ab``, and ``a`` is the one stream of that name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, cast, get_args

from typing_extensions import override

from engine import BottomlessError, check_stream_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from api.auth.limits import TokenBucket

Action = Literal["read", "append", "create", "delete", "admin"]
ACTIONS: Final[tuple[Action, ...]] = get_args(Action)
ALL_STREAMS: Final = "*"
PERMISSIONS_MAX: Final = 100
# The longest name that limits.name_bytes can allow.
_NAME_BYTES_MAX: Final = 4096
_NOTHING: Final[frozenset[Action]] = frozenset()


class BadPermission(ValueError):
    """A permission is not written as it must be; the message says how."""


@dataclass(frozen=True, slots=True)
class Permission:
    """Some actions on one stream, on all below a prefix, or on all."""

    actions: frozenset[Action]
    target: str
    """A name; a prefix with the slash at its end; or ``*``."""

    @override
    def __str__(self) -> str:
        return f"{','.join(action for action in ACTIONS if action in self.actions)}:{self.target}"


def parse_permission(text: str) -> Permission:
    """Read ``read,append:orders/``; BadPermission if it is anything else."""
    left, colon, target = text.partition(":")
    if not colon:
        raise BadPermission(f"{text!r} needs a colon: actions, then streams, as in read:orders/")
    actions = left.split(",")
    unknown = [action for action in actions if action not in ACTIONS]
    if unknown:
        raise BadPermission(f"{unknown[0]!r} is not one of {', '.join(ACTIONS)}")
    known = cast("list[Action]", actions)
    return Permission(frozenset(known), _parse_target(target))


def _parse_target(target: str) -> str:
    if target == ALL_STREAMS:
        return target
    if target.endswith("/*"):
        target = target[:-1]
    if "*" in target:
        raise BadPermission("a * stands for all streams, or for all below a slash, as in orders/*")
    try:
        check_stream_name(target.removesuffix("/"), bytes_max=_NAME_BYTES_MAX)
    except BottomlessError as error:
        raise BadPermission(f"{target!r}: {error.message}") from error
    return target


class Grant:
    """What one caller may do, for as long as it holds."""

    __slots__ = ("_everywhere", "_exact", "_prefixes", "bucket", "expires_at_ms", "id", "is_ended")

    def __init__(
        self,
        id_: str,
        permissions: Iterable[Permission],
        *,
        expires_at_ms: int | None = None,
        bucket: TokenBucket | None = None,
    ) -> None:
        self.id = id_
        self.expires_at_ms = expires_at_ms
        self.bucket = bucket
        self.is_ended = False
        """Revoked, or replaced by one with other rights."""
        self._everywhere = _NOTHING
        self._exact: dict[str, frozenset[Action]] = {}
        self._prefixes: list[tuple[str, frozenset[Action]]] = []
        for permission in permissions:
            self._add(permission)

    def _add(self, permission: Permission) -> None:
        target, actions = permission.target, permission.actions
        if target == ALL_STREAMS:
            self._everywhere |= actions
        elif target.endswith("/"):
            self._prefixes.append((target, actions))
        else:
            self._exact[target] = self._exact.get(target, _NOTHING) | actions

    def is_valid(self, now_ms: int) -> bool:
        """Neither ended nor expired."""
        return not self.is_ended and (self.expires_at_ms is None or now_ms < self.expires_at_ms)

    def actions_on(self, name: str) -> frozenset[Action]:
        """Everything this caller may do with a stream of that name."""
        actions = self._everywhere | self._exact.get(name, _NOTHING)
        for prefix, more in self._prefixes:
            if name.startswith(prefix):
                actions |= more
        return actions

    @property
    def actions_everywhere(self) -> frozenset[Action]:
        """What this caller may do with every stream there is or will be."""
        return self._everywhere


EVERYTHING: Final = (Permission(frozenset(ACTIONS), ALL_STREAMS),)
