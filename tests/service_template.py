"""Loaded once by the fork server of `ServiceProcess`, and by nobody else: everything that a service imports."""

import gc
import importlib
import os

from orcastream.worker.lean_torch import lean_torch
from tests.parent import die_with_parent
from tests.service_process import set_up_environment

# transformers loads the classes of an architecture when they are first asked for: these are the demo model's.
MODULES = (
    "orcastream.cli.worker",
    "orcastream.cli.gateway",
    "orcastream.worker.worker",
    "orcastream.gateway.app",
    "orcastream.gateway.main",
    "transformers.models.qwen3.modeling_qwen3",
    "opentelemetry.exporter.otlp.proto.http.metric_exporter",
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "opentelemetry.exporter.prometheus",
    "opentelemetry.instrumentation.fastapi",
)

die_with_parent()
set_up_environment()
lean_torch("cpu")  # as a worker begins
os.environ.pop("OTEL_PROPAGATORS", None)  # of the test that happens to be the first: FastAPI reads it when it is loaded
for name in MODULES:
    importlib.import_module(name)
# Built when a process loads its first model, and the same for all models.
importlib.import_module("transformers.conversion_mapping").get_checkpoint_conversion_mapping("qwen3")
gc.collect()
gc.freeze()  # or each service looks at all of it once more, and copies the pages that this touches
