"""ConfigMaps with the settings of gateways and workers: the manifests' settings, overridden by a map of values.yaml."""

from typing import Any, Final

from tests.k8s.chart.layout import Block, template

MERGED: Final = {"orcastream": "config", "orcastream-gateway": "gateway.config", "orcastream-worker": "worker.config"}
"""The map in values.yaml, by the name of the ConfigMap."""


def settings(name: str, tree: dict[str, Any]) -> str:
    """Return the template of one such ConfigMap."""
    block = f"orcastream.settings.{MERGED[name]}"
    merged = f'mergeOverwrite (fromYaml (include "{block}" .)) .Values.{MERGED[name]}'
    data = Block(f"{{{{- {merged} | toYaml | nindent INDENT }}}}", data=True)
    return f'{{{{- define "{block}" }}}}\n{template(tree["data"])}{{{{- end }}}}\n' + template({**tree, "data": data})
