"""Helm itself, from the package helm-python-sdk: the chart rendered with given values."""

from typing import Any

import helm_python
import yaml

from tests.k8s.chart.chart import CHART
from tests.k8s.kustomization import Document, load

NAMESPACE = "orcastream"


class Refused(Exception):
    """Helm refused the values; the message is Helm's."""


def rendered(values: dict[str, Any]) -> list[Document]:
    """Return every object that `helm install` with these values would create. Raises Refused."""
    with helm_python.Chart.load(CHART) as chart:
        try:
            chart.validate_schema(chart.merge_values(values))
            manifests = chart.render(values, name="orcastream", namespace=NAMESPACE)
        except helm_python.HelmError as refused:
            raise Refused(str(refused)) from None
    texts = [text for path, text in sorted(manifests.items()) if path.endswith(".yaml")]
    return [document for text in texts for document in yaml.safe_load_all(text) if document]


def example(name: str) -> dict[str, Any]:
    """Return the values of examples/NAME.yaml."""
    (values,) = load(CHART / "examples" / f"{name}.yaml")
    return values


def merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Merge values as Helm merges several files."""
    return one | {
        key: merged(one[key], value) if isinstance(value, dict) and isinstance(one.get(key), dict) else value
        for key, value in other.items()
    }
