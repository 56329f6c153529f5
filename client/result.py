"""What the client returns: parts of the answer while it is generated, and the whole answer."""

from dataclasses import dataclass

from orcastream.schemas.events import Usage


@dataclass(frozen=True, slots=True)
class LikelyToken:
    """A token and its natural log probability.

    The id is known over Redis; the text over Redis only with a tokenizer.
    """

    logprob: float
    text: str = ""
    id: int | None = None


@dataclass(frozen=True, slots=True)
class TokenLogprob(LikelyToken):
    """A token of an answer or a prompt, and the likeliest tokens at its position, the likeliest first."""

    likeliest: tuple[LikelyToken, ...] = ()
    rank: int | None = None
    """For a prompt's token: one more than the number of tokens with a higher log probability. None means unknown."""


@dataclass(frozen=True, slots=True)
class Delta:
    """A new part of one choice: over HTTP only text; over Redis tokens, and text if there is a tokenizer.

    `logprobs` has one item per new token if they were requested; the text may be empty then.
    """

    choice: int
    text: str = ""
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Choice:
    """One whole choice: the same fields as a Delta, and why it ended."""

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
    """One item per token of the prompt if they were requested; None for the first, which follows nothing."""

    @property
    def text(self) -> str:
        """The text of the first choice."""
        return self.choices[0].text
