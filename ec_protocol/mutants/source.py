# SPDX-License-Identifier: Apache-2.0
"""Mutants of the core's source: one small change to one function.

A file is parsed, changed and compiled, and the code of the one function that differs
is put into the running module (``function.__code__``), so that every reference to it
sees the change. Meant for ``forks``: the change dies with the forked process.

What is changed: comparisons (negated, and moved by one at their bound), ``and`` and
``or``, conditions (negated), small numbers (one more), ``+`` and ``-``, state and event
names (another one of the same lifecycle), truth values, and statements (left out).
"""

from __future__ import annotations
import __future__

import ast
import copy
import importlib
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

from ec_protocol.errors import ECError
from ec_protocol.lifecycle import load_lifecycles
from ec_protocol.mutants.forks import Trial

#: The files, and the tests that are the likeliest to notice.
FILES: Final[Mapping[str, tuple[str, ...]]] = {
    "consumer": ("test_consumer.py", "test_consumer_acks.py", "test_consumer_reads.py"),
    "reads": ("test_consumer_reads.py", "test_consumer_peers.py", "test_consumer.py"),
    "producer": ("test_producer.py", "test_producer_limits.py"),
    "tier": ("test_tier.py", "test_tier_check.py", "test_tier_tells.py"),
    "copies": ("test_copies.py",),
    "holds": ("test_holds.py",),
    "peers": ("test_peers.py", "test_consumer_unnamed.py", "test_consumer_peers.py"),
    "extents": ("test_extents.py", "test_tier.py"),
}

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
}


@dataclass(frozen=True, slots=True)
class SourceMutant:
    """One change of one function.

    Attributes:
        id: ``module:function:line:change``, unique.
        module: Name of the module in ``ec_protocol``.
        function: Qualified name within the module.
        line: Where, in the file as it is.
        change: What, in words.
        code: The changed function's code.
    """

    id: str
    module: str
    function: str
    line: int
    change: str
    code: types.CodeType

    def trial(self) -> Trial:
        """The change as a trial of ``forks``."""
        return Trial(self.id, partial(_apply, self), FILES[self.module])


def source_mutants(module: str) -> Iterator[SourceMutant]:
    """Every mutant of one file of the core, in the order of its lines.

    Raises:
        ECError: ``module`` is none of ``FILES``.
    """
    if module not in FILES:
        raise ECError(f"module {module!r} is not mutated; known: {', '.join(FILES)}")
    path = Path(str(importlib.import_module(f"ec_protocol.{module}").__file__))
    seen: dict[str, int] = {}
    for function, owner in _functions(ast.parse(path.read_text(encoding="utf-8"))):
        inside = f"{owner}.{function.name}" if owner else function.name
        for line, change, mutated in _changes(function):
            name = f"{module}:{inside}:{line}:{change}"
            seen[name] = seen.get(name, 0) + 1
            unique = name if seen[name] == 1 else f"{name}#{seen[name]}"
            code = _code_of(mutated, owner, str(path))
            yield SourceMutant(unique, module, inside, line, change, code)


