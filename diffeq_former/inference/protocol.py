"""OpenAI's completions and chat protocols: parsing of requests.

https://platform.openai.com/docs/api-reference/completions
https://platform.openai.com/docs/api-reference/chat
"""

import dataclasses
import secrets
from typing import Annotated, Literal, TypeVar

import pydantic
from pydantic import Field

from diffeq_former.data.tokenizers import Tokenizer
from diffeq_former.errors import UserError
from diffeq_former.inference.chat_template import ChatTemplate
from diffeq_former.inference.prompts import (
    Prompt,
    encode_bounded,
    is_ids,
    read_prompt,
)
from diffeq_former.inference.sampling import Sampling
from diffeq_former.inference.scores import MOST_LIKELY

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


class StreamOptions(pydantic.BaseModel, extra="forbid", strict=True):
    include_usage: bool = False  # whether the stream ends with token counts


# Unsupported fields, with the values that have no effect and are therefore accepted.
_UNSUPPORTED = {
    "best_of": 1,
    "logit_bias": {},
    "response_format": {"type": "text"},
    "suffix": "",
    "tools": [],
}


class Request(
    pydantic.BaseModel, extra="forbid", strict=True, allow_inf_nan=False, frozen=True
):
    """The fields that all requests have. One that is null has its default value."""

    model: str | None = None
    temperature: float = Field(1.0, ge=0, le=100)
    top_k: int = Field(0, ge=0, lt=2**31)
    top_p: float = Field(1.0, gt=0, le=1)
    min_p: float = Field(0.0, ge=0, le=1)
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    n: int = Field(1, ge=1, le=MOST_CHOICES)  # number of choices per prompt
    stop: list[Annotated[str, Field(min_length=1)]] = []  # in the request also only one
    stop_token_ids: list[int] = []  # a text ends before any of them
    seed: int = Field(  # choice i is sampled with seed + i
        default_factory=lambda: secrets.randbits(32), ge=-(2**63), lt=2**63
    )
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    user: str | None = None

    @property
    def sampling(self) -> Sampling:
        names = (field.name for field in dataclasses.fields(Sampling))
        return Sampling(**{name: getattr(self, name) for name in names})

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

    @pydantic.field_validator("stop", mode="before")
    @classmethod
    def _as_list(cls, stop):
        return [stop] if isinstance(stop, str) else stop


class Completion(Request):
    """A request for completions."""

    parse_special: bool = False  # read special tokens in texts as tokens
    prompt: list[Prompt]  # in the request, one or several texts or id lists
    max_tokens: int = Field(16, ge=0, lt=2**31)
    echo: bool = False  # whether the texts begin with their prompts
    # The number of most likely tokens with log-probabilities; None: no such values.
    logprobs: int | None = Field(None, ge=0, le=MOST_LIKELY)

    @property
    def num_prompt_tokens(self) -> int:
        return sum(len(prompt.ids) for prompt in self.prompt)

    @pydantic.field_validator("prompt", mode="before")
    @classmethod
    def _encode(cls, prompt, info: pydantic.ValidationInfo):
        """Return the token ids that the model reads for each prompt."""
        prompts = [prompt] if isinstance(prompt, str) or is_ids(prompt) else prompt
        if not isinstance(prompts, list) or not prompts:
            raise UserError(
                "expected a string, a list of strings, a list of token ids, or a list"
                " of such lists"
            )
        if len(prompts) > MOST_CHOICES:
            raise UserError(f"expected at most {MOST_CHOICES} prompts")
        tokenizer, max_len, special_tokens = info.context
        if not info.data.get("parse_special"):
            special_tokens = None
        return [read_prompt(x, tokenizer, max_len, special_tokens) for x in prompts]


class TextPart(pydantic.BaseModel, extra="forbid", strict=True):
    """A part of the content of a message."""

    type: Literal["text"]
    text: str


class Message(pydantic.BaseModel, extra="forbid", strict=True):
    """A message of a chat."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str  # in the request also a list of text parts, which are concatenated

    @pydantic.field_validator("content", mode="before")
    @classmethod
    def _join(cls, content):
        if not isinstance(content, list):
            return content
        try:
            return "".join(TextPart.model_validate(part).text for part in content)
        except pydantic.ValidationError as error:
            raise UserError(
                'expected a string, or a list of parts {"type": "text", "text": "..."}'
            ) from error


class Chat(Request):
    """A request for replies in a chat."""

    messages: list[Message] = Field(min_length=1)
    # None: as many as there is room for.
    max_tokens: int | None = Field(
        None,
        ge=1,
        lt=2**31,
        validation_alias=pydantic.AliasChoices("max_tokens", "max_completion_tokens"),
    )
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=MOST_LIKELY)


RequestT = TypeVar("RequestT", bound=Request)


class Parser:
    """Parses the bodies of requests to one model.

    Args:
      model: The name of the model.
      tokenizer: The model's tokenizer.
      template: The tokenizer's chat template.
      max_len: The most tokens that a prompt may have, those before a text included.
    """

    def __init__(
        self, model: str, tokenizer: Tokenizer, template: ChatTemplate, max_len: int
    ):
        self._model, self._template, self._max_len = model, template, max_len
        self._context = (tokenizer, max_len, template.special_tokens)

    def completion(self, body: bytes | bytearray) -> Completion:
        """Parse a request for completions.

        Raises:
          RequestError: If the request is invalid; names the field at fault.
        """
        completion = self._validate(Completion, body)
        if completion.n * len(completion.prompt) > MOST_CHOICES:
            raise RequestError(
                f"n: expected at most {MOST_CHOICES} choices in all, got"
                f" {completion.n} for each of {len(completion.prompt)} prompts",
                "n",
            )
        if not completion.max_tokens and not completion.echo:
            raise RequestError(
                "max_tokens: expected 1 or more, or 0 with echo=true", "max_tokens"
            )
        return completion

    def chat(self, body: bytes | bytearray) -> Completion:
        """Parse a request for replies: for completions of the chat as a text.

        Raises:
          RequestError: If the request is invalid; names the field at fault.
        """
        chat, max_len = self._validate(Chat, body), self._max_len
        if chat.top_logprobs and not chat.logprobs:
            raise RequestError("top_logprobs: expected logprobs=true", "top_logprobs")
        try:
            text = self._template.render([m.model_dump() for m in chat.messages])
            ids = encode_bounded(self._template.encode_rendered, text, [], max_len)
        except UserError as error:
            raise RequestError(f"messages: {error}", "messages") from error
        room = max_len + 1 - len(ids)  # the last token is not read
        shared = {name: getattr(chat, name) for name in Request.model_fields}
        return Completion.model_construct(
            **shared,
            prompt=[Prompt(ids, 0)],
            max_tokens=chat.max_tokens or room,
            logprobs=chat.top_logprobs if chat.logprobs else None,
        )

    def _validate(self, kind: type[RequestT], body: bytes | bytearray) -> RequestT:
        try:
            request = kind.model_validate_json(body, context=self._context)
        except pydantic.ValidationError as error:
            raise _as_request_error(error.errors(include_input=False)[0]) from error
        if request.model not in (None, self._model):
            raise unknown_model(request.model, self._model)
        return request


def unknown_model(name: str, expected: str) -> RequestError:
    """Return the response to a request for a model that is not served."""
    message = f"model: expected {expected!r}, got {name!r}"
    return RequestError(message, "model", 404, "model_not_found")


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
