"""`orcastream tokenize`: print token ids for producers that use Redis directly and have no tokenizer."""

import os
import sys
from collections.abc import Sequence

from orcastream.cli.errors import UserError
from orcastream.cli.parse import load_settings
from orcastream.cli.served_model import demo_model
from orcastream.cli.settings import TokenizeSettings
from orcastream.schemas.errors import InvalidRequest
from orcastream.text.chat_template import NoChatTemplate
from orcastream.text.model_config import ModelFilesError
from orcastream.text.tokenizer import Tokenizer


def main(arguments: Sequence[str]) -> int:
    """Print the ids as a JSON list on one line."""
    settings = load_settings(TokenizeSettings, arguments, "tokenize")
    text = _text(settings.text)
    try:
        tokenizer = Tokenizer.load(os.path.expanduser(settings.model) or demo_model())
        ids = tokenizer.chat([{"role": "user", "content": text}]) if settings.chat else tokenizer.encode(text)
    except (ModelFilesError, NoChatTemplate, InvalidRequest) as error:
        raise UserError(str(error)) from None
    print(list(ids))
    return 0


def _text(given: str) -> str:
    """Return the text to tokenize: the argument itself, or standard input."""
    try:
        text = sys.stdin.read() if given == "-" else given
        text.encode()
    except UnicodeError:
        got = "bytes on standard input that are not" if given == "-" else f"{given!a}"
        raise UserError(f"text: got {got}, allowed: UTF-8 text, or - for such text on standard input") from None
    return text
