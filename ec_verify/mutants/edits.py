# SPDX-License-Identifier: Apache-2.0
"""What can be done wrong in one function: every small edit of its syntax tree.

An edit changes one node in place: it is found on one copy of the function and carried
out on another, in which the node stands at the same position of ``ast.walk``.

=============  =========================================================================
comparisons    negated, and moved by one at their bound
conditions     negated, always true, always false; a filter of a comprehension left out
``and or``     one taken for the other; each operand left out; ``not`` left out
arithmetic     ``+ -``, ``* /``, ``//``, ``**`` and ``|`` taken for their opposite
numbers        one more; a slice becomes the whole; ``min`` and ``max`` exchanged
names          states, events and actions: another one of the same lifecycle
truth values   ``True`` and ``False`` exchanged
statements     left out; ``return x`` returns None
loops          left out, left after one turn
calls          two neighbouring arguments exchanged; ``pop`` and ``setdefault`` only look
=============  =========================================================================

Annotations are left alone, and so are the texts of errors.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Final

from ec_protocol.tables.lifecycle import load_actions, load_lifecycles

_OPPOSITE: Final[Mapping[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_AT_BOUND: Final[Mapping[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
}
_ARITHMETIC: Final[Mapping[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitOr: ast.BitAnd,
}
_LOOK: Final[Mapping[tuple[str, int], str]] = {
    ("pop", 1): "__getitem__",
    ("pop", 2): "get",
    ("setdefault", 2): "get",
}
_BLOCKS: Final = ("body", "orelse", "finalbody")
#: Parts of a statement that say nothing about what happens.
_SILENT: Final = frozenset({"annotation", "returns", "exc", "decorator_list"})


@dataclass(frozen=True, slots=True)
class Edit:
    """One edit of one node.

    Attributes:
        position: The node's number in ``ast.walk`` of the function.
        line: In the file.
        place: The statement, as far as it fits.
        change: What is done, in words.
        apply: Does it to the node.
    """

    position: int
    line: int
    place: str
    change: str
    apply: Callable[[Any], None]


def edits(function: ast.FunctionDef) -> Iterator[Edit]:
    """Every edit of one function, in the order of its lines."""
    home = _statements(function)
    bound = _bound_again(function)
    found = []
    for position, node in enumerate(ast.walk(function)):
        if (statement := home.get(node)) is None:
            continue
        place = _shown(statement)
        for change, apply in (*_expressions(node), *_flow(node, function)):
            line = getattr(node, "lineno", statement.lineno)
            found.append(Edit(position, line, place, change, apply))
        for field in _BLOCKS:
            block = getattr(node, field, None)
            for index, inner in enumerate(block if isinstance(block, list) else ()):
                if _can_go(inner, bound):
                    drop = partial(_drop, field=field, index=index)
                    found.append(Edit(position, inner.lineno, _shown(inner), "left out", drop))
    return iter(sorted(found, key=lambda edit: edit.line))


def _statements(function: ast.FunctionDef) -> Mapping[ast.AST, ast.stmt]:
    """The statement that each node of the function is a part of."""
    home: dict[ast.AST, ast.stmt] = {}

    def visit(node: ast.AST, statement: ast.stmt) -> None:
        home[node] = statement
        for name, value in ast.iter_fields(node):
            if name not in _SILENT:
                for child in value if isinstance(value, list) else [value]:
                    if isinstance(child, ast.AST):
                        visit(child, child if isinstance(child, ast.stmt) else statement)

    visit(function, function)
    return home


def _shown(statement: ast.stmt) -> str:
    """The head of a statement, short enough for an id."""
    if isinstance(statement, ast.FunctionDef):
        return f"def {statement.name}"
    line = ast.unparse(statement).partition("\n")[0].rstrip(":")
    return line if len(line) <= 70 else f"{line[:67]}..."


def _bound_again(function: ast.FunctionDef) -> frozenset[ast.stmt]:
    """Assignments of local names that have a value already."""
    known = {argument.arg for argument in ast.walk(function) if isinstance(argument, ast.arg)}
    again = set()
    nodes = [n for n in ast.walk(function) if isinstance(n, ast.stmt) and n is not function]
    for node in sorted(nodes, key=lambda n: n.lineno):
        targets: list[ast.expr] = []
        match node:
            case ast.Assign():
                targets = node.targets
            case ast.AnnAssign(value=ast.expr()) | ast.For():
                targets = [node.target]
        names = {n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)}
        if isinstance(node, ast.Assign) and names and names <= known:
            again.add(node)
        known |= names
    return frozenset(again)


def _can_go(statement: ast.stmt, bound: frozenset[ast.stmt]) -> bool:
    """Whether leaving the statement out is worth a try.

    Without a docstring nothing changes, and without the first binding of a local name
    the next line fails whatever the tests ask.
    """
    if isinstance(statement, ast.Expr):
        return not isinstance(statement.value, ast.Constant)
    if isinstance(statement, ast.Assign):
        leaves = [n for t in statement.targets for n in ast.walk(t) if isinstance(n, ast.expr)]
        local = all(isinstance(leaf, ast.Name | ast.Tuple) for leaf in leaves)
        return not local or statement in bound
    going = ast.AugAssign | ast.Delete | ast.Raise | ast.Return | ast.Break | ast.Continue
    return isinstance(statement, going)


def _expressions(node: ast.AST) -> Iterator[tuple[str, Callable[[Any], None]]]:
    if isinstance(node, ast.Compare):
        for index, op in enumerate(node.ops):
            for table in (_OPPOSITE, _AT_BOUND):
                if (other := table.get(type(op))) is not None:
                    words = f"{type(op).__name__} -> {other.__name__}"
                    yield words, partial(_set_op, index=index, op=other)
    elif isinstance(node, ast.BoolOp):
        other_bool = ast.Or if isinstance(node.op, ast.And) else ast.And
        words = f"{type(node.op).__name__} -> {other_bool.__name__}"
        yield words, partial(_set, name="op", value=other_bool())
        neutral = ast.Constant(isinstance(node.op, ast.And))
        for index, value in enumerate(node.values):
            words = f"without {_short(value)}"
            yield words, partial(_set_item, name="values", index=index, value=neutral)
    elif isinstance(node, ast.BinOp | ast.AugAssign):
        if (arithmetic := _ARITHMETIC.get(type(node.op))) is not None:
            words = f"{type(node.op).__name__} -> {arithmetic.__name__}"
            yield words, partial(_set, name="op", value=arithmetic())
    elif isinstance(node, ast.UnaryOp):
        if isinstance(node.op, ast.Not):
            yield f"not {_short(node.operand)} -> without not", _twice
        elif isinstance(node.op, ast.USub):
            yield "minus left out", partial(_set, name="op", value=ast.UAdd())
    elif isinstance(node, ast.Slice):
        yield "the whole slice", _whole
    elif isinstance(node, ast.comprehension):
        for index, condition in enumerate(node.ifs):
            keep = partial(_set_item, name="ifs", index=index, value=ast.Constant(True))
            yield f"without if {_short(condition)}", keep
    elif isinstance(node, ast.Call):
        yield from _calls(node)
    elif isinstance(node, ast.Constant):
        yield from _constants(node.value)


def _calls(node: ast.Call) -> Iterator[tuple[str, Callable[[Any], None]]]:
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    if name in ("min", "max"):
        other = "max" if name == "min" else "min"
        yield f"{name} -> {other}", partial(_rename, field="id", name=other)
    else:
        for index, (one, two) in enumerate(zip(node.args, node.args[1:], strict=False)):
            starred = isinstance(one, ast.Starred) or isinstance(two, ast.Starred)
            if not starred and ast.dump(one) != ast.dump(two):
                yield f"{_short(one)} and {_short(two)} exchanged", partial(_swap, index=index)
    if isinstance(node.func, ast.Attribute):
        look = _LOOK.get((node.func.attr, len(node.args)))
        if look is not None:
            yield f"{node.func.attr} only looks", partial(_rename, field="attr", name=look)


def _constants(value: object) -> Iterator[tuple[str, Callable[[Any], None]]]:
    if isinstance(value, bool):
        yield f"{value} -> {not value}", partial(_set, name="value", value=not value)
    elif isinstance(value, int | float):
        yield f"{value} -> {value + 1}", partial(_set, name="value", value=value + 1)
    elif isinstance(value, str) and (other := _cycles().get(value, value)) != value:
        yield f"{value!r} -> {other!r}", partial(_set, name="value", value=other)


def _flow(node: ast.AST, function: ast.FunctionDef) -> Iterator[tuple[str, Callable[[Any], None]]]:
    if isinstance(node, ast.If | ast.IfExp | ast.While):
        negated = isinstance(node.test, ast.UnaryOp) and isinstance(node.test.op, ast.Not)
        if not isinstance(node.test, ast.Compare) and not negated:
            yield "condition negated", _negate_test
    if isinstance(node, ast.If | ast.IfExp):
        for value in (True, False):
            always = partial(_set, name="test", value=ast.Constant(value))
            yield f"condition {value}", always
    if isinstance(node, ast.For):
        yield "loop left out", partial(_set, name="iter", value=ast.Tuple([], ast.Load()))
    elif isinstance(node, ast.While):
        yield "loop left out", partial(_set, name="test", value=ast.Constant(False))
    if isinstance(node, ast.For | ast.While):
        yield "only one turn", _one_turn
    match node:
        case ast.Return(value=ast.expr() as result) if node is not function.body[-1]:
            if not isinstance(result, ast.Constant):
                yield "returns None", partial(_set, name="value", value=None)


def _short(node: ast.expr) -> str:
    text = ast.unparse(node)
    return text if len(text) <= 40 else f"{text[:37]}..."


@cache
def _cycles() -> Mapping[str, str]:
    """Each state, event and action to the next one of its kind."""
    following: dict[str, str] = {}
    tables = load_lifecycles().values()
    kinds = [words for t in tables for words in (list(t.states), list(t.events))]
    for words in (*kinds, list(load_actions())):
        for word, after in zip(words, [*words[1:], words[0]], strict=True):
            following.setdefault(word, after)
    return following


# ------------------------------------------------------------ what is done to a node
def _set_op(node: ast.Compare, *, index: int, op: type[ast.cmpop]) -> None:
    node.ops[index] = op()


def _set(node: ast.AST, *, name: str, value: object) -> None:
    setattr(node, name, value)


def _set_item(node: ast.AST, *, name: str, index: int, value: ast.expr) -> None:
    getattr(node, name)[index] = value


def _swap(node: ast.Call, *, index: int) -> None:
    node.args[index : index + 2] = node.args[index + 1], node.args[index]


def _rename(node: ast.Call, *, field: str, name: str) -> None:
    setattr(node.func, field, name)


def _twice(node: ast.UnaryOp) -> None:
    node.operand = ast.UnaryOp(ast.Not(), node.operand)


def _whole(node: ast.Slice) -> None:
    node.lower = node.upper = None


def _negate_test(node: ast.If | ast.While | ast.IfExp) -> None:
    node.test = ast.UnaryOp(ast.Not(), node.test)


def _one_turn(node: ast.For | ast.While) -> None:
    node.body.append(ast.Break())


def _drop(node: ast.AST, *, field: str, index: int) -> None:
    getattr(node, field)[index] = ast.Pass()
