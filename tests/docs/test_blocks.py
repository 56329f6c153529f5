"""A test runs every code block in these pages, except those named here."""

from tests.docs import test_page_examples, test_readme
from tests.docs.blocks import BULK, CLIENTS, PAGES, README, Block, Page

TAKERS = (test_page_examples, test_readme)
"""Imported, so that they have taken what they run."""

EXCEPTED: list[tuple[Page, str, str, str]] = [
    (README, "sh", "make demo    #", "sets up an environment; tests/cli/test_demo.py runs the demo"),
    (README, "sh", "TORCH_INDEX=", "sets up an environment"),
    (README, "sh", "docker compose up", "wants a container engine; `make compose-test` does it"),
    (README, "sh", "orcastream up --model", "the model would be downloaded; test_readme.py looks at the flags"),
    (README, "sh", "redis.internal", "a placeholder, and a model to be downloaded; test_readme.py looks at the flags"),
    (README, "sh", "orcastream bench", "takes minutes; test_readme.py looks at the flags"),
    (BULK, "sh", "tests.cli.jobs.bulk", "takes an hour; tests/cli/jobs/test_submit.py runs it with 250 lines"),
    (CLIENTS, "toml", "model_provider", "Codex is a program of npm, and its prompts exceed the demo model's context"),
    (CLIENTS, "sh", "vllm bench", "its builds for CPUs lack the command; tests/other_clients calls what it calls"),
    (CLIENTS, "sh", "lm_eval --model", "TASK is a placeholder; tests/other_clients asks what it asks"),
    (CLIENTS, "sh", "guidellm run", "tests/other_clients runs it with fewer requests"),
    (CLIENTS, "sh", ".venv-clients", "installs packages"),
]
"""Page, language, words, and why no test runs the block."""


def where(blocks: set[Block]) -> list[str]:
    return sorted(f"{block.page}:{block.line} ({block.language})" for block in blocks)


def test_every_block_is_run_or_excepted() -> None:
    everything = {block for page in PAGES for block in page.blocks}
    taken = {block for page in PAGES for block in page.taken}
    excepted = {page.find(language, words) for page, language, words, _ in EXCEPTED}
    assert where(taken & excepted) == [], "both run and excepted"
    assert where(everything - taken - excepted) == [], "no test runs it"
