"""What a consumer's token has to allow (docs/consumers.md), and that no more is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import bottomless
from bottomless.errors import BottomlessError, NotAllowed, NotFound

if TYPE_CHECKING:
    from tests.support.guarded import Guarded

READ = "read:mine/"
SCOPES = ("read,append,create:_positions/", "read,append,create:_groups/")


def test_modes_need_no_more_than_their_streams(guarded: Guarded) -> None:
    token = guarded.token(READ, *SCOPES)
    with bottomless.connect(guarded.server.url, token=token) as client:
        with client.resumable("mine/s", "billing", follow=False) as consumer:
            assert [record.value for record in consumer] == [{"x": 1}]
        with client.balanced("mine/s", "team", follow=False) as member:
            assert [record.value for record in member] == [{"x": 1}]
        assert client.group_info("mine/s", "team").handled == 1
        assert client.committed("mine/s", "billing") is not None
    # Once the streams are there, nobody has to make them.
    fewer = [scope.replace(",create", "") for scope in SCOPES]
    with bottomless.connect(guarded.server.url, token=guarded.token(READ, *fewer)) as client:
        with client.resumable("mine/s", "billing", follow=False) as consumer:
            assert list(consumer) == []
        with client.balanced("mine/s", "team", follow=False) as member:
            assert list(member) == []


@pytest.mark.parametrize("mode", ["resumable", "balanced"])
def test_modes_say_what_a_token_may_not(guarded: Guarded, mode: str) -> None:
    with bottomless.connect(guarded.server.url, token=guarded.token(READ)) as client:
        with pytest.raises((NotAllowed, NotFound)) as refusal:
            getattr(client, mode)("mine/s", "nobody").next(timeout_s=5)
        assert isinstance(refusal.value, BottomlessError)
        assert "nobody" in str(refusal.value) or refusal.value.code
    token = guarded.token("read:_positions/", "read:_groups/", READ)
    with (
        bottomless.connect(guarded.server.url, token=token) as client,
        pytest.raises(NotAllowed),
    ):
        getattr(client, mode)("mine/s", "nobody").next(timeout_s=5)
