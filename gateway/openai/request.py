"""One request body of OpenAI's API, read and checked once. Nothing in it is ignored."""

import re
from dataclasses import dataclass, replace
from typing import Any, Self

from pydantic import ValidationError

from orcastream.gateway.openai.body import Body, told_as
from orcastream.gateway.openai.constraints import CONSTRAINT_NAMES, take_constraint
from orcastream.gateway.openai.endpoint import GenerationEndpoint
from orcastream.gateway.openai.json_body import read_json_object
from orcastream.gateway.openai.opening import NO_OPENING, Opening
from orcastream.gateway.openai.options import Options
from orcastream.gateway.openai.prompt import Prompt, Text
from orcastream.gateway.openai.unimplemented import drop_neutral
from orcastream.schemas.errors import InvalidRequest
from orcastream.schemas.explain import first_complaint
from orcastream.schemas.keys import check_id
from orcastream.schemas.limits import MAX_LOGIT_BIASES
from orcastream.schemas.request import RequestParameters, parse_parameters

_SAMPLING = (
    "max_tokens",
    "min_tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "stop_token_ids",
    "ignore_eos",
)
_CANDIDATES = ("n", "best_of", "use_beam_search", "length_penalty", "early_stopping")
_SERVICE = ("cache_salt", "ttft_slo_ms", "tbt_slo_ms", "on_disconnect")
PAYLOAD_NAMES = frozenset({*_SAMPLING, *_CANDIDATES, *_SERVICE})
"""Names copied into the payload unchanged; schemas check them."""
WRITTEN_OTHERWISE = frozenset({"stop", "logit_bias"})
"""Names that the payload has in another form."""


TOKEN_ID = re.compile("^(0|[1-9][0-9]{0,9})$")
"""A token id as a name in JSON."""


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """A checked body: the prompts as received, the payload's parameters, and the gateway's options."""

    endpoint: GenerationEndpoint
    prompts: list[Prompt]
    parameters: RequestParameters
    options: Options
    names: dict[str, str]
    """The client's names of payload parameters, where they differ."""
    echo: bool = False
    """Whether each choice begins with the prompt."""
    opening: Opening = NO_OPENING
    """Other content about the prompt."""

    def with_adapter(self, adapter: str) -> Self:
        """Return the request for the model with `adapter`; if empty, for the model itself."""
        return replace(self, parameters=self.parameters.model_copy(update={"adapter": adapter})) if adapter else self

    def told(self, error: InvalidRequest, number: int) -> InvalidRequest:
        """Return an error about the payload of prompt `number` in the client's terms."""
        prompt = self.prompts[number]
        if error.field == "prompt" and isinstance(prompt, Text) and not prompt.text:
            error = InvalidRequest(error.field, prompt.text, "text of at least one token", error.code)
        field, dot, place = error.field.partition(".")
        if field == "prompt" and len(self.prompts) > 1:
            return InvalidRequest(f"prompt.{number}{dot}{place}", error.value, error.allowed, error.code)
        return told_as(error, self.names)


def parameter_names(endpoint: GenerationEndpoint) -> frozenset[str]:
    """Return all names that a body of this endpoint may have."""
    names = PAYLOAD_NAMES.union(WRITTEN_OTHERWISE, CONSTRAINT_NAMES) - endpoint.lacks
    return names.union(endpoint.options.model_fields, endpoint.own_names)


def parse_body(endpoint: GenerationEndpoint, raw: bytes, max_tokens: int) -> ApiRequest:
    """Parse the request in an HTTP body. Raises InvalidRequest or ApiError naming the first wrong parameter.

    `max_tokens` is the context's size: an array of many more ids is not read.
    """
    body = Body(drop_neutral(read_json_object(raw, max_tokens), parameter_names(endpoint), endpoint.neutral))
    body.names["prompt"] = endpoint.prompt_name
    taken = endpoint.take_parameters(body)
    prompts = endpoint.take_prompts(body)
    taken |= {name: body.take(name) for name in list(body) if name in PAYLOAD_NAMES - endpoint.lacks}
    if "stop" in body:
        taken["stop"] = _stops(body.take("stop"))
    if "logit_bias" in body:
        taken["logit_bias"] = _biases(body.take("logit_bias"))
        body.names |= _names_of_biases(taken["logit_bias"])
    taken |= take_constraint(body, CONSTRAINT_NAMES - endpoint.lacks)
    if taken.get("top_k") == -1:  # other servers' notation of 'all'
        del taken["top_k"]
    options = _options(endpoint.options, body)
    try:
        parameters = parse_parameters({"on_disconnect": "cancel", **taken})
        if parameters.max_tokens == 0 and not (body.echo or parameters.prompt_logprobs is not None):
            raise InvalidRequest("max_tokens", 0, "at least 1 without echo")
        if options.stream:
            _check_streamable(parameters)
    except InvalidRequest as error:
        raise told_as(error, body.names) from None
    return ApiRequest(endpoint, prompts, parameters, options, body.names, body.echo, body.opening)


def _options(kind: type[Options], body: Body) -> Options:
    try:
        options = kind.model_validate(dict(body))
    except ValidationError as error:
        raise first_complaint(error, "body") from None
    if options.request_id is not None:
        check_id(options.request_id, "request_id")
    return options


def _stops(value: object) -> list[Any]:
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise InvalidRequest("stop", value, "text, or an array of texts")
    return value


def _biases(value: object) -> list[list[Any]]:
    """Convert an object of token id → bias, whose names are text in JSON, to the payload's pairs."""
    if not isinstance(value, dict):
        raise InvalidRequest("logit_bias", value, "an object of token ids and biases")
    for name in value:
        if not TOKEN_ID.fullmatch(name):
            raise InvalidRequest("logit_bias", name, "token ids as names")
    return [[int(name), bias] for name, bias in value.items()]


def _names_of_biases(pairs: list[list[Any]]) -> dict[str, str]:
    """Return the client's names of the payload's pairs: by token, as in its object."""
    names: dict[str, str] = {}
    for place, (token, _) in enumerate(pairs[:MAX_LOGIT_BIASES]):
        names |= dict.fromkeys((f"logit_bias.{place}", f"logit_bias.{place}.1"), f"logit_bias.{token}")
    return names


def _check_streamable(parameters: RequestParameters) -> None:
    """Raise InvalidRequest naming the cause if choices are ranked: such a stream would be silent until its end."""
    if parameters.use_beam_search:
        raise InvalidRequest("use_beam_search", True, "False with stream=true: hypotheses are known only at the end")
    if parameters.is_ranked:
        allowed = f"n ({parameters.n}) with stream=true: the best candidates are known only at the end"
        raise InvalidRequest("best_of", parameters.best_of, allowed)
