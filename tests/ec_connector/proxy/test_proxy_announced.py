# SPDX-License-Identifier: Apache-2.0
"""What the proxy remembers of announcements, without sockets."""

from __future__ import annotations

from typing import Any

import pytest

from ec_connector.proxy.announced import Announced, encoding_name
from ec_connector.proxy.media import Announcement
from ec_connector.proxy.surfaces import CHAT
from tests.needs import needs

needs("aiohttp")

from tests.world.servers import chat, image

RED, GREEN = image("red"), image("green")
WHERE = ("127.0.0.1", 5701)


def announcement(name: str = "h", where: tuple[str, int] = WHERE) -> Announcement:
    item = {"peer_host": where[0], "peer_port": where[1], "size_bytes": 1}
    return Announcement({name: item}, name, {"image_grid_thw": [1, 8, 8]})


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


@pytest.fixture
def memory() -> Announced:
    made = Announced(limit=3, clock=Clock())
    made.watch(WHERE)
    return made


# -------------------------------------------------------------------------- the memory
def test_what_was_announced_is_used_until_it_is_gone(memory):
    memory.remember("k", announcement(), memory.clock())
    assert memory.get("k") == announcement()
    assert memory.forget(WHERE, "another") == 0
    assert memory.forget(("127.0.0.1", 1), "h") == 0
    assert memory.get("k") == announcement()
    assert memory.forget(WHERE, "h") == 1
    assert memory.get("k") is None
    assert not memory._users


@pytest.mark.parametrize(
    ("key", "found"),
    [
        ("k", announcement(where=("127.0.0.1", 9))),
        ("k", Announcement({})),
        ("k", Announcement(announcement().params)),
    ],
    ids=["not watched", "nothing", "needs its media"],
)
def test_what_cannot_be_used_again_is_not_kept(memory, key, found):
    memory.remember(key, found, memory.clock())
    assert len(memory) == 0


def test_an_encoding_that_went_before_its_announcement_arrived_is_not_kept(memory):
    asked_at = memory.clock()
    memory.forget(WHERE, "h")
    memory.remember("k", announcement(), asked_at)
    assert memory.get("k") is None
    memory.remember("k", announcement(), memory.clock())
    assert memory.get("k") is not None


def test_losing_track_of_an_encoder_forgets_all_of_it_and_nothing_else(memory):
    other = ("127.0.0.1", 5702)
    memory.watch(other)
    memory.remember("a", announcement("a"), memory.clock())
    memory.remember("b", announcement("b", other), memory.clock())
    asked_at = memory.clock()
    assert memory.forget_all(WHERE, watched=True) == 1
    assert (memory.get("a"), memory.get("b")) == (None, announcement("b", other))
    assert memory.lost_since(announcement("a"), asked_at)
    assert not memory.lost_since(announcement("b", other), asked_at)
    memory.forget_all(WHERE, watched=False)
    memory.remember("a", announcement("a"), memory.clock())
    assert memory.get("a") is None


def test_the_memory_is_bounded_and_the_oldest_goes(memory):
    for name in "abc":
        memory.remember(name, announcement(name), memory.clock())
    memory.get("a")
    memory.remember("d", announcement("d"), memory.clock())
    assert [memory.get(name) is not None for name in "abcd"] == [True, False, True, True]
    assert len(memory._users) == 3


def test_what_went_is_remembered_in_bounds_and_beyond_them_nothing_is_believed(memory):
    asked_at = memory.clock()
    for number in range(100):
        memory.forget(WHERE, f"{number}")
    assert len(memory._gone) == 3
    memory.remember("k", announcement("0"), asked_at)  # forgotten that it went, not when
    assert memory.get("k") is None


def key_of(part: dict[str, Any], **fields: Any) -> str:
    body = chat(dict(part), **fields)
    (media,) = CHAT.find_media(body, limit=1)
    media.name()
    return encoding_name(CHAT.encoding_fields(body), media)


def test_keys_tell_apart_whatever_changes_the_encoding():
    keys = [
        key_of(RED),
        key_of(GREEN),
        key_of(RED, model="n"),
        key_of(RED, mm_processor_kwargs={"max_pixels": 1}),
        key_of(RED, cache_salt="s"),
        key_of({"type": "input_audio", "input_audio": {"data": "abc", "format": "wav"}}),
    ]
    assert len(set(keys)) == len(keys)
    assert all(keys)
    assert key_of(RED) == key_of(RED, temperature=0.5, max_tokens=3)
    assert key_of(RED) == key_of(image("red", uuid="mine")), "a client's name tells nothing apart"
