"""A recorded run is saved and loaded, judged, and drawn."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from orcastream.bench.autoscaling.command import DEPLOYED, shortcomings
from orcastream.bench.autoscaling.series import Sample, Series, Served

MARKS = {"load begins": 0.0, "last answer": 40.0, "zero": 60.0, "one request": 70.0, "zero again": 90.0}


def recorded() -> Series:
    settings = {"target": DEPLOYED.target, "max_replicas": 2, "faster": 10.0, "profile": "0:1,40:0"}
    samples = [Sample(at / 4, at % 7, min(2, at // 40), at // 80, at % 2, 0) for at in range(360)]
    requests = [Served(float(at), 0.5, 1.5, True, ("w1",)) for at in range(40)]
    return Series(settings, samples, requests, dict(MARKS))


def test_a_series_is_read_as_written(tmp_path: Path) -> None:
    recorded().save(tmp_path / "series.json")
    assert Series.load(tmp_path / "series.json") == recorded()


def test_a_run_that_shows_too_little_is_detected() -> None:
    assert shortcomings(recorded()) == []
    series = recorded()
    del series.marks["zero again"]
    series.samples = series.samples[:100]
    assert shortcomings(series) == ["the run did not reach: zero again", "no second worker was ever ready"]


def test_the_picture_is_small_readable_text(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install 'orcastream[bench]'")
    from orcastream.bench.autoscaling.picture import draw

    draw(recorded(), tmp_path / "picture.svg")
    assert (tmp_path / "picture.svg").stat().st_size < 200_000
    root = ElementTree.parse(tmp_path / "picture.svg").getroot()
    texts = {"".join(node.itertext()).strip() for node in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"workers", "wanted", "ready", "starting", "draining", *MARKS} <= texts
