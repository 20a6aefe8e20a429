# SPDX-License-Identifier: Apache-2.0
"""Nodes and scheduler delegates with one fault each."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from ec_connector.engine.scheduler import ECScheduler
from ec_protocol.items import Item
from ec_protocol.node import Availability, Node
from ec_verify.adapters.ours.faulty.registry import fault


@fault("half-an-announcement", "EC-11.1", part="node")
class HalfAnAnnouncement(Node):
    """An encoding that cannot be served is announced with metadata and no address."""

    def announce(self, items: Any, address: Any, now: float) -> dict[str, dict[str, Any]]:
        announced = super().announce(items, address, now)
        for item in items:
            said = announced.get(item.mm_hash, {"peer_host": ""})
            if "peer_host" not in said:
                said["metadata"] = {"rows": item.shape[0], **item.metadata}
        return announced


@fault("announces-what-is-gone", "EC-11.1", part="node")
class AnnouncesWhatIsGone(Node):
    """Every item is announced with metadata and address, also what the tier does not have."""

    def announce(self, items: Any, address: Any, now: float) -> dict[str, dict[str, Any]]:
        announced = super().announce(items, address, now)
        for item in items if address is not None else ():
            said = announced.get(item.mm_hash, {"peer_host": ""})
            if "peer_host" not in said:
                said["metadata"] = dict(item.metadata)
                said["peer_host"], said["peer_port"] = address
                said["size_bytes"], said["shape"] = item.nbytes, list(item.shape)
        return announced


@fault("parameters-are-trusted", "EC-11.4", "F9", part="node")
class ParametersAreTrusted(Node):
    """What a request says about its encodings is used without a look at its shape."""

    def want(self, item: Item, announced: Any, waiter: str, now: float) -> Availability:
        _ = (announced[item.mm_hash]["peer_host"], int(announced[item.mm_hash]["peer_port"]))
        return super().want(item, announced, waiter, now)


@fault("one-name-two-shapes", "EC-11.4", part="node")
class OneNameTwoShapes(Node):
    """An entry of other rows than the request's is loaded for it."""

    def contradicts(self, item: Item) -> bool:
        return False


@fault("counted-names-are-used", "EC-2.8", "F19", part="scheduler")
class CountedNamesAreUsed(ECScheduler):
    """Encodings are saved, announced and asked for under names that the host counted."""

    def __init__(self, node: Node, *, items: Callable[[Any], list[Item]], **args: Any) -> None:
        def trusting(request: Any) -> list[Item]:
            return [dataclasses.replace(item, named_by_content=True) for item in items(request)]

        super().__init__(node, items=trusting, **args)


@fault("lost-requests-wait", "EC-5.9", part="scheduler")
class LostRequestsWait(ECScheduler):
    """A request whose encoding is lost and whose media is gone is never failed."""

    def take_unavailable_requests(self) -> set[str]:
        return set()


@fault("never-idle", "EC-4.2", "F4", part="scheduler")
class NeverIdle(ECScheduler):
    """The engine is kept stepping although nothing is under way."""

    def has_pending_push_work(self) -> bool:
        return True


@fault("idle-too-early", "EC-4.2", part="scheduler")
class IdleTooEarly(ECScheduler):
    """The engine may stop stepping although reports are outstanding."""

    def has_pending_push_work(self) -> bool:
        return False


@fault("waits-for-nobody", "EC-5.9", part="scheduler")
class WaitsForNobody(ECScheduler):
    """A request goes on to encode although the fetch it has started is under way."""

    def ensure_cache_available(self, request: Any, num_computed_tokens: int) -> bool:
        super().ensure_cache_available(request, num_computed_tokens)
        return request.request_id not in self._unavailable
