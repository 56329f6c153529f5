"""Everything that a service imports; loaded once, only by the fork server of `ServiceProcess`."""

import gc
import importlib
import os

from orcastream.worker.lean_torch import lean_torch
from tests.parent import die_with_parent
from tests.service_process import set_up_environment

# transformers loads the classes of an architecture on first use: these are the demo model's.
MODULES = (
    "orcastream.cli.worker",
    "orcastream.cli.gateway",
    "orcastream.worker.main",
    "orcastream.worker.worker",
    "orcastream.gateway.app",
    "orcastream.gateway.main",
    "orcastream.demo.mixture",
    "tokenizers.trainers",
    "torch.fx.experimental.symbolic_shapes",
    "transformers.convert_slow_tokenizer",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.qwen3.modeling_qwen3",
    "transformers.tokenization_utils_tokenizers",
    "opentelemetry.exporter.otlp.proto.http.metric_exporter",
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "opentelemetry.exporter.prometheus",
    "opentelemetry.instrumentation.fastapi",
)

die_with_parent()
set_up_environment()
lean_torch("cpu")  # as a worker does at start
os.environ.pop("OTEL_PROPAGATORS", None)  # would be the first test's environment: FastAPI reads it at import
for name in MODULES:
    importlib.import_module(name)
# Built when a process loads its first model, and the same for all models.
importlib.import_module("transformers.conversion_mapping").get_checkpoint_conversion_mapping("qwen3")
gc.collect()
gc.freeze()  # otherwise each service's garbage collection scans it all again, and copies the touched pages
