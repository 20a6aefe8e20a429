# SPDX-License-Identifier: Apache-2.0
"""Tiny multimodal models with random weights, made on the spot: no download.

    python -m tests.e2e.tiny_model qwen2vl FOLDER
    python -m tests.e2e.tiny_model qwen3vl FOLDER

Qwen2-VL is the plain case, Qwen3-VL packs two layers' features beside the last one's
(DeepStack), so its encoder output is three times as wide as its text. Two layers and
a vocabulary of bytes are enough for the oracle: another picture gives other tokens.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

KINDS: Final = ("qwen2vl", "qwen3vl")

_VOCABULARY: Final = 320
_HIDDEN: Final = 128
_GAIN: Final = 5
#: Special tokens in the order of their ids, behind the 256 bytes.
_SPECIAL: Final = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
_CHAT: Final = """\
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{% if message.content is string -%}
{{ message.content }}
{%- else -%}
{%- for part in message.content -%}
{%- if part.type in ('image', 'image_url', 'image_embeds') -%}
<|vision_start|><|image_pad|><|vision_end|>
{%- elif part.type in ('video', 'video_url') -%}
<|vision_start|><|video_pad|><|vision_end|>
{%- elif part.type == 'text' -%}
{{ part.text }}
{%- endif -%}
{%- endfor -%}
{%- endif -%}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}
"""


def make_model(kind: str, folder: Path) -> None:
    """Write a whole model folder: weights, tokenizer, processors, chat template.

    Args:
        kind: One of ``KINDS``.
        folder: Made if it is not there.
    """
    import torch

    torch.manual_seed(0)
    folder.mkdir(parents=True, exist_ok=True)
    ids = _write_tokenizer(folder)
    model, image = {"qwen2vl": _qwen2vl, "qwen3vl": _qwen3vl}[kind](ids)
    with torch.no_grad():
        for weights in model.parameters():
            if weights.ndim > 1:
                # Fresh weights are so small that the picture hardly reaches the answer.
                weights.mul_(_GAIN)
    model.config.architectures = [type(model).__name__]
    model.config.dtype = "float32"
    model.to(torch.float32).save_pretrained(folder)
    name = {"qwen2vl": "Qwen2VL", "qwen3vl": "Qwen3VL"}[kind]
    common = {**image, "merge_size": 2, "temporal_patch_size": 2}
    common["processor_class"] = f"{name}Processor"
    _write_json(
        folder / "preprocessor_config.json",
        {**common, "image_processor_type": "Qwen2VLImageProcessor"},
    )
    _write_json(
        folder / "video_preprocessor_config.json",
        {**common, "video_processor_type": f"{name}VideoProcessor"},
    )
    (folder / "chat_template.jinja").write_text(_CHAT, encoding="utf-8")


def _write_tokenizer(folder: Path) -> dict[str, int]:
    """A tokenizer of single bytes; returns the ids of the special tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=list(_SPECIAL),
        model_max_length=4096,
    )
    fast.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    # The generic class: Qwen's own would look for files of merges.
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    config["image_token"], config["video_token"] = "<|image_pad|>", "<|video_pad|>"
    config["vision_bos_token"] = "<|vision_start|>"
    config["vision_eos_token"] = "<|vision_end|>"
    _write_json(path, config)
    return {token: fast.convert_tokens_to_ids(token) for token in _SPECIAL}


def _text(kind: str, ids: dict[str, int], layers: int, sections: list[int]) -> dict[str, Any]:
    """The language model's half: two heads of 64, tiny layers."""
    return {
        "model_type": kind,
        "vocab_size": _VOCABULARY,
        "hidden_size": _HIDDEN,
        "intermediate_size": 2 * _HIDDEN,
        "num_hidden_layers": layers,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": sections},
        "bos_token_id": ids["<|endoftext|>"],
        "pad_token_id": ids["<|endoftext|>"],
        "eos_token_id": ids["<|im_end|>"],
    }


def _vision_ids(ids: dict[str, int]) -> dict[str, Any]:
    return {
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
        "tie_word_embeddings": False,
    }


def _qwen2vl(ids: dict[str, int]) -> tuple[Any, dict[str, Any]]:
    from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

    config = Qwen2VLConfig(
        text_config=_text("qwen2_vl_text", ids, 2, [8, 12, 12]),
        vision_config={
            "depth": 2,
            "embed_dim": _HIDDEN,
            "hidden_size": _HIDDEN,
            "num_heads": 2,
            "mlp_ratio": 2,
            "in_channels": 3,
            "in_chans": 3,
            "patch_size": 14,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
        },
        **_vision_ids(ids),
    )
    limits = {"min_pixels": 56 * 56, "max_pixels": 224 * 224}
    size = {"shortest_edge": 56 * 56, "longest_edge": 224 * 224}
    return Qwen2VLForConditionalGeneration(config), {"patch_size": 14, **limits, "size": size}


def _qwen3vl(ids: dict[str, int]) -> tuple[Any, dict[str, Any]]:
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    text = _text("qwen3_vl_text", ids, 4, [12, 10, 10])
    text["head_dim"] = 64
    text["rope_parameters"]["mrope_interleaved"] = True
    config = Qwen3VLConfig(
        text_config=text,
        vision_config={
            "depth": 4,
            "hidden_size": _HIDDEN,
            "intermediate_size": 2 * _HIDDEN,
            "out_hidden_size": _HIDDEN,
            "num_heads": 2,
            "in_channels": 3,
            "patch_size": 16,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "num_position_embeddings": 256,
            "deepstack_visual_indexes": [0, 1],
        },
        **_vision_ids(ids),
    )
    half = [0.5, 0.5, 0.5]
    size = {"shortest_edge": 64 * 64, "longest_edge": 256 * 256}
    image = {"patch_size": 16, "size": size, "image_mean": half, "image_std": half}
    return Qwen3VLForConditionalGeneration(config), image


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def main(arguments: list[str]) -> int:
    """Entry point."""
    if len(arguments) != 2 or arguments[0] not in KINDS:
        print(
            f"usage: python -m tests.e2e.tiny_model {{{'|'.join(KINDS)}}} FOLDER", file=sys.stderr
        )
        return 2
    make_model(arguments[0], Path(arguments[1]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
