"""Compare the engine with other systems: same model, same requests, each system in its own process.

Every other system has its own virtual environment with the versions pinned in bench/peers/systems.py; `--set-up`
creates it.
All systems stay loaded and alternate, repeat by repeat; waiting ones are stopped. A system that is not installed, or
cannot load the model, is reported as absent.

  orcastream bench peers --set-up openvino,vllm
  orcastream bench peers --model DIR --dtype bfloat16 --workload equal_size,short_long_mix --json figures.json
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from orcastream.bench.figures.json_file import write_json
from orcastream.bench.figures.machine import command_line, machine, versions
from orcastream.bench.flags import Parser, above_zero, at_least, check_arrivals, check_outputs, names
from orcastream.bench.peers.contest import Contest
from orcastream.bench.peers.entrant import Place
from orcastream.bench.peers.report import Report
from orcastream.bench.peers.runners.kv_bytes import kv_bytes_per_token
from orcastream.bench.peers.runners.protocol import Ask, Load
from orcastream.bench.peers.systems import SYSTEMS
from orcastream.bench.workloads import WORKLOADS, Draw, token_ids
from orcastream.cli.errors import UserError
from orcastream.telemetry.processors import usable_processors

_DTYPES = ("bfloat16", "int8", "float32")
_BATCH_SIZE = 16
"""Most requests at once by default if all arrive at once."""
_LENGTHS = 256
"""Lengths of requests are rounded up to multiples of this."""


def main(arguments: Sequence[str]) -> int:
    """Set up the requested systems, then measure, print and write.

    Return 0, 1 if no system could be measured, or 130 if an interrupt ended the run early.
    """
    options = _parse(arguments)
    place = Place(options.environments.expanduser().absolute(), options.device, options.threads, options.timeout)
    for name in dict.fromkeys(_chosen("--set-up", options.set_up, [*SYSTEMS])):
        _set_up(name, place)
    if options.model is None:
        return 0
    config = _config(options.model)
    workloads = {name: _asks(name, options, config["vocab_size"]) for name in options.workloads}
    _set_batch_size(options, workloads)
    contest = Contest([SYSTEMS[name] for name in options.chosen], _load(options, workloads), place, workloads)
    complete = contest.run(options.dtypes, options.repeats, options.seed, config["vocab_size"])
    report = Report(contest.rows, contest.absent, _setting(options, config, command_line("peers", arguments)))
    report.show(Console(width=140, highlight=False))
    if options.json:
        write_json(options.json, report.to_json())
    if not complete:
        return 130
    return 0 if any(row.runs for row in contest.rows) else 1


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = Parser("peers", __doc__)
    parser.add_argument("--model", type=Path, metavar="DIR", help="directory of a checkpoint; see `bench make-model`")
    parser.add_argument("--systems", metavar="S[,S...]", help=f"from {', '.join(SYSTEMS)} (all)")
    parser.add_argument(
        "--dtype", default="bfloat16,int8", metavar="D[,D...]", help="from bfloat16, int8, float32 (%(default)s)"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="(%(default)s)")
    parser.add_argument(
        "--threads", type=at_least(1), default=len(usable_processors()), help="threads of each (%(default)s)"
    )
    parser.add_argument(
        "--max-batch-size",
        type=at_least(1),
        help=f"maximum requests at once ({_BATCH_SIZE}; with --rate as many as the workload has)",
    )
    parser.add_argument(
        "--max-num-batched-tokens", type=at_least(1), help="maximum per iteration (each system's default)"
    )
    _add_environment_flags(parser)
    _add_workload_flags(parser)
    parser.add_argument("--repeats", type=at_least(1), default=3, help="runs of each system (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there, times in milliseconds")
    options = parser.parse_args(list(arguments))
    if options.model is None and options.set_up is None:
        raise UserError("--model, --set-up: got neither, allowed: one of them or both")
    check_outputs(options)
    options.workloads = _chosen("--workload", options.workload, [*WORKLOADS])
    options.dtypes = _chosen("--dtype", options.dtype, _DTYPES)
    options.chosen = _chosen("--systems", options.systems, [*SYSTEMS]) or [*SYSTEMS]
    return options


def _add_environment_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("environments")
    default = Path("~/.cache/orcastream/peers")
    group.add_argument(
        "--environments",
        type=Path,
        default=default,
        metavar="DIR",
        help="directory for them and converted models (%(default)s)",
    )
    group.add_argument("--set-up", metavar="S[,S...]", help="install these systems there first, with pip's settings")
    group.add_argument("--timeout", type=above_zero, default=1800.0, help="seconds for a load or a run (%(default)g)")


def _add_workload_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("workload", "`orcastream bench workloads` describes them")
    default = "equal_size,short_long_mix"
    group.add_argument("--workload", default=default, metavar="W[,W...]", help="kinds of requests (%(default)s)")
    group.add_argument("--requests", type=at_least(1), help="number of requests (default: the workload's)")
    group.add_argument("--rate", type=above_zero, help="requests per second (all at once)")
    group.add_argument("--length-scale", type=above_zero, default=1.0, help="multiplies all lengths (%(default)g)")
    group.add_argument("--seed", type=int, default=0, help="seed of prompts, lengths and arrivals (%(default)s)")


def _chosen(flag: str, text: str | None, allowed: Sequence[str]) -> list[str]:
    chosen = list(dict.fromkeys(names(text)))
    if text is not None and not chosen:
        raise UserError(f"{flag}: got {text!r}, allowed: {', '.join(allowed)}, separated by commas")
    for name in chosen:
        if name not in allowed:
            raise UserError(f"{flag}: got {name!r}, allowed: {', '.join(allowed)}")
    return chosen


def _set_up(name: str, place: Place) -> None:
    system = SYSTEMS[name]
    if place.device not in system.environments:
        raise UserError(f"--set-up: got {name!r}, allowed: a system that runs on {place.device}")
    environment = place.environment(system)
    if environment is not None and environment.lack():
        environment.set_up()


def _config(model: Path) -> dict[str, Any]:
    try:
        config: dict[str, Any] = json.loads((model / "config.json").read_text(encoding="utf-8"))
        kv_bytes_per_token(str(model), "bfloat16")
        config |= config.get("text_config", {})
        if not config["vocab_size"] > 1:
            raise ValueError(f"vocab_size: {config['vocab_size']}")
    except KeyError as error:
        raise UserError(f"--model: got {str(model)!r}, allowed: with {error} in its config.json") from None
    except (OSError, ValueError, TypeError, AttributeError) as error:
        allowed = "a directory with a model's config.json"
        raise UserError(f"--model: got {str(model)!r}, allowed: {allowed} ({error})") from None
    return config


def _asks(name: str, options: argparse.Namespace, vocab_size: int) -> list[Ask]:
    check_arrivals(name, options.rate)
    draw = Draw(
        vocab_size=vocab_size,
        seed=options.seed,
        requests=options.requests or WORKLOADS[name].requests,
        rate=options.rate,
        length_scale=options.length_scale,
        time_scale=1.0 if options.rate else 0.0,
    )
    requests = WORKLOADS[name].build(draw)
    if any(request.follows is not None for request in requests):
        raise UserError(f"--workload: got {name!r}, allowed: one whose requests do not follow others")
    return [Ask(list(token_ids(one)), one.max_tokens or 1, one.arrival_s) for one in requests]


def _set_batch_size(options: argparse.Namespace, workloads: dict[str, list[Ask]]) -> None:
    """Set the default of the maximum batch size, and check that an iteration has a token for each request.

    With a rate no request waits for another's place: systems disagree on whether the maximum holds for the requests of
    an iteration or for those that run, and latency would depend mostly on that.
    """
    if options.max_batch_size is None:
        options.max_batch_size = max(map(len, workloads.values())) if options.rate else _BATCH_SIZE
    least = options.max_batch_size
    if options.max_num_batched_tokens is not None and options.max_num_batched_tokens < least:
        raise UserError(
            f"--max-num-batched-tokens: got {options.max_num_batched_tokens}, allowed: at least {least}, "
            "a token of each request"
        )


def _load(options: argparse.Namespace, workloads: dict[str, list[Ask]]) -> Load:
    lengths = [[_rounded(len(ask.prompt) + ask.max_tokens) for ask in asks] for asks in workloads.values()]
    longest = max(map(max, lengths))
    return Load(
        model=str(options.model.absolute()),
        dtype="",
        device=options.device,
        threads=options.threads,
        max_batch_size=options.max_batch_size,
        kv_tokens=min(longest * options.max_batch_size, max(map(sum, lengths))),
        max_model_len=longest,
        max_num_batched_tokens=options.max_num_batched_tokens,
    )


def _rounded(length: int) -> int:
    return -(-(length + 1) // _LENGTHS) * _LENGTHS


def _setting(options: argparse.Namespace, config: dict[str, Any], command: str) -> dict[str, Any]:
    shape = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size")
    return {
        "command": command,
        "machine": {**machine(), "threads": options.threads, "device": options.device},
        "versions": versions(),
        "model": {"name": str(options.model), **{name: config.get(name) for name in shape}},
        "workload": {
            "names": options.workloads,
            **{name: getattr(options, name) for name in ("requests", "rate", "length_scale", "seed")},
            **{name: getattr(options, name) for name in ("max_batch_size", "max_num_batched_tokens")},
        },
    }
