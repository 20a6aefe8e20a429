# SPDX-License-Identifier: Apache-2.0
"""Wrong copies of a trace, which the check must reject.

A mutant is the trace with two records swapped, one record dropped, one repeated, or
one field altered. What a mere count would notice is put right again: sequence numbers
are not looked at in a mutant, and recording times keep their places. So a mutant is
rejected only if the specification does not allow what it tells.

Some mutants tell another behaviour that the specification does allow. ``Judge``
recognises them by rule; one that is accepted and falls under no rule is a hole in the
specification.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from ec_protocol.tables.lifecycle import load_lifecycles
from ec_verify.traces.fields import ARGUMENTS, VARIABLES, Kind, arguments_of
from ec_verify.traces.load import Fired, Record
from ec_verify.traces.merge import attempt_of
from ec_verify.traces.tla import Mutant

#: How far apart swapped records are at most, and a repeated one from itself.
_REACH: Final = 6
#: By how much a time is moved, in seconds, either way.
_SHIFTS: Final = (0.02, 0.3, 2.5, 31.0, 70.0)

#: Fields that the world outside the protocol chooses, within the guards of the action:
#: when something was decided and recorded, whether a lease ended early by shutdown, who
#: asked, why a peer or a READ was given up, which slot or reader was taken; and what a
#: server's grant is on, where the engine that knows it left no trace.
_INPUTS: Final = frozenset(
    {
        ("", "t"),
        ("", "args.now"),
        ("Expire", "args.why"),
        ("Grant", "vars.grant.identity"),
        ("PeerDown", "fired.event"),
        ("ReadLost", "fired.event"),
        ("Expect", "vars.offer.slot"),
        ("Offer", "vars.offer.slot"),
        ("Lend", "vars.loan.reader"),
        ("StartProcess", "vars.process.kind"),
        ("Grant", "vars.grant.entry"),
        ("Grant", "vars.grant.extents"),
    }
)


def mutants(log: Sequence[Record], count: int, seed: int) -> list[Mutant]:
    """Different mutants of a merged log, from the seed.

    Returns:
        ``count`` of them, or fewer when a short log does not have so many.
    """
    chance = random.Random(seed)
    makers: tuple[Callable[[Sequence[Record], random.Random, _Pool], Mutant | None], ...]
    makers = (_swap, _drop, _duplicate, _alter, _alter)
    pool = _Pool(log)
    found: dict[str, Mutant] = {}
    for attempt in range(count * 20):
        if len(found) == count:
            break
        mutant = makers[attempt % len(makers)](log, chance, pool)
        if mutant is not None:
            found.setdefault(mutant.what, mutant)
    return list(found.values())


class _Pool:
    """Values that fields have somewhere in the log: what a plausible wrong value looks like."""

    def __init__(self, log: Sequence[Record]) -> None:
        self._values: defaultdict[str, set[Any]] = defaultdict(set)
        for record in log:
            for path, _, value, _ in _leaves(record):
                self._values[path].add(value)

    def other(self, path: str, value: Any, chance: random.Random) -> Any:
        """Another value of the same field, or None if there is none."""
        others = sorted((v for v in self._values[path] if v != value), key=repr)
        return chance.choice(others) if others else None


# ------------------------------------------------------------------- operators
def _swap(log: Sequence[Record], chance: random.Random, pool: _Pool) -> Mutant | None:
    if len(log) < 2:
        return None
    first = chance.randrange(len(log) - 1)
    second = min(len(log) - 1, first + chance.choice((1, 1, 1, 2, 3, _REACH)))
    window = list(log[first : second + 1])
    window[0], window[-1] = window[-1], window[0]
    what = f"records {first + 1} and {second + 1} swapped"
    return Mutant("swap", what, first + 1, _retimed(log, first, second, window), second + 2)


def _drop(log: Sequence[Record], chance: random.Random, pool: _Pool) -> Mutant | None:
    index = chance.randrange(len(log))
    return Mutant("drop", f"record {index + 1} dropped", index + 1, (), index + 2)


def _duplicate(log: Sequence[Record], chance: random.Random, pool: _Pool) -> Mutant | None:
    index = chance.randrange(len(log))
    last = min(len(log) - 1, index + chance.choice((0, 0, 1, 2, _REACH)))
    again = replace(log[index], t=_time_at(log, last, log[index].clock))
    what = f"record {index + 1} repeated after record {last + 1}"
    return Mutant("duplicate", what, last + 2, (again,), last + 2)


def _alter(log: Sequence[Record], chance: random.Random, pool: _Pool) -> Mutant | None:
    index = chance.randrange(len(log))
    record = log[index]
    path, kind, value, put = chance.choice(list(_leaves(record)))
    new = _changed(path, kind, value, record, chance, pool)
    if new is None or new == value:
        return None
    what = f"record {index + 1}: {path} {_shown(value)} altered to {_shown(new)}"
    return Mutant("alter", what, index + 1, (put(new),), index + 2)


def _retimed(
    log: Sequence[Record], first: int, last: int, window: Sequence[Record]
) -> tuple[Record, ...]:
    """The window with each clock's recording times in their old order."""
    times: defaultdict[str, list[float]] = defaultdict(list)
    for record in reversed(log[first : last + 1]):
        times[record.clock].append(record.t)
    return tuple(replace(record, t=times[record.clock].pop()) for record in window)


