"""`make k8s-test`: renders overlays, components and chart, and checks each with Kubernetes tools."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import helm_python
import yaml

from tests.k8s.chart.helm import example
from tests.k8s.chart.helm import rendered as chart
from tests.k8s.custom_resources import custom, faults
from tests.k8s.kustomization import K8S, OPTIONS, OVERLAYS, Document, components, read, with_components
from tests.k8s.rendering import NoKubectl, documents_of, find_kubectl, render

VERSIONS = ("1.31", "1.34", "1.37")
"""Kubernetes versions whose schemas k8s/ keeps to: the oldest that it runs on, the newest there are, one between."""
NEEDED = {"scaled-workers": ("monitoring",), "rest-at-zero": ("autoscaling", "monitoring")}
"""Components that others need."""
SCANNED = {*OVERLAYS, *(f"{name} on dev" for name in OPTIONS)}
"""What checkov looks at; every other component is in an overlay."""
ROOT = K8S.parent
TOOLS = Path(sys.executable).parent


class Failed(Exception):
    """A check found a fault; the message describes it."""


def main() -> int:
    """Run every check; return 0 if none found a fault."""
    failed = 0
    for name, check in (("kubernetes", check_manifests), ("helm", check_chart), ("hadolint", check_dockerfile)):
        try:
            print(f"{name}: {check()}", flush=True)
        except Failed as found:
            failed += 1
            print(f"{name}: FAILED\n{found}", flush=True)
    return int(failed > 0)


def check_manifests() -> str:
    """Render every overlay and every component, validate, and scan. Raises Failed."""
    rendered = _renderer()
    with tempfile.TemporaryDirectory() as folder:
        for name, kustomization in _kustomizations(Path(folder)):
            try:
                _look_at(name, rendered(kustomization), Path(folder), scan=name in SCANNED)
            except RuntimeError as error:
                raise Failed(str(error)) from None
    return f"every overlay and component is valid for {', '.join(VERSIONS)}"


def check_chart() -> str:
    """Check the Helm chart likewise, without values and with its examples, which match overlays. Raises Failed."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("defaults", *OVERLAYS):
            values = {} if name == "defaults" else example(name)
            # dev's own waiver, for images that are not pulled, is its overlay's.
            _look_at(f"chart, {name}", yaml.safe_dump_all(chart(values)), Path(folder), scan=name != "dev")
    return f"rendered by Helm {helm_python.helm_sdk_version()}, valid for {', '.join(VERSIONS)}"


def _look_at(name: str, rendered: str, folder: Path, *, scan: bool) -> None:
    path = folder / f"{name}.yaml"
    path.write_text(rendered, encoding="utf-8")
    documents = documents_of(rendered)
    validated = _validate(path, documents)
    _check_custom(name, documents)
    scanned = f"; {_scan(path)}" if scan else ""
    print(f"{name}: {len(documents)} objects; {validated}{scanned}", flush=True)


def check_dockerfile() -> str:
    """Lint the Dockerfile. Raises Failed."""
    done = _run("hadolint", str(ROOT / "Dockerfile"))
    if done.returncode:
        raise Failed(done.stdout + done.stderr)
    return f"{_run('hadolint', '--version').stdout.strip()}, nothing found"


def _renderer() -> Callable[[Path], str]:
    """Return kubectl's rendering, or without kubectl that of the tests' reader, which tests compare with kubectl's."""
    try:
        kubectl, version = find_kubectl()
    except NoKubectl as missing:
        print(f"kubectl: SKIPPED, what follows is rendered by tests/k8s/kustomization.py: {missing}", flush=True)
        return lambda folder: yaml.safe_dump_all(read(folder))
    print(f"kubectl: {kubectl} {version}", flush=True)
    return partial(render, kubectl)


def _kustomizations(scratch: Path) -> Iterator[tuple[str, Path]]:
    """Yield the overlays; then every component that dev lacks, on dev, or on the base if it concerns Redis itself."""
    for name in OVERLAYS:
        yield name, K8S / "overlays" / name
    for component in sorted(folder.name for folder in (K8S / "components").iterdir()):
        if component in components("dev"):
            continue
        under = "base" if component == "managed-redis" else "overlays/dev"
        needed = NEEDED.get(component, ())
        folder = scratch / component
        folder.mkdir()
        yield f"{component} on {under.rpartition('/')[2]}", with_components(folder, under, [*needed, component])


def _validate(path: Path, documents: list[Document]) -> str:
    """Validate against Kubernetes's own schemas; count the checked objects, because unknown kinds only warn."""
    built_in = len(documents) - len(custom(documents))
    for version in VERSIONS:
        done = _run("kubernetes-validate", "--strict", "--no-warn", "-k", version, str(path))
        passed = done.stdout.count(" passed for resource ") + done.stderr.count(" passed for resource ")
        if done.returncode or passed != built_in:
            told = [line for line in (done.stdout + done.stderr).splitlines() if not line.startswith("INFO ")]
            raise Failed("\n".join([f"{path.stem}, Kubernetes {version}: {passed} of {built_in} valid", *told]))
    return f"{built_in} valid for {len(VERSIONS)} versions"


def _check_custom(name: str, documents: list[Document]) -> None:
    found = [f"{one['kind']} {one['metadata']['name']}: {fault}" for one in custom(documents) for fault in faults(one)]
    if found:
        raise Failed("\n".join([f"{name}:", *found]))


def _scan(path: Path) -> str:
    """Run checkov: nothing may fail; waivers have their reasons in annotations."""
    done = _run("checkov", "--skip-download", "--framework", "kubernetes", "--output", "json", "--file", str(path))
    try:
        report = json.loads(done.stdout)
    except ValueError:
        raise Failed(f"checkov: {done.stdout}{done.stderr}") from None
    results, summary = report["results"], report["summary"]
    if summary["failed"] or summary["parsing_errors"] or not summary["passed"]:
        found = [f"{one['check_id']} {one['resource']}: {one['check_name']}" for one in results["failed_checks"]]
        raise Failed("\n".join([f"checkov, {path.stem}: {summary}", *found]))
    for waived in results["skipped_checks"]:
        if not waived["check_result"].get("suppress_comment"):
            raise Failed(
                f"checkov, {path.stem}: {waived['check_id']} of {waived['resource']} is waived without a reason"
            )
    return f"checkov {summary['passed']} passed, {summary['skipped']} waived with a reason"


def _run(tool: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(TOOLS / tool), *arguments], capture_output=True, text=True, check=False)


if __name__ == "__main__":
    raise SystemExit(main())
