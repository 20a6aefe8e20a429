# SPDX-License-Identifier: Apache-2.0
"""What a schedule can show of a model, and which clause it may cite.

A schedule plays what the engine, the network, the devices and the clock do. What a model
lets an instance do *wrong* is not in it: the implementation under test decides for itself.
So a model that lacks a safeguard leads to a schedule in which the safeguard is needed, but
a model that has an action beside the protocol, or another table, leads to a schedule that
ends where that action would come: an ordinary beginning, which tests nothing of what the
model is about.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ec_verify.models.manifest import Model
from ec_verify.models.modules import module_files

Step = Mapping[str, Any]

_OTHER_STEPS: Final = re.compile(r"\[\]\[(?!\s*Next\s*\]_)")
#: Verbs by which something happens that an instance does not decide itself.
_EVENTS: Final = frozenset(
    {
        "deliver", "drop", "answer", "ask", "notice", "dma", "peer", "crash", "copy",
        "until", "advance", "pull",
    }
)  # fmt: skip
#: Clauses that the end of every scenario asks for: nothing waits for ever, nothing is lost.
ALWAYS_ASKED: Final = ("EC-5.9", "EC-2.1")
#: The clause of a schedule that is about no other: the tables are followed.
PLAIN: Final = "EC-1.1"


def beside_the_protocol(model: Model, folder: Path) -> str:
    """What the model has beside the protocol that no schedule can show; "" if nothing.

    Args:
        model: Of mode bug or simulation.
        folder: Where the modules lie.
    """
    for name, table in model.config.replaced.items():
        if name.startswith("Can"):  # asks the tables whether an edge may be taken
            return f"{table} is another table"
    wanted = model.config.specification
    module = module_files(folder)[model.module].read_text(encoding="utf-8")
    defined = re.search(rf"^{wanted}\s*==(.*?)(?=^\S|\Z)", module, re.MULTILINE | re.DOTALL)
    if defined and _OTHER_STEPS.search(defined[1]):
        return f"{wanted} has an action beside Next"
    return ""


def clause_of(clauses: Sequence[str], steps: Sequence[Step]) -> str:
    """The clause that a schedule cites: the first, if anything happens in the schedule.

    Args:
        clauses: What its model is about, the nearest first.
        steps: The schedule without its end.
    """
    if any(next(iter(inner)) in _EVENTS for step in steps for inner in step.get("try", [step])):
        return [*clauses, PLAIN][0]
    return next((clause for clause in clauses if clause in ALWAYS_ASKED), PLAIN)