def _functions(tree: ast.Module) -> Iterator[tuple[ast.FunctionDef, str]]:
    """Every function of a module, with the name of its class or ``""``."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node, ""
        elif isinstance(node, ast.ClassDef):
            for inner in node.body:
                # What is only shown to people is not worth a test.
                if isinstance(inner, ast.FunctionDef) and inner.name != "__repr__":
                    yield inner, node.name


def _changes(function: ast.FunctionDef) -> Iterator[tuple[int, str, ast.FunctionDef]]:
    """Each change of one function: line, words, and the function with it."""
    for position, node in enumerate(ast.walk(function)):
        for number, (line, words, _) in enumerate(_variants(node)):
            mutated = copy.deepcopy(function)
            target = list(ast.walk(mutated))[position]
            _variants(target)[number][2](target)
            yield line, words, mutated


def _variants(node: ast.AST) -> list[tuple[int, str, Any]]:
    """What can be done to one node: line, words, and a function that does it in place."""
    line = getattr(node, "lineno", 0)
    found = [(line, words, change) for words, change in _expressions(node)]
    if isinstance(node, ast.FunctionDef | ast.If | ast.For | ast.While | ast.With | ast.Try):
        for field in ("body", "orelse"):
            for index, statement in enumerate(getattr(node, field, ())):
                if _can_go(statement):
                    words = f"{ast.unparse(statement)[:60]} left out"
                    found.append(
                        (statement.lineno, words, partial(_drop, field=field, index=index))
                    )
    return found


def _can_go(statement: ast.stmt) -> bool:
    """Whether leaving the statement out is worth a try.

    Without a docstring nothing changes, and without the binding of a local name the
    next line fails whatever the tests ask.
    """
    if isinstance(statement, ast.Expr):
        return not isinstance(statement.value, ast.Constant)
    if isinstance(statement, ast.Assign):
        return not all(isinstance(target, ast.Name) for target in statement.targets)
    return isinstance(statement, ast.AugAssign | ast.Delete | ast.Raise | ast.Return)


def _expressions(node: ast.AST) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    if isinstance(node, ast.Compare):
        for index, op in enumerate(node.ops):
            for table in (_OPPOSITE, _AT_BOUND):
                if (other := table.get(type(op))) is not None:
                    words = f"{type(op).__name__} -> {other.__name__}"
                    found.append((words, partial(_set_op, index=index, op=other)))
    elif isinstance(node, ast.BoolOp):
        other_bool = ast.Or if isinstance(node.op, ast.And) else ast.And
        words = f"{type(node.op).__name__} -> {other_bool.__name__}"
        found.append((words, partial(_set_field, name="op", value=other_bool())))
    elif isinstance(node, ast.BinOp | ast.AugAssign):
        if (arithmetic := _ARITHMETIC.get(type(node.op))) is not None:
            words = f"{type(node.op).__name__} -> {arithmetic.__name__}"
            found.append((words, partial(_set_field, name="op", value=arithmetic())))
    elif isinstance(node, ast.If | ast.While | ast.IfExp):
        if not isinstance(node.test, ast.Compare):
            found.append(("condition negated", _negate_test))
    elif isinstance(node, ast.Constant):
        found += _constants(node.value)
    return found


def _constants(value: object) -> list[tuple[str, Any]]:
    if isinstance(value, bool):
        return [(f"{value} -> {not value}", partial(_set_field, name="value", value=not value))]
    if isinstance(value, int | float):
        return [(f"{value} -> {value + 1}", partial(_set_field, name="value", value=value + 1))]
    if isinstance(value, str):
        words = f"{value!r} -> {_another(value)!r}"
        if _another(value) != value:
            return [(words, partial(_set_field, name="value", value=_another(value)))]
    return []


@cache
def _cycles() -> Mapping[str, str]:
    """Each state and event of a lifecycle to the next one of its kind."""
    following: dict[str, str] = {}
    for table in load_lifecycles().values():
        for words in (list(table.states), list(table.events)):
            for word, after in zip(words, [*words[1:], words[0]], strict=True):
                following.setdefault(word, after)
    return following


def _another(word: str) -> str:
    return _cycles().get(word, word)


def _set_op(node: ast.Compare, *, index: int, op: type[ast.cmpop]) -> None:
    node.ops[index] = op()


def _set_field(node: ast.AST, *, name: str, value: object) -> None:
    setattr(node, name, value)


def _negate_test(node: ast.If | ast.While | ast.IfExp) -> None:
    node.test = ast.UnaryOp(ast.Not(), node.test)


def _drop(node: ast.AST, *, field: str, index: int) -> None:
    getattr(node, field)[index] = ast.Pass()


def _code_of(function: ast.FunctionDef, owner: str, path: str) -> types.CodeType:
    """The code of a function as it stands in its class and file."""
    body: list[ast.stmt] = [function]
    if owner:
        body = [ast.ClassDef(owner, bases=[], keywords=[], body=body, decorator_list=[])]
    tree = ast.fix_missing_locations(ast.Module(body, type_ignores=[]))
    flags = __future__.annotations.compiler_flag
    code: types.CodeType = compile(tree, path, "exec", flags=flags, dont_inherit=True)
    for name in (owner, function.name) if owner else (function.name,):
        code = next(
            const
            for const in code.co_consts
            if isinstance(const, types.CodeType) and const.co_name == name
        )
    return code


def _apply(mutant: SourceMutant) -> None:
    owner: Any = importlib.import_module(f"ec_protocol.{mutant.module}")
    *path, name = mutant.function.split(".")
    for part in path:
        owner = getattr(owner, part)
    attribute = vars(owner)[name]
    if isinstance(attribute, property):
        attribute = attribute.fget
    elif isinstance(attribute, staticmethod | classmethod):
        attribute = attribute.__func__
    attribute.__code__ = mutant.code
