# SPDX-License-Identifier: Apache-2.0
"""Makes scenario files out of models: counterexamples, and random walks.

A model that must fail shows a schedule that breaks something when a safeguard is
missing; an implementation that has the safeguard must survive the schedule. A random
walk shows a schedule that nothing in the model survives badly: so must the code.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from ec_verify.behaviours.errors import NotExpressible, ScenarioError
from ec_verify.behaviours.models import model_of
from ec_verify.behaviours.reading import state_of
from ec_verify.behaviours.schedule import Draft, Step
from ec_verify.kit.language.clauses import clauses, strictest
from ec_verify.models.check import job_for
from ec_verify.models.config import Config
from ec_verify.models.manifest import Manifest, Model
from ec_verify.models.modules import copy_modules
from ec_verify.models.output import Output
from ec_verify.models.runner import Job, TlcRunner
from ec_verify.pictures.from_tlc import property_comment
from ec_verify.scenarios.expressible import PLAIN, beside_the_protocol, clause_of

LANGUAGE_VERSION: Final = 1
#: Walks of one simulation model, and where their seeds begin.
WALKS: Final = 4
FIRST_SEED: Final = 1
#: Walks worth playing, by root module: what holds at the end of one. Two attempts were
#: made, and a READ is in quarantine although its bytes move, or moves its bytes after
#: an earlier attempt has ended.
_WALK_ENDS: Final = {
    "MCPeerRead": (
        '\\E a \\in Attempts : read[a] = "quarantined" /\\ dma[a] \\in {"copying", "completed"}',
        'dma[2] = "copying" /\\ read[1] = "settled"',
    ),
}
_TWO_MADE: Final = 'read[2] # "absent"'

_CLAUSE: Final = re.compile(r"EC-\d+\.\d+")
_FINDS: Final = re.compile(r"TLC finds: (.*?)(?:\. |\.?$)")
_AREA_OF_FAULT: Final = {
    "F1": "lease and fence",
    "F2": "grant",
    "F3": "lease and fence",
    "F4": "quarantine",
    "F5": "quarantine",
    "F6": "tier",
    "F7": "save/load",
    "F8": "peer loss and restart",
    "F11": "grant",
}
_AREA_OF_SECTION: Final = {
    "2": "tier",
    "3": "tier",
    "4": "save/load",
    "5": "read",
    "6": "quarantine",
    "9": "peer loss and restart",
    "11": "announcement",
}
_AREA_OF_MODULE: Final = {
    "MCPeer.tla": "peer loss and restart",
    "MCQuota.tla": "grant",
    "MCTier.tla": "tier",
}
_MODULES: Final = ("MCFleet.tla", "MCPeer.tla", "MCPeerRead.tla", "MCQuota.tla", "MCTier.tla")
#: Breaks inside a model only: a move without an edge, which code built from the tables
#: does not have. No schedule shows it.
_INSIDE: Final = "EdgesProp"


@dataclass(frozen=True, slots=True)
class Made:
    """One scenario.

    Attributes:
        name: Of the case.
        model: Whose behaviour it is.
        document: The case, as it stands in the file.
    """

    name: str
    model: Model
    document: dict[str, Any]


def candidates(manifest: Manifest) -> list[Model]:
    """The models that scenarios are made of when none is named."""
    return [
        model
        for model in manifest.models
        if model.mode in ("bug", "simulation")
        and model.module in _MODULES
        and not (model.mode == "simulation" and model.module[:-4] not in _WALK_ENDS)
        and model.expected != _INSIDE
        and not beside_the_protocol(model, manifest.folder)
    ]


def make(model: Model, folder: Path, runner: TlcRunner) -> list[Made]:
    """The scenarios of one model.

    Raises:
        NotExpressible: The schedule language lacks a step of its behaviour.
        ScenarioError: TLC found no behaviour.
    """
    if beside := beside_the_protocol(model, folder):
        raise NotExpressible(f"{model.name}: {beside}, which no schedule shows")
    if model.mode == "simulation":
        return [
            _walk(model, folder, runner, seed) for seed in range(FIRST_SEED, FIRST_SEED + WALKS)
        ]
    # Checked once, at the end: what is found on the way depends on how fast that goes.
    run = runner.run(replace(job_for(model, folder), final_liveness=True))
    if not run.output.trace:
        raise ScenarioError(f"{model.name}: TLC ended with {run.output.kind!r} and no behaviour")
    return [_counterexample(model, folder, run.output)]


def _counterexample(model: Model, folder: Path, output: Output) -> Made:
    broken = output.name or model.expected
    comment = property_comment(folder, model.module, broken)
    draft = translate(output, model.config)
    found = _FINDS.search(model.about)
    cited = [*model.clauses, *_CLAUSE.findall(comment)]
    clause = clause_of(cited, draft.steps[: draft.end])
    states = f"The {len(output.trace)} states"
    if model.safeguard.startswith("nothing"):
        note = f"{states} in which {model.name} reaches what its title says, with every safeguard."
    else:
        note = (
            f"{states} of the counterexample of {model.name}, whose model lacks "
            f"{model.safeguard}: {broken} breaks. An implementation that has it survives them."
        )
    return _case(model.name, model, draft, clause, found[1] if found else model.about, note)


def translate(output: Output, config: Config) -> Draft:
    """The schedule of the behaviour that a run of TLC showed.

    Args:
        output: What TLC said.
        config: What it was asked.

    Raises:
        NotExpressible: No translation knows the model, or a step of it.
    """
    moves = [(step.action, state_of(step)) for step in output.trace]
    schedule = model_of(moves[0][1]).schedule
    if schedule is None:
        raise NotExpressible("no translation knows this model's variables")
    return schedule(moves, config.assigned, output.name or "")


def _case(name: str, model: Model, draft: Draft, clause: str, title: str, note: str) -> Made:
    section = clause.removeprefix("EC-").partition(".")[0]
    area = (
        _AREA_OF_FAULT.get(model.fault)
        or _AREA_OF_SECTION.get(section)
        or _AREA_OF_MODULE.get(model.module, "read")
    )
    setup: dict[str, Any] = {"nodes": draft.nodes, "encodings": draft.encodings}
    if draft.timers:
        setup["timers"] = draft.timers
    document = {
        "id": name,
        "clause": clause,
        "area": area,
        "title": title[:1].upper() + title[1:],
        "tags": [*([model.fault] if model.fault else []), "model"],
        "note": note,
        "setup": setup,
        "steps": _levelled(draft.steps, clause),
    }
    return Made(name, model, document)


def _levelled(steps: Sequence[Step], clause: str) -> list[Step]:
    """The steps of a case whose clause is a SHOULD: what a MUST asks is one all the same."""
    if strictest(clauses()[clause]) == "MUST":
        return list(steps)
    return [{**step, "level": "MUST"} if "clause" in step else step for step in steps]


# ------------------------------------------------------------------- random walks
def _walk(model: Model, folder: Path, runner: TlcRunner, seed: int) -> Made:
    """A random behaviour: TLC stops at the state that an invariant made for it forbids."""
    with tempfile.TemporaryDirectory(prefix="ec-walk-") as temporary:
        place = Path(temporary)
        copy_modules(folder, place)
        module = model.module.removesuffix(".tla")
        if module not in _WALK_ENDS or model.simulate is None:
            raise NotExpressible(f"{model.name}: no walk of {module} has an end to look for")
        (place / "Walk.tla").write_text(
            "---- MODULE Walk ----\n"
            f"EXTENDS {module}\n"
            f"WalkEnds == ~(({_TWO_MADE}) /\\ ({_WALK_ENDS[module][seed % 2]}))\n"
            "====\n",
            encoding="utf-8",
        )
        job = Job(
            folder=place,
            module="Walk.tla",
            config=_only_walk(model.config),
            name=f"{model.name}-{seed}",
            deadlock=False,
            simulate=replace(model.simulate, seed=seed),
            short=True,
            timeout=model.timeout,
        )
        output = runner.run(job).output
    if not output.trace:
        raise ScenarioError(f"{model.name}, seed {seed}: {output.kind}: {output.message}")
    note = (
        f"{len(output.trace)} states of a random walk of {model.name} with seed {seed}, in which "
        "every safeguard is on."
    )
    title = f"A random walk of {module.removeprefix('MC')}, seed {seed}"
    return _case(f"{model.name}-{seed}", model, translate(output, model.config), PLAIN, title, note)


def _only_walk(config: Config) -> Config:
    """The config with no other check than the end of the walk."""
    return replace(config, invariants=("WalkEnds",), properties=())
