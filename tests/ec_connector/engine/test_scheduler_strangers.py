# SPDX-License-Identifier: Apache-2.0
"""What a stranger sends is for the requests that name it, and for no other (EC-15.8)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ec_protocol.announcements import PeerRules
from ec_protocol.names import encoding_of, is_strangers, stranger_name, stranger_of
from ec_protocol.p2p import words
from tests.world.core import BLOCK, WIDTH, states
from tests.world.delegate import Engine, Request, item

pytestmark = pytest.mark.clause("EC-15.8")

STRANGERS = PeerRules()
EVIL, HONEST = 6666, 5601


def said(name: str, port: int, rows: int = 1) -> dict[str, Any]:
    size = rows * BLOCK
    return {name: {"peer_host": "p", "peer_port": port, "size_bytes": size, "shape": [rows, WIDTH]}}


def engine(role: str = "ec_both", **more: Any) -> Engine:
    return Engine(role, p2p=True, rules=STRANGERS, **more)


def lent(e: Engine) -> list[words.Lend]:
    return [told for told in e.data.reader.take() if isinstance(told, words.Lend)]


def land(e: Engine, port: int, word: str = "landed") -> None:
    """The fetch from that peer ends."""
    (loan,) = [told for told in lent(e) if told.port == port]
    e.data.reader.coming.append(words.Words([(word, loan.loan)]))
    e.scheduler.build_connector_meta()


# ----------------------------------------------------------------------------- names
@pytest.mark.parametrize("host", ["10.0.0.7", "encoder-0", "fd00::7", "::1"])
@pytest.mark.parametrize("name", ["h", "", "a/b", "peer://x:1/h", "é", "/", "\0"])
def test_a_name_says_whose_word_it_is_and_for_what(host: str, name: str) -> None:
    made = stranger_name(name, host, 5601)
    assert is_strangers(made)
    assert (encoding_of(made), stranger_of(made)) == (name, f"{host}:5601")
    assert made != stranger_name(name, host, 5602)


def test_an_encodings_own_name_is_nobodys_word() -> None:
    assert not is_strangers("h")
    assert (encoding_of("h"), stranger_of("h")) == ("h", "")


# ----------------------------------------------------------------------- one request
def test_the_request_that_names_the_stranger_loads_what_it_sent() -> None:
    e = engine("ec_consumer")
    request = Request("r", [item("a", 2)], said("a", EVIL, 2))
    assert not e.scheduler.ensure_cache_available(request, 0)
    land(e, EVIL)
    metadata = e.step(request)
    assert [(op.mm_hash, op.stranger) for op in metadata.loads] == [("a", f"p:{EVIL}")]
    e.report(metadata)
    assert states(e) == {stranger_name("a", "p", EVIL): "ready"}


def test_one_client_does_not_decide_what_another_ones_request_is_given() -> None:
    e = engine()
    attacker = Request("attacker", [item("a", has_media=False)], said("a", EVIL))
    assert not e.scheduler.ensure_cache_available(attacker, 0)
    land(e, EVIL)
    assert e.scheduler.ensure_cache_available(attacker, 0)
    e.scheduler.request_finished(attacker)
    victim = Request("victim", [item("a")])
    metadata = e.step(victim)
    assert not metadata.loads
    assert [op.mm_hash for op in metadata.saves] == ["a"]
    e.report(metadata)
    # Our own is everybody's from then on, the attacker's too.
    for request in (Request("r2", [item("a", has_media=False)]), attacker):
        metadata = e.step(request)
        assert [(op.mm_hash, op.stranger) for op in metadata.loads] == [("a", "")]
        e.report(metadata)


def test_who_names_another_peer_has_a_fetch_of_its_own_and_waits_for_nobody_elses() -> None:
    e = engine()
    attacker = Request("attacker", [item("a", has_media=False)], said("a", EVIL))
    victim = Request("victim", [item("a", has_media=False)], said("a", HONEST))
    for request in (attacker, victim):
        assert not e.scheduler.ensure_cache_available(request, 0)
    land(e, HONEST)  # the other one never ends
    metadata = e.step(victim)
    assert [op.stranger for op in metadata.loads] == [f"p:{HONEST}"]


def test_who_names_the_same_peer_shares_its_fetch() -> None:
    e = engine()
    one = Request("one", [item("a", has_media=False)], said("a", HONEST))
    two = Request("two", [item("a", has_media=False)], said("a", HONEST))
    for request in (one, two, one):
        assert not e.scheduler.ensure_cache_available(request, 0)
    assert not e.scheduler.take_unavailable_requests(), "they wait"
    land(e, HONEST)
    for request in (one, two):
        metadata = e.step(request)
        assert len(metadata.loads) == 1
        e.report(metadata)
        e.scheduler.request_finished(request)
    assert not lent(e), "nobody is asked twice"


def test_a_name_that_looks_like_a_strangers_is_never_used() -> None:
    """A client may call its picture what it likes."""
    e = engine()
    attacker = Request("attacker", [item("a", has_media=False)], said("a", EVIL))
    e.scheduler.ensure_cache_available(attacker, 0)
    land(e, EVIL)
    name = stranger_name("a", "p", EVIL)
    assert e.tier.get(name) is not None
    thief = Request("thief", [item(name)], said(name, HONEST))
    assert e.scheduler.ensure_cache_available(thief, 0)
    assert not e.scheduler.has_cache_item(name)
    metadata = e.step(thief)
    assert not metadata.loads
    assert not metadata.saves
    assert not lent(e)
    assert not e.node.promise(name, waiter="attacker")
    # Nor is anything of one's own put where a stranger's might come to lie.
    assert not e.step(Request("early", [item(stranger_name("b", "p", EVIL))])).saves


def test_in_one_step_a_rank_loads_one_thing_for_an_encoding() -> None:
    e = engine()
    attacker = Request("attacker", [item("a", has_media=False)], said("a", EVIL))
    e.scheduler.ensure_cache_available(attacker, 0)
    land(e, EVIL)
    metadata = e.step(Request("own", [item("a")]))
    e.report(metadata)
    e.scheduler.build_connector_meta()
    # Own first, so the attacker has that; had it been promised its stranger's, ours would wait.
    assert e.scheduler.ensure_cache_available(attacker, 0)
    assert e.node._step.promise(stranger_name("a", "p", EVIL))
    late = Request("late", [item("a", has_media=False)])
    assert not e.scheduler.ensure_cache_available(late, 0)
    assert not e.scheduler.has_cache_item("a")
    e.scheduler.build_connector_meta()
    assert e.scheduler.ensure_cache_available(late, 0)
    assert e.scheduler.has_cache_item("a")


def test_it_is_neither_offered_nor_announced_nor_told() -> None:
    e = engine()
    e.data.link.publish(16)
    attacker = Request("attacker", [item("a", has_media=False)], said("a", EVIL))
    e.scheduler.ensure_cache_available(attacker, 0)
    land(e, EVIL)
    offers, events = e.data.link.offers, e.data.link.events
    assert offers is not None
    assert events is not None
    assert len(offers) == 0
    assert not offers.counters
    assert not [s for s in e.data.server.take() if isinstance(s, words.Events)]
    assert not events.pending
    _, params = e.scheduler.request_finished(attacker)
    assert params is not None
    assert "peer_host" not in params["a"]


def test_it_gives_way_to_others_like_any_encoding() -> None:
    e = engine("ec_both", blocks=2)
    attacker = Request("attacker", [item("a", 2, has_media=False)], said("a", EVIL, 2))
    e.scheduler.ensure_cache_available(attacker, 0)
    land(e, EVIL)
    e.scheduler.request_finished(attacker)
    metadata = e.step(Request("own", [item("b", 2)]))
    assert [op.mm_hash for op in metadata.saves] == ["b"]
    e.report(metadata)
    assert states(e) == {"b": "ready"}


def test_what_contradicts_a_request_is_not_loaded_although_it_names_the_peer() -> None:
    e = engine()
    attacker = Request("attacker", [item("a", 1, has_media=False)], said("a", EVIL))
    e.scheduler.ensure_cache_available(attacker, 0)
    land(e, EVIL)
    other = Request("other", [item("a", 2)], said("a", EVIL, 2))
    e.scheduler.ensure_cache_available(other, 0)
    assert not e.scheduler.has_cache_item("a")
    # Nor when the same step loads it for the one that means it.
    e.scheduler.ensure_cache_available(attacker, 0)
    assert e.scheduler.has_cache_item("a")
    for request in (attacker, other):
        e.scheduler.update_state_after_alloc(request, 0)
    metadata = e.scheduler.build_connector_meta()
    assert [op.stranger for op in metadata.loads] == [f"p:{EVIL}"]
    assert [op.nbytes for op in metadata.saves] == [2 * BLOCK]


def test_with_peers_that_have_authenticated_one_fetch_is_everybodys() -> None:
    e = Engine("ec_both", p2p=True, rules=PeerRules(known=lambda key: True))
    key = "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID"
    params = {"a": {**said("a", HONEST)["a"], "peer_key": key}}
    request = Request("r", [item("a", has_media=False)], params)
    assert not e.scheduler.ensure_cache_available(request, 0)
    (loan,) = lent(e)
    assert (loan.mm_hash, loan.key) == ("a", key)
    e.data.reader.coming.append(words.Words([("landed", loan.loan)]))
    e.scheduler.build_connector_meta()
    metadata = e.step(Request("other", [item("a", has_media=False)]))
    assert [(op.mm_hash, op.stranger) for op in metadata.loads] == [("a", "")]


def test_nothing_is_left_of_a_request_that_is_over() -> None:
    e = engine()
    for number in range(8):
        request = Request(f"r{number}", [item("a", has_media=False)], said("a", EVIL))
        e.scheduler.ensure_cache_available(request, 0)
        e.scheduler.request_finished(request)
    assert not e.node._names


@pytest.mark.clause("EC-5.9")
def test_a_request_has_one_budget_for_an_encoding_by_whose_word_ever() -> None:
    """It waited for our own save, which came to nothing, and asks its peer with what is left."""
    e = engine()
    saving = e.step(Request("saver", [item("a")]))
    request = Request("r", [item("a", has_media=False)], said("a", HONEST))
    assert not e.scheduler.ensure_cache_available(request, 0)
    assert not lent(e)
    e.report(saving, landed=False)
    budget_s = e.node.timing.fetch_budget_s
    e.now += budget_s / 2
    assert not e.scheduler.ensure_cache_available(request, 0)
    assert lent(e)
    assert not e.scheduler.take_unavailable_requests()
    e.now += budget_s / 2
    e.scheduler.ensure_cache_available(request, 0)
    assert e.scheduler.take_unavailable_requests() == {"r"}


# ------------------------------------------------------------------------ anything
class Anything(RuleBasedStateMachine):
    """Requests of anybody, in any order: each is given its own peer's word, or ours.

    The steps of ``tla/strangers``, on the delegate itself.
    """

    PORTS = st.sampled_from([None, EVIL, HONEST])
    NAMES = st.sampled_from(["a", "b"])

    def __init__(self) -> None:
        super().__init__()
        self.e = engine("ec_both", blocks=6)
        self.requests: dict[str, tuple[Request, int | None]] = {}
        self.loans: list[words.Lend] = []
        self.count = 0

    @rule(name=NAMES, port=PORTS, media=st.booleans())
    def comes(self, name: str, port: int | None, media: bool) -> None:
        self.count += 1
        params = None if port is None else said(name, port)
        request = Request(f"r{self.count}", [item(name, has_media=media)], params)
        self.requests[request.request_id] = (request, port)

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), land_first=st.booleans())
    def steps(self, data: Any, land_first: bool) -> None:
        """One engine step with some of the requests, in any order."""
        chosen = data.draw(st.lists(st.sampled_from(sorted(self.requests)), unique=True))
        planned: dict[str, set[str | None]] = {}
        scheduler = self.e.scheduler
        for key in chosen:
            request, port = self.requests[key]
            if not scheduler.ensure_cache_available(request, 0):
                continue
            name = request.items[0].mm_hash
            loads = scheduler.has_cache_item(name)
            if loads:
                planned.setdefault(name, set()).add(None if port is None else f"p:{port}")
            elif not request.items[0].has_media:
                continue  # the host asks again in the next step
            scheduler.update_state_after_alloc(request, 0)
        metadata = scheduler.build_connector_meta()
        for op in metadata.loads:
            # Whoever was promised the encoding takes this word.
            assert op.stranger == "" or planned[op.mm_hash] == {op.stranger}
        assert len({op.mm_hash for op in metadata.loads}) == len(metadata.loads)
        self.e.report(metadata)
        scheduler.take_unavailable_requests()
        self.loans += lent(self.e)

    @precondition(lambda self: self.loans)
    @rule(data=st.data(), word=st.sampled_from(["landed", "failed"]))
    def ends(self, data: Any, word: str) -> None:
        loan = self.loans.pop(data.draw(st.integers(0, len(self.loans) - 1)))
        self.e.data.reader.coming.append(words.Words([(word, loan.loan)]))
        self.e.scheduler.build_connector_meta()
        self.loans += lent(self.e)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def leaves(self, data: Any) -> None:
        key = data.draw(st.sampled_from(sorted(self.requests)))
        _, params = self.e.scheduler.request_finished(self.requests.pop(key)[0])
        for name, row in (params or {}).items():
            entry = self.e.tier.get(name)
            assert "peer_host" not in row or entry is not None

    @invariant()
    def nobody_is_offered_a_strangers_word(self) -> None:
        offers = self.e.data.link.offers
        assert offers is not None
        for offer in offers._offers.values():
            assert not is_strangers(offer.entry.mm_hash)
        self.e.tier.check()


TestAnything = Anything.TestCase
TestAnything.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
