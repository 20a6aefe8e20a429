# SPDX-License-Identifier: Apache-2.0
"""Producers with one fault each."""

from __future__ import annotations

from typing import Any

import msgspec

from ec_protocol.p2p import wire
from ec_protocol.p2p.grants import ProducerGrants
from ec_protocol.p2p.wire import XferAck, XferReq, XferStatus
from ec_protocol.tier.encodings import EncodingTier
from ec_protocol.tier.entry import Entry
from ec_verify.adapters.ours.adapter import Ours
from ec_verify.adapters.ours.faulty.registry import fault
from ec_verify.kit.adapter import Result


class _Answers(ProducerGrants):
    """Changes what it answers."""

    def changed(self, req: XferReq, ack: XferAck) -> XferAck:
        """The ack that is sent in place of ``ack``."""
        return ack

    def on_request(self, identity: bytes, req: XferReq, now: float) -> XferAck:
        return self.changed(req, super().on_request(identity, req, now))


@fault("serves-what-is-not-ready", "EC-5.4", part="grants")
class ServesWhatIsNotReady(_Answers):
    """An encoding whose save is under way is granted, without a pin."""

    def changed(self, req: XferReq, ack: XferAck) -> XferAck:
        entry = self.tier.get(req.mm_hash)
        if ack.status == XferStatus.NACK_NOT_READY and entry is not None and not entry.servable:
            return self._ok(req, entry, self.timing.lease_s)
        return ack


@fault("not-ready-is-missing", "EC-5.4", part="grants")
class NotReadyIsMissing(_Answers):
    """An encoding whose save is under way is answered NACK_MISSING."""

    def changed(self, req: XferReq, ack: XferAck) -> XferAck:
        if ack.status == XferStatus.NACK_NOT_READY:
            return msgspec.structs.replace(ack, status=int(XferStatus.NACK_MISSING))
        return ack


@fault("session-is-not-echoed", "EC-5.6", part="grants")
class SessionIsNotEchoed(_Answers):
    """Acks do not name the attempt."""

    def changed(self, req: XferReq, ack: XferAck) -> XferAck:
        return msgspec.structs.replace(ack, session_id="", attempt_id=None)


@fault("every-block-is-described", "EC-8.7", part="grants")
class EveryBlockIsDescribed(_Answers):
    """Acks between new peers carry a descriptor of every block of the region."""

    def changed(self, req: XferReq, ack: XferAck) -> XferAck:
        if ack.status == XferStatus.OK and req.attempt_id is not None:
            self.describe_region()
            return msgspec.structs.replace(ack, mem_descriptor=self._old_descriptor)
        return ack


@fault("blocks-in-ascending-order", "EC-2.7", part="grants")
class BlocksInAscendingOrder(_Answers):
    """Acks name an encoding's blocks by number, not in the order of its bytes."""

    def changed(self, req: XferReq, ack: XferAck) -> XferAck:
        return msgspec.structs.replace(
            ack, extents=sorted(ack.extents), src_block_indices=sorted(ack.src_block_indices)
        )


@fault("old-form-from-the-second-grant-on", "EC-8.7", part="grants")
class OldFormFromTheSecondGrantOn(ProducerGrants):
    """Only the first grant of a process is told in the extended form, whoever asks."""

    def __init__(self, tier: EncodingTier, **args: Any) -> None:
        super().__init__(tier, **args)
        self._first: str | None = None

    def _ok(self, req: XferReq, entry: Entry, lease_s: float) -> XferAck:
        self._first = self._first or req.session_id
        if req.session_id != self._first:
            req = msgspec.structs.replace(req, attempt_id=None)
        return super()._ok(req, entry, lease_s)


@fault("extended-form-for-everybody", "EC-8.7", part="grants")
class ExtendedFormForEverybody(ProducerGrants):
    """Peers that do not know extents are answered with extents."""

    def _ok(self, req: XferReq, entry: Entry, lease_s: float) -> XferAck:
        req = msgspec.structs.replace(req, attempt_id=req.attempt_id or 1)
        return super()._ok(req, entry, lease_s)


@fault("any-notice-of-the-encoding", "EC-5.5", "F2", part="grants")
class AnyNoticeOfTheEncoding(ProducerGrants):
    """A completion notice ends whatever grant there is of the same encoding."""

    def on_notice(self, notice: bytes, now: float) -> None:
        if notice not in self._by_key:
            mm_hash = notice.partition(b":")[2].decode("utf-8", "replace")
            for grant in self._grants.values():
                if grant.entry.mm_hash == mm_hash:
                    notice = grant.key
                    break
        super().on_notice(notice, now)


