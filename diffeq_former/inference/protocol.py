"""OpenAI's completions protocol: parsing of requests and contents of responses.

https://platform.openai.com/docs/api-reference/completions
"""

import dataclasses
import json
import secrets
import time
import uuid

from diffeq_former.errors import UserError
from diffeq_former.inference.continuation import check_stop
from diffeq_former.inference.sampling import Sampling

MOST_CHOICES = 64  # maximum number of prompts times n in one request


class RequestError(Exception):
    """An error response: message, field at fault, HTTP status and error code."""

    def __init__(
        self,
        message: str,
        field: str | None = None,
        status: int = 400,
        code: str | None = None,
    ):
        super().__init__(message)
        self.status, self.field, self.code = status, field, code


@dataclasses.dataclass(frozen=True)
class Completion:
    """A parsed request."""

    prompts: list[list[int]]  # token ids
    n: int  # number of choices per prompt
    max_tokens: int
    sampling: Sampling
    seed: int  # choice i is sampled with seed + i
    stop: list[str]
    echo: bool  # whether the texts begin with their prompts
    stream: bool
    include_usage: bool  # whether the stream ends with token counts


# Unsupported fields, with the values that have no effect and are therefore accepted.
_UNSUPPORTED = {
    "best_of": (None, 1),
    "frequency_penalty": (None, 0),
    "logit_bias": (None, {}),
    "logprobs": (None,),
    "presence_penalty": (None, 0),
    "suffix": (None, ""),
}
_FIELDS = {
    "model", "prompt", "max_tokens", "temperature", "top_p", "n", "stop", "seed",
    "stream", "stream_options", "echo", "user", *_UNSUPPORTED,
}  # fmt: skip


def parse(body: bytes, model: str, tokenizer) -> Completion:
    """Parse the body of a request.

    Args:
      body: The body, JSON.
      model: The name of the served model.
      tokenizer: The model's tokenizer.

    Raises:
      RequestError: If the request is invalid; names the field at fault.
    """
    request = _object(body)
    _check_fields(request, model)
    prompts = _prompts(request.get("prompt"), tokenizer)
    n = _integer(request, "n", 1, 1, MOST_CHOICES)
    if n * len(prompts) > MOST_CHOICES:
        raise RequestError(
            f"n: expected at most {MOST_CHOICES} choices in all, got {n} for each of"
            f" {len(prompts)} prompts",
            "n",
        )
    stream = _boolean(request, "stream")
    return Completion(
        prompts,
        n,
        _integer(request, "max_tokens", 16, 1, 2**31),
        _sampling(request),
        _integer(request, "seed", secrets.randbits(32), -(2**63), 2**63),
        _stop(request.get("stop")),
        _boolean(request, "echo"),
        stream,
        _include_usage(request.get("stream_options"), stream),
    )


def _object(body: bytes) -> dict:
    try:
        request = json.loads(body, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is not JSON: {error}") from error
    if not isinstance(request, dict):
        raise RequestError("the body: expected a JSON object")
    return request


def _no_constant(name: str):
    raise ValueError(f"{name} is not allowed")


def _check_fields(request: dict, model: str) -> None:
    for field in sorted(request.keys() - _FIELDS):
        raise RequestError(f"{field}: there is no such field", field)
    for field, values in _UNSUPPORTED.items():
        if request.get(field) not in values:
            raise RequestError(f"{field} is not supported; leave it out", field)
    if (requested := request.get("model", model)) != model:
        raise RequestError(
            f"model: expected {model!r}, got {requested!r}",
            "model",
            404,
            "model_not_found",
        )


def _prompts(prompt, tokenizer) -> list[list[int]]:
    """Return the token ids of each prompt: one or a list, as strings or token ids."""
    if isinstance(prompt, str) or _is_ids(prompt):
        prompt = [prompt]
    if not isinstance(prompt, list) or not prompt:
        raise RequestError(
            "prompt: expected a string, a list of strings, a list of token ids, or a"
            " list of such lists",
            "prompt",
        )
    return [_ids(one, tokenizer) for one in prompt]


def _ids(prompt, tokenizer) -> list[int]:
    if isinstance(prompt, str):
        try:
            prompt.encode()
        except UnicodeEncodeError as error:
            raise RequestError("prompt: unpaired surrogate", "prompt") from error
        return tokenizer.encode(prompt)
    if not _is_ids(prompt) or not all(0 <= i < tokenizer.vocab_size for i in prompt):
        raise RequestError(
            f"prompt: expected strings or token ids below {tokenizer.vocab_size}",
            "prompt",
        )
    return prompt


def _is_ids(value) -> bool:
    return (
        isinstance(value, list) and bool(value) and all(type(i) is int for i in value)
    )


def _sampling(request: dict) -> Sampling:
    try:
        return Sampling(
            _number(request, "temperature", 1.0), 0, _number(request, "top_p", 1.0)
        )
    except UserError as error:
        raise RequestError(str(error), str(error).partition(":")[0]) from error


def _number(request: dict, field: str, default: float) -> float:
    value = request.get(field)
    if value is None:
        return default
    if type(value) not in (int, float) or abs(value) > 1e6:
        raise RequestError(f"{field}: expected a number, got {_shown(value)}", field)
    return float(value)


def _integer(request: dict, field: str, default: int, low: int, high: int) -> int:
    value = request.get(field)
    if value is None:
        return default
    if type(value) is not int or not low <= value <= high:
        raise RequestError(
            f"{field}: expected an integer from {low} to {high}, got {_shown(value)}",
            field,
        )
    return value


def _boolean(request: dict, field: str) -> bool:
    value = request.get(field)
    if value is not None and type(value) is not bool:
        raise RequestError(
            f"{field}: expected true or false, got {_shown(value)}", field
        )
    return bool(value)


def _stop(value) -> list[str]:
    stop = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(stop, list) or not all(isinstance(s, str) for s in stop):
        raise RequestError("stop: expected a string or a list of strings", "stop")
    try:
        check_stop(stop)
    except UserError as error:
        raise RequestError(str(error), "stop") from error
    return stop


def _include_usage(options, stream: bool) -> bool:
    if options is None:
        return False
    if (
        not stream
        or not isinstance(options, dict)
        or options.keys() - {"include_usage"}
    ):
        raise RequestError(
            "stream_options: expected an object with include_usage, for a stream",
            "stream_options",
        )
    return _boolean(options, "include_usage")


def _shown(value) -> str:
    return repr(value)[:50]


def models(model: str) -> dict:
    """Return the response to /v1/models."""
    entry = {"id": model, "object": "model", "created": 0, "owned_by": "diffeq_former"}
    return {"object": "list", "data": [entry]}


def answer(model: str) -> dict:
    """Return the fields that all events of one response share."""
    return {
        "id": f"cmpl-{uuid.uuid4().hex}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": model,
    }


def choice(index: int, text: str, finish_reason: str | None) -> dict:
    """Return an entry of the field `choices`."""
    return {
        "index": index,
        "text": text,
        "logprobs": None,
        "finish_reason": finish_reason,
    }


def usage(completion: Completion, num_new: int) -> dict:
    """Return the field `usage`: token counts of the prompts and the new tokens."""
    prompt = sum(map(len, completion.prompts))
    return {
        "prompt_tokens": prompt,
        "completion_tokens": num_new,
        "total_tokens": prompt + num_new,
    }


def error(failure: RequestError) -> dict:
    """Return the body of an error response."""
    kind = "invalid_request_error" if failure.status < 500 else "server_error"
    return {
        "error": {
            "message": str(failure),
            "type": kind,
            "param": failure.field,
            "code": failure.code,
        }
    }
