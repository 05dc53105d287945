"""Chat templates: the token ids that a model reads for the messages of a chat.

A template is a Jinja program that comes with a tokenizer, in chat_template.jinja or in
tokenizer_config.json. It is rendered as `transformers` renders it in
`apply_chat_template(messages, add_generation_prompt=True)`.
"""

import datetime
import json
import re
from collections.abc import Mapping
from pathlib import Path

from jinja2 import Template, TemplateError
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

from diffeq_former.data import tokenizers
from diffeq_former.data.tokenizers import Tokenizer
from diffeq_former.errors import UserError
from diffeq_former.inference.special_tokens import SpecialTokens
from diffeq_former.json_io import read_object

FILE = "chat_template.jinja"
# Encloses the special tokens in contents, from which it is removed. Unicode reserves it
# for internal use.
_MARK = "\ufdd0"


class ChatTemplate:
    """The chat template of a tokenizer.

    Special tokens that the template writes are read as tokens; those in the contents of
    messages are read as text, like in a text that is completed. `special_tokens` has
    both.

    Args:
      source: The template; None: there is none, and `encode` raises an error.
      special: The texts of the tokenizer's special tokens by name, such as `bos_token`.
      tokenizer: The tokenizer.

    Raises:
      UserError: If the template is not valid.
    """

    def __init__(
        self, source: str | None, special: Mapping[str, str], tokenizer: Tokenizer
    ):
        self._tokenizer, self._special = tokenizer, dict(special)
        try:
            self._template = None if source is None else _compile(source)
        except TemplateError as error:
            raise UserError(f"the chat template is not valid: {error}") from error
        self.special_tokens = SpecialTokens.of(tokenizer)

    @classmethod
    def read(cls, folder: Path, tokenizer: Tokenizer) -> "ChatTemplate":
        """Read the template from the folder of a tokenizer.

        Raises:
          UserError: If a file is damaged.
        """
        path = folder / tokenizers.CONFIG
        config = read_object(path) if path.is_file() else {}
        source = config.get("chat_template")
        if isinstance(source, list):  # several templates, by name
            source = {x["name"]: x["template"] for x in source}.get("default")
        if (file := folder / FILE).is_file():
            source = file.read_text(encoding="utf-8")
        named = {k: x for k, x in config.items() if k.endswith("_token")}
        texts = {
            k: x["content"] if isinstance(x, dict) else x for k, x in named.items()
        }
        special = {k: x for k, x in texts.items() if isinstance(x, str)}
        try:
            return cls(source, special, tokenizer)
        except UserError as error:
            raise UserError(f"{folder}: {error}") from error

    def render(self, messages: list[dict[str, str]]) -> str:
        """Return the text of a chat, up to the beginning of the assistant's reply.

        Args:
          messages: Objects with `role` and `content`. Special tokens in contents are
            marked, for `encode_rendered`.

        Raises:
          UserError: If there is no template, or it rejects the messages.
        """
        if self._template is None:
            raise UserError(
                "this model has no chat template; complete a text instead, or write a"
                f" template to {FILE} in the tokenizer folder of the run"
            )
        marked = [m | {"content": self._mark(m["content"])} for m in messages]
        try:
            text = self._template.render(
                messages=marked,
                tools=None,
                documents=None,
                add_generation_prompt=True,
                **self._special,
            )
        except Exception as error:  # a template can raise anything
            reason = " ".join(str(error).split())
            raise UserError(f"the chat template rejects them: {reason}") from error
        if not text:
            raise UserError("the chat template makes no text of them")
        return text

    def encode_rendered(self, text: str) -> list[int]:
        """Return the token ids of a rendered text or of its beginning.

        Raises:
          UserError: If the tokenizer cannot read a marked special token as text.
        """
        parts = re.split(f"{_MARK}({self.special_tokens.pattern}){_MARK}", text)
        ids = []
        for i, part in enumerate(parts):  # every second one is a marked token
            new = (
                self._tokenizer.encode(part)
                if i % 2
                else self.special_tokens.encode(part)
            )
            if i % 2 and self.special_tokens.ids[part] in new:
                raise UserError(
                    f"this tokenizer cannot read {part} as text; leave it out"
                )
            ids += new
        return ids

    def encode(self, messages: list[dict[str, str]]) -> list[int]:
        """Return the token ids of a chat; see `render`."""
        return self.encode_rendered(self.render(messages))

    def _mark(self, content: str) -> str:
        content = content.replace(_MARK, "")
        return re.sub(self.special_tokens.pattern, rf"{_MARK}\g<0>{_MARK}", content)


def _compile(source: str) -> Template:
    """Compile a template, which may use what `transformers` offers."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols", _Generation],
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda f: datetime.datetime.now().strftime(f)
    return environment.from_string(source)


class _Generation(Extension):
    """The tag `generation`, which marks what an assistant wrote, has no effect."""

    tags = {"generation"}

    def parse(self, parser):
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str):
    raise TemplateError(message)


def _to_json(value, ensure_ascii=False, **options) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)
