# SPDX-License-Identifier: Apache-2.0
"""Generator of ``tla/common/Lifecycle.tla``, the lifecycle tables in TLA+.

The specs move objects only with the operators defined there, so an edge that
is not in ``spec/lifecycle.toml`` cannot be taken in a model either. The
generated file is committed: reviewers see what a change of a table means for
the models, and CI fails when the two differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from ec_protocol.tables.files import tla_dir
from ec_protocol.tables.lifecycle import Edge, Lifecycle, load_lifecycles
from ec_verify.models.generate import generated
from ec_verify.models.generate.generated import comment

FILE_NAME = "Lifecycle.tla"
#: Of ``tla/``.
FOLDER = "common"

_HEADER = r"""\* SPDX-License-Identifier: Apache-2.0
----------------------------- MODULE Lifecycle -----------------------------
\* Generated from spec/lifecycle.toml by `ec-protocol generate`: do not edit.
\*
\* Per lifecycle X: XStates, XInitial, XTerminal, XEvents, XGuards and XEdges,
\* the set of its edges. In every operator below, G is the set of names of the
\* guards that hold; a guard that is not in G does not hold.

\* Some edge leaves state s on event e while exactly the guards in G hold.
CanFire(edges, s, e, G) ==
    \E d \in edges : /\ d.from = s
                     /\ d.event = e
                     /\ d.needs \subseteq G
                     /\ d.forbids \cap G = {}

\* That edge. The tables are deterministic, so CHOOSE has nothing to choose.
EdgeOf(edges, s, e, G) ==
    CHOOSE d \in edges : /\ d.from = s
                         /\ d.event = e
                         /\ d.needs \subseteq G
                         /\ d.forbids \cap G = {}

\* The state it leads to, and the effect that it asks for ("" for none).
Fire(edges, s, e, G) == EdgeOf(edges, s, e, G).to
Effect(edges, s, e, G) == EdgeOf(edges, s, e, G).effect

\* What a spec adds to its history variable `ev`: the set of the lifecycle
\* events fired in the last step, compared with the tables by edge coverage.
Ev(lifecycle, edges, s, e, G) == <<lifecycle, s, e, Fire(edges, s, e, G)>>

\* No two edges can fire at once.
Deterministic(edges) ==
    \A a, b \in edges :
        (a # b /\ a.from = b.from /\ a.event = b.event)
            => (a.needs \cap b.forbids) \cup (b.needs \cap a.forbids) # {}
"""

_RULE = "-" * 77
_FOOTER = "=" * 77 + "\n"


def generate(lifecycles: Mapping[str, Lifecycle] | None = None) -> str:
    """The text of ``Lifecycle.tla``, by default of the shipped tables."""
    tables = (lifecycles or load_lifecycles()).values()
    checks = [f"ASSUME Deterministic({_prefix(table)}Edges)" for table in tables]
    return "\n".join([_HEADER, *map(_lifecycle, tables), *checks, "", _FOOTER])


def is_current(folder: Path | None = None) -> bool:
    """Whether the committed file is what ``generate`` would write."""
    return generated.is_current((folder or tla_dir() / FOLDER) / FILE_NAME, generate())


def write(folder: Path | None = None) -> Path:
    """Write the file and return its path."""
    return generated.write((folder or tla_dir() / FOLDER) / FILE_NAME, generate())


def _prefix(table: Lifecycle) -> str:
    return table.name.capitalize()


def _lifecycle(table: Lifecycle) -> str:
    prefix = _prefix(table)
    lines = [
        _RULE,
        f"\\* {table.name}: {comment(table.doc)}",
        f"{prefix}States == {_string_set(table.states)}",
        *(f"    \\* {state}: {comment(doc)}" for state, doc in table.states.items()),
        f'{prefix}Initial == "{table.initial}"',
        f"{prefix}Terminal == {_string_set(table.terminal)}",
        f"{prefix}Events == {_string_set(table.events)}",
        f"{prefix}Guards == {_string_set(table.guards)}",
        *(f"    \\* {guard}: {comment(doc)}" for guard, doc in table.guards.items()),
        "",
        f"{prefix}Edges == {{",
    ]
    for index, edge in enumerate(table.edges):
        comma = "," if index < len(table.edges) - 1 else ""
        lines += [f"    \\* {comment(edge.why)}", f"    {_record(edge)}{comma}"]
    return "\n".join([*lines, "}", ""])


def _record(edge: Edge) -> str:
    return (
        f'[from |-> "{edge.source}", event |-> "{edge.event}",'
        f" needs |-> {_string_set(edge.needs)}, forbids |-> {_string_set(edge.forbids)},"
        f'\n     to |-> "{edge.dest}", effect |-> "{edge.effect}"]'
    )


def _string_set(words: Iterable[str]) -> str:
    return "{" + ", ".join(f'"{word}"' for word in words) + "}"
