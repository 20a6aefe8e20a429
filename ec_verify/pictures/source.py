# SPDX-License-Identifier: Apache-2.0
"""Finds out what ``ec-protocol explain`` was given, and makes its story."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from ec_protocol.errors import ECError, TraceError
from ec_protocol.tables.files import tla_dir
from ec_verify.behaviours.story import Story
from ec_verify.models.check import job_for
from ec_verify.models.manifest import load_manifest
from ec_verify.models.output import OutputParser
from ec_verify.models.runner import TlcRunner
from ec_verify.nearest import did_you_mean
from ec_verify.pictures.from_tlc import NothingToExplain, story_of_counterexample
from ec_verify.pictures.from_trace import story_of_traces
from ec_verify.traces.load import trace_files

_TLC_MARK: Final = "@!@!@STARTMSG"
_GZIP: Final = b"\x1f\x8b"
_LOOK: Final = 4096


class UnknownInput(ECError):
    """What was named is nothing that can be explained; the message says what can."""


def make_story(
    names: Sequence[str],
    seconds: float | None = None,
    adapter: str = "ours",
    case: str = "",
    check: bool = False,
) -> Story:
    """The story of what was named.

    Args:
        names: One model, one file, or several traces.
        seconds: Bound of a run of TLC; that of the manifest if left out.
        adapter: What a scenario is played against.
        case: Which case of a scenario file; its only one if left out.
        check: Whether traces are also checked against the specification.

    Raises:
        ECError: It cannot be explained; the message names it and says why.
    """
    paths = [inner for name in names for inner in _files(Path(name))]
    if all(path.is_file() for path in paths):
        return _story_of_files(paths, adapter, case, check)
    if len(names) > 1:
        lost = next(path for path in paths if not path.is_file())
        raise UnknownInput(f"{lost}: no such file; several names must all be trace files")
    if paths[0].exists() or "/" in names[0] or paths[0].suffix:
        raise UnknownInput(f"{names[0]}: no such file")
    return _story_of_model(names[0], seconds)


def _files(path: Path) -> list[Path]:
    """The traces of a folder, which are those of one run; any other path as it is."""
    try:
        return trace_files(path)
    except TraceError as exc:
        raise UnknownInput(str(exc)) from exc


def _story_of_files(paths: list[Path], adapter: str, case: str, check: bool) -> Story:
    kinds = {path: _kind(path) for path in paths}
    if set(kinds.values()) == {"trace"}:
        story = story_of_traces(paths)
        if check:
            # The checker is needed for nothing else here.
            from ec_verify.pictures.verdict import give_verdict

            give_verdict(story, paths)
        return story
    if len(paths) > 1:
        other = next(path for path, kind in kinds.items() if kind != "trace")
        raise UnknownInput(f"{other}: not a trace; only traces can be shown together")
    path = paths[0]
    if kinds[path] == "tlc":
        parser = OutputParser()
        # A file that is named after a model is one of its runs.
        text = path.read_text(encoding="utf-8", errors="replace")
        for line in text.splitlines():
            parser.feed(line)
        name = path.name.split(".")[0]
        manifest = load_manifest(tla_dir())
        model = next((model for model in manifest.models if model.name == name), None)
        return story_of_counterexample(parser.output, name, model, manifest.folder)
    if kinds[path] == "json":
        return _story_of_json(path, adapter, case)
    raise UnknownInput(
        f"{path}: neither a trace (NDJSON whose first line has trace_version), nor recorded "
        "output of TLC with -tool, nor a scenario or history (JSON)"
    )


def _story_of_json(path: Path, adapter: str, wanted: str) -> Story:
    """A scenario file is played; a history was played before."""
    if importlib.util.find_spec("msgspec") is None:
        raise UnknownInput(f"{path}: scenarios need msgspec: pip install 'ec-connector[nixl]'")
    # Only here is msgspec needed.
    import msgspec

    from ec_verify.kit.language.schedule import load_file
    from ec_verify.kit.runner import connector, run_case
    from ec_verify.pictures.from_history import story_of_history

    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as exc:
        raise UnknownInput(f"{path}: not JSON: {exc}") from exc
    if isinstance(document, dict) and {"case", "history", "result"} <= document.keys():
        outcome = {**document["result"], "adapter": document.get("adapter", "")}
        return story_of_history(document["case"], document["history"], outcome)
    cases = load_file(path)
    chosen = [case for case in cases if case.id == wanted] if wanted else cases
    if len(chosen) != 1:
        ids = [case.id for case in cases]
        if wanted:
            hint = f"no case is called {wanted!r}; {did_you_mean(wanted, ids)}"
        else:
            hint = f"name one of its {len(ids)} cases with --case"
            hint += f", for example {ids[0]}" if ids else ""
        raise UnknownInput(f"{path}: {hint}")
    name, connect = connector(adapter, None)
    result = run_case(chosen[0], connect)
    outcome = {**result.row(), "invariant": result.invariant, "adapter": name}
    return story_of_history(msgspec.to_builtins(chosen[0]), result.history, outcome)


def _kind(path: Path) -> str:
    """``trace``, ``tlc``, ``json``, or ``""`` for none, by the beginning of the file."""
    try:
        with open(path, "rb") as file:
            head = file.read(_LOOK)
    except OSError as exc:
        raise UnknownInput(f"{path}: {exc.strerror}") from exc
    if _TLC_MARK.encode() in head:
        return "tlc"
    first = head.split(b"\n", 1)[0]
    if head.lstrip().startswith(b"{") and b"trace_version" not in first:
        return "json"
    # An empty file is read as a trace, whose reader says best what is wrong with it.
    return "trace" if not head or head.startswith(_GZIP) or b"trace_version" in first else ""


def _story_of_model(name: str, seconds: float | None) -> Story:
    manifest = load_manifest(tla_dir())
    model = next((model for model in manifest.models if model.name == name), None)
    if model is None:
        hint = did_you_mean(name, [m.name for m in manifest.models])
        raise UnknownInput(f"{name}: no such file, and no model of that name; {hint}")
    if model.mode != "bug":
        raise NothingToExplain(
            f"{name} is expected to hold, so there is no counterexample; name a model whose mode "
            "is bug, for example BugPeerReadF1, or a trace file"
        )
    job = job_for(model, manifest.folder)
    run = TlcRunner().run(replace(job, timeout=seconds or job.timeout))
    if run.timed_out:
        raise NothingToExplain(f"{name}: TLC was killed after {seconds or model.timeout:g} s")
    return story_of_counterexample(run.output, name, model, manifest.folder)
