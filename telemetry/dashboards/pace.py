"""How often metrics come to a Prometheus, and what follows from it for the dashboards that look at it."""

from dataclasses import dataclass
from typing import Any, Final

_CHOICES_S: Final = (1, 3, 5, 10, 15, 30, 60)
"""Offered above the panels."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Grafana computes rates over four intervals: what has changed is shown right that much later, and `delay_s`."""

    every_s: int
    """Between two values of a series: the interval of scraping, or of exporting."""
    refresh: str
    shown: str
    """The time that a dashboard shows at first, so that its points lie one interval apart."""
    delay_s: int = 0
    """Panels end so long before now. Where the newest value is older than 1.1 intervals, Prometheus takes it that the
    series ended, and the rate sags: so what a value's way takes has to be less than this."""

    @property
    def every(self) -> str:
        """The interval as Grafana writes it."""
        return f"{self.every_s}s"

    def variable(self) -> dict[str, Any]:
        """The variable `every` as JSON."""
        texts = [f"{one}s" for one in _CHOICES_S]
        choices = [{"selected": text == self.every, "text": text, "value": text} for text in texts]
        return {
            "name": "every",
            "label": "Metrics every",
            "type": "custom",
            "query": ",".join(texts),
            "options": choices,
            "current": choices[texts.index(self.every)],
            "multi": False,
            "includeAll": False,
        }

    def timepicker(self) -> dict[str, Any]:
        """Grafana's settings of time."""
        return {"nowDelay": f"{self.delay_s}s"} if self.delay_s else {}


SCRAPED: Final = Pace(15, refresh="10s", shown="now-1h")
"""As k8s/components/monitoring has Prometheus scrape."""
EXPORTED: Final = Pace(3, refresh="5s", shown="now-15m", delay_s=1)
"""As Compose has OTLP exported: OTEL_METRIC_EXPORT_INTERVAL."""
