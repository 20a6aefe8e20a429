# SPDX-License-Identifier: Apache-2.0
"""Media in a chat completion: where it is, and what takes its place.

Pure functions over parsed JSON. A request comes from anybody and an announcement
from another process: both may have any shape, and neither makes these functions
raise. A request is never changed; changes are made in copies.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ec_protocol.items import is_counted

#: Type of a content part -> modality. The part holds the media under its type's name.
_MODALITY: Final = {
    "image_url": "image",
    "input_image": "image",
    "audio_url": "audio",
    "input_audio": "audio",
    "video_url": "video",
}
#: Keys of a media part that a reference replaces; all others belong to the client.
_REPLACED: Final = frozenset({*_MODALITY, "type", "uuid", "detail"})
#: What of the request changes how media is encoded, and so goes to the encoder too.
ENCODER_FIELDS: Final = ("model", "mm_processor_kwargs", "media_io_kwargs", "cache_salt")


@dataclass(frozen=True, slots=True)
class Media:
    """One piece of media of a request.

    Attributes:
        message: Index of its message.
        part: Index in the message's content.
        modality: ``image``, ``audio`` or ``video``.
        content: The content part.
        key: Equal for parts that are encoded alike; ``""`` if the part only names
            media that the decoder has seen before, so that there is nothing to send.
        inline: Whether the part holds the media itself, and not only where it is.
    """

    message: int
    part: int
    modality: str
    content: dict[str, Any]
    key: str
    inline: bool = False


@dataclass(frozen=True, slots=True)
class Announcement:
    """What an encoder said about one piece of media.

    Attributes:
        params: ``ec_transfer_params`` for the decoder: encodings with an address.
        mm_hash: The encoding that stands for the whole part, or None.
        metadata: Its placeholder fields; empty if the decoder needs the media.
    """

    params: dict[str, Any]
    mm_hash: str | None = None
    metadata: Mapping[str, Any] | None = None

    @property
    def replaces_media(self) -> bool:
        """Whether a reference can take the media's place."""
        return self.mm_hash is not None and bool(self.metadata)


def find_media(body: Mapping[str, Any]) -> list[Media]:
    """All media of a request, in the order of the prompt."""
    found = []
    messages = body.get("messages")
    for i, message in enumerate(messages if isinstance(messages, list) else ()):
        content = message.get("content") if isinstance(message, dict) else None
        for j, part in enumerate(content if isinstance(content, list) else ()):
            if not isinstance(part, dict):
                continue
            kind = part.get("type")
            if kind is None:
                # Accepted by decoders as well: a part whose key tells what it is.
                kind = next((name for name in _MODALITY if name in part), None)
            modality = _MODALITY.get(kind) if isinstance(kind, str) else None
            if modality is not None:
                payload, is_data = _payload(part, str(kind))
                key = json.dumps(part, sort_keys=True) if payload else ""
                found.append(Media(i, j, modality, part, key, is_data))
    return found


def _payload(part: dict[str, Any], kind: str) -> tuple[object, bool]:
    """What a part holds, and whether that is the media itself."""
    # The field is called `image_url` in parts of type `input_image` too.
    payload = part.get(kind) or part.get("image_url")
    if isinstance(payload, dict):
        if not payload.get("url") and payload.get("data"):
            return payload["data"], True
        payload = payload.get("url")
    return payload, isinstance(payload, str) and payload.startswith("data:")


def encoder_request(body: Mapping[str, Any], media: Media) -> dict[str, Any]:
    """The request that makes an encoder encode one piece of media, and nothing more."""
    request = {name: body[name] for name in ENCODER_FIELDS if name in body}
    request["messages"] = [{"role": "user", "content": [media.content]}]
    request["max_tokens"] = 1
    request["stream"] = False
    return request


def read_announcement(answer: object) -> Announcement:
    """What an encoder's answer to ``encoder_request`` announces; nothing if malformed."""
    announced = answer.get("ec_transfer_params") if isinstance(answer, dict) else None
    if not isinstance(announced, dict):
        return Announcement({})
    # A decoder would find another picture under a name that was counted (EC-2.8).
    params = {
        mm_hash: item
        for mm_hash, item in announced.items()
        if _has_address(item) and not is_counted(mm_hash)
    }
    if len(params) != 1 or len(announced) != 1:
        # A part that became several encodings (a video with its sound) has no reference.
        return Announcement(params)
    ((mm_hash, item),) = params.items()
    metadata = item.get("metadata")
    if not isinstance(metadata, dict) or item.get("item_indices", [0]) != [0]:
        return Announcement(params)
    return Announcement(params, mm_hash, metadata)


def _has_address(item: object) -> bool:
    return (
        isinstance(item, dict)
        and isinstance(item.get("peer_host"), str)
        and isinstance(item.get("peer_port"), int)
        and not isinstance(item.get("peer_port"), bool)
    )


def decoder_request(
    body: Mapping[str, Any],
    media: Sequence[Media],
    announced: Mapping[str, Announcement],
    *,
    keep_media: bool,
) -> tuple[dict[str, Any], int]:
    """The request for the decoder: references, and where their encodings are.

    Decoders do not take raw media beside references of the same modality, so a
    modality is replaced as a whole or not at all.

    Args:
        body: The client's request.
        media: ``find_media(body)``.
        announced: Announcements by ``Media.key``.
        keep_media: Replace nothing.

    Returns:
        The request and how many pieces of media a reference replaces in it.
    """
    result = dict(body)
    params: dict[str, Any] = {}
    for announcement in announced.values():
        params.update(announcement.params)
    if params:
        result["ec_transfer_params"] = params
    nothing = Announcement({})
    kept = {m.modality for m in media if not announced.get(m.key, nothing).replaces_media}
    replaced = [m for m in media if not keep_media and m.modality not in kept]
    if replaced:
        messages = list(body["messages"])
        for m in replaced:
            if messages[m.message] is body["messages"][m.message]:
                message = dict(messages[m.message])
                message["content"] = list(message["content"])
                messages[m.message] = message
            messages[m.message]["content"][m.part] = _reference(m, announced[m.key])
        result["messages"] = messages
    return result, len(replaced)


def _reference(media: Media, announcement: Announcement) -> dict[str, Any]:
    kind = f"{media.modality}_embeds"
    theirs = {name: value for name, value in media.content.items() if name not in _REPLACED}
    return {
        **theirs,
        "type": kind,
        "uuid": announcement.mm_hash,
        kind: dict(announcement.metadata or {}),
    }
