"""Regenerate the chart."""

from tests.k8s.chart.chart import CHART, files

for path, text in files().items():
    (CHART / path).parent.mkdir(parents=True, exist_ok=True)
    (CHART / path).write_text(text, encoding="utf-8")
