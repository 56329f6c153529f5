"""What comes back: pieces of the answer while it is made, and the whole of it."""

from dataclasses import dataclass

from orcastream.schemas.events import Usage


@dataclass(frozen=True, slots=True)
class LikelyToken:
    """A token and its natural log probability. Its id is told over Redis, its text where there is a tokenizer."""

    logprob: float
    text: str = ""
    id: int | None = None


@dataclass(frozen=True, slots=True)
class TokenLogprob(LikelyToken):
    """A token of an answer or a prompt, and the likeliest ones at its place, the likeliest first."""

    likeliest: tuple[LikelyToken, ...] = ()
    rank: int | None = None
    """Of a prompt's token: one more than the number of tokens with a higher log probability. None: not told."""


@dataclass(frozen=True, slots=True)
class Delta:
    """What is new of one choice. Over HTTP it is text alone; over Redis tokens, and text where there is a tokenizer.

    `logprobs` has one item per new token where they were asked for; the text may be empty then.
    """

    choice: int
    text: str = ""
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Choice:
    """One choice as a whole; the same parts as a Delta's, and why it ended."""

    text: str
    tokens: tuple[int, ...]
    finish_reason: str | None
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Result:
    """A whole answer."""

    id: str
    choices: tuple[Choice, ...]
    usage: Usage
    prompt_logprobs: tuple[TokenLogprob | None, ...] = ()
    """One item per token of the prompt where they were asked for; None for the first, which follows nothing."""

    @property
    def text(self) -> str:
        """The text of the first choice."""
        return self.choices[0].text
