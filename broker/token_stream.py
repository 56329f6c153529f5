"""A reply log whose only choice grows token by token: what a worker writes after nearly every iteration."""

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
"""The bytes between id and payload of a tokens event, except the payload's length."""
_BEFORE_POSITION, _BEFORE_TOKEN = TOKEN_PARTS
_BEFORE_ONE = b"%b%d\r\n%b" % (_TOKENS, len(_BEFORE_POSITION) + len(_BEFORE_TOKEN) + 8, _BEFORE_POSITION)
_ONE = Struct(f">{len(_BEFORE_ONE)}sI{len(_BEFORE_TOKEN)}sI2s")
"""Everything after the id of an event of one token."""


class TokenStream:
    """Owns a reply log until it is closed; created by `TokenWriter.open`.

    `tokens` is the list of its choice; tokens added to it through the writer eventually go into the log. To add
    anything else to the log, or to learn how far it has come, close the stream first. A refused write closes it, too.
    """

    # Every token touches all fields, in memory that is rarely cached: the numbers are small, or shared, so that they
    # are not separate objects.
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
        """`owner`: the caller's reference; not used here."""
        self.writer: LinkWriter | None = writer
        """None once it is closed."""
        self.log = log
        self.tokens = tokens
        self.owner = owner
        self.num_unsent = len(tokens) - num_logged
        """How many of the last tokens wait for a write."""
        self._num_last, self._write = 0, 0
        """Number of tokens in the last write, and the number of that write."""
        self.num_sent = self.num_logged = num_logged
        """How many tokens were sent, and how many are certainly in the log; valid only once the stream is closed."""
        self._head, next_index = log.lend()
        self._before_first = next_index - num_logged
        """An event's index minus its token's position: one less for each token that shares an event."""
        self._lengthen(next_index)

    def close(self) -> None:
        """Return the log to its owner: at once, or, if a write of it is under way, once that is answered."""
        writer = self.writer
        if writer is None:
            return
        in_flight = self._stop(writer)
        writer.withdraw(self, in_flight=in_flight)
        if not in_flight:
            self.give_back()

    def give_back(self) -> None:
        """Return the log: all sent tokens are in it, and others may write it now."""
        self.num_logged = self.num_sent
        self.log.take_back(self.num_sent + self._before_first)

    def fail(self, reply: Any) -> BrokerError | None:
        """Handle a reply to the last write that is not its entry id; return the error."""
        if self.writer is not None:
            self._stop(self.writer)
        return self.log.settle(reply)

    def pack(self, write: int, commands: list[bytes], ids: list[bytes]) -> None:
        """Append the packed command that adds the unsent tokens, and the packed reply that confirms it. The command is
        an event `tokens` of one run, packed by hand. `write`: the number of the write.
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
        """Close the stream, which then ignores its list; return whether a write is under way."""
        self.writer = None
        in_flight = self._write == writer.under_way
        self.num_sent = len(self.tokens) - self.num_unsent
        self.num_logged = self.num_sent - (self._num_last if in_flight else 0)
        return in_flight

    def _lengthen(self, index: int) -> None:
        """Recompute the entry id's form: from `index` on it has more digits."""
        self._id_form, self._longer_from = _id_form(self.log.epoch, len(str(index)))


@lru_cache(1024)
def _id_form(epoch: int, num_digits: int) -> tuple[bytes, int]:
    """Return the packed form of an epoch's entry ids whose index has `num_digits` digits, and the first longer one."""
    return b"$%d\r\n%d-%%d\r\n" % (len(f"{epoch}-") + num_digits, epoch), 10**num_digits
