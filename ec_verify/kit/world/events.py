# SPDX-License-Identifier: Apache-2.0
"""Published events, as the kit reads them: three frames, numbered without gaps (EC-13)."""

from __future__ import annotations

from typing import Any

import msgspec

from ec_verify.kit.language import steps
from ec_verify.kit.world.checks import CheckFailed, compare, violated
from ec_verify.kit.world.nodes import Node


def take_event(node: Node, raw: list[str]) -> None:
    """A node published a message.

    Raises:
        CheckFailed: It is none, or has the wrong number.
    """
    try:
        _topic, number, payload = (bytes.fromhex(frame) for frame in raw)
        message = msgspec.msgpack.decode(payload)
        events = message["events"]
        if message["type"] != "EcEvents" or len(number) != 8:
            raise ValueError(f"type {message['type']!r}, number of {len(number)} bytes")
        named = [_text(event) for event in events]
    except (msgspec.MsgspecError, KeyError, TypeError, ValueError) as exc:
        raise CheckFailed("a message of events", repr(exc), clause="EC-13.1") from exc
    if message.get("incarnation") != node.message.get("incarnation"):
        node.messages = 0
    if int.from_bytes(number, "big") != node.messages:
        raise violated(
            "EventsNumbered",
            "EC-13.3",
            f"message {node.messages} of {node.name}",
            f"number {int.from_bytes(number, 'big')}",
        )
    node.messages += bool(named)
    node.message = message
    node.told.append({"events": named})


def _text(event: dict[str, Any]) -> str:
    return f"{event['event']} {event.get('mm_hash', '')}".strip()


def check_events(node: Node, step: steps.Events) -> None:
    """Compare what was published since the last look, and the latest message's fields.

    Raises:
        CheckFailed: They do not agree.
    """
    told, node.told = node.told, []
    if step.messages is not None:
        compare(step.messages, len(told), f"messages of {node.name}")
    if step.expect is not None:
        seen = [name for message in told for name in message["events"]]
        compare(step.expect, seen, f"events of {node.name}")
    if step.fields:
        compare(step.fields, node.message, f"the latest message of {node.name}")
