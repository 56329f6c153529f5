"""The code blocks in the pages, and which of them a test uses."""

import re
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Block:
    """A code block; `page` and `line` locate its beginning."""

    page: str
    line: int
    language: str
    code: str


class Page:
    """A page with its blocks that name a language; the others are pictures and program output."""

    def __init__(self, path: str) -> None:
        text = (ROOT / path).read_text(encoding="utf-8")
        fences = re.finditer(r"^( *)```(\w+)\n(.*?)^\1```$", text, re.MULTILINE | re.DOTALL)
        self.path = path
        self.blocks = [Block(path, text.count("\n", 0, at.start()) + 1, at[2], dedent(at[3])) for at in fences]
        self.taken: set[Block] = set()

    def find(self, language: str, words: str) -> Block:
        """Return the only block in `language` with `words` in it. Raises ValueError unless there is exactly one."""
        found = [block for block in self.blocks if block.language == language and words in block.code]
        if len(found) != 1:
            raise ValueError(f"{self.path} has {len(found)} blocks in {language} with {words!r}")
        return found[0]

    def take(self, language: str, words: str) -> str:
        """Return the code of that block for the test that runs it: tests take their blocks at import."""
        block = self.find(language, words)
        self.taken.add(block)
        return block.code


README = Page("README.md")
API = Page("docs/api.md")
BULK = Page("docs/bulk.md")
CLIENT = Page("docs/client.md")
CLIENTS = Page("docs/clients.md")
ENGINE = Page("docs/engine.md")
PAGES = (README, API, BULK, CLIENT, CLIENTS, ENGINE)
