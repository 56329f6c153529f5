"""k8s/chart matches what the manifests generate."""

import yaml

from tests.k8s.chart.chart import CHART, LEFT_OUT, SWITCHES, stale
from tests.k8s.chart.values import values
from tests.k8s.kustomization import K8S


def test_the_chart_matches_the_manifests() -> None:
    assert not list(stale()), "run: python -m tests.k8s.chart"


def test_every_component_is_a_switch() -> None:
    switches = {switch.component for switch in SWITCHES}
    assert switches | LEFT_OUT == {folder.name for folder in (K8S / "components").iterdir()}
    assert not switches & LEFT_OUT


def test_the_chart_has_the_version_of_the_project() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    project = (K8S.parent / "pyproject.toml").read_text(encoding="utf-8")
    assert f'\nversion = "{chart["version"]}"\n' in project
    assert chart["version"] == chart["appVersion"]


def test_defaults_match_the_file() -> None:
    file = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    for value in values():
        found = file
        for part in value.path.split("."):
            found = found[part]
        assert found == value.default, value.path
