# SPDX-License-Identifier: Apache-2.0
"""Makes what a GPU machine without a network lacks: vLLM, NIXL and small packages, pruned.

    python tools/gpu_bundle.py [FOLDER] [--wheels FOLDER]      default out/gpu

`gpu_bundle.toml` beside this file says what is brought, what the machine has and what stays
behind. Wheels come from the package index by pip; nothing is compiled and no GPU is needed.
`--wheels` keeps them, or takes them from there. Takes some minutes, most of it for xz.

FOLDER gets one PART.tar.xz for each part and bundle.json: sizes, sums, versions, and what
was pruned. Together with the checkout the parts must fit into `--most` MiB. On the machine
`gpu_install.py` unpacks them. Exit status 0 only if no package asks for another that
neither is brought, nor is on the machine, nor is left out on purpose.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import io
import json
import lzma
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from email.parser import Parser
from pathlib import Path
from typing import Any, Final

from gpu_fatbin import prune
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

ROOT: Final = Path(__file__).resolve().parents[1]
PLAN: Final = Path(__file__).with_suffix(".toml")
PINS: Final = ROOT / "constraints/e2e.txt"
MIB: Final = 1 << 20
#: Of xz. The highest gains a few percent and needs eight times the memory to unpack.
PRESET: Final = 6


class BundleError(Exception):
    """It cannot be made; the message says what to change."""


class Plan:
    """What `gpu_bundle.toml` says.

    Raises:
        BundleError: A package stands there twice, or has no pin.
    """

    def __init__(self, said: Mapping[str, Any], pins: Mapping[str, str]) -> None:
        self.python: str = said["python"]
        self.architecture: int = said["architecture"]
        self.glibc: int = said["glibc"]
        self.machine = frozenset(said["machine"])
        self.parts: Mapping[str, Sequence[str]] = said["parts"]
        self.without = frozenset(name for names in said["without"].values() for name in names)
        self.leave: Mapping[str, Sequence[str]] = said["leave"]
        self.prune: Mapping[str, Sequence[str]] = said["prune"]
        brought = [name for names in self.parts.values() for name in names]
        counts = Counter([*brought, *self.machine, *self.without])
        if twice := sorted(name for name, count in counts.items() if count > 1):
            raise BundleError(f"{PLAN.name} names twice: {', '.join(twice)}")
        known = {**pins, **said["exactly"]}
        if unpinned := sorted(set(brought) - set(known)):
            raise BundleError(f"no version in {PINS.name} or 'exactly': {', '.join(unpinned)}")
        self.pins = {name: known[name] for name in brought}

    def left(self, path: str) -> str | None:
        """Why a file stays behind; None if it comes along."""
        for reason, patterns in self.leave.items():
            if any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns):
                return reason
        return None

    def pruned(self, path: str) -> Sequence[str] | None:
        """Words of kernels that go from a library; None if all of its code stays."""
        for pattern, words in self.prune.items():
            if fnmatch.fnmatchcase(path, pattern):
                return words
        return None


def read_pins(text: str) -> dict[str, str]:
    """Name to version of a file of constraints."""
    found = re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", text, re.MULTILINE)
    return {canonicalize_name(name): version for name, version in found}


def download(plan: Plan, into: Path) -> None:
    """Have pip fetch every wheel that is not there yet, for the machine's Python.

    Raises:
        BundleError: It does not find one.
    """
    into.mkdir(parents=True, exist_ok=True)
    there = {name for name, _ in map(_name_of, into.glob("*.whl"))}
    wanted = [f"{name}=={version}" for name, version in plan.pins.items() if name not in there]
    if not wanted:
        return
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--only-binary=:all:", "--implementation", "cp", "--python-version", plan.python]
    # pip takes a platform literally: each older glibc is one of its own.
    platforms = [f"manylinux_2_{minor}_x86_64" for minor in range(plan.glibc, 4, -1)]
    for name in (*platforms, "manylinux2014_x86_64", "manylinux2010_x86_64", "any"):
        command += ["--platform", name]
    done = subprocess.run([*command, "--dest", str(into), *wanted], stderr=subprocess.PIPE)
    if done.returncode:
        raise BundleError(f"pip download: {done.stderr.decode()[-2000:]}")


def _name_of(wheel: Path) -> tuple[str, str]:
    name, version, _, _ = parse_wheel_filename(wheel.name)
    return canonicalize_name(name), str(version)


def wheels_of(plan: Plan, folder: Path) -> dict[str, Path]:
    """The wheel of each package.

    Raises:
        BundleError: One is missing, or has another version.
    """
    found = {}
    for wheel in sorted(folder.glob("*.whl")):
        name, version = _name_of(wheel)
        if name in plan.pins and Requirement(f"{name}=={plan.pins[name]}").specifier.contains(
            version, prereleases=True
        ):
            found[name] = wheel
    if missing := sorted(set(plan.pins) - set(found)):
        raise BundleError(f"{folder} lacks wheels of {', '.join(missing)}: remove old ones")
    return found


# ------------------------------------------------------------------------------- checks
def unmet(plan: Plan, wheels: Mapping[str, Path]) -> list[str]:
    """What the packages ask for and nothing says where it comes from."""
    environment = {
        "implementation_name": "cpython",
        "os_name": "posix",
        "platform_machine": "x86_64",
        "platform_python_implementation": "CPython",
        "platform_system": "Linux",
        "python_full_version": f"{plan.python}.0",
        "python_version": plan.python,
        "sys_platform": "linux",
    }
    problems = set()
    todo = [(name, "") for name in wheels]
    seen = set(todo)
    while todo:
        asking, extra = todo.pop()
        for need in _requirements(wheels[asking]):
            if need.marker and not need.marker.evaluate({**environment, "extra": extra}):
                continue
            name = canonicalize_name(need.name)
            if name in wheels:
                version = plan.pins[name]
                if not need.specifier.contains(version, prereleases=True):
                    problems.add(f"{asking} asks for {need}, and {name} {version} is brought")
                more = [(name, wanted) for wanted in need.extras if (name, wanted) not in seen]
                seen.update(more)
                todo += more
            elif name not in plan.machine | plan.without:
                problems.add(f"{asking} asks for {need}, which {PLAN.name} does not know")
    return sorted(problems)


def _requirements(wheel: Path) -> list[Requirement]:
    with zipfile.ZipFile(wheel) as archive:
        (path,) = [n for n in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", n)]
        told = Parser().parsestr(archive.read(path).decode())
    return [Requirement(line) for line in told.get_all("Requires-Dist", [])]


# ----------------------------------------------------------------------------- contents
def contents(
    plan: Plan, wheels: Sequence[Path], left: Counter[str], code: dict[str, Counter[str]]
) -> Iterator[tuple[str, bytes, int]]:
    """Path, bytes and mode of each file that comes along.

    Args:
        plan: What stays behind.
        wheels: Of one part.
        left: Gets the bytes that stay behind, by reason.
        code: Gets what became of device code, by library.
    """
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            for info in sorted(archive.infolist(), key=lambda info: info.filename):
                path = info.filename
                if info.is_dir():
                    continue
                # Scripts, headers and the like; none of these packages needs its own.
                reason = "scripts and headers" if ".data/" in path else plan.left(path)
                if reason is not None:
                    left[reason] += info.file_size
                    continue
                data = archive.read(info)
                words = plan.pruned(path)
                if words is not None:
                    changed = bytearray(data)
                    code[path] = prune(
                        changed, plan.architecture, [word.encode() for word in words]
                    )
                    data = bytes(changed)
                yield path, data, info.external_attr >> 16 & 0o777 or 0o644


def write_part(plan: Plan, name: str, wheels: Sequence[Path], into: Path) -> dict[str, Any]:
    """One PART.tar.xz, the same bytes for the same wheels; what it is."""
    path = into / f"{name}.tar.xz"
    left: Counter[str] = Counter()
    code: dict[str, Counter[str]] = {}
    unpacked = 0
    with (
        lzma.open(path, "wb", preset=PRESET) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for file, data, mode in contents(plan, wheels, left, code):
            info = tarfile.TarInfo(file)
            info.size, info.mode = len(data), mode
            archive.addfile(info, io.BytesIO(data))
            unpacked += len(data)
    return {
        "part": name,
        "file": path.name,
        "bytes": path.stat().st_size,
        "unpacked": unpacked,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "left_behind": dict(left.most_common()),
        "device_code": code,
    }


def checkout_bytes() -> int:
    """Size of what git tracks, which travels beside the bundle."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, stdout=subprocess.PIPE, check=True)
    paths = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    return sum(path.stat().st_size for path in paths if path.is_file())


