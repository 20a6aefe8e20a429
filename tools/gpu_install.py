# SPDX-License-Identifier: Apache-2.0
"""Unpacks parts of the bundle on a GPU machine, beside what its Python has already.

    python3 tools/gpu_install.py [--bundle out/gpu] [--to /tmp/ec-gpu] PART...

Makes a virtual environment whose Python sees the parts first, then this checkout, which is
installed as far as entry points go, then the packages of the Python that runs this.
Needs neither network nor pip. Parts that are there already, by their sums, are left alone.
"""

from __future__ import annotations

import argparse
import compileall
import configparser
import hashlib
import json
import lzma
import os
import platform
import site
import sys
import tarfile
import time
import tomllib
import venv
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
SCRIPT: Final = """\
#!{python}
from {module} import {function}

if __name__ == "__main__":
    raise SystemExit({function}())
"""


class InstallError(Exception):
    """This machine, or the bundle, is another than was thought."""


def check_machine(bundle: Mapping[str, Any]) -> None:
    """Compare this Python with what the bundle was made for.

    Raises:
        InstallError: It is another, or lacks packages.
    """
    version = ".".join(platform.python_version_tuple()[:2])
    if version != bundle["python"]:
        raise InstallError(f"Python {version}: the bundle is for {bundle['python']}")
    there = {_canonical(dist.metadata["Name"] or "") for dist in metadata.distributions()}
    if missing := sorted(set(bundle["machine"]) - there):
        raise InstallError(f"this Python lacks {', '.join(missing)}: add them to a part")


def _canonical(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def make_environment(to: Path) -> Path:
    """The virtual environment; returns its folder of packages."""
    venv.EnvBuilder(symlinks=True, with_pip=False).create(to)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = to / "lib" / version / "site-packages"
    lines = [f"import site; site.addsitedir({path!r})" for path in site.getsitepackages()]
    # Behind the bundle's own packages, and in the order of the alphabet.
    (packages / "checkout.pth").write_text(f"{ROOT}\n")
    (packages / "machine.pth").write_text("\n".join(lines) + "\n")
    return packages


def unpack(path: Path, sha256: str, packages: Path) -> int:
    """Unpack one part; returns how many files it has.

    Raises:
        InstallError: It is not what was packed.
    """
    if hashlib.sha256(path.read_bytes()).hexdigest() != sha256:
        raise InstallError(f"{path} is not whole: its sum is not the one in bundle.json")
    with lzma.open(path) as packed, tarfile.open(fileobj=packed, mode="r|") as archive:
        count = 0
        for info in archive:
            archive.extract(info, packages, filter="tar")
            count += 1
    return count


def install_project(packages: Path) -> None:
    """This checkout's entry points, by which hosts find its plugins."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    folder = packages / f"{project['name'].replace('-', '_')}-0.0.0.dist-info"
    folder.mkdir(exist_ok=True)
    told = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0.0.0\n"
    (folder / "METADATA").write_text(told)
    groups = configparser.ConfigParser(delimiters=("=",))
    groups.optionxform = str  # type: ignore[assignment,method-assign]
    groups.read_dict({"console_scripts": project["scripts"], **project["entry-points"]})
    with (folder / "entry_points.txt").open("w", encoding="utf-8") as out:
        groups.write(out)


def write_scripts(to: Path, packages: Path) -> list[str]:
    """Commands of vLLM and of the project; other packages' are not needed."""
    python = to / "bin/python"
    written = []
    for dist in metadata.distributions(path=[str(packages)]):
        if _canonical(dist.metadata["Name"]) not in ("vllm", "ec-connector"):
            continue
        for point in dist.entry_points.select(group="console_scripts"):
            script = to / "bin" / point.name
            script.write_text(
                SCRIPT.format(python=python, module=point.module, function=point.attr)
            )
            script.chmod(0o755)
            written.append(point.name)
    return sorted(written)


def install(bundle_folder: Path, to: Path, names: Sequence[str]) -> None:
    """Everything; says what it did.

    Raises:
        InstallError: See ``main``.
    """
    began = time.monotonic()
    try:
        bundle = json.loads((bundle_folder / "bundle.json").read_text())
    except (OSError, ValueError) as error:
        raise InstallError(f"{bundle_folder} has no bundle ({error}): see gpu_bundle.py") from None
    parts = {part["part"]: part for part in bundle["parts"]}
    if unknown := sorted(set(names) - set(parts)):
        raise InstallError(f"no such parts: {', '.join(unknown)}; there are {', '.join(parts)}")
    stamp = to / "installed.json"
    done: dict[str, str] = json.loads(stamp.read_text()) if stamp.exists() else {}
    todo = [parts[name] for name in names if done.get(name) != parts[name]["sha256"]]
    if not todo and stamp.exists():
        print(f"{to} has {', '.join(names)} already")
        return
    check_machine(bundle)
    packages = make_environment(to)
    with ProcessPoolExecutor(len(todo)) as pool:
        waiting = [
            pool.submit(unpack, bundle_folder / part["file"], part["sha256"], packages)
            for part in todo
        ]
        counts = [unpacked.result() for unpacked in waiting]
    unpacked_s = time.monotonic() - began
    install_project(packages)
    scripts = write_scripts(to, packages)
    # Several servers start at once: each would compile all that it imports.
    compileall.compile_dir(packages, quiet=2, workers=os.cpu_count() or 1, maxlevels=30)
    stamp.write_text(json.dumps({**done, **{part["part"]: part["sha256"] for part in todo}}))
    print(
        f"{sum(counts)} files of {', '.join(part['part'] for part in todo)} in {to} after "
        f"{unpacked_s:.1f} s, compiled after {time.monotonic() - began:.1f} s; "
        f"commands: {', '.join(scripts)}"
    )


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="tools/gpu_install.py", description=__doc__)
    parser.add_argument("parts", nargs="+")
    parser.add_argument("--bundle", type=Path, default=ROOT / "out/gpu")
    parser.add_argument("--to", type=Path, default=Path("/tmp/ec-gpu"))
    options = parser.parse_args()
    try:
        install(options.bundle, options.to, options.parts)
    except InstallError as error:
        print(f"gpu_install.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
