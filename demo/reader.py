"""The model loaded as tests and evaluation use it: stored bfloat16 weights, computed in float32."""

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from orcastream.demo import MODEL_DIR
from orcastream.demo.chat import prompt, reply
from orcastream.demo.tasks import Example


class Reader:
    """A loaded model that is asked examples and judged on exact answers, including the end mark."""

    def __init__(self, folder: Path = MODEL_DIR) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    @torch.inference_mode()
    def generate(self, texts: Sequence[str], most_tokens: int) -> list[str]:
        """Return the greedy continuations of prompt texts, computed in one batch, end marks included."""
        batch = self.tokenizer(list(texts), return_tensors="pt", padding=True, padding_side="left")
        rows = self.model.generate(
            input_ids=batch["input_ids"],
            attention_mask=batch["attention_mask"],
            max_new_tokens=most_tokens,
            do_sample=False,
        )
        written = self.tokenizer.batch_decode(rows[:, batch["input_ids"].shape[1] :], skip_special_tokens=False)
        return [text.replace(self.tokenizer.pad_token, "") for text in written]

    def answers(self, examples: Sequence[Example], form: str, rows: int = 50) -> list[bool]:
        """Return for each example whether greedy generation gives its answer. A batch has `rows` of similar length."""
        order = sorted(range(len(examples)), key=lambda index: len(examples[index].answer))
        right = [False] * len(examples)
        for start in range(0, len(order), rows):
            chosen = order[start : start + rows]
            expected = [reply(examples[index].answer, form) for index in chosen]
            most_tokens = max(len(self.tokenizer(text)["input_ids"]) for text in expected) + 4
            written = self.generate([prompt(examples[index].question, form) for index in chosen], most_tokens)
            for index, wanted, text in zip(chosen, expected, written, strict=True):
                right[index] = text == wanted
        return right

    @torch.inference_mode()
    def recites(self, example: Example, form: str) -> bool:
        """Return whether every token of the answer is the model's first choice, by one forward pass.

        Greedy generation then gives exactly this answer. One pass costs far less, so long counts are checked this way.
        """
        head = self.tokenizer(prompt(example.question, form))["input_ids"]
        tail = self.tokenizer(reply(example.answer, form))["input_ids"]
        logits = self.model(torch.tensor([head + tail]), logits_to_keep=len(tail) + 1).logits[0]
        return bool(logits[:-1].argmax(-1).tolist() == tail)