def _time_at(log: Sequence[Record], index: int, clock: str) -> float:
    """The last recording time on a clock up to a place of the log."""
    return next(record.t for record in reversed(log[: index + 1]) if record.clock == clock)


# ---------------------------------------------------------------------- fields
_LeafKind = Kind | str
#: Path, kind, value, and what makes the record with another value.
_Leaf = tuple[str, _LeafKind, Any, Callable[[Any], Record]]


def _leaves(record: Record) -> Iterator[_Leaf]:
    """Every field of a record, objects' ids left out of the paths."""
    yield "t", "time", record.t, lambda new: replace(record, t=new)
    yield "action", "action", record.action, lambda new: replace(record, action=new)
    for name, kind in (arguments_of(record.action, record.args) or {}).items():
        yield f"args.{name}", kind, record.args[name], _put_argument(record, name)
    for number, item in enumerate(record.fired):
        for name, what in _FIRED.items():
            yield f"fired.{name}", what, getattr(item, name), _put_fired(record, number, name)
    for group, objects in record.objects.items():
        for number, variables in objects.items():
            for name, value in variables.items():
                path = f"vars.{group}.{name}"
                put = _put_variable(record, group, number, name)
                yield path, VARIABLES[group][name], value, put


_FIRED: Final[Mapping[str, str]] = {
    "lifecycle": "text",
    "object_id": "count",
    "event": "event",
    "guards": "guards",
    "before": "state",
    "after": "state",
}


def _put_argument(record: Record, name: str) -> Callable[[Any], Record]:
    return lambda new: replace(record, args={**record.args, name: new})


def _put_fired(record: Record, number: int, name: str) -> Callable[[Any], Record]:
    def put(new: Any) -> Record:
        item: Fired = replace(record.fired[number], **{name: new})
        return replace(record, fired=(*record.fired[:number], item, *record.fired[number + 1 :]))

    return put


def _put_variable(record: Record, group: str, number: int, name: str) -> Callable[[Any], Record]:
    def put(new: Any) -> Record:
        variables = {**record.objects[group][number], name: new}
        objects = {**record.objects[group], number: variables}
        return replace(record, objects={**record.objects, group: objects})

    return put


def _changed(
    path: str, kind: str, value: Any, record: Record, chance: random.Random, pool: _Pool
) -> Any:
    """A wrong value of the same kind, or None if there is none."""
    if kind in ("count", "count-or-none") and chance.random() < 0.6:
        return value + 1 if value == 0 or chance.random() < 0.5 else value - 1
    if kind in ("time", "seconds", "seconds-or-none"):
        return None if value is None else value + chance.choice(_SHIFTS) * chance.choice((-1, 1))
    if kind == "flag":
        return not value
    if kind == "action":
        return chance.choice(_alike(value))
    if kind in ("event", "state", "guards"):
        return _lifecycle_value(kind, value, record, path, chance)
    if kind == "extents" and value and chance.random() < 0.7:
        return _other_extents(value, chance)
    if kind in ("holders", "numbers") and value and chance.random() < 0.5:
        return value - {chance.choice(sorted(value))}
    return pool.other(path, value, chance)


