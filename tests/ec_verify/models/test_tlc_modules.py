# SPDX-License-Identifier: Apache-2.0
"""Modules lie in folders, and TLC gets them in one."""

import re

import pytest

from ec_protocol.tables.files import tla_dir
from ec_verify.models.errors import ManifestError
from ec_verify.models.modules import copy_modules, module_files, reached


def test_modules_of_all_folders_are_found_and_copied_into_one(tmp_path):
    files = module_files(tla_dir())
    assert files["Lifecycle.tla"] == tla_dir() / "common" / "Lifecycle.tla"
    copy_modules(tla_dir(), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == set(files)


def test_two_modules_of_one_name_would_overwrite_each_other(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "X.tla").touch()
    with pytest.raises(ManifestError, match=r"b/X.tla and .*a/X.tla: two modules of one name"):
        module_files(tmp_path)


def test_what_a_module_extends_and_instantiates_is_reached():
    names = [path.stem for path in reached("MCTier.tla", module_files(tla_dir()))]
    assert names == ["MCTier", "TierStore", "Tier", "ContentStore", "Lifecycle"]
    assert list(reached("NoSuch.tla", {})) == []


def test_a_module_is_named_like_its_file():
    for name, path in module_files(tla_dir()).items():
        assert f" MODULE {name.removesuffix('.tla')} --" in path.read_text(encoding="utf-8")


def test_every_folder_of_modules_has_a_page():
    folders = {path.parent for path in module_files(tla_dir()).values()}
    assert [folder.name for folder in sorted(folders) if not (folder / "README.md").is_file()] == []


def test_links_of_the_pages_lead_somewhere():
    for page in tla_dir().rglob("README.md"):
        for link in re.findall(r"\]\(([^#)]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / link).exists(), f"{page}: {link}"
