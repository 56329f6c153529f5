"""The commands of `orcastream`."""

from orcastream.cli.command import Command

COMMANDS = {
    "up": Command(
        "run Redis, a gateway and workers on this machine, in one terminal",
        "orcastream.cli.up",
        "gateway,worker,embedded",
        "orcastream.cli.up_settings:UpSettings",
    ),
    "gateway": Command(
        "run one gateway: HTTP in front of the queue",
        "orcastream.cli.gateway",
        "gateway",
        "orcastream.gateway.settings:GatewaySettings",
        reads_text=True,
    ),
    "worker": Command(
        "run one worker: a model behind the queue",
        "orcastream.cli.worker",
        "worker",
        "orcastream.worker.settings:WorkerSettings",
    ),
    "chat": Command(
        "chat with a model in the terminal",
        "orcastream.cli.chat.command",
        "chat",
        "orcastream.cli.settings:ChatSettings",
    ),
    "top": Command(
        "show the queue and the workers, live",
        "orcastream.cli.top.command",
        settings="orcastream.cli.console.settings:TopSettings",
    ),
    "submit": Command(
        "run a bulk job: one request per line of a file",
        "orcastream.cli.jobs.submit",
        "gateway",
        "orcastream.cli.jobs.settings:SubmitSettings",
        reads_text=True,
    ),
    "results": Command(
        "show the results of a bulk job so far, or list the jobs",
        "orcastream.cli.jobs.results",
        settings="orcastream.cli.jobs.settings:ResultsSettings",
        reads_text=True,
    ),
    "requests": Command(
        "list, show or cancel waiting and running requests", "orcastream.cli.requests.command", has_commands=True
    ),
    "dead-letters": Command(
        "list, show, replay or delete dead letters: requests that were set aside",
        "orcastream.cli.dead_letters.command",
        has_commands=True,
    ),
    "keys": Command("create, list or revoke API keys", "orcastream.cli.keys.command", "gateway", has_commands=True),
    "tokenize": Command(
        "print the token ids of a text",
        "orcastream.cli.tokenize",
        "gateway",
        "orcastream.cli.settings:TokenizeSettings",
        reads_text=True,
    ),
    "bench": Command("measure the engine, a gateway, or Redis", "orcastream.bench.main", has_commands=True),
    "completion": Command(
        "print a completion script for bash, zsh or fish",
        "orcastream.cli.completion.command",
        settings="orcastream.cli.settings:CompletionSettings",
    ),
    "version": Command("print the version of Orcastream", "orcastream.cli.main"),
}
