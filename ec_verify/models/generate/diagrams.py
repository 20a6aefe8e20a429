# SPDX-License-Identifier: Apache-2.0
"""State diagrams and tables of the documentation, made from the lifecycle tables.

A document holds marked blocks; everything else in it is written by hand::

    <!-- diagram:entry -->
    ...
    <!-- /diagram -->

``table:NAME`` blocks, closed by ``<!-- /table -->``, take the meaning of every
state, event, guard and edge.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from ec_protocol.errors import ECError
from ec_protocol.tables.lifecycle import Edge, Lifecycle, load_lifecycles
from ec_verify.nearest import did_you_mean

#: Documents with marked blocks, relative to the checkout.
DOCUMENTS: Final = ("docs/architecture.md", "docs/verification/lifecycles.md")

_BLOCK = re.compile(
    r"^<!-- (?P<kind>diagram|table):(?P<name>\w+) -->\n"
    r"(?P<body>.*?)"
    r"^<!-- /(?P<end>\w+) -->$",
    re.DOTALL | re.MULTILINE,
)
_MARK = re.compile(r"^<!-- /?(?:diagram|table)\b.*-->$", re.MULTILINE)


class DiagramError(ECError):
    """A document's marks cannot be filled; the message names the mark."""


def mermaid(table: Lifecycle) -> str:
    """One lifecycle as a mermaid state diagram, without the code fence."""
    labels: dict[tuple[str, str], list[str]] = {}
    for edge in table.edges:
        labels.setdefault((edge.source, edge.dest), []).append(_label(edge))
    lines = ["stateDiagram-v2", f"    [*] --> {table.initial}"]
    for (source, dest), texts in labels.items():
        lines.append(f"    {source} --> {dest} : {'<br/>'.join(texts)}")
    lines += [f"    {state} --> [*]" for state in table.terminal]
    return "\n".join(lines) + "\n"


def meaning(table: Lifecycle) -> str:
    """One lifecycle's vocabulary and edges as Markdown tables."""
    parts = [_rows(("state", "meaning"), ((_code(s), doc) for s, doc in table.states.items()))]
    parts.append(
        _rows(
            ("event", "whose mistake if it comes at the wrong time", "meaning"),
            (
                (_code(event.name), "ours" if event.by == "local" else "the peer's", event.doc)
                for event in table.events.values()
            ),
        )
    )
    if table.guards:
        parts.append(
            _rows(("guard", "holds when"), ((_code(g), d) for g, d in table.guards.items()))
        )
    parts.append(
        _rows(
            ("from", "event", "guards", "to", "effect", "why"),
            (
                (
                    _code(edge.source),
                    _code(edge.event),
                    _guards(edge),
                    _code(edge.dest),
                    _code(edge.effect),
                    edge.why,
                )
                for edge in table.edges
            ),
        )
    )
    return "\n".join(parts)


def fill(text: str, lifecycles: Mapping[str, Lifecycle] | None = None) -> str:
    """A document's text with every marked block made anew.

    Raises:
        DiagramError: A mark names no lifecycle, or is not closed by its own end.
    """
    tables = lifecycles or load_lifecycles()

    def block(match: re.Match[str]) -> str:
        kind, name = match["kind"], match["name"]
        if name not in tables:
            raise DiagramError(
                f"<!-- {kind}:{name} -->: no such lifecycle; {did_you_mean(name, tables)}"
            )
        if match["end"] != kind or _MARK.search(match["body"]):
            raise DiagramError(f"<!-- {kind}:{name} --> is not closed by <!-- /{kind} -->")
        if kind == "diagram":
            body = f"```mermaid\n{mermaid(tables[name])}```\n"
        else:
            body = f"\n{meaning(tables[name])}\n"
        return f"<!-- {kind}:{name} -->\n{body}<!-- /{kind} -->"

    filled = _BLOCK.sub(block, text)
    for mark in _MARK.findall(_BLOCK.sub("", text)):
        raise DiagramError(f"{mark} has no partner, or is not of the form diagram:NAME")
    return filled


def stale(root: Path) -> list[Path]:
    """Documents of a checkout whose blocks are not what the tables say."""
    return [path for path, text, new in _documents(root) if text != new]


def write(root: Path) -> list[Path]:
    """Fill the blocks of a checkout's documents; returns those that changed."""
    changed = []
    for path, text, new in _documents(root):
        if text != new:
            path.write_text(new, encoding="utf-8")
            changed.append(path)
    return changed


def _documents(root: Path) -> Iterable[tuple[Path, str, str]]:
    for name in DOCUMENTS:
        path = root / name
        if not path.is_file():
            continue
        text = path.read_text(encoding="utf-8")
        try:
            yield path, text, fill(text)
        except DiagramError as exc:
            raise DiagramError(f"{path}: {exc}") from exc


def _label(edge: Edge) -> str:
    guards = [*edge.needs, *(f"not {guard}" for guard in edge.forbids)]
    label = edge.event
    if guards:
        label += f" [{', '.join(guards)}]"
    if edge.effect:
        label += f" / {edge.effect}"
    return label


def _guards(edge: Edge) -> str:
    return ", ".join([*map(_code, edge.needs), *(f"not {_code(g)}" for g in edge.forbids)])


def _code(word: str) -> str:
    return f"`{word}`" if word else ""


def _rows(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [header, ("---",) * len(header), *rows]
    return "".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines
    )
