"""`python -m orcastream.bench.walk [FOLDER]`: write iteration.md and batching.svg into a folder, `docs` by default."""

import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from orcastream.bench.walk.lanes import draw
from orcastream.bench.walk.page import page
from orcastream.bench.walk.walk import Walk


def main(arguments: Sequence[str]) -> int:
    """Run the walk once under each scheduler."""
    folder = Path(arguments[0] if arguments else "docs")
    torch.set_num_threads(1)
    walk, static = Walk("fcfs"), Walk("static")
    fields = {
        "Iteration-level scheduling (fcfs)": walk.iterations,
        "Request-level batching (static)": static.iterations,
    }
    (folder / "iteration.md").write_text(page(walk, static), encoding="utf-8")
    (folder / "batching.svg").write_text(draw(fields), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
