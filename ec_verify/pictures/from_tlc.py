# SPDX-License-Identifier: Apache-2.0
"""Makes a story of a counterexample."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from ec_protocol.errors import ECError
from ec_verify.behaviours.models import draw
from ec_verify.behaviours.reading import state_of
from ec_verify.behaviours.story import Story, Verdict
from ec_verify.kit.language.clauses import clauses
from ec_verify.models.manifest import Model
from ec_verify.models.modules import module_files, reached
from ec_verify.models.output import Output

_BACK_TO: Final = re.compile(r"goes back to state (\d+)")


class NothingToExplain(ECError):
    """There is no behaviour to show; the message says what to name instead."""


def story_of_counterexample(output: Output, name: str, model: Model | None, folder: Path) -> Story:
    """The story of the behaviour that a run of TLC ended with.

    Args:
        output: What TLC said.
        name: Title of the story.
        model: What was run, if it is one of ours.
        folder: Where the modules lie, to quote what they say of the property.

    Raises:
        NothingToExplain: TLC found no behaviour to show.
    """
    if not output.trace:
        raise NothingToExplain(
            f"{name}: TLC ended with {output.kind!r} and shows no behaviour"
            + (f": {output.message}" if output.message else "")
            + "; name a model of mode bug"
        )
    story = Story(title=name, subtitle=_subtitle(output, model), lanes=[], time_unit="state")
    draw([(step.action, state_of(step)) for step in output.trace], story)
    story.about = model.about if model else ""
    story.verdict = _verdict(output, model, folder, story)
    return story


def _subtitle(output: Output, model: Model | None) -> str:
    if model is None:
        return f"a behaviour of {len(output.trace)} states found by TLC"
    return f"{model.module.removesuffix('.tla')}: the {len(output.trace)} states that TLC found"


def _verdict(output: Output, model: Model | None, folder: Path, story: Story) -> Verdict:
    last = len(story.steps) - 1
    facts: list[tuple[str, str]] = []
    reached = bool(model and model.safeguard.startswith("nothing"))
    if model is not None:
        if model.fault:
            facts.append(("fault", model.fault))
        if model.safeguard and not reached:
            facts.append(("safeguard removed", model.safeguard))
        texts = clauses()
        facts += [(c, texts[c]) for c in model.clauses if c in texts]
    if output.kind == "deadlock":
        return Verdict("Deadlock", last, "No action can be taken any more.", facts=facts)
    title = output.name or (model.expected if model else output.kind)
    said = property_comment(folder, model.module, title) if model else ""
    if output.loop:
        found = _BACK_TO.search(output.loop)
        back_to = int(found[1]) - 1 if found else last
        how = f"returns to state {back_to + 1} for ever" if found else "stays there for ever"
        sentence = f"{said} The behaviour {how}, and the property never comes true."
        return Verdict(title, None, sentence.strip(), facts=facts, back_to=back_to)
    return Verdict(title, last, said, bad=not reached, facts=facts)


def property_comment(folder: Path, module: str, name: str) -> str:
    """The comment above the definition of an invariant or property, in one line.

    Args:
        folder: Where the modules lie.
        module: File name of the root module; what it extends is looked through too.
        name: The definition.
    """
    defined = re.compile(rf"((?:^\\\*.*\n)+){re.escape(name)}\s*==", re.MULTILINE)
    for path in reached(module, module_files(folder)):
        text = path.read_text(encoding="utf-8", errors="replace")
        if found := defined.search(text):
            lines = [line.removeprefix("\\*").strip() for line in found[1].splitlines()]
            return " ".join(line for line in lines if line.strip("-"))
    return ""
