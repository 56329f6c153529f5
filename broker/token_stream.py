"""A reply log whose only choice goes on token by token: what a worker writes after nearly every iteration."""

from functools import lru_cache
from struct import Struct
from typing import TYPE_CHECKING, Any

from orcastream.broker.errors import BrokerError
from orcastream.broker.reply_log import ReplyLog
from orcastream.broker.resp import pack_parts
from orcastream.schemas.events import TOKEN_PARTS, pack_run

if TYPE_CHECKING:
    from orcastream.broker.token_writer import LinkWriter

_TOKENS = pack_parts("type", "tokens", "payload") + b"$"
"""What stands between id and payload of a tokens event, but for the payload's length."""
_BEFORE_POSITION, _BEFORE_TOKEN = TOKEN_PARTS
_BEFORE_ONE = b"%b%d\r\n%b" % (_TOKENS, len(_BEFORE_POSITION) + len(_BEFORE_TOKEN) + 8, _BEFORE_POSITION)
_ONE = Struct(f">{len(_BEFORE_ONE)}sI{len(_BEFORE_TOKEN)}sI2s")
"""All that stands behind the id of an event of one token."""


class TokenStream:
    """Has a reply log to itself until it is closed; `TokenWriter.open` makes one.

    `tokens` is the list of its choice; what is added there through the writer goes into the log sooner or later.
    Whoever adds anything else to the log, or wants to know how far it has come, closes the stream first. A refused
    write closes it, too.
    """

    # Each token looks at all of it, in memory that is seldom cached: the numbers are small, or shared, so that they
    # are no objects of their own.
    __slots__ = (
        "_before_first",
        "_head",
        "_id_form",
        "_longer_from",
        "_num_last",
        "_write",
        "log",
        "num_logged",
        "num_sent",
        "num_unsent",
        "owner",
        "tokens",
        "writer",
    )

    def __init__(self, writer: "LinkWriter", log: ReplyLog, tokens: list[int], num_logged: int, owner: Any) -> None:
        """`owner`: whose it is; nothing is done with it here."""
        self.writer: LinkWriter | None = writer
        """None once it is closed."""
        self.log = log
        self.tokens = tokens
        self.owner = owner
        self.num_unsent = len(tokens) - num_logged
        """How many of the last tokens wait for a write."""
        self._num_last, self._write = 0, 0
        """Tokens in the last write, and the number of that."""
        self.num_sent = self.num_logged = num_logged
        """How many tokens were sent, and how many stand in the log for certain; said of a closed one alone."""
        self._head, next_index = log.lend()
        self._before_first = next_index - num_logged
        """What a token's position lacks to the index of its event: less by one for each that shares one."""
        self._lengthen(next_index)

    def close(self) -> None:
        """The log is its owner's again: at once, or, where a write of it is under way, when that has been answered."""
        writer = self.writer
        if writer is None:
            return
        in_flight = self._stop(writer)
        writer.withdraw(self, in_flight=in_flight)
        if not in_flight:
            self.give_back()

    def give_back(self) -> None:
        """What was sent stands in the log, which may be written by others now."""
        self.num_logged = self.num_sent
        self.log.take_back(self.num_sent + self._before_first)

    def fail(self, reply: Any) -> BrokerError | None:
        """The last write was answered with that instead of its entry id."""
        if self.writer is not None:
            self._stop(self.writer)
        return self.log.settle(reply)

    def pack(self, write: int, commands: list[bytes], ids: list[bytes]) -> None:
        """Add the packed command that appends the tokens that have not been sent, and the packed reply to it that says
        that it was done. What an event `tokens` of one run is, packed by hand. `write`: the number of the write.
        """
        tokens, num_tokens = self.tokens, self.num_unsent
        begin = len(tokens) - num_tokens
        index = begin + self._before_first
        if index >= self._longer_from:
            self._lengthen(index)
        entry_id = self._id_form % index
        if num_tokens == 1:
            commands += (self._head, entry_id, _ONE.pack(_BEFORE_ONE, begin, _BEFORE_TOKEN, tokens[begin], b"\r\n"))
        else:
            payload = pack_run(0, begin, tokens[begin:])
            commands += (self._head, entry_id, b"%b%d\r\n" % (_TOKENS, len(payload)), payload, b"\r\n")
            self._before_first -= num_tokens - 1
        ids.append(entry_id)
        self._num_last, self.num_unsent, self._write = num_tokens, 0, write

    def _stop(self, writer: "LinkWriter") -> bool:
        """It is closed: what comes into the list is none of its business any more. Whether a write is under way."""
        self.writer = None
        in_flight = self._write == writer.under_way
        self.num_sent = len(self.tokens) - self.num_unsent
        self.num_logged = self.num_sent - (self._num_last if in_flight else 0)
        return in_flight

    def _lengthen(self, index: int) -> None:
        """Entry ids have so many digits from `index` on."""
        self._id_form, self._longer_from = _id_form(self.log.epoch, len(str(index)))


@lru_cache(1024)
def _id_form(epoch: int, num_digits: int) -> tuple[bytes, int]:
    """How entry ids of an epoch are packed whose index has so many digits, and from which index on it has more."""
    return b"$%d\r\n%d-%%d\r\n" % (len(f"{epoch}-") + num_digits, epoch), 10**num_digits