@fault("ambiguous-notice-counts", "EC-5.5", "F2", part="grants")
class AmbiguousNoticeCounts(ProducerGrants):
    """A notice that could mean more than one grant ends the first of them."""

    def on_notice(self, notice: bytes, now: float) -> None:
        self._ambiguous.pop(notice, None)
        super().on_notice(notice, now)


@fault("leases-never-end", "EC-5.5", "F11", part="grants")
class LeasesNeverEnd(ProducerGrants):
    """A grant without a notice pins its entry for ever."""

    def tick(self, now: float) -> None:
        pass

    def next_deadline(self) -> float | None:
        return None


@fault("half-a-lease", "EC-5.4", "F1", part="grants")
class HalfALease(ProducerGrants):
    """The entry is let go when half of the lease that was granted is over."""

    def _grant(self, identity: bytes, key: bytes, req: XferReq, entry: Entry, now: float) -> None:
        super()._grant(identity, key, req, entry, now - self.timing.lease_s / 2)


@fault("full-lease-again", "EC-5.7", "F1", part="grants")
class FullLeaseAgain(_Answers):
    """A repeated request is told the full lease, which has been running for a while."""

    def changed(self, req: XferReq, ack: XferAck) -> XferAck:
        if ack.lease_s is None:
            return ack
        return msgspec.structs.replace(ack, lease_s=self.timing.lease_s)


@fault("one-peer-may-pin-everything", "EC-5.10", "F11", part="grants")
class OnePeerMayPinEverything(ProducerGrants):
    """There is no bound to what one peer pins."""

    def __init__(self, tier: EncodingTier, **args: Any) -> None:
        super().__init__(tier, **args)
        self.quota_blocks = tier.num_blocks


@fault("all-peers-may-pin-everything", "EC-5.10", "F11", part="grants")
class AllPeersMayPinEverything(ProducerGrants):
    """There is no bound to what all peers together pin."""

    def __init__(self, tier: EncodingTier, **args: Any) -> None:
        super().__init__(tier, **args)
        self.grant_quota_blocks = tier.num_blocks


@fault("same-incarnation-for-ever", "EC-9.2", "F8", part="grants")
class SameIncarnationForEver(ProducerGrants):
    """A restarted producer has the number of its predecessor."""

    def __init__(self, tier: EncodingTier, **args: Any) -> None:
        args["incarnation"] = "the-same"
        super().__init__(tier, **args)


@fault("compatibility-is-not-checked", "EC-8.4", part="grants")
class CompatibilityIsNotChecked(ProducerGrants):
    """Encodings of another model are served."""

    def on_request(self, identity: bytes, req: XferReq, now: float) -> XferAck:
        req = msgspec.structs.replace(req, compatibility_hash=self.compat_hash)
        return super().on_request(identity, req, now)


@fault("any-version", "EC-8.2", part="grants")
class AnyVersion(ProducerGrants):
    """Requests of versions that nobody has defined are served."""

    def on_request(self, identity: bytes, req: XferReq, now: float) -> XferAck:
        req = msgspec.structs.replace(req, connector_version=wire.PREFERRED_VERSION)
        return super().on_request(identity, req, now)


@fault("version-1-is-refused", "EC-8.2", part="grants")
class VersionOneIsRefused(ProducerGrants):
    """Only the newest version is served."""

    def on_request(self, identity: bytes, req: XferReq, now: float) -> XferAck:
        if req.connector_version == 1:
            req = msgspec.structs.replace(req, connector_version=99)
        return super().on_request(identity, req, now)


@fault("malformed-frames-crash", "EC-8.1", "F9", part="adapter")
class MalformedFramesCrash(Ours):
    """A frame that cannot be decoded ends the thread that serves requests."""

    def request(self, *, now: float, identity: str, frames: list[str]) -> Result:
        wire.decode_request([bytes.fromhex(frame) for frame in frames])
        return super().request(now=now, identity=identity, frames=frames)


@fault("malformed-acks-crash", "EC-8.1", "F9", part="adapter")
class MalformedAcksCrash(Ours):
    """An ack that cannot be decoded ends the thread that reads."""

    def answer(self, *, now: float, peer: list[Any], frames: list[str]) -> Result:
        wire.decode_ack([bytes.fromhex(frame) for frame in frames])
        return super().answer(now=now, peer=peer, frames=frames)
