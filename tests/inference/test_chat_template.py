"""Token ids of chats, by hand, and as the transformers library renders templates."""

import json

import pytest

from diffeq_former.data.tokenizers import (
    ByteTokenizer,
    HFTokenizer,
    SentencePieceTokenizer,
    load_saved,
)
from diffeq_former.errors import UserError
from diffeq_former.inference.chat_template import ChatTemplate

CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "naïve <|im_end|><|im_end |> "},
    {"role": "assistant", "content": "yes"},
    {"role": "user", "content": ""},
]


def user(content):
    return [{"role": "user", "content": content}]


def test_special_tokens_are_tokens_only_in_the_template(chat_tokenizer, chat_template):
    begin, start, end = 256, 257, 258

    def message(role, content):
        return [start, *f"{role}\n{content}".encode(), end, *b"\n"]

    ids = chat_template.encode(CHAT)
    assert chat_tokenizer.decode(ids) == chat_tokenizer.decode(
        [
            begin,
            *message("system", "Be brief."),
            *message("user", "naïve <|im_end|><|im_end |>"),
            *message("assistant", "yes"),
            *message("user", ""),
            start,
            *b"assistant\n",
        ]
    )
    assert [i for i in ids if i >= 256] == [begin, *[start, end] * 4, start]
    assert ids[0] == begin and ids.count(begin) == 1


def test_contents_cannot_write_special_tokens(chat_tokenizer, chat_template):
    """Nor with the character that marks them, at both ends of another."""
    attempts = ["<|im_end|>", "\ufdd0<|im_end|>", "<|im_\ufdd0end|>", "\ufdd0"]
    source = "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}"
    template = ChatTemplate(source, {}, chat_tokenizer)
    for first in attempts:
        for second in attempts:
            ids = template.encode(user(first) + user(second))
            assert [i for i in ids if i >= 256] == [258, 258]


def test_special_tokens_that_are_words_too():
    """All words are in the vocabulary, in which special tokens are."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    backend = Tokenizer(models.WordLevel({"</s>": 0, "a": 1, "?": 2}, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens(["</s>", "?"])
    tokenizer = HFTokenizer(backend.to_str().encode())
    template = ChatTemplate("{{ messages[0].content }}</s>", {}, tokenizer)
    assert template.encode(user("a b")) == [1, 2, 0]
    with pytest.raises(UserError) as raised:
        template.encode(user("a </s> a"))
    assert str(raised.value) == "this tokenizer cannot read </s> as text; leave it out"


def test_ids_as_transformers_makes_them(chat_folder, chat_template):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(chat_folder)
    plain = [m | {"content": m["content"].replace("|", "")} for m in CHAT]
    for chat, options in ((plain, {}), (CHAT, {"sanitize_control_tokens": True})):
        expected = theirs.apply_chat_template(
            chat, add_generation_prompt=True, return_dict=False, **options
        )
        assert chat_template.encode(chat) == expected


# A template that uses all that templates may use, and a name that is not defined.
RICH = """{%- set space = namespace(count=0) -%}
{% for m in messages %}
    {% if loop.index > 2 %}{% break %}{% endif %}
    {% set space.count = space.count + 1 %}
<|im_start|>{{ m["role"] }} {{ space.count }}{{ unk_token }}
{% generation %}
{{ m.content | tojson(indent=2) }}{{ eos_token }}
{% endgeneration %}
{% endfor %}
{{ strftime_now("%Y") | length }} {{ tools is none }} {{ documents }}
"""


def test_a_rich_template_as_transformers_renders_it(chat_folder, chat_tokenizer):
    transformers = pytest.importorskip("transformers")
    special = {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"}
    chat = user("<b> é") * 3
    ours = ChatTemplate(RICH, special, chat_tokenizer).render(chat)
    theirs = transformers.AutoTokenizer.from_pretrained(chat_folder)
    assert ours == theirs.apply_chat_template(
        chat, chat_template=RICH, add_generation_prompt=True, tokenize=False
    )
    assert "<b> é" in ours and "user 3" not in ours and "4 True None" in ours


@pytest.mark.parametrize(
    ("in_config", "in_file", "expected"),
    [
        ("config", None, "config"),
        ("config", "file", "file"),
        (None, "file", "file"),
        (
            [
                {"name": "tool_use", "template": "tools"},
                {"name": "default", "template": "default"},
            ],
            None,
            "default",
        ),
    ],
)
def test_where_a_template_is(tmp_path, in_config, in_file, expected):
    config = {"chat_template": in_config} if in_config else {}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    if in_file:
        (tmp_path / "chat_template.jinja").write_text(in_file)
    template = ChatTemplate.read(tmp_path, ByteTokenizer())
    assert template.encode(user("hi")) == list(expected.encode())


def test_a_tokenizer_without_a_template(tmp_path):
    with pytest.raises(UserError) as raised:
        ChatTemplate.read(tmp_path, ByteTokenizer()).encode(user("hi"))
    assert str(raised.value) == (
        "this model has no chat template; complete a text instead, or write a template"
        " to chat_template.jinja in the tokenizer folder of the run"
    )


def test_a_template_that_is_not_valid(tmp_path):
    (tmp_path / "chat_template.jinja").write_text("{% if %}")
    with pytest.raises(UserError) as raised:
        ChatTemplate.read(tmp_path, ByteTokenizer())
    start = f"{tmp_path}: the chat template is not valid: "
    assert str(raised.value).startswith(start)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (
            "{{ raise_exception('no\nuser') }}",
            "the chat template rejects them: no user",
        ),
        ("{{ messages[0].content + 1 }}", "template rejects them: can only"),
        ("{{ messages.append(1) }}", "rejects them: access to attribute 'append'"),
        ("{{ ''.__class__.__mro__ }}", "rejects them: access to attribute '__class__'"),
        ("{{ '' }}", "the chat template makes no text of them"),
    ],
)
def test_templates_that_fail(source, words):
    with pytest.raises(UserError) as raised:
        ChatTemplate(source, {}, ByteTokenizer()).encode(user("hi"))
    assert words in str(raised.value)


def test_control_pieces_of_sentencepiece(tmp_path):
    sentencepiece = pytest.importorskip("sentencepiece")
    (tmp_path / "text").write_text("the list of the class is a list of class the\n" * 9)
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / "text"),
        model_prefix=str(tmp_path / "sentencepiece"),
        vocab_size=30,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    assert (tmp_path / SentencePieceTokenizer.FILE).is_file()
    tokenizer = load_saved(tmp_path)
    source = "<s>{{ messages[0].content }}</s>"
    ids = ChatTemplate(source, {}, tokenizer).encode(user("the </s> list"))
    text = [tokenizer.encode(part) for part in ("the ", "</s>", " list")]
    assert ids == [1, *text[0], *text[1], *text[2], 2]
