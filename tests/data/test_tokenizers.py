import hashlib
import json
import shutil

import pytest

from diffeq_former.data import tokenizers
from diffeq_former.errors import UserError

HARD = [
    "",
    " ",
    "\n",
    "\n\n\n",
    "  two  spaces  ",
    "\ttab\tand    indent\n        deeper\n",
    "line\r\nline\rline",
    "naïve e\u0301té",
    "日本語 😀👩‍👩‍👧 \u200b\u2028\ufeff",
    "\x00\x01\x7f",
    "<|endoftext|> </s> <s> <unk> <pad> <0x0A>",
    "\ufffd",
    "a" * 5000,
    "１２３ ﬁ ™ Å",
]


@pytest.fixture(params=tokenizers.TOKENIZERS)
def spec(request, sentencepiece_model, hf_folder):
    return {
        "byte": "byte",
        "sentencepiece": f"sentencepiece:{sentencepiece_model}",
        "hf": f"hf:{hf_folder}",
    }[request.param]


@pytest.mark.parametrize("text", HARD)
def test_round_trip(spec, text):
    tokenizer = tokenizers.load(spec)
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert all(0 <= i < tokenizer.vocab_size for i in ids)
    assert tokenizer.eot not in ids, "text must not make an end-of-text token"


def test_decodes_any_ids(spec):
    tokenizer = tokenizers.load(spec)
    assert 0 <= tokenizer.eot < tokenizer.vocab_size
    for i in range(tokenizer.vocab_size):
        assert isinstance(tokenizer.decode([i]), str)
    assert isinstance(tokenizer.decode(range(tokenizer.vocab_size)), str)


def test_saved_is_the_same(spec, tmp_path):
    tokenizer = tokenizers.load(spec)
    tokenizer.save(tmp_path / "tokenizer")
    again = tokenizers.load_saved(tmp_path / "tokenizer")
    assert again.fingerprint == tokenizer.fingerprint
    assert (again.vocab_size, again.eot) == (tokenizer.vocab_size, tokenizer.eot)
    assert [again.encode(t) for t in HARD] == [tokenizer.encode(t) for t in HARD]
    assert len(list((tmp_path / "tokenizer").iterdir())) == 1


def test_byte_tokenizer():
    tokenizer = tokenizers.load("byte")
    assert (tokenizer.vocab_size, tokenizer.eot) == (257, 256)
    assert tokenizer.encode("é\n") == [0xC3, 0xA9, 10]
    assert tokenizer.decode([65, 0xFF, 66]) == "A\ufffdB"
    assert tokenizer.fingerprint == hashlib.sha256(b"byte").hexdigest()


def test_fingerprint_is_that_of_the_file(sentencepiece_model, hf_folder):
    for spec, path in (
        (f"sentencepiece:{sentencepiece_model}", sentencepiece_model),
        (f"hf:{hf_folder}", hf_folder / "tokenizer.json"),
        (f"hf:{hf_folder}/tokenizer.json", hf_folder / "tokenizer.json"),
    ):
        expected = hashlib.sha256(path.read_bytes()).hexdigest()
        assert tokenizers.load(spec).fingerprint == expected


def test_newlines_are_one_piece(sentencepiece_model):
    tokenizer = tokenizers.load(f"sentencepiece:{sentencepiece_model}")
    assert len(tokenizer.encode("\n\n\n")) == 3


@pytest.mark.parametrize("spec", ["", "bytes", "byte:x", "sentencepiece", "hf:"])
def test_misspelt(spec):
    with pytest.raises(UserError, match="expected byte, sentencepiece:PATH or hf:PATH"):
        tokenizers.load(spec)


def test_not_a_tokenizer(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(UserError, match="not a SentencePiece model"):
        tokenizers.load(f"sentencepiece:{path}")
    with pytest.raises(UserError, match="not a tokenizer.json"):
        tokenizers.load(f"hf:{path}")
    with pytest.raises(UserError, match="cannot read .*none"):
        tokenizers.load(f"sentencepiece:{tmp_path / 'none'}")
    with pytest.raises(UserError, match="holds no tokenizer"):
        tokenizers.load_saved(tmp_path)


@pytest.mark.parametrize(
    ("template", "length"), [("$A", 0), ("<s> $A", 1), ("<s> <s> $A <s>", 2)]
)
def test_opening_is_what_a_models_own_tokenizer_puts_first(
    hf_folder, tmp_path, template, length
):
    import tokenizers as backend

    model = backend.Tokenizer.from_file(str(hf_folder / "tokenizer.json"))
    model.add_special_tokens(["<s>"])
    start = model.token_to_id("<s>")
    model.post_processor = backend.processors.TemplateProcessing(
        single=template, special_tokens=[("<s>", start)]
    )
    model.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text("{}")
    assert tokenizers.load_saved(tmp_path).opening == (start,) * length


@pytest.fixture
def nameless(tmp_path):
    """A folder with a tokenizer none of whose tokens is known to end texts."""
    import tokenizers as backend

    folder = tmp_path / "nameless"
    folder.mkdir()
    words = {"a": 0, "<stop>": 1, "<turn>": 2}
    model = backend.models.WordLevel(words, unk_token="a")
    backend.Tokenizer(model).save(str(folder / "tokenizer.json"))
    return folder


def declare(folder, token=None, ids=None):
    if token is not None:
        content = {"eos_token": token}
        (folder / "tokenizer_config.json").write_text(json.dumps(content))
    if ids is not None:
        content = {"eos_token_id": ids}
        (folder / "generation_config.json").write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("token", "ids", "ends"),
    [
        ("<stop>", None, (1,)),
        ({"content": "<stop>", "lstrip": False}, 2, (1, 2)),
        ("<unknown>", [2, 1, 7], (2, 1)),
        (None, [1], (1,)),
    ],
)
def test_ends_of_text_are_those_that_its_files_declare(
    nameless, tmp_path, token, ids, ends
):
    declare(nameless, token, ids)
    made = tokenizers.load(f"hf:{nameless}")
    assert (made.eot, made.ends) == (ends[0], ends)
    made.save(tmp_path / "kept")
    again = tokenizers.load_saved(tmp_path / "kept")
    assert (again.ends, again.before) == (ends, [ends[0]])
    assert tokenizers.load_saved(nameless).ends == ends


def test_a_declared_piece_of_sentencepiece_ends_texts(sentencepiece_model, tmp_path):
    shutil.copyfile(sentencepiece_model, tmp_path / "sentencepiece.model")
    own = tokenizers.load(f"sentencepiece:{tmp_path}")
    assert own.ends == (own.eot,) != (5,)
    declare(tmp_path, ids=[5])
    assert tokenizers.load(f"sentencepiece:{tmp_path}").ends == (5,)
    declare(tmp_path, token="<unk>")
    assert tokenizers.load(f"sentencepiece:{tmp_path}").ends == (0, 5)


def test_without_end_of_text(nameless):
    with pytest.raises(UserError, match="no end-of-text token: expected eos_token in"):
        tokenizers.load(f"hf:{nameless}")
    declare(nameless, token="<unknown>", ids="<stop>")
    with pytest.raises(UserError, match="eos_token_id: expected ids, got .'<stop>'"):
        tokenizers.load(f"hf:{nameless}")
