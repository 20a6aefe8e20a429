# SPDX-License-Identifier: Apache-2.0
"""One real vLLM engine in one process, with our connector. Prints one JSON document.

python -m tests.ec_connector.vllm_child MODEL_FOLDER
"""

from __future__ import annotations

import json
import os
import pickle
import sys
from types import SimpleNamespace
from typing import Any

from e2e.pictures import picture


def shell_facts() -> dict[str, Any]:
    """What can be said about the classes without an engine."""
    import prometheus_client
    from vllm.distributed.ec_transfer.ec_connector.base import ECConnectorBase
    from vllm.distributed.ec_transfer.ec_connector.factory import ECConnectorFactory
    from vllm.plugins import load_general_plugins

    from ec_connector.messages import CopyReport, StepMetadata, WorkerReport
    from ec_connector.vllm import ECConnector
    from ec_connector.vllm.metadata import ECStepMetadata, ECWorkerMetadata

    load_general_plugins()
    one, two = (ECWorkerMetadata(WorkerReport((CopyReport(7, n, True),))) for n in range(2))
    step = ECStepMetadata(StepMetadata(3))
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
        "not_ours": sorted(hooks - set(vars(ECConnector))),
        "names": sorted(n for n in ECConnectorFactory._registry if n.startswith("EC")),
        "hits": [line for line in published.splitlines() if line.startswith("vllm:ec_items_total")],
    }


def refused(model: str) -> str:
    """What a server with the old model runner says."""
    from vllm.distributed.ec_transfer.ec_connector.base import ECConnectorRole

    from ec_connector.vllm import ECConnector

    config = SimpleNamespace(
        use_v2_model_runner=False,
        ec_transfer_config=SimpleNamespace(is_ec_producer=True, is_ec_consumer=True),
    )
    try:
        ECConnector(config, ECConnectorRole.WORKER)
    except ValueError as exc:
        return str(exc)
    return ""


def engine_facts(model: str) -> dict[str, Any]:
    """Encode, forget the device's copy, load from the tier, stop."""
    from vllm import LLM, SamplingParams

    llm = LLM(
        model,
        enforce_eager=True,
        dtype="float32",
        max_model_len=512,
        max_num_seqs=4,
        max_num_batched_tokens=256,
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
        "same": first == again,
        "stats": half.delegate.stats(),
        "items_left": len(half.items),
        "pending": scheduler.ec_connector.has_pending_push_work(),
        "there": os.path.exists(region),
    }
    llm.llm_engine.engine_core.shutdown()
    facts["left"] = os.path.exists(region)
    return facts


def main() -> None:
    """Entry point."""
    model = sys.argv[1]
    facts = {"shell": shell_facts(), "refused": refused(model), "engine": engine_facts(model)}
    sys.stdout.write(f"FACTS {json.dumps(facts)}\n")


if __name__ == "__main__":
    main()
