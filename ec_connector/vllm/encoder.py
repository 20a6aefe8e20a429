# SPDX-License-Identifier: Apache-2.0
"""Which encoder a server has: the hash that its peers compare (EC-8.9).

Model name, dtype and version are in the compatibility hash already. Here is what changes
under one name: weights, configuration and its overrides, quantisation, adapters on the
encoder, and what prepares its input. All of it is hashed; no path, name or value leaves the
process, and what is logged is the beginning of a hash per part, for comparing two logs.

What cannot be told makes a hash that nobody else has, so that nothing is exchanged rather
than something wrong; ``ec_encoder_revision`` is the way out.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import logging
import re
import secrets
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from ec_connector.vllm.weights import fingerprint

logger = logging.getLogger(__name__)

#: Where the processor runs is no matter of what it makes: an encoder may have it on a GPU.
_WHERE: Final = frozenset({"device"})
#: Of a configuration, what says only where it came from.
_FROM: Final = frozenset({"_name_or_path", "transformers_version"})
#: Settings of the model and of its multimodal half that change what an encoder puts out.
_MODEL: Final = ("quantization", "quantization_config", "model_impl", "model_class_overrides")
_ENCODER: Final = ("mm_encoder_attn_dtype", "video_pruning_rate", "video_pruning_method")


class _CannotTell(Exception):
    """It cannot be told which encoder this is; the message says why, and names no value."""


def encoder_hash(vllm_config: Any, said: str | None) -> str:
    """The hash, 64 hex digits; logs its parts.

    Args:
        vllm_config: A ``VllmConfig``. Its model's files are read.
        said: ``ec_encoder_revision``, which goes first.
    """
    if said is not None:
        parts = {"ec_encoder_revision": _hash(said)}
    else:
        try:
            parts = {name: _hash(value) for name, value in _facts(vllm_config).items()}
        except _CannotTell as exc:
            logger.warning(
                "%s: it cannot be told whether another server's encoder is the same, so this one "
                "exchanges encodings with nobody that says which it has; set ec_encoder_revision "
                "to the same word on servers whose encoders are the same",
                exc,
            )
            parts = {"unknown": _hash(secrets.token_hex(32))}
    whole = _hash(parts)
    logger.info(
        "encoder %s (%s): peers with another one are refused",
        whole[:12],
        ", ".join(f"{name} {value[:12]}" for name, value in parts.items()),
    )
    return whole


def _facts(vllm_config: Any) -> dict[str, Any]:
    _check_adapters(vllm_config)
    model = vllm_config.model_config
    mm = model.multimodal_config
    processor = dict(getattr(mm, "mm_processor_kwargs", None) or {})
    return {
        "weights": _weights(model, getattr(vllm_config, "load_config", None)),
        "configuration": _configuration(model),
        "quantisation": {name: _plain(getattr(model, name, None)) for name in _MODEL},
        "processor": {
            "kwargs": {k: v for k, v in processor.items() if k not in _WHERE},
            "media": getattr(mm, "media_io_kwargs", None) or {},
            "library": _transformers_version(),
        },
        "encoder": {
            **{name: getattr(mm, name, None) for name in _ENCODER},
            "scales": _scales(getattr(mm, "mm_encoder_fp8_scale_path", None)),
        },
    }


# ------------------------------------------------------------------------- the parts
def _weights(model: Any, load: Any) -> str:
    """What the weights are."""
    if getattr(load, "load_format", None) == "dummy":
        # The same numbers wherever the shapes are the same, which the configuration tells.
        return "dummy"
    code = bool(getattr(model, "trust_remote_code", False))
    revision = getattr(model, "revision", None)
    name = str(model.model)
    try:
        for place in _places(name, revision, getattr(load, "download_dir", None)):
            found = fingerprint(place, code=code)
            if found is not None:
                return found
    except OSError as exc:
        raise _CannotTell(f"the model's weights cannot be read ({type(exc).__name__})") from exc
    pinned = isinstance(revision, str) and re.fullmatch(r"[0-9a-f]{40}", revision)
    if pinned and not getattr(model, "model_weights", ""):
        return f"{revision} {getattr(model, 'code_revision', None) if code else ''}"
    raise _CannotTell("the model's weights are not in a folder, and no revision is pinned")


def _places(name: str, revision: str | None, download_dir: str | None) -> list[Path]:
    """Where the model's files may be."""
    local = Path(name)
    if local.exists():
        return [local]
    places = []
    for cache in (download_dir, None):
        for file in ("config.json", "model.safetensors.index.json", "model.safetensors"):
            found = _cached(name, file, revision, cache)
            if found is not None and found.parent not in places:
                places.append(found.parent)
    return places


def _cached(name: str, file: str, revision: str | None, cache: str | None) -> Path | None:
    try:
        hub = importlib.import_module("huggingface_hub")
        found = hub.try_to_load_from_cache(name, file, cache_dir=cache, revision=revision)
    except Exception:
        # No such library, or no name of a repository: then it is not there.
        return None
    return Path(found) if isinstance(found, str) else None


def _configuration(model: Any) -> dict[str, Any]:
    """The model's configuration with all overrides, as it is used."""
    config = model.hf_config
    if hasattr(config, "to_dict"):
        config = config.to_dict()
    if not isinstance(config, Mapping):
        raise _CannotTell("the model's configuration cannot be written down")
    return {str(key): value for key, value in config.items() if key not in _FROM}


def _check_adapters(vllm_config: Any) -> None:
    """Adapters on the encoder come with requests, under names that say nothing of them."""
    lora = getattr(vllm_config, "lora_config", None)
    if getattr(lora, "enable_tower_connector_lora", False):
        raise _CannotTell("enable_tower_connector_lora lets adapters change the encoder")


def _scales(path: str | None) -> str | None:
    if path is None:
        return None
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError as exc:
        raise _CannotTell(f"the encoder's scales cannot be read ({type(exc).__name__})") from exc


def _transformers_version() -> str | None:
    try:
        return metadata.version("transformers")
    except metadata.PackageNotFoundError:
        return None


# --------------------------------------------------------------------------- writing
def _plain(value: Any) -> Any:
    """A dataclass or enum as what it consists of."""
    return getattr(value, "__dict__", value)


def _hash(value: Any) -> str:
    try:
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=_written)
    except (TypeError, ValueError) as exc:
        raise _CannotTell(f"a setting cannot be written down ({type(exc).__name__})") from exc
    return hashlib.sha256(text.encode()).hexdigest()


def _written(value: Any) -> Any:
    """What JSON has no form for. Nothing that tells where it lies in memory."""
    if isinstance(value, Mapping):
        return {str(key): inner for key, inner in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(map(str, value))
    if hasattr(value, "to_dict"):
        return value.to_dict()
    text = str(value)
    if " at 0x" in text:
        raise TypeError(type(value).__name__)
    return text
