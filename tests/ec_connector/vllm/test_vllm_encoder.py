# SPDX-License-Identifier: Apache-2.0
"""Which encoder a server says it has; stand-ins take the place of vLLM's configuration."""

from __future__ import annotations

import json
import logging
import struct
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ec_connector.vllm import weights
from ec_connector.vllm.encoder import encoder_hash
from ec_connector.vllm.weights import fingerprint

pytestmark = pytest.mark.clause("EC-8.9")
TENSORS = {"visual.a": 20_000, "visual.b": 64, "model.c": 9_000}


def write_weights(folder: Path, name: str = "model.safetensors", fill: int = 1) -> Path:
    folder.mkdir(exist_ok=True)
    rows, at = {}, 0
    for tensor, size in TENSORS.items():
        rows[tensor] = {"dtype": "BF16", "shape": [size // 2], "data_offsets": [at, at + size]}
        at += size
    head = json.dumps(rows).encode()
    body = bytes(range(fill, fill + 1)) * at
    (folder / name).write_bytes(struct.pack("<Q", len(head)) + head + body)
    (folder / "preprocessor_config.json").write_text('{"max_pixels": 100}')
    return folder


def config(folder: Path, **changed: Any) -> Any:
    model = {
        "model": str(folder),
        "revision": None,
        "code_revision": None,
        "trust_remote_code": False,
        "quantization": None,
        "quantization_config": None,
        "model_impl": "auto",
        "hf_config": {"vision_config": {"depth": 2}, "_name_or_path": str(folder)},
    }
    mm: dict[str, Any] = {
        "mm_processor_kwargs": None,
        "media_io_kwargs": {},
        "mm_encoder_attn_dtype": None,
        "mm_encoder_fp8_scale_path": None,
        "video_pruning_rate": None,
    }
    lora = changed.pop("lora", None)
    load = SimpleNamespace(load_format=changed.pop("load_format", "auto"), download_dir=None)
    for name, value in changed.items():
        target = mm if name in mm else model
        assert name in target
        target[name] = value
    return SimpleNamespace(
        model_config=SimpleNamespace(**model, multimodal_config=SimpleNamespace(**mm)),
        load_config=load,
        lora_config=lora,
    )


def test_the_same_weights_elsewhere_are_the_same_encoder(tmp_path: Path) -> None:
    here, there = (write_weights(tmp_path / name) for name in ("here", "there"))
    first = encoder_hash(config(here), None)
    assert first == encoder_hash(config(here), None) == encoder_hash(config(there), None)
    assert len(first) == 64


def change_one_tensor(folder: Path) -> None:
    """Its bytes only: index, names, shapes and sizes stay."""
    file = folder / "model.safetensors"
    data = bytearray(file.read_bytes())
    start = 8 + struct.unpack("<Q", data[:8])[0]
    data[start + 5_000 : start + 15_000] = b"\x07" * 10_000
    file.write_bytes(data)


def change_small_tensor(folder: Path) -> None:
    file = folder / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[8 + struct.unpack("<Q", data[:8])[0] + 20_000] ^= 1
    file.write_bytes(data)


def change_preprocessor(folder: Path) -> None:
    (folder / "preprocessor_config.json").write_text('{"max_pixels": 200}')


@pytest.mark.parametrize("change", [change_one_tensor, change_small_tensor, change_preprocessor])
def test_other_files_are_another_encoder(tmp_path: Path, change: Callable[[Path], None]) -> None:
    folder = write_weights(tmp_path / "model")
    before = encoder_hash(config(folder), None)
    change(folder)
    assert encoder_hash(config(folder), None) != before


@pytest.mark.parametrize(
    "changed",
    [
        {"hf_config": {"vision_config": {"depth": 3}}},
        {"quantization": "fp8"},
        {"quantization_config": {"ignore": ["visual"]}},
        {"model_impl": "transformers"},
        {"mm_processor_kwargs": {"max_pixels": 7}},
        {"media_io_kwargs": {"video": {"num_frames": 4}}},
        {"mm_encoder_attn_dtype": "fp8"},
        {"video_pruning_rate": 0.5},
        {"load_format": "dummy"},
    ],
)
def test_other_settings_are_another_encoder(tmp_path: Path, changed: dict[str, Any]) -> None:
    folder = write_weights(tmp_path / "model")
    other = encoder_hash(config(folder, **changed), None)
    assert other != encoder_hash(config(folder), None)
    assert other == encoder_hash(config(folder, **changed), None)


def test_where_the_processor_runs_and_where_files_lie_are_no_matter(tmp_path: Path) -> None:
    folder = write_weights(tmp_path / "model")
    on_device = config(folder, mm_processor_kwargs={"device": "cuda"})
    assert encoder_hash(on_device, None) == encoder_hash(config(folder), None)


def unreadable(folder: Path) -> Any:
    return config(folder, hf_config=object())


@pytest.mark.parametrize(
    "make",
    [
        lambda folder: config(folder / "nowhere"),
        lambda folder: config(folder, lora=SimpleNamespace(enable_tower_connector_lora=True)),
        lambda folder: config(folder, mm_encoder_fp8_scale_path=str(folder / "none")),
        lambda folder: config(folder, mm_processor_kwargs={"x": object()}),
        unreadable,
    ],
)
def test_what_cannot_be_told_is_unlike_everybodys(
    tmp_path: Path, make: Callable[[Path], Any], caplog: pytest.LogCaptureFixture
) -> None:
    made = make(write_weights(tmp_path / "model"))
    first, again = encoder_hash(made, None), encoder_hash(made, None)
    assert first != again
    assert "set ec_encoder_revision" in caplog.text
    assert str(tmp_path) not in caplog.text
    assert encoder_hash(made, "v7") == encoder_hash(made, "v7") != encoder_hash(made, "v8")


def test_adapters_of_the_language_model_are_no_matter(tmp_path: Path) -> None:
    folder = write_weights(tmp_path / "model")
    lora = SimpleNamespace(enable_tower_connector_lora=False)
    assert encoder_hash(config(folder, lora=lora), None) == encoder_hash(config(folder), None)


def test_a_pinned_revision_stands_for_weights_that_are_not_here(tmp_path: Path) -> None:
    def of(revision: str) -> str:
        return encoder_hash(config(tmp_path / "org" / "name", revision=revision), None)

    assert of("a" * 40) == of("a" * 40) != of("b" * 40)
    assert of("main") != of("main"), "a branch moves"


def test_what_is_logged_is_hashes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = write_weights(tmp_path / "model")
    secret = {"vision_config": {"depth": 2}, "token": "hf_secret"}
    kwargs = {"api_key": "sk-secret"}
    with caplog.at_level(logging.INFO):
        whole = encoder_hash(config(folder, hf_config=secret, mm_processor_kwargs=kwargs), None)
        encoder_hash(config(folder), "revision-secret")
    assert whole[:12] in caplog.text
    assert "weights " in caplog.text
    assert "secret" not in caplog.text
    assert str(tmp_path) not in caplog.text


def test_files_whose_tensors_are_not_known_are_sampled(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    assert fingerprint(folder) is None
    file = folder / "pytorch_model.bin"
    size = 4 << 20
    file.write_bytes(b"\1" * size)
    first = fingerprint(folder)
    assert first == fingerprint(folder) == fingerprint(file)
    with file.open("r+b") as writable:
        writable.seek(size - 10)
        writable.write(b"\2")
    assert fingerprint(folder) != first, "the end of an archive has its checksums"


@pytest.mark.parametrize("head", [b"\xff" * 8, struct.pack("<Q", 4) + b"[1]{", b""])
def test_a_file_that_is_no_safetensors_is_sampled_all_the_same(tmp_path: Path, head: bytes) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(head + b"\1" * 100_000)
    first = fingerprint(tmp_path)
    file.write_bytes(head + b"\2" * 100_000)
    assert first != fingerprint(tmp_path)


def test_code_counts_where_it_is_run(tmp_path: Path) -> None:
    folder = write_weights(tmp_path / "model")
    before = {code: fingerprint(folder, code=code) for code in (False, True)}
    (folder / "modeling.py").write_text("pass")
    assert fingerprint(folder) == before[False]
    assert fingerprint(folder, code=True) != before[True]


def test_more_tensors_than_are_looked_at_each_are_sampled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_weights(tmp_path / "model")
    monkeypatch.setattr(weights, "MAX_TENSORS", 2)
    before = fingerprint(folder)
    change_one_tensor(folder)
    assert fingerprint(folder) not in (None, before)
