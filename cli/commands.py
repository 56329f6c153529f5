"""The commands of `orcastream`."""

from orcastream.cli.command import Command

COMMANDS = {
    "up": Command(
        "Redis, a gateway and workers on this machine, in one terminal",
        "orcastream.cli.up",
        "gateway,worker,embedded",
        "orcastream.cli.up_settings:UpSettings",
    ),
    "gateway": Command(
        "one gateway: HTTP in front of the queue",
        "orcastream.cli.gateway",
        "gateway",
        "orcastream.gateway.settings:GatewaySettings",
        reads_text=True,
    ),
    "worker": Command(
        "one worker: a model behind the queue",
        "orcastream.cli.worker",
        "worker",
        "orcastream.worker.settings:WorkerSettings",
    ),
    "chat": Command(
        "talk with a model in the terminal",
        "orcastream.cli.chat.command",
        "chat",
        "orcastream.cli.settings:ChatSettings",
    ),
    "top": Command(
        "the queue and the workers, live",
        "orcastream.cli.top.command",
        settings="orcastream.cli.console.settings:TopSettings",
    ),
    "submit": Command(
        "have every line of a file answered through the queue",
        "orcastream.cli.jobs.submit",
        "gateway",
        "orcastream.cli.jobs.settings:SubmitSettings",
        reads_text=True,
    ),
    "results": Command(
        "what `submit` has brought so far, and which jobs there are",
        "orcastream.cli.jobs.results",
        settings="orcastream.cli.jobs.settings:ResultsSettings",
        reads_text=True,
    ),
    "requests": Command(
        "what waits and runs: look at it, cancel it", "orcastream.cli.requests.command", has_commands=True
    ),
    "dead-letters": Command(
        "requests that were set aside: look, run again, delete",
        "orcastream.cli.dead_letters.command",
        has_commands=True,
    ),
    "keys": Command(
        "API keys: make one, list, take one back", "orcastream.cli.keys.command", "gateway", has_commands=True
    ),
    "tokenize": Command(
        "the token ids of a text",
        "orcastream.cli.tokenize",
        "gateway",
        "orcastream.cli.settings:TokenizeSettings",
        reads_text=True,
    ),
    "bench": Command("measure the engine, a gateway, or Redis", "orcastream.bench.main", has_commands=True),
    "completion": Command(
        "a script with which bash, zsh or fish completes all this",
        "orcastream.cli.completion.command",
        settings="orcastream.cli.settings:CompletionSettings",
    ),
    "version": Command("the version of Orcastream", "orcastream.cli.main"),
}
