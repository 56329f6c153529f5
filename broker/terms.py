"""What has to hold for a new request to be accepted."""

from dataclasses import asdict, dataclass, replace


@dataclass(frozen=True, slots=True)
class Terms:
    """None: no such bound. What already waits and runs counts, by class or by tenant, and whoever accepted it.

    `max_requests` and `max_tokens` bound the class; the latter by what requests declare (`Payload.declared_tokens`),
    and a class that is empty takes any. `max_wait_ms` and `max_wait_share`, a part of the time up to the deadline,
    bound the wait that is expected from what workers report; nothing reported, and nothing waiting, refuses nothing.
    `requests_per_minute` is a bucket of a minute's requests that fills evenly. `tenant_requests` and `tenant_tokens`
    are the share of the queue that the tenant may fill, all classes together; one that has nothing there may ask for
    any number of tokens.
    """

    max_requests: int | None = None
    max_tokens: int | None = None
    max_wait_ms: int | None = None
    max_wait_share: float | None = None
    requests_per_minute: int | None = None
    max_concurrency: int | None = None
    tenant_requests: int | None = None
    tenant_tokens: int | None = None

    def shared(self, num_lanes: int) -> "Terms":
        """What each lane of a queue may have of the bounds that count, rounded up."""
        counts = (
            *("max_requests", "max_tokens", "requests_per_minute", "max_concurrency"),
            *("tenant_requests", "tenant_tokens"),
        )
        found = {name: value for name in counts if (value := getattr(self, name)) is not None}
        return replace(self, **{name: -(-value // num_lanes) for name, value in found.items()})

    def as_dict(self) -> dict[str, int | float]:
        """Those that there are, by name, as enqueue.lua takes them."""
        return {name: value for name, value in asdict(self).items() if value is not None}