def _alike(action: str) -> list[str]:
    """Other actions with the same arguments."""
    shape = ARGUMENTS[action]
    return [name for name, fields in ARGUMENTS.items() if fields == shape and name != action] or [
        action
    ]


def _lifecycle_value(
    kind: str, value: Any, record: Record, path: str, chance: random.Random
) -> Any:
    names = {item.lifecycle for item in record.fired if value in (item.event, item.before)}
    names |= {item.lifecycle for item in record.fired if value in (item.after, item.guards)}
    tables = [table for name, table in load_lifecycles().items() if name in names]
    if not tables:
        return None
    table = chance.choice(tables)
    if kind == "guards":
        guards = sorted(table.guards)
        return value ^ {chance.choice(guards)} if guards else None
    return chance.choice(sorted(table.events if kind == "event" else table.states))


def _other_extents(
    value: tuple[tuple[int, int], ...], chance: random.Random
) -> tuple[tuple[int, int], ...]:
    index = chance.randrange(len(value))
    start, count = value[index]
    other = chance.choice(((start + 1, count), (start, count + 1), (max(0, start - 1), count)))
    return (*value[:index], other, *value[index + 1 :])


def _shown(value: Any) -> str:
    return repr(sorted(value)) if isinstance(value, frozenset) else repr(value)


# ------------------------------------------------------------ equivalent mutants
#: What an attempt does after its READ was posted, and how its grant ends: no message
#: orders the ones after the others (a notice may overtake what the reader sees).
_READER: Final = frozenset({"ReadDone", "ReadCorrupt", "ReadLost", "DmaEnded", "Retire", "Settle"})
_GRANTER: Final = frozenset({"Complete", "Expire"})

_Object = tuple[str, str, int]


class Judge:
    """Says of accepted mutants of one log whether they tell something that is allowed too.

    Args:
        log: The merged log, which was accepted.
    """

    def __init__(self, log: Sequence[Record]) -> None:
        self.log = log
        self._told: list[dict[_Object, Mapping[str, Any]]] = []
        self._changed: list[frozenset[_Object]] = []
        known: dict[_Object, Mapping[str, Any]] = {}
        for record in log:
            told = _told(record)
            self._told.append(told)
            own = {key: _own(key, variables) for key, variables in told.items()}
            self._changed.append(frozenset(k for k, v in own.items() if known.get(k) != v))
            known.update(own)

    def rule(self, mutant: Mutant) -> str:
        """The rule by which the specification may accept the mutant; ``""`` if none.

        * *independent*: the swapped records, and all between them, commute: of one
          process, neither tells an object that the other changes; of two, no message
          orders them, and in one instance neither rests on the other.
        * *no change*: the dropped or repeated record tells what was so before.
        * *not yet*: nothing that follows tells what the dropped record changed, so that
          step may as well come after the end of the log.
        * *at once*: an offer need not be expected before it is made.
        * *input*: the altered field is chosen outside of the protocol (``_INPUTS``).
        """
        first = mutant.first - 1
        last = mutant.resume - 2
        if mutant.operator == "swap":
            crossed = [(first, other) for other in range(first + 1, last + 1)]
            crossed += [(other, last) for other in range(first + 1, last)]
            return "independent" if all(self._commute(a, b) for a, b in crossed) else ""
        if mutant.operator == "drop":
            if not self._changed[first]:
                return "no change"
            later = range(first + 1, len(self.log))
            if all(self._ignores(other, first) for other in later):
                return "not yet"
            return "at once" if self._made_at_once(first) else ""
        if mutant.operator == "duplicate":
            return "no change" if self._so_before(first, mutant.lines[0]) else ""
        path = mutant.what.split()[2]
        return "input" if {("", path), (self.log[first].action, path)} & _INPUTS else ""

    def _commute(self, first: int, second: int) -> bool:
        a, b = self.log[first], self.log[second]
        if a.process == b.process:
            return self._changed[first].isdisjoint(self._told[second]) and self._changed[
                second
            ].isdisjoint(self._told[first])
        if a.instance and a.instance == b.instance and _linked(a, b):
            return False
        if attempt_of(a) is None or attempt_of(a) != attempt_of(b):
            return True
        actions = {a.action, b.action}
        return bool(actions & _READER and actions & _GRANTER)

    def _ignores(self, later: int, earlier: int) -> bool:
        a, b = self.log[earlier], self.log[later]
        if a.process == b.process:
            return self._changed[earlier].isdisjoint(self._told[later])
        if a.instance and a.instance == b.instance:
            # That it was alive, others of its records show as well.
            return not {cue for cue in _links(a)[0] if cue[0] != "alive"} & _links(b)[1]
        return self._commute(earlier, later)

    def _made_at_once(self, expected: int) -> bool:
        record = self.log[expected]
        if record.action != "Expect":
            return False
        later = (
            other.action
            for other in self.log[expected + 1 :]
            if other.process == record.process and record.object_id in other.objects["offer"]
        )
        return next(later, "") == "Offer"

    def _so_before(self, index: int, record: Record) -> bool:
        for key, variables in _told(record).items():
            earlier = (told[key] for told in reversed(self._told[:index]) if key in told)
            before = next(earlier, None)
            if before is None or _own(key, before) != _own(key, variables):
                return False
        return True


