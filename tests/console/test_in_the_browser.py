"""Users of the console: they load it, stream, cancel, and see it recover, without browser errors."""

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orcastream.demo.counting import count
from orcastream.demo.prompts import LONG_COUNT, answer_to
from tests.console.conftest import OpenConsole, Site
from tests.patience import PATIENCE_S
from tests.redis_server import one_server

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = one_server("embedded")

BROKEN = ("ERR_CONNECTION", "ERR_INCOMPLETE", "ERR_EMPTY_RESPONSE", "ERR_SOCKET", "503")
"""What a browser says by itself when a server goes away."""
LONG_PROMPT, LONG_TEXT = LONG_COUNT


def serve(site: Site, workers: int = 1) -> str:
    """Start everything; return the gateway's address."""
    for worker in [site.start_worker() for _ in range(workers)]:
        worker.wait_serving()
    gateway = site.start_gateway()
    gateway.wait_ready()
    return gateway.url


def until(page: "Page", expression: str, argument: object = None) -> None:
    """Wait until an expression holds. (Playwright's own wait evaluates text in the page, which its policy forbids.)"""
    give_up = time.monotonic() + PATIENCE_S
    while not page.evaluate(expression, argument):
        assert time.monotonic() < give_up, expression
        page.wait_for_timeout(50)


def live(page: "Page") -> None:
    page.wait_for_selector("#status[data-state=live]")


def send(page: "Page", *prompts: str) -> None:
    page.fill("#prompts", "\n".join(prompts))
    page.click("#ask button[type=submit]")


def answer(page: "Page", prompt: str, state: str = "") -> "Locator":
    found = page.locator(
        f"li.answer{f'[data-state={state}]' if state else ''}", has=page.get_by_role("heading", name=prompt, exact=True)
    )
    found.first.wait_for()
    return found.first


def text_of(page: "Page", prompt: str) -> str:
    return answer(page, prompt, "done").locator(".text").inner_text()


def test_prompts_sent_at_once_stream_side_by_side(site: Site, open_console: OpenConsole) -> None:
    page, errors = open_console(serve(site))
    live(page)
    assert page.inner_text("#model") == "orca-demo"
    assert page.input_value("#prompts"), "the page begins with examples"
    page.click("summary")
    send(page, LONG_PROMPT, "Count from 1 to 100", "What is a reply log?")
    until(page, "document.querySelectorAll('#table tbody tr').length >= 2")
    rows = page.locator("#table tbody tr").all_inner_texts()
    assert any(LONG_PROMPT in row for row in rows), rows
    assert text_of(page, "Count from 1 to 100") == count(1, 100)
    assert text_of(page, "What is a reply log?") == answer_to("What is a reply log?")
    assert text_of(page, LONG_PROMPT).startswith("1, 2, 3")
    until(page, "document.querySelectorAll('#charts circle').length === 3")
    label = page.get_attribute("#timeline", "aria-label")
    assert label is not None
    assert "places taken, policy fcfs" in label
    assert errors.other_than() == []


def test_the_picture_shows_a_bar_in_the_color_of_the_answer(site: Site, open_console: OpenConsole) -> None:
    page, errors = open_console(serve(site))
    live(page)
    send(page, LONG_PROMPT)
    answer(page, LONG_PROMPT, "streaming")
    swatch = answer(page, LONG_PROMPT).evaluate("one => getComputedStyle(one).borderLeftColor")
    until(
        page,
        """colour => {
          const canvas = document.getElementById("timeline"), context = canvas.getContext("2d");
          const probe = new OffscreenCanvas(1, 1).getContext("2d");
          probe.fillStyle = colour;
          probe.fillRect(0, 0, 1, 1);
          const [r, g, b] = probe.getImageData(0, 0, 1, 1).data;
          const { data } = context.getImageData(0, 0, canvas.width, canvas.height);
          for (let i = 0; i < data.length; i += 4)
            if (Math.abs(data[i] - r) + Math.abs(data[i + 1] - g) + Math.abs(data[i + 2] - b) < 6) return true;
          return false;
        }""",
        swatch,
    )
    assert errors.other_than("willReadFrequently") == []


def test_a_cancelled_answer_ends_for_good(site: Site, open_console: OpenConsole) -> None:
    page, errors = open_console(serve(site))
    live(page)
    page.fill("#most", "2000")
    send(page, LONG_PROMPT)
    answer(page, LONG_PROMPT, "streaming").get_by_role("button").click()
    ended = answer(page, LONG_PROMPT, "cancelled")
    assert 0 < len(ended.locator(".text").inner_text()) < len(LONG_TEXT)
    until(page, "document.getElementById('timeline').ariaLabel.startsWith('worker 1: 0 of 4')")
    page.click("#clear")
    assert page.locator("li.answer").count() == 0
    assert errors.other_than() == []


