# SPDX-License-Identifier: Apache-2.0
"""One real vLLM engine in one process, with our connector. Prints one JSON document.

python -m tests.ec_connector.vllm.vllm_child MODEL_FOLDER in-step|ahead
"""

from __future__ import annotations

import base64
import io
import json
import os
import pickle
import sys
from types import SimpleNamespace
from typing import Any

from tests.e2e.pictures import picture
from tests.e2e.platform import chosen


def shell_facts() -> dict[str, Any]:
    """What can be said about the classes without an engine."""
    import prometheus_client
    from vllm.distributed.ec_transfer.ec_connector.base import ECConnectorBase
    from vllm.distributed.ec_transfer.ec_connector.factory import ECConnectorFactory
    from vllm.plugins import load_general_plugins

    from ec_connector.engine.messages import CopyReport, StepMetadata, WorkerReport
    from ec_connector.vllm import ECConnector
    from ec_connector.vllm.metadata import ECStepMetadata, ECWorkerMetadata

    load_general_plugins()
    one, two = (ECWorkerMetadata(WorkerReport((CopyReport(7, n, True),))) for n in range(2))
    step = ECStepMetadata(StepMetadata(3, region=bytes(range(16))))
    hooks = {name for name in vars(ECConnectorBase) if not name.startswith("_")}
    labels = {0: ["tiny", "0"]}
    types = {
        kind: kind
        for kind in (
            prometheus_client.Counter,
            prometheus_client.Gauge,
            prometheus_client.Histogram,
        )
    }
    config = SimpleNamespace(ec_transfer_config=None)
    prom = ECConnector.build_prom_metrics(config, types, ["model_name", "engine"], labels)
    first = ECConnector.build_ec_connector_stats({"counters": {"vllm:ec_items/hit": 2}})
    both = first.aggregate(ECConnector.build_ec_connector_stats(first.data))
    prom.observe(both.data, 0)
    published = prometheus_client.generate_latest().decode()
    return {
        "ranks": [e.rank for e in one.aggregate(two).report.entries],
        "step": pickle.loads(pickle.dumps(step)).step.step_id,
        "region": pickle.loads(pickle.dumps(step)).step.region.hex(),
        "not_ours": sorted(hooks - set(vars(ECConnector))),
        "names": sorted(n for n in ECConnectorFactory._registry if n.startswith("EC")),
        "hits": [line for line in published.splitlines() if line.startswith("vllm:ec_items_total")],
    }


def refused(model: str) -> list[str]:
    """What a server with the old model runner says, in either of its processes."""
    from vllm.config import ECTransferConfig
    from vllm.distributed.ec_transfer.ec_connector.base import ECConnectorRole
    from vllm.engine.arg_utils import EngineArgs

    from ec_connector.vllm import ECConnector

    said = ECTransferConfig(
        ec_connector="ECConnector",
        ec_connector_module_path="ec_connector.vllm",
        ec_role="ec_both",
        ec_connector_extra_config={"ec_cpu_bytes": 1 << 20},
    )
    ours = os.environ["VLLM_USE_V2_MODEL_RUNNER"]
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"
    config = EngineArgs(
        model=model, enforce_eager=True, dtype="float32", max_model_len=128, ec_transfer_config=said
    ).create_engine_config()
    texts = []
    for role in ECConnectorRole:
        try:
            ECConnector(config, role)
        except ValueError as exc:
            texts.append(str(exc))
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = ours
    return texts


