# SPDX-License-Identifier: Apache-2.0
"""Gives each mutant of a table to the TLA+ models that move objects by that table.

``Lifecycle.tla`` (or ``Timing.tla``) is generated from the mutant instead of the
table; nothing else of the models changes, and their properties name states, events and
timers by themselves, so they do not follow the mutant. The models of a table are tried
one after another, the quickest first, until one objects:

* an invariant, a step property or a liveness property is violated, or TLC finds a
  deadlock: ``killed_by`` is its name;
* the model fires an event that the mutant has no edge for (EC-1.2): ``illegal event``;
* or, when all models let it pass, an action that every sound table enables is never
  enabled (``dead action X``), or a state that a ``Reach*`` config must reach is not
  reached any more (``ReachX``); an edge more, operator ``rogue``, can do neither;
* or, in the end, the loader of the tables would refuse to load it
  (``refused: ...``): a state that cannot be reached or left, a last one with edges.

That the edges of the state graph are those of the table is checked elsewhere (mode
``edges``) and does not count here: a mutant moves both sides of that comparison. For
mutants of the *actions* it does count, because the models do not read those rows.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from ec_protocol.errors import ECError, SpecError
from ec_protocol.tables.lifecycle import check_lifecycle, load_lifecycles
from ec_verify.models.check import job_for
from ec_verify.models.edges import differences
from ec_verify.models.generate import lifecycle_tla, timing_tla
from ec_verify.models.graph import Graph
from ec_verify.models.manifest import Manifest, Model
from ec_verify.models.modules import copy_modules
from ec_verify.models.pool import side_by_side
from ec_verify.models.runner import Run, TlcRunner
from ec_verify.mutants.operators import ACTIONS, TIMING, Mutant

#: The models of each table, in the order in which they are tried. Each is small: a
#: mutant that only a large state space shows would be no mutant of one edge.
BATTERIES: Final[dict[str, tuple[str, ...]]] = {
    "entry": (
        "MCTierSmall",
        "MCPeerReadSmall",
        "MCEviction",
        "MCAnnounce",
        "MCTierSmallLive",
        "MCPeerReadSmallLive",
    ),
    "read": (
        "MCPeerReadSmall",
        "MCPeerReadSmallTwice",
        "MCPeerSmall",
        "MCPeerReadSmallLive",
        "MCPeerProgress",
    ),
    "grant": ("MCPeerReadSmall", "MCQuota", "MCPeerReadSmallLive"),
    "copy": ("MCTierSmall", "MCTierSmallLive"),
    "peer": ("MCPeerSmall", "MCPeerProgress", "MCPeer"),
    "offer": ("MCOffersSmall", "MCOffersLive"),
    "loan": ("MCLoansSmall", "MCLoansLive", "MCLoans"),
    "process": ("MCLoansSmall", "MCLoansServed", "MCLoansLive"),
    "region": ("MCRegionSmall", "MCRegionSwept", "MCRegionRoom"),
    TIMING: ("MCGrace", "MCTimersPeer", "MCTimersFetch"),
}

#: Root modules whose ``Reach*`` configs are tried on what the models let pass.
REACHES: Final[dict[str, tuple[str, ...]]] = {
    "entry": ("MCTier.tla", "MCPeerRead.tla", "MCEviction.tla", "MCAnnounce.tla"),
    "read": ("MCPeerRead.tla", "MCPeer.tla"),
    "grant": ("MCPeerRead.tla", "MCQuota.tla"),
    "copy": ("MCTier.tla",),
    "peer": ("MCPeer.tla",),
    "offer": ("MCOffers.tla",),
    "loan": ("MCLoans.tla",),
    "process": ("MCLoans.tla",),
    "region": ("MCRegion.tla",),
    TIMING: ("MCGrace.tla", "MCTimers.tla"),
}

KILLED: Final = "killed"
SURVIVED: Final = "survived"
EXPLAINED: Final = "explained"
FAILED: Final = "failed"

# An edge more takes no step away, as long as no model does something else where an event
# has no edge: what is reached by the sound table is reached still. In today's models that
# holds wherever every safeguard is there.
_ADDING: Final = frozenset({"rogue"})

_NO_EDGE: Final = "CHOOSE x"


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one mutant.

    Attributes:
        mutant: The mutant.
        verdict: ``"killed"``, ``"survived"``, ``"explained"`` (nothing noticed, and a
            reason is given why), or ``"failed"`` (no verdict: TLC broke down).
        killed_by: The property, or in other words what noticed; ``None`` if nothing.
        model: The model, or the Python test file, that noticed.
        seconds: Wall time of everything that was tried.
        detail: The reason of an explained survivor, or TLC's complaint.
    """

    mutant: Mutant
    verdict: str
    killed_by: str | None
    model: str | None
    seconds: float
    detail: str = ""

    def as_json(self) -> dict[str, Any]:
        """The mutant's object in ``ec-protocol mutants --json``."""
        return {
            "id": self.mutant.id,
            "lifecycle": self.mutant.lifecycle,
            "operator": self.mutant.operator,
            "where": self.mutant.where,
            "verdict": self.verdict,
            "killed_by": self.killed_by,
            "model": self.model,
            "seconds": round(self.seconds, 2),
            "detail": self.detail,
        }


