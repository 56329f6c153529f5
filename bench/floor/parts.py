"""What one load took, next to its floor."""

from dataclasses import dataclass

HEADINGS = ("measured", "floor", "linears", "head", "KV", "attention+", "host", "rest")


@dataclass(frozen=True)
class Load:
    """`batch` requests, each computing `length` tokens after `context` others."""

    batch: int
    length: int
    context: int

    def __str__(self) -> str:
        if self.length > 1:
            return f"prefill of {self.length}"
        return f"decode, batch {self.batch}, context {self.context}"


@dataclass(frozen=True)
class Parts:
    """Milliseconds of one iteration."""

    measured: float
    linears: float
    head: float
    cache: float
    attention: float
    host: float

    @property
    def floor(self) -> float:
        """The machine's lower bound."""
        return self.linears + self.head + self.cache

    def row(self, load: Load) -> str:
        """Return one line of the table."""
        more = max(self.attention - self.cache, 0.0)
        rest = self.measured - self.floor - more - self.host
        figures = (self.measured, self.floor, self.linears, self.head, self.cache, more, self.host, rest)
        return f"{load!s:<32} " + " ".join(f"{each:9.2f}" for each in figures) + f" {self.measured / self.floor:7.2f}"
