"""The number of workers follows KEDA's and Kubernetes's documented rules."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from orcastream.bench.autoscaling.command import DEPLOYED, for_batches_of
from orcastream.bench.autoscaling.keda import Autoscaler, Policy, ScaledObject
from orcastream.schemas.keys import CLASSES, Keys

COMPONENT = Path(__file__).parents[2] / "k8s" / "components" / "autoscaling"
FREE = (Policy("Pods", 1000, 1),)
"""No policy binds."""


def scaled(**fields: Any) -> ScaledObject:
    return ScaledObject(**{"target": 10, "scale_up": FREE, "scale_down": FREE, **fields})


@pytest.mark.parametrize(
    ("replicas", "length", "wanted"),
    [
        (1, 20, 2),  # twice the target: twice the pods
        (2, 40, 4),
        (4, 20, 2),
        (1, 21, 3),  # rounded up
        (3, 61, 7),
        (5, 0, 0),
        (2, 22, 2),  # ten percent more or less is tolerated
        (2, 18, 2),
        (2, 23, 3),
        (3, 26, 3),  # beyond the tolerance, but rounded up to the same
    ],
)
def test_the_formula_rounds_up_and_tolerates_a_tenth(replicas: int, length: int, wanted: int) -> None:
    assert Autoscaler(scaled(), replicas).proposal(length) == wanted


def test_bounds_hold() -> None:
    autoscaler = Autoscaler(scaled(min_replicas=2, max_replicas=5, scale_down_window_s=0), 2)
    assert autoscaler.sync(0, 1000) == 5
    assert autoscaler.sync(100, 0) == 2
    assert Autoscaler(scaled(scale_down_window_s=0), 1).sync(0, 0) == 1, "an HPA keeps one"


def test_one_request_starts_the_service_and_the_cool_down_stops_it() -> None:
    autoscaler = Autoscaler(scaled(cooldown_period_s=300))
    assert autoscaler.poll(0, 0) == 0
    assert autoscaler.sync(10, 50) == 0, "an HPA does nothing at zero"
    assert autoscaler.poll(30, 1) == 1
    assert autoscaler.poll(60, 0) == 1
    assert autoscaler.poll(330, 0) == 1, "not before the cool-down is over"
    assert autoscaler.poll(360, 0) == 0


def test_activation_needs_more_than_its_target() -> None:
    autoscaler = Autoscaler(scaled(activation_target=5))
    assert autoscaler.poll(0, 5) == 0
    assert autoscaler.poll(30, 6) == 1


def test_with_a_minimum_nothing_goes_to_zero() -> None:
    autoscaler = Autoscaler(scaled(min_replicas=2))
    assert autoscaler.poll(0, 0) == 2
    assert autoscaler.poll(10_000, 0) == 2


def test_scale_down_only_to_the_highest_proposal_of_the_window() -> None:
    autoscaler = Autoscaler(scaled(scale_down_window_s=300), 1)
    assert autoscaler.sync(0, 80) == 8
    assert autoscaler.sync(100, 50) == 8
    assert autoscaler.sync(290, 20) == 8
    assert autoscaler.sync(310, 20) == 5, "the proposal of 0 s has left the window, that of 100 s has not"
    assert autoscaler.sync(500, 20) == 2
    assert autoscaler.sync(501, 90) == 9, "scaled up at once"


def test_policies_limit_the_pace() -> None:
    up = (Policy("Percent", 100, 30), Policy("Pods", 2, 30))
    down = (Policy("Pods", 1, 90),)
    autoscaler = Autoscaler(scaled(scale_up=up, scale_down=down, scale_down_window_s=0), 1)
    assert [autoscaler.sync(at, 80) for at in (0, 15, 31, 46, 62)] == [3, 3, 6, 6, 8]
    assert [autoscaler.sync(at, 10) for at in (200, 201, 289, 291, 382)] == [7, 7, 7, 6, 5]


def test_faster_divides_only_durations() -> None:
    fast = DEPLOYED.faster(10)
    assert (fast.polling_interval_s, fast.cooldown_period_s, fast.sync_period_s) == (0.5, 30, 1.5)
    assert fast.scale_down == (Policy("Pods", 1, 9),)
    assert (fast.target, fast.max_replicas, fast.tolerance) == (DEPLOYED.target, DEPLOYED.max_replicas, 0.1)
    assert for_batches_of(4, DEPLOYED).target == 3


@pytest.mark.parametrize(("field", "value"), [("target", 0), ("min_replicas", -1), ("max_replicas", 0)])
def test_impossible_values_are_refused_by_name(field: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"{field}: got {value}, allowed:"):
        scaled(**{field: value})


def test_the_script_uses_the_manifests_values() -> None:
    manifest = yaml.safe_load((COMPONENT / "scaled-object.yaml").read_text(encoding="utf-8"))["spec"]
    modifiers = manifest["advanced"]["scalingModifiers"]
    behavior = manifest["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert modifiers["metricType"] == "AverageValue"
    assert behavior["scaleUp"]["stabilizationWindowSeconds"] == 0
    said = ScaledObject(
        target=int(modifiers["target"]),
        activation_target=int(modifiers["activationTarget"]),
        min_replicas=manifest["minReplicaCount"],
        max_replicas=manifest["maxReplicaCount"],
        polling_interval_s=manifest["pollingInterval"],
        cooldown_period_s=manifest["cooldownPeriod"],
        scale_down_window_s=behavior["scaleDown"]["stabilizationWindowSeconds"],
        scale_up=policies(behavior["scaleUp"]),
        scale_down=policies(behavior["scaleDown"]),
    )
    assert said == DEPLOYED
    component = yaml.safe_load((COMPONENT / "kustomization.yaml").read_text(encoding="utf-8"))
    (worker,) = (made for made in component["configMapGenerator"] if made["name"] == "orcastream-worker")
    places = int(dict(line.split("=") for line in worker["literals"])["ORCASTREAM_MAX_BATCH_SIZE"])
    assert said.target == 0.75 * places
    assert for_batches_of(places, DEPLOYED) == DEPLOYED
    names = {trigger["name"]: trigger["metadata"]["stream"] for trigger in manifest["triggers"]}
    assert names == {name: Keys("orca-demo").requests(name) for name in CLASSES}
    assert {name.strip() for name in modifiers["formula"].split("+")} == set(CLASSES)


def policies(rules: dict[str, Any]) -> tuple[Policy, ...]:
    return tuple(Policy(rule["type"], rule["value"], rule["periodSeconds"]) for rule in rules["policies"])
