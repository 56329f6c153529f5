"""The alert rules as a prometheus-operator object: `python -m tests.k8s.prometheus_rule` regenerates it."""

from pathlib import Path
from textwrap import indent

from tests.k8s.kustomization import K8S

RULES = Path(__file__).parents[2] / "telemetry" / "alerts" / "orcastream.rules.yaml"
TARGET = K8S / "components" / "monitoring" / "alerts.yaml"

_HEAD = """\
# Made from telemetry/alerts/orcastream.rules.yaml by `python -m tests.k8s.prometheus_rule`; a test compares the two.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: orcastream
spec:
"""


def prometheus_rule() -> str:
    """Return the rule file's groups in a PrometheusRule."""
    _, groups, rest = RULES.read_text(encoding="utf-8").partition("\ngroups:\n")
    return _HEAD + indent(groups.lstrip() + rest, "  ")


if __name__ == "__main__":
    TARGET.write_text(prometheus_rule(), encoding="utf-8")