def show(parts: Sequence[Mapping[str, Any]]) -> None:
    """What is in the bundle, and what is not."""
    for part in parts:
        size, unpacked = part["bytes"] / MIB, part["unpacked"] / MIB
        print(f"{part['file']:20} {size:6.1f} MiB, unpacked {unpacked:6.1f} MiB")
        for reason, count in part["left_behind"].items():
            print(f"    left behind {count / MIB:8.1f} MiB: {reason}")
        for library, counts in part["device_code"].items():
            did: Counter[str] = Counter()
            for what, count in counts.items():
                did[what.partition(" ")[0]] += count
            said = ", ".join(f"{count / MIB:.1f} MiB {what}" for what, count in did.items())
            print(f"    device code of {library}: {said}")


def make(folder: Path, wheels_folder: Path, most_mib: float) -> None:
    """Download, check, pack, say.

    Raises:
        BundleError: See ``main``.
    """
    plan = Plan(tomllib.loads(PLAN.read_text()), read_pins(PINS.read_text()))
    print("==> wheels")
    download(plan, wheels_folder)
    wheels = wheels_of(plan, wheels_folder)
    if problems := unmet(plan, wheels):
        raise BundleError("\n".join(problems))
    print(f"==> packing {len(wheels)} packages")
    folder.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor() as pool:
        waiting = [
            pool.submit(write_part, plan, name, [wheels[n] for n in sorted(names)], folder)
            for name, names in plan.parts.items()
        ]
        parts = [made.result() for made in waiting]
    document = {
        "python": plan.python,
        "machine": sorted(plan.machine),
        "packages": plan.pins,
        "parts": parts,
    }
    (folder / "bundle.json").write_text(json.dumps(document, indent=1) + "\n")
    show(parts)
    size, own = sum(part["bytes"] for part in parts), checkout_bytes()
    print(f"all parts {size / MIB:.1f} MiB, the checkout {own / MIB:.1f} MiB")
    if size + own > most_mib * MIB:
        raise BundleError(f"that is more than {most_mib:g} MiB: leave more behind")


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="tools/gpu_bundle.py", description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / "out/gpu")
    parser.add_argument("--wheels", type=Path, help="where wheels are kept")
    parser.add_argument("--most", type=float, default=64.0, help="MiB that one run may carry")
    options = parser.parse_args()
    try:
        if options.wheels is not None:
            make(options.folder, options.wheels, options.most)
        else:
            with tempfile.TemporaryDirectory(prefix="ec-wheels-") as temporary:
                make(options.folder, Path(temporary), options.most)
    except BundleError as error:
        print(f"gpu_bundle.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
