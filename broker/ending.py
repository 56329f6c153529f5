"""How a request ends: the clean-up behind a terminal event, and ending a request that nobody owns."""

from redis.exceptions import ResponseError

from broker.attach import Attached, Ended, attach
from broker.cleanup import finish
from broker.entry import EntryRef
from broker.errors import Fenced
from broker.fold import Fold, fold_log
from broker.link import Link
from schemas.codec import Form, form_of
from schemas.errors import ErrorCode
from schemas.events import Ending, Started, Terminal, Usage
from schemas.keys import Keys

__all__ = ["end_request", "finish"]

ATTEMPTS = 5


async def end_request(
    link: Link,
    keys: Keys,
    *,
    request_id: str,
    ref: EntryRef | None,
    code: ErrorCode,
    message: str,
    started: Started,
    form: Form,
    log_expire_at_ms: int,
    retention_ms: int,
    field_name: str | None = None,
) -> Terminal | None:
    """End a request without owning it: deadline passed, cancelled while it waited, lost, or not to be understood.

    Returns the terminal event that stands in the log afterwards, this one or an earlier one; None when its owner, who
    lives, kept writing. `started` says who ends it; what an existing log says of tenant, seed and prompt goes on.
    Raises LinkLost, Unwritable.
    """
    raise NotImplementedError
