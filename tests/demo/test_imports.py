"""Most users of the package need only its data: importing it must not import torch."""

import subprocess
import sys

import pytest

from tests.patience import PATIENCE_S


@pytest.mark.parametrize("module", ["demo", "orcastream.demo.prompts"])
def test_imports_without_torch(module: str) -> None:
    check = f"import sys, {module}; sys.exit(bool({{'torch', 'transformers', 'tokenizers'}} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", check], check=True, timeout=PATIENCE_S)