class ModelJudge:
    """Runs the batteries.

    Thread-safe; ``stop`` ends every TLC process.

    Args:
        manifest: The models.
        runner: What runs them.
    """

    def __init__(self, manifest: Manifest, runner: TlcRunner | None = None) -> None:
        self._runner = runner or TlcRunner()
        self._folder = manifest.folder
        self._models = {model.name: model for model in manifest.models}
        self._reaches = {
            lifecycle: [
                model
                for model in manifest.models
                if model.name.startswith("Reach") and model.module in modules
            ]
            for lifecycle, modules in REACHES.items()
        }
        self._graphs: dict[str, Graph] = {}

    def stop(self) -> None:
        """End every run."""
        self._runner.stop()

    def prepare(self, mutants: Iterable[Mutant]) -> None:
        """Make what several mutants share: the state graphs the actions are compared with."""
        if any(mutant.lifecycle == ACTIONS for mutant in mutants) and not self._graphs:
            for model in self._edge_models():
                run = self._runner.run(job_for(model, self._folder))
                if run.graph is None:
                    raise ECError(f"{model.name}: {run.output.message or run.output.kind}")
                self._graphs[model.name] = run.graph

    def judge(self, mutant: Mutant) -> Result:
        """Try one mutant."""
        if mutant.actions is not None:
            return self._judge_actions(mutant)
        with tempfile.TemporaryDirectory(prefix="ec-mutant-") as temporary:
            folder = Path(temporary)
            self._write(folder, mutant)
            return self._judge_models(mutant, folder)

    def _judge_models(self, mutant: Mutant, folder: Path) -> Result:
        battery = [self._models[name] for name in BATTERIES[mutant.lifecycle]]
        spent = 0.0
        for model in battery:
            run = self._runner.run(replace(job_for(model, folder), coverage=False))
            spent += run.seconds
            found = _objection(run)
            if found is not None:
                verdict, said = found
                if verdict == FAILED:
                    return Result(mutant, FAILED, None, model.name, spent, said)
                return Result(mutant, KILLED, said, model.name, spent)
        if mutant.operator not in _ADDING:
            for model in battery:
                if model.mode != "exhaustive":
                    continue
                run = self._runner.run(job_for(model, folder))
                spent += run.seconds
                if (found := _objection(run)) is not None:
                    return Result(mutant, FAILED, None, model.name, spent, found[1])
                dead = set(run.output.dead_actions) - set(model.allow_dead)
                if dead:
                    killer = f"dead action {', '.join(sorted(dead))}"
                    return Result(mutant, KILLED, killer, model.name, spent)
            for model in self._reaches[mutant.lifecycle]:
                run = self._runner.run(job_for(model, folder))
                spent += run.seconds
                found = _objection(run)
                if found is None:
                    return Result(mutant, KILLED, model.expected, model.name, spent)
                if found[0] == FAILED:
                    return Result(mutant, FAILED, None, model.name, spent, found[1])
        try:
            if mutant.table is not None:
                check_lifecycle(mutant.table)
        except SpecError as exc:
            return Result(mutant, KILLED, f"refused: {exc}", None, spent)
        return Result(mutant, SURVIVED, None, None, spent)

    def _judge_actions(self, mutant: Mutant) -> Result:
        for model in self._edge_models():
            found = differences(
                self._graphs[model.name],
                lifecycles=(),
                modules=model.modules or (),
                allow_dead=model.allow_dead,
                actions=mutant.actions,
            )
            if found:
                return Result(mutant, KILLED, found[0], model.name, 0.0)
        return Result(mutant, SURVIVED, None, None, 0.0)

    def _edge_models(self) -> list[Model]:
        return [model for model in self._models.values() if model.mode == "edges"]

    def _write(self, folder: Path, mutant: Mutant) -> None:
        copy_modules(self._folder, folder)
        if mutant.table is not None:
            tables = {**load_lifecycles(), mutant.lifecycle: mutant.table}
            generated = (lifecycle_tla.FILE_NAME, lifecycle_tla.generate(tables))
        else:
            generated = (timing_tla.FILE_NAME, timing_tla.generate(mutant.timing))
        (folder / generated[0]).write_text(generated[1], encoding="ascii")


def _objection(run: Run) -> tuple[str, str] | None:
    """``KILLED`` or ``FAILED`` and what TLC said, or ``None`` if the model let it pass."""
    output = run.output
    if run.timed_out:
        return FAILED, "timed out"
    if output.kind == "ok":
        return None
    if output.kind in ("invariant", "property"):
        return KILLED, output.name or output.kind
    if output.kind == "deadlock":
        return KILLED, "deadlock"
    if output.kind == "evaluation":
        if _NO_EDGE in output.message or output.name is None:
            return KILLED, "illegal event"
        return KILLED, output.name
    return FAILED, output.message or output.kind


def run_mutants(
    mutants: Sequence[Mutant],
    judge: ModelJudge,
    *,
    jobs: int,
    done: Callable[[Result], None] = lambda result: None,
) -> list[Result]:
    """Judge mutants side by side.

    Args:
        mutants: What to run.
        judge: Prepared for them.
        jobs: How many TLC processes at once.
        done: Told of each result, from the running threads.

    Returns:
        The results in the order of ``mutants``.

    Raises:
        KeyboardInterrupt: After every TLC process was killed.
    """

    def one(mutant: Mutant) -> Result:
        try:
            result = judge.judge(mutant)
        except (ECError, OSError) as exc:
            result = Result(mutant, FAILED, None, None, 0.0, str(exc))
        done(result)
        return result

    return side_by_side(mutants, one, jobs=jobs, stop=judge.stop)
