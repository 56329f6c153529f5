"""How often metrics reach a Prometheus, and the dashboard settings that follow from it."""

from dataclasses import dataclass
from typing import Any, Final

_CHOICES_S: Final = (1, 3, 5, 10, 15, 30, 60)
"""Choices offered above the panels."""


@dataclass(frozen=True, slots=True)
class Pace:
    """The pace of metrics. Grafana computes rates over four intervals, so a change is fully visible that much later,
    plus `delay_s`.
    """

    every_s: int
    """Time between two values of a series: the scrape or export interval."""
    refresh: str
    shown: str
    """The initial time range of a dashboard, chosen so that its points lie one interval apart."""
    delay_s: int = 0
    """Panels end this long before now. If the newest value is older than 1.1 intervals, Prometheus assumes that the
    series ended, and the rate sags; so values must arrive faster than this."""

    @property
    def every(self) -> str:
        """The interval in Grafana's notation."""
        return f"{self.every_s}s"

    def variable(self) -> dict[str, Any]:
        """Return the variable `every` as JSON."""
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
        """Return Grafana's time settings."""
        return {"nowDelay": f"{self.delay_s}s"} if self.delay_s else {}


SCRAPED: Final = Pace(15, refresh="10s", shown="now-1h")
"""The scrape interval in k8s/components/monitoring."""
EXPORTED: Final = Pace(3, refresh="5s", shown="now-15m", delay_s=1)
"""The OTLP export interval in Compose: OTEL_METRIC_EXPORT_INTERVAL."""
