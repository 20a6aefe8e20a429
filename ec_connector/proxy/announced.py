# SPDX-License-Identifier: Apache-2.0
"""What encoders have announced and, as far as their events tell, still hold. No I/O.

Only announcements of encoders whose events are heard are kept: without them nobody says
when an encoding is gone, and a request with a stale reference costs a failed round.
What is forgotten is merely asked for again.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from ec_connector.proxy.media import Announcement, Media

Address = tuple[str, int]

#: Announcements kept, and encodings of which is remembered that they went.
MAX_KEPT: Final = 16_384
#: Encoders of which is remembered that everything of theirs went.
_MAX_ADDRESSES: Final = 1024


def encoding_name(fields: Mapping[str, Any], media: Media) -> str:
    """What the encoding of media is called in references.

    Decoders keep what they know of media by its name, of references too. A name of our
    own keeps references apart from media that a decoder has named by itself: what it
    learned from the one can never be wrong for the other.

    Args:
        fields: What of the request changes how media is encoded.
        media: One piece of it.

    Returns:
        Equal for equal media that are encoded alike. It follows from the content: no
        client can give it to other media.
    """
    said = {field: value for field, value in fields.items() if value}
    text = json.dumps([said, media.key], sort_keys=True)
    return "ecp-" + hashlib.blake2b(text.encode(), digest_size=24).hexdigest()


def _addresses(announcement: Announcement) -> dict[str, Address]:
    """Where each encoding of an announcement is."""
    return {
        mm_hash: (item["peer_host"], item["peer_port"])
        for mm_hash, item in announcement.params.items()
    }


class Announced:
    """Announcements by key. One thread.

    Args:
        limit: Announcements kept; of more the one that was used longest ago goes.
        clock: Monotonic seconds.
    """

    def __init__(self, limit: int = MAX_KEPT, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self.clock = clock
        self._kept: OrderedDict[str, Announcement] = OrderedDict()
        self._users: dict[tuple[Address, str], set[str]] = {}
        self._watched: set[Address] = set()
        # When an encoding was last said to be gone: the word may be quicker than the
        # encoder's own answer.
        self._gone: OrderedDict[tuple[Address, str], float] = OrderedDict()
        self._all_gone: dict[Address, float] = {}
        self._horizon = 0.0

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: str) -> Announcement | None:
        """What was announced under ``key``, if it is believed to hold."""
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
        return found

    def remember(self, key: str, announcement: Announcement, asked_at: float) -> None:
        """An encoder announced something.

        Args:
            key: Of the media and how it is encoded.
            announcement: What it said; kept only if a reference can take the media's
                place and the encoder's events are heard.
            asked_at: When it was asked, by ``clock``.
        """
        where = _addresses(announcement)
        if not announcement.replaces_media or not self._watched.issuperset(where.values()):
            return
        if self.lost_since(announcement, asked_at):
            return
        self._drop(key)
        self._kept[key] = announcement
        for mm_hash, address in where.items():
            self._users.setdefault((address, mm_hash), set()).add(key)
        while len(self._kept) > self._limit:
            self._drop(next(iter(self._kept)))

    def lost_since(self, announcement: Announcement, moment: float) -> bool:
        """Whether an encoding of an announcement was said to be gone since ``moment``.

        Only of encoders whose events are heard; of others nothing is known.
        """
        for mm_hash, address in _addresses(announcement).items():
            if address not in self._watched and address not in self._all_gone:
                continue
            if (
                max(self._gone.get((address, mm_hash), 0.0), self._all_gone.get(address, 0.0))
                > moment
                or moment < self._horizon
            ):
                return True
        return False

    def forget_keys(self, keys: Iterable[str]) -> int:
        """A request with these failed; returns how many there were."""
        return sum(self._drop(key) for key in list(keys))

    # ----------------------------------------------------------------------- events
    def watch(self, address: Address) -> None:
        """Events of the encoder at ``address`` are heard."""
        self._watched.add(address)

    def forget(self, address: Address, mm_hash: str) -> int:
        """An encoding is gone; returns how many announcements named it."""
        self._note_gone((address, mm_hash))
        return self.forget_keys(self._users.get((address, mm_hash), ()))

    def forget_all(self, address: Address, *, watched: bool) -> int:
        """Nothing is known of an encoder's encodings any more.

        Args:
            address: Where it is read from.
            watched: Whether its events are still heard.

        Returns:
            How many announcements were forgotten.
        """
        self._all_gone.pop(address, None)
        self._all_gone[address] = self.clock()
        while len(self._all_gone) > _MAX_ADDRESSES:
            del self._all_gone[next(iter(self._all_gone))]
        if not watched:
            self._watched.discard(address)
        lost = [keys for (where, _), keys in self._users.items() if where == address]
        return self.forget_keys({key for keys in lost for key in keys})

    # -------------------------------------------------------------------- internals
    def _note_gone(self, what: tuple[Address, str]) -> None:
        self._gone.pop(what, None)
        self._gone[what] = self.clock()
        while len(self._gone) > self._limit:
            _, when = self._gone.popitem(last=False)
            self._horizon = max(self._horizon, when)

    def _drop(self, key: str) -> bool:
        announcement = self._kept.pop(key, None)
        if announcement is None:
            return False
        for mm_hash, address in _addresses(announcement).items():
            users = self._users.get((address, mm_hash))
            if users is not None:
                users.discard(key)
                if not users:
                    del self._users[address, mm_hash]
        return True
