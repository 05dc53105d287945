"""OpenAI's completions and chat protocols: contents of responses."""

import time
import uuid
from collections.abc import Callable
from typing import NamedTuple

from diffeq_former.inference import logprobs
from diffeq_former.inference.logprobs import ScoredText
from diffeq_former.inference.protocol import Completion, RequestError


class Format(NamedTuple):
    """Format of the responses to one kind of request."""

    id_prefix: str
    whole: str  # the object that a response is
    event: str  # the object that an event of a stream is
    text: Callable[[str], dict]  # the fields that hold the text of a choice
    new_text: Callable[[str, bool], dict]  # those of new text; whether it is the first
    logprobs: Callable[[list[ScoredText]], dict]  # the field `logprobs` of a choice


def _delta(text: str, is_first: bool) -> dict:
    role = {"role": "assistant"} if is_first else {}
    return {"delta": role | {"content": text}}


COMPLETION = Format(
    "cmpl",
    "text_completion",
    "text_completion",
    lambda text: {"text": text},
    lambda text, is_first: {"text": text},
    logprobs.for_completion,
)
CHAT = Format(
    "chatcmpl",
    "chat.completion",
    "chat.completion.chunk",
    lambda text: {"message": {"role": "assistant", "content": text}},
    _delta,
    logprobs.for_chat,
)


def model(name: str) -> dict:
    """Return the response to /v1/models/NAME."""
    return {"id": name, "object": "model", "created": 0, "owned_by": "diffeq_former"}


def models(name: str) -> dict:
    """Return the response to /v1/models."""
    return {"object": "list", "data": [model(name)]}


def answer(model: str, form: Format, stream: bool) -> dict:
    """Return the fields that all events of one response share."""
    return {
        "id": f"{form.id_prefix}-{uuid.uuid4().hex}",
        "object": form.event if stream else form.whole,
        "created": int(time.time()),
        "model": model,
    }


def choice(
    index: int, text: dict, finish_reason: str | None, logprobs: dict | None
) -> dict:
    """Return an entry of the field `choices`; `text` are the fields that hold it."""
    return {
        "index": index,
        **text,
        "logprobs": logprobs,
        "finish_reason": finish_reason,
    }


def usage(completion: Completion, num_new: int) -> dict:
    """Return the field `usage`: numbers of tokens that were read and generated."""
    prompt = completion.num_prompt_tokens
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
