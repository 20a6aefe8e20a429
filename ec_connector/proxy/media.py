# SPDX-License-Identifier: Apache-2.0
"""Media in a request: what it is, where, and what takes its place.

Pure functions over parsed JSON, and none of them waits. A request comes from anybody and
an announcement from another process: both may have any shape. Where parts of a request
are is the business of ``surfaces``; here it is what one part means.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ec_connector.proxy.errors import ProxyError
from ec_protocol.items import is_counted

#: Keys and list indices that lead from a request to one of its parts.
Path = tuple[str | int, ...]

#: Type of a part that brings media -> modality, and the field that holds it.
_MEDIA: Final = {
    "image_url": ("image", "image_url"),
    "input_image": ("image", "image_url"),
    "audio_url": ("audio", "audio_url"),
    "input_audio": ("audio", "input_audio"),
    "video_url": ("video", "video_url"),
}
#: Parts that name an encoding or bring one, where media is expected.
_REFERENCES: Final = frozenset(
    {"image_embeds", "audio_embeds", "video_embeds", "prompt_embeds", "image_pil"}
)
#: Parts without media.
_TEXT: Final = frozenset(
    {"text", "input_text", "output_text", "refusal", "thinking", "tool_reference"}
)
#: Fields by which a part without a type, or with one that does not fit, is taken for media.
_TELLING: Final = frozenset({*_MEDIA, *_REFERENCES})
#: Keys of a media part that a reference replaces; all others belong to the client.
_REPLACED: Final = frozenset({*_MEDIA, "type", "detail"})


@dataclass(slots=True)
class Media:
    """One piece of media of a request.

    Attributes:
        path: To its part.
        modality: ``image``, ``audio`` or ``video``.
        part: The part, as decoders take it in chat completions.
        url: Where it is, if it is not in the request; otherwise None.
        nbytes: About how long the part is.
        own: What it is in the request, if that is not ``part``.
        renamed: Whether a name that the client gave it was taken out.
        key: Equal for media that is encoded alike; set once nothing is elsewhere.
    """

    path: Path
    modality: str
    part: dict[str, Any]
    url: str | None
    nbytes: int
    renamed: bool = False
    own: dict[str, Any] | None = None
    key: str = ""

    def bring(self, media_type: str, data: str) -> None:
        """Media that was elsewhere, in base64, becomes part of the request."""
        url = f"data:{media_type};base64,{data}"
        field = next(name for _, name in _MEDIA.values() if name in self.part)
        if isinstance(self.part[field], dict):
            self.part[field]["url"] = url
        else:
            self.part[field] = url
        if self.own is not None and self.own.get("type") == "image":
            self.own["source"] = {"type": "base64", "media_type": media_type, "data": data}
        elif self.own is not None:
            self.own["image_url"] = url
        self.url, self.nbytes = None, len(url)

    def name(self) -> None:
        """Set ``key``, by all that the part holds. Takes time for long media."""
        text = json.dumps(self.part, sort_keys=True)
        self.key = hashlib.blake2b(text.encode(), digest_size=20).hexdigest()


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


# ------------------------------------------------------------------------- the request
def chat_media(part: dict[str, Any], path: Path) -> Media | None:
    """What a content part of a chat message or a Responses item brings, if any.

    Args:
        part: The part. A name that the client gave its media is removed (see ``surfaces``).
        path: To it.

    Raises:
        ProxyError: 400: it names media in place of bringing it, or is of no known type.
    """
    said = part.get("type")
    told = [name for name in part if name in _TELLING]
    kind = told[0] if said is None and len(told) == 1 else said
    kind = kind if isinstance(kind, str) else ""
    for name in (kind, *told):
        if name in _REFERENCES:
            raise _reference_refused(name, path)
    if kind in _TEXT and not told:
        return None
    if kind not in _MEDIA or not {kind, _MEDIA[kind][1]}.issuperset(told):
        known = ", ".join(sorted(_TEXT | _MEDIA.keys()))
        raise ProxyError(
            400,
            "unsupported_content",
            f"a content part of type {said!r:.60} with {', '.join(sorted(told)) or 'no media'}; "
            f"expected one of {known}",
            dotted(path),
        )
    modality, field = _MEDIA[kind]
    holder = part.get(field)
    named = [at.pop("uuid", None) for at in (part, holder) if isinstance(at, dict)]
    renamed = any(name is not None for name in named)
    if field == "input_audio":
        data = holder.get("data") if isinstance(holder, dict) else None
        if not (isinstance(data, str) and data):
            raise _missing(kind, path)
        return Media(path, modality, part, None, len(data), renamed)
    url = holder.get("url") if isinstance(holder, dict) else holder
    if not (isinstance(url, str) and url):
        raise _missing(kind, path)
    elsewhere = None if _is_inline(url) else url
    if kind != "input_image":
        return Media(path, modality, part, elsewhere, len(url), renamed)
    # As encoders take it without fail: Responses may leave out what chat asks for here.
    theirs = {name: value for name, value in part.items() if name not in _REPLACED}
    usual = {**theirs, "type": "image_url", "image_url": {"url": url}}
    return Media(path, modality, usual, elsewhere, len(url), renamed, own=part)


def anthropic_media(block: dict[str, Any], path: Path) -> Media | None:
    """What a content block of an Anthropic message brings, if any.

    Args:
        block: The block.
        path: To it.

    Raises:
        ProxyError: As ``chat_media``.
    """
    kind = block.get("type")
    if kind != "image":
        if not isinstance(kind, str) or kind not in _BLOCKS or "source" in block:
            raise ProxyError(
                400,
                "unsupported_content",
                f"a content block of type {kind!r:.60}; expected one of image, "
                f"{', '.join(sorted(_BLOCKS))}",
                dotted(path),
            )
        return None
    source = block.get("source")
    source = source if isinstance(source, dict) else {}
    if source.get("type") == "url":
        url = source.get("url")
        if not (isinstance(url, str) and url):
            raise _missing("image", path)
    else:
        data, media_type = source.get("data"), source.get("media_type", "image/jpeg")
        if source.get("type", "base64") != "base64" or not (isinstance(data, str) and data):
            raise _missing("image", path)
        url = f"data:{media_type};base64,{data}"
    part = {"type": "image_url", "image_url": {"url": url}}
    return Media(path, "image", part, None if _is_inline(url) else url, len(url), own=block)


#: Blocks of Anthropic messages without media of their own; results hold further blocks.
_BLOCKS: Final = frozenset(
    {
        "text",
        "thinking",
        "redacted_thinking",
        "tool_use",
        "tool_result",
        "tool_reference",
        "tool_addition",
        "tool_removal",
    }
)


def _is_inline(url: str) -> bool:
    # As decoders look at it: the scheme in any case, nothing before it.
    return url[:5].lower() == "data:"


def _reference_refused(kind: str, path: Path) -> ProxyError:
    return ProxyError(
        400,
        "unexpected_reference",
        f"a content part with {kind}: encodings are named by this proxy alone; send the media",
        dotted(path),
    )


def _missing(kind: str, path: Path) -> ProxyError:
    return ProxyError(
        400,
        "media_missing",
        f"a content part of type {kind} without media; naming media that was sent before is "
        "not supported, send it again",
        dotted(path),
    )


def dotted(path: Path) -> str:
    """A path as an error's ``param``."""
    return ".".join(map(str, path))


