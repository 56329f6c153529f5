"""The Lua scripts, shipped as files beside this module. Each touches the keys of one hash slot only."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha1
from importlib.resources import files

Arg = str | bytes | int
Command = Sequence[Arg]


@dataclass(frozen=True, slots=True)
class Script:
    """One script: its text, and the SHA-1 under which servers cache it."""

    name: str
    text: str = field(repr=False)
    sha: str

    @classmethod
    def load(cls, name: str) -> "Script":
        """Read `<name>.lua`."""
        text = files(__package__).joinpath(f"{name}.lua").read_text(encoding="utf-8")
        return cls(name, text, sha1(text.encode(), usedforsecurity=False).hexdigest())

    def command(self, keys: Sequence[str], args: Sequence[Arg]) -> Command:
        """The call by hash, for a batch of commands; the server may answer NOSCRIPT, having done nothing."""
        return ("EVALSHA", self.sha, len(keys), *keys, *args)

    def full_command(self, keys: Sequence[str], args: Sequence[Arg]) -> Command:
        """The call with the script's text."""
        return ("EVAL", self.text, len(keys), *keys, *args)


ENQUEUE = Script.load("enqueue")
ENTRY_STATE = Script.load("entry_state")
RENEW = Script.load("renew")
HAND_OVER = Script.load("hand_over")
BURY = Script.load("bury")
DUPLICATE = Script.load("duplicate")
SWEEP = Script.load("sweep")
FORGET = Script.load("forget")