def test_a_killed_and_restarted_gateway_loses_nothing(site: Site, open_console: OpenConsole) -> None:
    url = serve(site)
    page, errors = open_console(url)
    live(page)
    page.fill("#most", "2000")
    send(page, LONG_PROMPT)
    answer(page, LONG_PROMPT, "streaming")
    port = site.gateway.port
    site.gateway.kill()
    page.wait_for_selector("#status[data-state=away]")
    answer(page, LONG_PROMPT, "reconnecting")
    site.start_gateway(port=port).wait_ready()
    live(page)
    assert text_of(page, LONG_PROMPT) == LONG_TEXT
    assert errors.other_than(*BROKEN) == []


def test_the_takeover_of_a_killed_worker_is_visible(site: Site, open_console: OpenConsole) -> None:
    url = serve(site, workers=2)
    page, errors = open_console(url)
    live(page)
    page.fill("#most", "2000")
    send(page, *[LONG_PROMPT] * 4)
    until(page, "document.querySelectorAll('li.answer[data-state=streaming]').length === 4")
    site.workers[0].kill()
    until(page, "document.querySelectorAll('li.answer[data-state=done]').length === 4")
    texts = page.locator("li.answer .text").all_inner_texts()
    assert texts == [LONG_TEXT] * 4
    assert page.locator("li.answer .numbers", has_text="taken over").count() >= 1
    assert errors.other_than() == []


def test_the_policy_is_switched_and_all_workers_report_it(site: Site, open_console: OpenConsole) -> None:
    page, errors = open_console(serve(site))
    live(page)
    page.wait_for_selector("#policy:not(:disabled)")
    assert page.input_value("#policy") == "fcfs"
    page.select_option("#policy", "static")
    until(page, "document.getElementById('timeline').ariaLabel.includes('policy static')")
    send(page, "Count from 1 to 100", "Count from 40 to 52")
    assert text_of(page, "Count from 40 to 52") == count(40, 52)
    assert errors.other_than() == []


def test_the_key_is_requested_and_kept_only_in_memory(site: Site, open_console: OpenConsole) -> None:
    site.start_worker().wait_serving()
    gateway = site.start_gateway(api_keys=json.dumps({"secret-key": "alpha"}))
    gateway.wait_ready()
    page, errors = open_console(gateway.url)
    page.wait_for_selector("dialog[open]")
    page.fill("#secret", "wrong")
    page.keyboard.press("Enter")
    page.wait_for_selector("#wrong:not([hidden])")
    page.fill("#secret", "secret-key")
    page.keyboard.press("Enter")
    live(page)
    send(page, "Count from 40 to 52")
    assert text_of(page, "Count from 40 to 52") == count(40, 52)
    kept = page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie, location.href])")
    assert "secret-key" not in kept
    assert page.input_value("#secret") == ""
    assert errors.other_than("401") == []
    page.reload()
    page.wait_for_selector("dialog[open]")


def test_everything_works_with_the_keyboard(site: Site, open_console: OpenConsole) -> None:
    page, errors = open_console(serve(site))
    live(page)
    page.focus("#prompts")
    page.keyboard.press("ControlOrMeta+A")
    page.keyboard.type("Count from 40 to 52")
    page.keyboard.press("Control+Enter")
    assert text_of(page, "Count from 40 to 52") == count(40, 52)
    page.fill("#most", "0")
    page.focus("#prompts")
    page.keyboard.press("Control+Enter")
    assert page.evaluate("document.activeElement.id") == "most", "the browser reports the error, as for the button"
    assert page.locator("li.answer").count() == 1
    page.focus("#timeline")
    before = page.inner_text("#span")
    page.keyboard.press("+")
    assert page.inner_text("#span") != before
    page.keyboard.press("Space")
    assert page.get_attribute("#pause", "aria-pressed") == "true"
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Space")
    assert page.get_attribute("#pause", "aria-pressed") == "false"
    unnamed = page.evaluate(
        "[...document.querySelectorAll('button, input, select, textarea')]"
        ".filter(one => !(one.labels?.length || one.ariaLabel || one.textContent.trim())).map(one => one.id)"
    )
    assert unnamed == []
    assert errors.other_than() == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(1400, 1000), (390, 844)])
def test_the_layout_fits_light_and_dark_large_and_small(
    site: Site, open_console: OpenConsole, scheme: str, width: int, height: int
) -> None:
    page, errors = open_console(
        serve(site, workers=2), color_scheme=scheme, viewport={"width": width, "height": height}, device_scale_factor=2
    )
    live(page)
    page.fill("#load", "7")
    until(page, "document.querySelectorAll('li.answer[data-state=done]').length >= 12")
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.click("#theme")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != background
    page.click("#theme")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == background
    page.wait_for_timeout(500)
    if folder := os.environ.get("ORCASTREAM_TEST_PICTURES"):
        page.screenshot(path=Path(folder) / f"console-{scheme}-{width}.png", full_page=True)
    assert errors.other_than() == []