def engine_facts(model: str, ahead: bool) -> dict[str, Any]:
    """Encode, forget the device's copy, load from the tier, stop.

    Args:
        model: Its folder.
        ahead: Plan a step before the last one is over.
    """
    from vllm import LLM, SamplingParams

    platform = chosen()
    llm = LLM(
        model,
        **platform.exact_engine,
        **platform.step_engine(ahead),
        max_model_len=512,
        max_num_seqs=4,
        max_num_batched_tokens=256,
        kv_cache_memory_bytes=64 << 20,
        # Four long answers at once do not fit: some are preempted.
        block_size=128,
        num_gpu_blocks_override=6,
        enable_prefix_caching=False,
        ec_transfer_config={
            "ec_connector": "ECConnector",
            "ec_connector_module_path": "ec_connector.vllm",
            "ec_role": "ec_both",
            "ec_connector_extra_config": {"ec_cpu_bytes": 1 << 20},
        },
    )
    core = llm.llm_engine.engine_core.engine_core
    scheduler = core.scheduler
    half = scheduler.ec_connector._scheduler

    def ask(number: int) -> list[int]:
        part = {"type": "image_url", "image_url": {"url": picture(number)}}
        content = [part, {"type": "text", "text": "What is it?"}]
        sampling = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True)
        done = llm.chat([{"role": "user", "content": content}], sampling, use_tqdm=False)
        return list(done[0].outputs[0].token_ids)

    first = [ask(number) for number in range(2)]
    core.reset_encoder_cache()
    again = [ask(number) for number in range(2)]
    region = half.region.path
    facts = {
        "plans_ahead": core.batch_queue is not None,
        "same": first == again,
        "stats": half.delegate.stats(),
        "items_left": len(half.items),
        "pending": scheduler.ec_connector.has_pending_push_work(),
        "there": os.path.exists(region),
        "aborted": abort_facts(llm, half),
        "preempted": preemption_facts(llm, half),
    }
    llm.llm_engine.engine_core.shutdown()
    facts["left"] = os.path.exists(region)
    return facts


def submit(llm: Any, name: str, number: int, tokens: int) -> None:
    """One request about a picture, that others can run beside."""
    from PIL import Image
    from vllm import SamplingParams

    data = base64.b64decode(picture(number).split(",")[1])
    prompt = {
        "prompt": "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>"
        "What is it?<|im_end|>\n<|im_start|>assistant\n",
        "multi_modal_data": {"image": Image.open(io.BytesIO(data))},
    }
    sampling = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True)
    llm.llm_engine.add_request(name, prompt, sampling)


def finish(llm: Any) -> dict[str, list[int]]:
    """Step until nothing is left to do; the tokens of each request that ended."""
    engine, done = llm.llm_engine, {}
    core = engine.engine_core.engine_core
    while engine.has_unfinished_requests() or core.scheduler.has_requests():
        for output in engine.step():
            if output.finished:
                done[output.request_id] = list(output.outputs[0].token_ids)
    return done


def left_over(half: Any) -> dict[str, Any]:
    """What a request that is over must not leave behind."""
    delegate = half.delegate
    held = [entry.mm_hash for entry in delegate.node.tier.entries() if entry.state != "ready"]
    return {"items": len(half.items), "copies": len(delegate.node.copies), "held": held}


def abort_facts(llm: Any, half: Any) -> dict[str, Any]:
    """Requests that are given up before, and right after, their encoder has run."""
    engine = llm.llm_engine
    submit(llm, "never-ran", 2, 50)
    engine.abort_request(["never-ran"])
    finish(llm)
    never_ran = left_over(half)
    submit(llm, "ran-once", 3, 50)
    engine.step()
    engine.abort_request(["ran-once"])
    finish(llm)
    return {"never_ran": never_ran, "ran_once": left_over(half)}


def preemption_facts(llm: Any, half: Any) -> dict[str, Any]:
    """Four requests that get into each other's way, and each of them alone."""
    core = llm.llm_engine.engine_core.engine_core
    scheduler, preempted = core.scheduler, []
    preempt = scheduler._preempt_request

    def noted(request: Any, *args: Any, **kwargs: Any) -> Any:
        preempted.append(request.request_id)
        # What it needs again must come out of the tier.
        core.reset_encoder_cache()
        return preempt(request, *args, **kwargs)

    names = [f"r{number}" for number in range(4)]
    alone = {}
    for number, name in enumerate(names):
        submit(llm, name, number, 45)
        alone.update(finish(llm))
    before = half.delegate.stats()
    scheduler._preempt_request = noted
    for number, name in enumerate(names):
        submit(llm, name, number, 45)
    together = finish(llm)
    scheduler._preempt_request = preempt
    after = half.delegate.stats()
    return {
        "times": len(preempted),
        "same": together == alone,
        "hits": after["hits"] - before.get("hits", 0),
        "misses": after["misses"] - before["misses"],
        "left": left_over(half),
    }


def main() -> None:
    """Entry point."""
    model, steps = sys.argv[1:]
    facts = {
        "shell": shell_facts(),
        "refused": refused(model),
        "engine": engine_facts(model, steps == "ahead"),
    }
    sys.stdout.write(f"FACTS {json.dumps(facts)}\n")


if __name__ == "__main__":
    main()
