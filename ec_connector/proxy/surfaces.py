# SPDX-License-Identifier: Apache-2.0
"""The ways in: where each API has its media, and what of a request names other things.

A client may send media. It may not *name* an encoding, cached media, another request's
state or a host: a decoder would answer it about a picture that it never sent, or connect
to an address of its choice. What names something is refused; a ``uuid`` beside media,
which is only a hint to a cache, is taken out, and encodings go by their content alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ec_connector.proxy.errors import ProxyError, Style
from ec_connector.proxy.media import Media, Path, anthropic_media, chat_media

#: A content part and the path to it.
Part = tuple[Path, dict[str, Any]]

#: Fields of a request by which encodings, cached media or KV blocks are named, here and in
#: what orchestrators add to requests.
_NAMING: Final = frozenset(
    {
        "ec_transfer_params",
        "features",
        "kv_transfer_params",
        "kwargs_data",
        "mm_hashes",
        "mm_kwargs",
        "mm_metadata",
        "mm_placeholders",
        "mm_uuids",
        "multi_modal_data",
        "multi_modal_uuids",
        "prompt_embeds",
        "tokens",
    }
)
#: Fields of a Responses request that name what a server has kept of others.
_KEPT: Final = frozenset(
    {"background", "conversation", "previous_input_messages", "previous_response_id", "prompt"}
)
_ITEMS: Final = frozenset(
    {
        "message",
        "reasoning",
        "function_call",
        "function_call_output",
        "custom_tool_call",
        "custom_tool_call_output",
    }
)


@dataclass(frozen=True, slots=True)
class Surface:
    """One path that is served.

    Attributes:
        path: The path.
        parts: All content parts of a request, in the order of the prompt.
        media_of: What a part brings.
        refused: Fields that must be absent or null.
        encoding: Fields that change how media is encoded, and so go to the encoder too.
        carries_references: Whether a reference can take the media's place; otherwise the
            media stays beside the announcement.
        style: The shape of errors.
    """

    path: str
    parts: Callable[[Mapping[str, Any]], Iterator[Part]]
    media_of: Callable[[dict[str, Any], Path], Media | None]
    refused: frozenset[str]
    encoding: tuple[str, ...]
    carries_references: bool
    style: Style

    def find_media(self, body: dict[str, Any], limit: int) -> list[Media]:
        """All media of a request.

        Args:
            body: The request; names of media are removed from it.
            limit: Most pieces of media.

        Raises:
            ProxyError: 400: something is named that the client did not send, or there
                are more pieces than ``limit``, of which no more are looked at.
        """
        self._refuse_names(body)
        found: list[Media] = []
        for path, part in self.parts(body):
            media = self.media_of(part, path)
            if media is None:
                continue
            found.append(media)
            if len(found) > limit:
                raise ProxyError(
                    400,
                    "too_much_media",
                    f"more than {limit} pieces of media in one request, which is what this "
                    "proxy takes",
                    str(path[0]),
                )
        return found

    def may_refer(self, body: Mapping[str, Any]) -> bool:
        """Whether references can stand for a request's media.

        Decoders name media anew together with the options of its processing, a reference
        too, so that with such options it would name another encoding.
        """
        return self.carries_references and not any(body.get(name) for name in _RENAMING)

    def encoding_fields(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """What of a request changes how its media is encoded."""
        return {name: body[name] for name in self.encoding if name in body}

    def _refuse_names(self, body: Mapping[str, Any]) -> None:
        extra = body.get("vllm_xargs")
        holders = (body, extra if isinstance(extra, dict) else {})
        for name in sorted(self.refused):
            # False and null are what they are without the field.
            if any(holder.get(name) not in (None, False) for holder in holders):
                raise ProxyError(
                    400,
                    "unexpected_reference",
                    f"{name} may not be part of a request: encodings and cached state are named "
                    "by this proxy alone",
                    name,
                )


# ------------------------------------------------------------------ where the parts are
def _chat_parts(body: Mapping[str, Any]) -> Iterator[Part]:
    yield from _contents(body, "messages", _dicts)


def _responses_parts(body: Mapping[str, Any]) -> Iterator[Part]:
    for path, item in _dicts(body.get("input"), ("input",)):
        kind = item.get("type", "message")
        if not isinstance(kind, str) or kind not in _ITEMS:
            raise ProxyError(
                400,
                "unsupported_content",
                f"an input item of type {kind!r:.60}; expected one of {', '.join(sorted(_ITEMS))}",
                ".".join(map(str, path)),
            )
        if kind != "reasoning":
            yield from _dicts(item.get("content"), (*path, "content"))
            yield from _dicts(item.get("output"), (*path, "output"))


def _anthropic_parts(body: Mapping[str, Any]) -> Iterator[Part]:
    yield from _blocks(body.get("system"), ("system",))
    yield from _contents(body, "messages", _blocks)


def _no_parts(body: Mapping[str, Any]) -> Iterator[Part]:
    return iter(())


def _contents(
    body: Mapping[str, Any], field: str, inside: Callable[[object, Path], Iterator[Part]]
) -> Iterator[Part]:
    for path, message in _dicts(body.get(field), (field,)):
        yield from inside(message.get("content"), (*path, "content"))


def _dicts(items: object, path: Path) -> Iterator[Part]:
    """The objects of a list; whatever else is in it is the decoder's to refuse."""
    for index, item in enumerate(items if isinstance(items, list) else ()):
        if isinstance(item, dict):
            yield (*path, index), item


def _blocks(items: object, path: Path) -> Iterator[Part]:
    """Blocks, and those that a tool's result holds."""
    for at, block in _dicts(items, path):
        yield at, block
        if block.get("type") == "tool_result":
            yield from _dicts(block.get("content"), (*at, "content"))


_RENAMING: Final = ("mm_processor_kwargs", "media_io_kwargs")
_ENCODING: Final = ("model", "cache_salt", *_RENAMING)

CHAT: Final = Surface(
    path="/v1/chat/completions",
    parts=_chat_parts,
    media_of=chat_media,
    refused=_NAMING,
    encoding=_ENCODING,
    carries_references=True,
    style="openai",
)
RESPONSES: Final = Surface(
    path="/v1/responses",
    parts=_responses_parts,
    media_of=chat_media,
    refused=_NAMING | _KEPT,
    encoding=_ENCODING,
    carries_references=False,
    style="responses",
)
MESSAGES: Final = Surface(
    path="/v1/messages",
    parts=_anthropic_parts,
    media_of=anthropic_media,
    refused=_NAMING,
    # Decoders take no others on this path.
    encoding=("model", "cache_salt"),
    carries_references=False,
    style="anthropic",
)
COMPLETIONS: Final = Surface(
    path="/v1/completions",
    parts=_no_parts,
    media_of=chat_media,
    refused=_NAMING,
    encoding=_ENCODING,
    carries_references=False,
    style="openai",
)
#: By path.
SURFACES: Final = {s.path: s for s in (CHAT, RESPONSES, MESSAGES, COMPLETIONS)}