def encoder_request(
    fields: Mapping[str, Any], media: Media, name: str | None = None
) -> dict[str, Any]:
    """The request that makes an encoder encode one piece of media, and nothing more.

    Args:
        fields: What else of the client's request changes how it is encoded.
        media: The media.
        name: What the encoding is to be called; None leaves that to the encoder.
    """
    part = media.part if name is None else {**media.part, "uuid": name}
    return {
        **fields,
        "messages": [{"role": "user", "content": [part]}],
        "max_tokens": 1,
        "stream": False,
    }


# -------------------------------------------------------------------- the announcement
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
        body: The client's request; it is not changed.
        media: All of it.
        announced: Announcements by ``Media.key``.
        keep_media: Replace nothing. Otherwise encodings have names that only references
            use, and nothing is said of media that stays.

    Returns:
        The request and how many pieces of media a reference replaces in it.
    """
    result = dict(body)
    nothing = Announcement({})
    kept = {m.modality for m in media if not announced.get(m.key, nothing).replaces_media}
    replaced = [m for m in media if not keep_media and m.modality not in kept]
    params: dict[str, Any] = {}
    for m in media if keep_media else replaced:
        params.update(announced.get(m.key, nothing).params)
    if params:
        result["ec_transfer_params"] = params
    fresh: set[int] = {id(result)}
    for m in replaced:
        _put(result, m.path, _reference(m, announced[m.key]), fresh)
    return result, len(replaced)


def _put(root: Any, path: Path, part: dict[str, Any], fresh: set[int]) -> None:
    """Put a part into a document; containers on the way become copies once."""
    at = root
    for step in path[:-1]:
        if id(at[step]) not in fresh:
            at[step] = at[step].copy()
            fresh.add(id(at[step]))
        at = at[step]
    at[path[-1]] = part


def _reference(media: Media, announcement: Announcement) -> dict[str, Any]:
    kind = f"{media.modality}_embeds"
    theirs = {name: value for name, value in media.part.items() if name not in _REPLACED}
    return {
        **theirs,
        "type": kind,
        "uuid": announcement.mm_hash,
        kind: dict(announcement.metadata or {}),
    }