#: What a record of one process says, or must be told, that another one's rests on.
_Cue = tuple[str, ...]


def _linked(a: Record, b: Record) -> bool:
    """Whether one of two records of an instance rests on the other."""
    (gives, needs), (gives_too, needs_too) = _links(a), _links(b)
    return bool(gives & needs_too or gives_too & needs)


def _links(record: Record) -> tuple[set[_Cue], set[_Cue]]:
    """What a record gives to those of other processes, and what it needs of them."""
    number, action, about = str(record.number), record.action, str(record.object_id)
    gives: set[_Cue] = set()
    needs: set[_Cue] = set()
    if record.role in ("server", "reader"):
        gives.add(("alive", number))
        needs.add(("placed", number))
    if record.role == "parent":
        if action == "TakePlace":
            gives.add(("placed", about))
        elif action == "Exited":
            needs.add(("alive", about))
    elif record.role == "server":
        for grant in record.objects["grant"].values():
            slot = str(grant["entry"])
            gives.add(("kept", slot))
            if action == "Grant":
                needs.add(("open", slot))
    elif record.role == "reader":
        for word in _words(record):
            gives.add(word)
        if action == "Alloc":
            needs |= {("lent", str(loan)) for loan in record.objects["entry"]}
    elif record.objects["offer"]:
        for offer in record.objects["offer"].values():
            slot = str(offer["slot"])
            if action == "Offer":
                gives.add(("open", slot))
            elif action == "Close":
                needs.add(("kept", slot))
    else:
        for loan in record.objects["loan"].values():
            reader = str(loan["reader"])
            if action == "Lend":
                gives.add(("lent", about))
                needs.add(("placed", reader))
            elif action == "Exited":
                needs.add(("alive", reader))
            else:
                needs.add((action.lower(), about))
    return gives, needs


def _words(record: Record) -> Iterator[_Cue]:
    """What a reader says after what the record tells."""
    if record.action == "Reclaim":
        yield "proven", str(record.object_id)
    for item in record.fired:
        if item.lifecycle == "entry" and item.event in _WORDS:
            yield _WORDS[item.event], str(item.object_id)


#: Events of a reader's entry, and the word that follows.
_WORDS: Final = {
    "write_landed": "landed",
    "cancel": "failed",
    "write_lost": "lost",
    "dma_ended": "proven",
}


def _own(key: _Object, variables: Mapping[str, Any]) -> Mapping[str, Any]:
    """Variables without those that follow from others' (attempts know their peer)."""
    return {name: v for name, v in variables.items() if (key[1], name) != ("peer", "attempts")}


def _told(record: Record) -> dict[_Object, Mapping[str, Any]]:
    return {
        (record.process, kind, number): variables
        for kind, objects in record.objects.items()
        for number, variables in objects.items()
    }
