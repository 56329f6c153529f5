"""The small model that ships with Orcastream, and the script that trained it.

Importing this package needs no torch: the model is a folder (`MODEL_DIR`), the prompts are data.
"""

from pathlib import Path

from orcastream.demo.mixture import HELD_OUT_KINDS, held_out
from orcastream.demo.tasks import Example

MODEL_DIR: Path = Path(__file__).resolve().parent / "model"

__all__ = ["HELD_OUT_KINDS", "MODEL_DIR", "Example", "held_out"]
