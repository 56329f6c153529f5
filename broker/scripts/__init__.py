"""The Lua scripts, shipped as files next to this module. Each touches the keys of one hash slot only."""

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
    def load(cls, name: str, *parts: str) -> "Script":
        """Read `<name>.lua`, and put the functions of `parts` in front of it."""
        folder = files(__package__)
        text = "".join(folder.joinpath(f"{part}.lua").read_text(encoding="utf-8") for part in (*parts, name))
        return cls(name, text, sha1(text.encode(), usedforsecurity=False).hexdigest())

    def call(self, keys: Sequence[str], args: Sequence[Arg]) -> "ScriptCall":
        """A call of this script, for `Link.call_many`."""
        return ScriptCall(self, tuple(keys), tuple(args))


@dataclass(frozen=True, slots=True)
class ScriptCall:
    """One call of a script, which a link sends by hash, and with its text where the server does not know the hash."""

    script: Script
    keys: tuple[str, ...]
    args: tuple[Arg, ...]

    def by_hash(self) -> Command:
        """The short command; a server that does not know the script answers NOSCRIPT and does nothing."""
        return ("EVALSHA", self.script.sha, len(self.keys), *self.keys, *self.args)

    def by_text(self) -> Command:
        """The long command, which also teaches the server the script."""
        return ("EVAL", self.script.text, len(self.keys), *self.keys, *self.args)


ENQUEUE = Script.load("enqueue", "request_of")
ENTRY_STATE = Script.load("entry_state", "request_of")
CLAIM = Script.load("claim")
RENEW = Script.load("renew")
HAND_OVER = Script.load("hand_over")
BEGIN = Script.load("begin")
ATTEMPT = Script.load("attempt")
ACKNOWLEDGE = Script.load("acknowledge", "release", "request_of")
BURY = Script.load("bury", "release", "request_of")
DUPLICATE = Script.load("duplicate", "release")
SWEEP = Script.load("sweep")
RECOUNT = Script.load("recount", "release")
THROUGHPUT = Script.load("throughput")
BEAT = Script.load("beat")
FORGET = Script.load("forget")
LOOK = Script.load("look")
LETTERS = Script.load("letters")
ATTEND = Script.load("attend")
LEAVE = Script.load("leave")
TRY_MARK = Script.load("try_mark")
DEPARTED = Script.load("departed")
GIVE_UP = Script.load("give_up")
MARK_ENDED = Script.load("mark_ended")
KEEP_RESPONSE = Script.load("keep_response", "response_bytes")
DROP_RESPONSE = Script.load("drop_response", "response_bytes")
FORGET_LOG = Script.load("forget_log")
TELL_STATS = Script.load("tell_stats")
CONFIRM = Script.load("confirm")
CREATE_JOB = Script.load("create_job")
SEAL_JOB = Script.load("seal_job")
RECORD_LINE = Script.load("record_line")
RESULTS_PAGE = Script.load("results_page")
DROP_RESULTS = Script.load("drop_results")
LEASE_JOB = Script.load("lease_job")
MARK_JOB = Script.load("mark_job")
KEEP_FILE = Script.load("keep_file")
ADD_ENTRY = Script.load("add_entry")
OPEN_BATCH = Script.load("open_batch")
