"""The conditions for accepting a new request."""

from dataclasses import asdict, dataclass, replace


@dataclass(frozen=True, slots=True)
class Terms:
    """Bounds for a new request; None: no such bound. All waiting and running requests count, by class or by tenant.

    `max_requests` and `max_tokens` bound the class; the latter by declared tokens (`Payload.declared_tokens`), and an
    empty class takes any request. `max_wait_ms` and `max_wait_share`, a share of the time until the deadline, bound the
    wait expected from the workers' reports; without a report, or with nothing waiting, they refuse nothing.
    `requests_per_minute` is a bucket of a minute's requests that fills evenly. `tenant_requests` and `tenant_tokens`
    are the tenant's share of the queue, all classes together; a tenant with no requests there may ask for any number of
    tokens.
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
        """Return the terms for each lane of a queue, with counts divided and rounded up."""
        counts = (
            *("max_requests", "max_tokens", "requests_per_minute", "max_concurrency"),
            *("tenant_requests", "tenant_tokens"),
        )
        found = {name: value for name in counts if (value := getattr(self, name)) is not None}
        return replace(self, **{name: -(-value // num_lanes) for name, value in found.items()})

    def as_dict(self) -> dict[str, int | float]:
        """Return the bounds that are set, by name, as enqueue.lua takes them."""
        return {name: value for name, value in asdict(self).items() if value is not None}
