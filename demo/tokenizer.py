"""The tokenizer: byte-level BPE with numbers as single tokens and the marks of a chat."""

import itertools
import json
import random
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from orcastream.demo import dates, mixture, questions, spelling
from orcastream.demo.tasks import is_held_out

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
VOCABULARY = 512
PIECES = r"\p{N}{1,3}|, (?=\p{N})|\n| ?\p{L}+| ?[^\s\p{L}\p{N}]|\s"
"""Up to three digits, a count's separator, one newline, a word or one punctuation mark with its space, one space."""
LARGEST_NUMBER = 500
"""Numbers up to this one are tokens, so that the end of a count shows by comparing two tokens."""
CHAT_TEMPLATE = (
    "{%- macro text(content) -%}"
    "{%- if content is string -%}{{- content -}}"
    "{%- elif content -%}"
    "{%- for part in content -%}{{- part['text'] if part['type'] == 'text' else '' -}}{%- endfor -%}"
    "{%- endif -%}"
    "{%- endmacro -%}"
    "{%- if tools -%}"
    "{{- '<|im_start|>system\\n' -}}"
    "{%- if messages[0]['role'] == 'system' -%}"
    "{{- text(messages[0]['content']) + '\\n\\n' -}}{%- set messages = messages[1:] -%}"
    "{%- endif -%}"
    "{{- 'Tools:\\n' -}}{%- for tool in tools -%}{{- (tool | tojson) + '\\n' -}}{%- endfor -%}"
    '{{- \'A call of one of them:\\n<tool_call>\\n{"name": "NAME", "arguments": {}}\\n</tool_call><|im_end|>\\n\' -}}'
    "{%- endif -%}"
    "{%- for message in messages -%}"
    "{%- set is_result = message['role'] == 'tool' -%}"
    "{{- '<|im_start|>' + ('user' if is_result else message['role']) + '\\n' -}}"
    "{{- '<tool_response>\\n' if is_result else '' -}}"
    "{{- text(message['content']) -}}"
    "{%- for call in message['tool_calls'] or [] -%}"
    "{{- '\\n' if message['content'] or not loop.first else '' -}}"
    "{{- '<tool_call>\\n{\"name\": ' + (call['function']['name'] | tojson) -}}"
    "{{- ', \"arguments\": ' + (call['function']['arguments'] | tojson) + '}\\n</tool_call>' -}}"
    "{%- endfor -%}"
    "{{- '\\n</tool_response>' if is_result else '' -}}"
    "{{- '<|im_end|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)
"""ChatML. Tools and calls are written as in Qwen3, but as plain text: the model has no special tokens for them and was
not trained on any."""


def train_tokenizer(seed: int = 0) -> Tokenizer:
    """Train the vocabulary on the questions and on training examples, without held-out words."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES.replace(r"\p{N}{1,3}", r"\p{N}")), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[PAD, START, END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(seed), trainer)
    return _with_numbers(tokenizer)


def _with_numbers(tokenizer: Tokenizer) -> Tokenizer:
    """Append the numbers of two and three digits to the vocabulary, which was trained with single digits.

    A piece that is in the vocabulary needs no merges.
    """
    state = json.loads(tokenizer.to_str())
    vocabulary = state["model"]["vocab"]
    for number in range(10, LARGEST_NUMBER + 1):
        vocabulary.setdefault(str(number), len(vocabulary))
    state["model"]["ignore_merges"] = True
    state["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {"Regex": PIECES}
    return Tokenizer.from_str(json.dumps(state))


def save_tokenizer(tokenizer: Tokenizer, folder: Path, max_length: int) -> None:
    """Write tokenizer.json and tokenizer_config.json in the format of transformers."""
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "eos_token": END,
        "pad_token": PAD,
        "clean_up_tokenization_spaces": False,
        "add_prefix_space": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _texts(seed: int) -> list[str]:
    texts = [f"{item.question}\n{item.answer}" for item in questions.questions()] * 3
    texts += [f" {word}" for word in spelling.words() if not is_held_out(f"spell {word}")]
    texts += [form for name in (*dates.DAYS, *dates.MONTHS) for form in (name, f" {name}", f" {name.lower()}")] * 40
    examples = itertools.islice(mixture.training_examples(seed), 2000)
    texts += [f"{START}user\n{item.question}{END}\n{START}assistant\n{item.answer[:200]}" for item in examples]
    random.Random(seed).shuffle(texts)
    return texts
