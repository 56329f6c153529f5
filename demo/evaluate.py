"""Measure the demo model on held-out prompts and on required ones: `python -m orcastream.demo.evaluate`."""

import argparse
import sys
import time
from pathlib import Path

import torch

from orcastream.demo import HELD_OUT_KINDS, MODEL_DIR, held_out
from orcastream.demo.chat import FORMS
from orcastream.demo.counting import LONG_KIND, count
from orcastream.demo.prompts import LONG_COUNT, SHOWCASE
from orcastream.demo.questions import questions
from orcastream.demo.reader import Reader
from orcastream.demo.tasks import Example, is_held_out

LONG_RANGES = ((1, 200), (50, 250), (100, 400), (1, 400), (0, 300), (200, 500))


def main() -> None:
    """Parse the command line, print the report, and fail if any promise is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--model", type=Path, default=MODEL_DIR, help="folder of the model")
    parser.add_argument("--each", type=int, default=200, help="held-out prompts of each kind")
    parser.add_argument("--seed", type=int, default=0, help="seed of the held-out prompts")
    parser.add_argument("--threads", type=int, default=2, help="torch threads")
    parser.add_argument("--forced", action="store_true", help="check by forward passes, without generating (faster)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    reader = Reader(options.model)
    print(_size(reader, options.model))
    print(f"{'kind':<16}{'form':<6}{'exact':>6}{'asked':>7}{'share':>9}{'seconds':>9}")
    kept = [
        _report(reader, kind, form, examples, least, options.forced)
        for kind, examples, least in _papers(options.each, options.seed)
        for form in FORMS
    ]
    sys.exit(0 if all(kept) else 1)


def _papers(each: int, seed: int) -> list[tuple[str, list[Example], float]]:
    """Return the tests: kind, examples, and the minimum share of exact answers."""
    papers = [
        (kind, held_out(kind, each // 10 if kind == LONG_KIND else each, seed=seed), 0.95) for kind in HELD_OUT_KINDS
    ]
    shown = [Example("showcase", question, question, answer) for question, answer in SHOWCASE]
    ranges = [_long(f"Count from {first} to {last}", count(first, last)) for first, last in LONG_RANGES]
    return [
        *papers,
        ("questions", list(questions()), 1.0),
        ("showcase", shown, 1.0),
        ("chosen ranges", ranges, 1.0),
        ("1 to 300", [_long(*LONG_COUNT)], 1.0),
    ]


def _long(question: str, answer: str) -> Example:
    return Example("long", question, question, answer)


def _report(reader: Reader, kind: str, form: str, examples: list[Example], least: float, forced: bool) -> bool:
    begun = time.monotonic()
    right = [reader.recites(item, form) for item in examples] if forced else reader.answers(examples, form)
    share = sum(right) / len(right)
    seconds = time.monotonic() - begun
    print(f"{kind:<16}{form:<6}{sum(right):>6}{len(right):>7}{share:>9.1%}{seconds:>9.1f}")
    for item, is_right in zip(examples, right, strict=True):
        if not is_right:
            print(f"    wrong: {item.question!r}")
    return share >= least


def _size(reader: Reader, folder: Path) -> str:
    parameters = sum(weight.numel() for weight in reader.model.parameters())
    size = sum(path.stat().st_size for path in folder.iterdir())
    tokens = len(reader.tokenizer(LONG_COUNT[1])["input_ids"])
    split = "held out" if is_held_out("count 1 300 1") else "drawn in training"
    return f"{parameters:,} parameters, {size:,} bytes; 1 to 300 is {tokens:,} tokens and is {split}"


if __name__ == "__main__":
    main()
