"""The runbook links of alerts: every `runbook_url` begins with the project's home, which only pyproject.toml names.

`python -m tests.telemetry.runbooks` rewrites them in the rule file, its tests, and its copy for Kubernetes.
"""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from tests.k8s import prometheus_rule
from tests.k8s.chart.chart import CHART, files
from tests.telemetry.rules import ROOT, RULE_TESTS, RULES

HOME: str = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Repository"]
_LINK = re.compile(r"(?<=runbook_url: )\S+(?=/blob/main/docs/)")


def with_runbooks() -> Iterator[tuple[Path, str]]:
    """Return the rule file and its tests with HOME in their links."""
    for path in (RULES, *RULE_TESTS):
        yield path, _LINK.sub(HOME, path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    for path, text in with_runbooks():
        path.write_text(text, encoding="utf-8")
    prometheus_rule.TARGET.write_text(prometheus_rule.prometheus_rule(), encoding="utf-8")
    for name, text in files().items():
        (CHART / name).write_text(text, encoding="utf-8")
