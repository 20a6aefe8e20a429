# SPDX-License-Identifier: Apache-2.0
"""The items of a vLLM request, made of its ``mm_features``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from ec_connector.vllm.names import Names
from ec_connector.vllm.setup import Widths
from ec_protocol.items import Item, make_item

logger = logging.getLogger(__name__)

#: Modality -> the processed keys that size its placeholder.
FieldsOf = Callable[[str], frozenset[str]]

# A field that is not among the processed data: audio models want to know how many
# tokens the audio takes, which the placeholder itself tells.
_AUDIO_TOKENS: Final = "audio_num_tokens"


class RequestItems:
    """Makes a request's items once, and remembers them until it is forgotten.

    The hooks ask for them several times in every engine step.

    Args:
        widths: Of encoder outputs.
        element_size: Bytes per element.
        fields_of: Which processed keys size a placeholder.
        names: Which names follow from the content.
    """

    def __init__(
        self, widths: Widths, element_size: int, fields_of: FieldsOf, names: Names
    ) -> None:
        self._names = names
        self._widths = widths
        self._element_size = element_size
        self._fields_of = fields_of
        self._known: dict[str, list[Item]] = {}

    def __call__(self, request: Any) -> list[Item]:
        """Items in the order of the request's features."""
        known = self._known.get(request.request_id)
        # A streaming session adds features to a request that is already known.
        if known is None or len(known) != len(request.mm_features):
            params = getattr(request, "ec_transfer_params", None)
            known = [self._make(feature, params) for feature in request.mm_features]
            self._known[request.request_id] = known
        return known

    def forget(self, request_id: str) -> None:
        """The request is over."""
        self._known.pop(request_id, None)

    def __len__(self) -> int:
        return len(self._known)

    def _make(self, feature: Any, params: object) -> Item:
        place, modality = feature.mm_position, feature.modality
        rows = int(place.get_num_embeds())
        fields = self._fields_of(modality)
        data: Mapping[str, Any] = feature.data.get_data() if feature.data is not None else {}
        return make_item(
            feature.identifier,
            rows,
            self._widths.of(modality),
            self._element_size,
            end=int(place.offset + place.length),
            # A metadata-only reference brings the sizes of its placeholder and nothing
            # to encode.
            has_media=any(key not in fields and data[key] is not None for key in data),
            metadata=_published(fields, data, rows),
            named_by_content=self._names.follows_content(feature.identifier, params),
        )


def _published(fields: frozenset[str], data: Mapping[str, Any], rows: int) -> dict[str, Any]:
    """Placeholder fields as plain lists; none of them unless all can be had.

    A consumer requires all that the model declares, so an orchestrator that was told
    half of them would rewrite the media into a reference that is refused.
    """
    metadata: dict[str, Any] = {}
    for field in fields:
        if field == _AUDIO_TOKENS:
            metadata[field] = [rows]
        elif (value := _plain(data.get(field))) is not None:
            metadata[field] = value
    return metadata if len(metadata) == len(fields) else {}


def _plain(value: Any) -> list[Any] | None:
    """A tensor or a list of numbers as a list; None for anything else."""
    if isinstance(value, torch.Tensor):
        plain: list[Any] = (value if value.ndim else value.reshape(1)).tolist()
        return plain
    if isinstance(value, list | tuple) and all(isinstance(n, int | float) for n in value):
        return list(value)
    return None


def placeholder_fields(model_config: Any) -> FieldsOf:
    """What the model declares, asked per modality when it is first needed.

    Returns:
        A function that never raises: where the model declares nothing, or cannot be
        asked, no field is published and the media stays on the request.
    """
    known: dict[str, frozenset[str]] = {}

    def fields_of(modality: str) -> frozenset[str]:
        fields = known.get(modality)
        if fields is None:
            known[modality] = fields = _declared(model_config, modality)
        return fields

    return fields_of


def _declared(model_config: Any, modality: str) -> frozenset[str]:
    try:
        from vllm.multimodal import MULTIMODAL_REGISTRY

        parser = MULTIMODAL_REGISTRY.create_processor(model_config).info.data_parser
        return frozenset(parser.placeholder_metadata_fields(modality))
    except Exception:
        logger.warning(
            "the model does not say which fields size the placeholder of %r: requests keep "
            "their media",
            modality,
            exc_info=True,
        )
        return frozenset()
