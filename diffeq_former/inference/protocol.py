"""OpenAI's completions protocol: parsing of requests and contents of responses.

https://platform.openai.com/docs/api-reference/completions
"""

import secrets
import time
import uuid
from typing import Annotated

import pydantic
from pydantic import Field

from diffeq_former.errors import UserError
from diffeq_former.inference.sampling import Sampling

MOST_CHOICES = 64  # maximum number of prompts times n in one request
_UNCERTAIN = 16  # tokens at the end of a text that what follows may change


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


class StreamOptions(pydantic.BaseModel, extra="forbid", strict=True):
    include_usage: bool = False  # whether the stream ends with token counts


# Unsupported fields, with the values that have no effect and are therefore accepted.
_UNSUPPORTED = {
    "best_of": 1,
    "frequency_penalty": 0,
    "logit_bias": {},
    "presence_penalty": 0,
    "suffix": "",
}


class Completion(
    pydantic.BaseModel, extra="forbid", strict=True, allow_inf_nan=False, frozen=True
):
    """A request for completions. A field that is null has its default value."""

    model: str | None = None
    # Token ids that the model reads; in the request, one or several texts or id lists.
    prompt: list[list[int]]
    max_tokens: int = Field(16, ge=1, lt=2**31)
    temperature: float = Field(1.0, ge=0, le=100)
    top_p: float = Field(1.0, gt=0, le=1)
    n: int = Field(1, ge=1, le=MOST_CHOICES)  # number of choices per prompt
    stop: list[Annotated[str, Field(min_length=1)]] = []  # in the request also only one
    seed: int = Field(  # choice i is sampled with seed + i
        default_factory=lambda: secrets.randbits(32), ge=-(2**63), lt=2**63
    )
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    echo: bool = False  # whether the texts begin with their prompts
    user: str | None = None

    @property
    def sampling(self) -> Sampling:
        return Sampling(self.temperature, 0, self.top_p)

    @pydantic.model_validator(mode="before")
    @classmethod
    def _drop_defaults(cls, fields):
        if not isinstance(fields, dict):
            return fields
        return {
            name: value
            for name, value in fields.items()
            if value is not None and _UNSUPPORTED.get(name) != value
        }

    @pydantic.field_validator("prompt", mode="before")
    @classmethod
    def _encode(cls, prompt, info: pydantic.ValidationInfo):
        """Return the token ids that the model reads for each prompt."""
        prompts = [prompt] if isinstance(prompt, str) or _is_ids(prompt) else prompt
        if not isinstance(prompts, list) or not prompts:
            raise UserError(
                "expected a string, a list of strings, a list of token ids, or a list"
                " of such lists"
            )
        if len(prompts) > MOST_CHOICES:
            raise UserError(f"expected at most {MOST_CHOICES} prompts")
        return [_ids(one, **info.context) for one in prompts]

    @pydantic.field_validator("stop", mode="before")
    @classmethod
    def _as_list(cls, stop):
        return [stop] if isinstance(stop, str) else stop


def parse(body: bytes | bytearray, model: str, tokenizer, max_len: int) -> Completion:
    """Parse the body of a request.

    Args:
      body: The body, JSON.
      model: The name of the served model.
      tokenizer: The model's tokenizer.
      max_len: The most tokens that a prompt may have, those before a text included.

    Raises:
      RequestError: If the request is invalid; names the field at fault.
    """
    try:
        completion = Completion.model_validate_json(
            body, context={"tokenizer": tokenizer, "max_len": max_len}
        )
    except pydantic.ValidationError as error:
        raise _as_request_error(error.errors(include_input=False)[0]) from error
    if completion.model not in (None, model):
        raise RequestError(
            f"model: expected {model!r}, got {completion.model!r}",
            "model",
            404,
            "model_not_found",
        )
    if completion.n * len(completion.prompt) > MOST_CHOICES:
        raise RequestError(
            f"n: expected at most {MOST_CHOICES} choices in all, got {completion.n} for"
            f" each of {len(completion.prompt)} prompts",
            "n",
        )
    return completion


def _as_request_error(error) -> RequestError:
    """Return the response to the first error that pydantic found."""
    path = ".".join(map(str, error["loc"]))
    if error["type"] == "extra_forbidden":
        message = "unknown or not supported; leave it out"
    elif error["type"] == "value_error":
        message = str(error["ctx"]["error"])
    else:
        message = error["msg"][0].lower() + error["msg"][1:]
    return RequestError(
        f"{path or 'the body'}: {message}", error["loc"][0] if path else None
    )


def _ids(prompt: str | list[int], tokenizer, max_len: int) -> list[int]:
    """Return the token ids that the model reads for a prompt.

    They begin with `tokenizer.before`, which is prepended unless the prompt consists of
    token ids that begin with it.

    Raises:
      UserError: If it is neither a text nor token ids, or too long; a text is tokenised
        from its beginning until that is known.
    """
    before = tokenizer.before
    if isinstance(prompt, str):
        end = 4 * max_len  # characters
        while end < len(prompt):
            # The last tokens of a text that is cut off may be others.
            known = tokenizer.encode(prompt[:end])[:-_UNCERTAIN]
            _check_length(before, known, max_len, "at least ")
            end *= 4
        ids = tokenizer.encode(prompt)
    elif _is_ids(prompt) and all(0 <= i < tokenizer.vocab_size for i in prompt):
        opened = prompt[: len(before)] == before
        ids = prompt[len(before) :] if opened else prompt
    else:
        raise UserError(f"expected strings or token ids below {tokenizer.vocab_size}")
    _check_length(before, ids, max_len)
    return [*before, *ids]


def _check_length(
    before: list[int], ids: list[int], max_len: int, at_least: str = ""
) -> None:
    length = len(before) + len(ids)
    if length > max_len:
        raise UserError(
            f"{at_least}{length} tokens, {len(before)} of them before the text, are"
            f" more than the model's max_len of {max_len}; shorten it to at most"
            f" {max_len} tokens"
        )


def _is_ids(value) -> bool:
    return (
        isinstance(value, list) and bool(value) and all(type(i) is int for i in value)
    )


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
    """Return the field `usage`: numbers of tokens that were read and generated."""
    prompt = sum(map(len, completion.prompt))
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
