"""Encoding in the tokenizer's threads, also where the host refuses them."""

import json
import os
import subprocess
import sys
from pathlib import Path

from orcastream.text.encode_parts import encode_parts
from orcastream.text.literal_tokenizer import LiteralTokenizer
from tests.patience import PATIENCE_S
from tests.text import tiny_tokenizers

ROOT = Path(__file__).parents[2]
_ENCODE = """
import json, sys
from tokenizers import Tokenizer
from orcastream.text.encode_parts import encode_parts
from orcastream.text.literal_tokenizer import LiteralTokenizer

backend = Tokenizer.from_file(sys.argv[1])
literal = LiteralTokenizer(backend)
print(json.dumps([[one.ids for one in encode_parts(backend, ["one", "two"])], literal.encode("three").ids]))
"""
_STACK_BYTES = 1 << 47
"""Of a thread of the tokenizer: more than there are addresses, so that none can be started."""


def test_without_threads_parts_are_encoded_one_after_the_other(tmp_path: Path) -> None:
    backend = tiny_tokenizers.byte_level().backend_tokenizer
    backend.save(str(tmp_path / "tokenizer.json"))
    environment = {name: value for name, value in os.environ.items() if name != "TOKENIZERS_PARALLELISM"}
    done = subprocess.run(
        [sys.executable, "-c", _ENCODE, str(tmp_path / "tokenizer.json")],
        cwd=ROOT,
        env={**environment, "RUST_MIN_STACK": str(_STACK_BYTES)},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.stderr.count("The global thread pool has not been initialized") == 1
    parts = [one.ids for one in encode_parts(backend, ["one", "two"])]
    assert json.loads(done.stdout) == [parts, LiteralTokenizer(backend).encode("three").ids]
