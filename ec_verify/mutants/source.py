# SPDX-License-Identifier: Apache-2.0
"""Mutants of the core's source: one small change to one function.

A file is parsed, changed and compiled, and the code of the one function that differs
is put into the running module (``function.__code__``), so that every reference to it
sees the change. Meant for ``trials``: the change dies with the forked process.

``edits`` says what is changed.
"""

from __future__ import annotations
import __future__

import ast
import copy
import importlib
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import ec_protocol
from ec_protocol.errors import ECError
from ec_verify.mutants.edits import Edit, edits
from ec_verify.mutants.trials import Trial
from ec_verify.nearest import did_you_mean

#: The files, and the tests that are the likeliest to notice.
FILES: Final[Mapping[str, tuple[str, ...]]] = {
    "fetches": ("test_consumer.py", "test_consumer_waiters.py", "test_consumer_reads.py"),
    "acks": ("test_consumer_acks.py", "test_consumer_restarts.py", "test_consumer_unnamed.py"),
    "attempts": ("test_consumer_reads.py", "test_consumer_peers.py", "test_consumer.py"),
    "grants": ("test_producer.py", "test_producer_limits.py"),
    "encodings": ("test_tier.py", "test_tier_check.py", "test_tier_tells.py"),
    "copies": ("test_copies.py",),
    "holds": ("test_holds.py",),
    "peers": ("test_peers.py", "test_consumer_unnamed.py", "test_consumer_peers.py"),
    "extents": ("test_extents.py", "test_tier.py"),
    "entry": ("test_entry.py", "test_tier.py"),
    "attempt": ("test_consumer_reads.py", "test_consumer_acks.py", "test_trace.py"),
    "deferral": ("test_consumer.py",),
    "timing": ("test_timing.py",),
    "node": ("test_node.py", "test_node_network.py"),
    "step": ("test_node.py",),
    "announcements": ("test_announcements.py", "test_node.py"),
    "items": ("test_items.py",),
}

_SHOWN: Final = ("__repr__", "__str__")


@dataclass(frozen=True, slots=True)
class SourceMutant:
    """One change of one function.

    Attributes:
        id: ``module:function:statement:change``, unique, and the same when lines move.
        module: Last part of the module's name; unique in ``ec_protocol``.
        function: Qualified name within the module.
        line: Where, in the file as it is.
        change: What, in words.
        code: The changed function's code.
        defaults: The changed defaults of its arguments, in the module's terms, if it is
            they that differ.
    """

    id: str
    module: str
    function: str
    line: int
    change: str
    code: types.CodeType
    defaults: types.CodeType | None = None

    def trial(self) -> Trial:
        """The change as one of ``trials``."""
        function = f"{self.module}:{self.function}"
        return Trial(self.id, partial(_apply, self), FILES[self.module], function)


def source_mutants(module: str) -> Iterator[SourceMutant]:
    """Every mutant of one file of the core, in the order of its lines.

    Raises:
        ECError: ``module`` is none of ``FILES``.
    """
    if module not in FILES:
        raise ECError(f"module {module!r} is not mutated; {did_you_mean(module, FILES)}")
    path = Path(str(_module(module).__file__))
    seen: dict[str, int] = {}
    for function, owner in _functions(ast.parse(path.read_text(encoding="utf-8"))):
        inside = f"{owner}.{function.name}" if owner else function.name
        for edit in edits(function):
            name = f"{module}:{inside}:{edit.place}:{edit.change}"
            seen[name] = seen.get(name, 0) + 1
            unique = name if seen[name] == 1 else f"{name}#{seen[name]}"
            mutated, defaults = _edited(function, edit)
            code = _code_of(mutated, owner, str(path))
            yield SourceMutant(unique, module, inside, edit.line, edit.change, code, defaults)


def _module(name: str) -> types.ModuleType:
    """The module of the core whose file has that name."""
    package = Path(str(ec_protocol.__file__)).parent
    (path,) = package.rglob(f"{name}.py")
    parts = path.relative_to(package.parent).with_suffix("").parts
    return importlib.import_module(".".join(parts))


def _edited(function: ast.FunctionDef, edit: Edit) -> tuple[ast.FunctionDef, Any]:
    """The function with the edit, and the code of its defaults if they differ."""
    mutated = copy.deepcopy(function)
    edit.apply(list(ast.walk(mutated))[edit.position])
    if ast.dump(mutated.args) == ast.dump(function.args):
        return mutated, None
    given, named = mutated.args.defaults, mutated.args.kw_defaults
    pairs = [(arg.arg, value) for arg, value in zip(mutated.args.kwonlyargs, named, strict=True)]
    keywords = ast.Dict(
        [ast.Constant(name) for name, value in pairs if value is not None],
        [value for _, value in pairs if value is not None],
    )
    both = ast.Expression(ast.Tuple([ast.Tuple(given, ast.Load()), keywords], ast.Load()))
    return mutated, compile(ast.fix_missing_locations(both), "<defaults>", "eval")


def _functions(tree: ast.Module) -> Iterator[tuple[ast.FunctionDef, str]]:
    """Every function of a module, with the name of its class or ``""``."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            # What is cached was called before any change.
            if not node.decorator_list:
                yield node, ""
        elif isinstance(node, ast.ClassDef):
            for inner in node.body:
                # What is only shown to people is not worth a test.
                if isinstance(inner, ast.FunctionDef) and inner.name not in _SHOWN:
                    yield inner, node.name


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
    owner: Any = _module(mutant.module)
    *path, name = mutant.function.split(".")
    for part in path:
        owner = getattr(owner, part)
    attribute = vars(owner)[name]
    if isinstance(attribute, property):
        attribute = attribute.fget
    elif isinstance(attribute, staticmethod | classmethod):
        attribute = attribute.__func__
    attribute.__code__ = mutant.code
    if mutant.defaults is not None:
        terms = vars(_module(mutant.module))
        attribute.__defaults__, attribute.__kwdefaults__ = eval(mutant.defaults, terms)
