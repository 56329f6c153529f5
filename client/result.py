"""What comes back: pieces of the answer while it is made, and the whole of it."""

from dataclasses import dataclass

from schemas.events import Usage


@dataclass(frozen=True, slots=True)
class Delta:
    """What is new of one choice. Over HTTP it is text alone; over Redis tokens, and text where there is a tokenizer."""

    choice: int
    text: str = ""
    tokens: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Choice:
    """One choice as a whole; the same parts as a Delta's, and why it ended."""

    text: str
    tokens: tuple[int, ...]
    finish_reason: str | None


@dataclass(frozen=True, slots=True)
class Result:
    """A whole answer."""

    id: str
    choices: tuple[Choice, ...]
    usage: Usage

    @property
    def text(self) -> str:
        """The text of the first choice."""
        return self.choices[0].text
