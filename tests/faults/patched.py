# SPDX-License-Identifier: Apache-2.0
"""Imports our packages with patches applied, beside the packages as they are.

A patch is applied to a copy of the files that it names; then the packages are imported
once more, those files from the copy and all others from where they are. The second
import is a world of its own: its modules are in ``sys.modules`` while something of it
runs, and at no other time, so that imports inside of functions find it too. What is not
in ``PACKAGES`` (the kit, third parties) is shared by all.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final

from ec_protocol.errors import ECError

ROOT: Final = Path(__file__).resolve().parents[2]
#: What a patch may change, and what must know its classes by identity.
PACKAGES: Final = (
    "ec_protocol",
    "ec_connector",
    "ec_verify.adapters.ours",
    "ec_verify.kit.on_node",
)
_ADAPTER: Final = "ec_verify.adapters.ours.adapter"


class PatchError(ECError):
    """A patch does not fit the source: its fault cannot be played."""


def apply(patch: Path, files: Mapping[str, str]) -> dict[str, str]:
    """Files with a patch applied.

    Args:
        patch: A unified diff, as ``git diff`` writes it; text before it does not matter.
        files: Contents by path that were changed before; others come from the checkout.

    Raises:
        PatchError: It does not apply.
    """
    changed = paths(patch)
    with tempfile.TemporaryDirectory(prefix="ec-faults-") as folder:
        for name in changed:
            copy = Path(folder, name)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(files.get(name) or source(patch, name), encoding="utf-8")
        # Not as a part of whatever repository the temporary folder may lie in.
        place = {**os.environ, "GIT_CEILING_DIRECTORIES": str(Path(folder).parent)}
        words = ["git", "apply", str(patch)]
        try:
            done = subprocess.run(words, cwd=folder, env=place, capture_output=True, text=True)
        except FileNotFoundError as exc:
            raise PatchError("seeded faults are patches, which git applies: install git") from exc
        if done.returncode:
            raise PatchError(
                f"{relative(patch)} does not apply any more: the source has moved on "
                f"({done.stderr.strip()}). To merge it with what the source is now: "
                f"python -m tests.faults refresh {patch.stem}"
            )
        return {**files, **{name: Path(folder, name).read_text("utf-8") for name in changed}}


def paths(patch: Path) -> list[str]:
    """The files that a patch changes, relative to the checkout.

    Raises:
        PatchError: It changes nothing.
    """
    lines = patch.read_text(encoding="utf-8").splitlines()
    found = [line.removeprefix("+++ b/") for line in lines if line.startswith("+++ b/")]
    if not found:
        raise PatchError(f"{relative(patch)} changes nothing: it is no fault")
    return found


def source(patch: Path, name: str) -> str:
    """A file of the checkout that a patch is for.

    Raises:
        PatchError: There is none.
    """
    try:
        return (ROOT / name).read_text(encoding="utf-8")
    except FileNotFoundError as exc:
        raise PatchError(
            f"{relative(patch)} does not apply any more: {name} is gone; write the fault anew"
        ) from exc


def relative(patch: Path) -> Path:
    """The path as people type it."""
    return patch.relative_to(ROOT) if patch.is_relative_to(ROOT) else patch


class PatchedPackages:
    """The packages as they are with some patches."""

    def __init__(self, patches: Sequence[Path]) -> None:
        files: dict[str, str] = {}
        for patch in patches:
            files = apply(patch, files)
        self._finder = _Finder({_module(name): text for name, text in files.items()})
        self._modules: dict[str, ModuleType] = {}
        self._outside: tuple[int, list[str]] = (0, [])
        with self.entered():
            self._adapter = importlib.import_module(_ADAPTER)
            # Now, and not when a function asks for them: a patch that cannot be
            # imported must not count as a fault that was noticed.
            for name in self._finder.texts:
                importlib.import_module(name)

    def make(self) -> Any:
        """A fresh process of ours in this world: an adapter."""
        with self.entered():
            return _Inside(self, self._adapter.make())

    @contextmanager
    def entered(self) -> Iterator[None]:
        """What is imported or looked up now is of this world."""
        # Looking through all modules takes longer than most of what is done inside.
        if len(sys.modules) != self._outside[0]:
            self._outside = len(sys.modules), _names()
        outside = {n: sys.modules.pop(n) for n in self._outside[1] if n in sys.modules}
        sys.modules.update(self._modules)
        length = len(sys.modules)
        sys.meta_path.insert(0, self._finder)
        try:
            yield
        finally:
            sys.meta_path.remove(self._finder)
            if len(sys.modules) == length:
                for name in self._modules:
                    del sys.modules[name]
            else:
                self._modules = {name: sys.modules.pop(name) for name in _names()}
                _bind(outside)
            sys.modules.update(outside)


def _names() -> list[str]:
    """The modules of our packages in ``sys.modules``."""
    return [name for name in sys.modules if _is_ours(name)]


def _is_ours(name: str) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in PACKAGES)


def _bind(modules: Mapping[str, ModuleType]) -> None:
    """Their parents that all worlds share know them again by their last names."""
    for package in PACKAGES:
        parent, _, last = package.rpartition(".")
        if package in modules:
            if parent:
                setattr(sys.modules[parent], last, modules[package])
        elif parent and hasattr(sys.modules[parent], last):
            delattr(sys.modules[parent], last)


class _Inside:
    """An object that runs in its world."""

    def __init__(self, world: PatchedPackages, thing: Any) -> None:
        self._world = world
        self._thing = thing

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._thing, name)
        return self._entering(value) if callable(value) else value

    def _entering(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            with self._world.entered():
                return method(*args, **named)

        return call


class _Finder(MetaPathFinder):
    """Finds the modules of our packages, those that differ from the checkout's too."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.texts = texts

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        place = ROOT.joinpath(*fullname.split("."))
        package = place / "__init__.py"
        file = package if package.is_file() else place.with_suffix(".py")
        if not _is_ours(fullname) or not file.is_file():
            return None
        if fullname in self.texts:
            # Not under the file's own name: its lines are others.
            code = _compiled(self.texts[fullname], f"{file.relative_to(ROOT)}, patched")
        else:
            code = _unchanged(file)
        return spec_from_file_location(fullname, file, loader=_Loader(code, file == package))


class _Loader(InspectLoader):
    def __init__(self, code: CodeType, package: bool) -> None:
        self._code = code
        self._package = package

    def get_source(self, fullname: str) -> None:
        return None

    def is_package(self, fullname: str) -> bool:
        return self._package

    def get_code(self, fullname: str) -> CodeType:
        return self._code


@cache
def _unchanged(file: Path) -> CodeType:
    """Compiled once for all worlds."""
    return _compiled(file.read_text(encoding="utf-8"), str(file))


def _compiled(text: str, name: str) -> CodeType:
    code: CodeType = compile(text, name, "exec", dont_inherit=True)
    return code


def _module(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
