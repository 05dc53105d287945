"""API keys, and web pages of other origins."""

import json
import urllib.error
import urllib.request

import pytest

KEY, ORIGIN = "a kéy", "https://example.org"


@pytest.fixture(scope="module")
def keyed(serve, chat_tokenizer, chat_template):
    options = {"api_key": KEY, "cors_origins": [ORIGIN]}
    with serve(chat_tokenizer, chat_template, **options) as served:
        yield served


def send(keyed, path, method="GET", body=None, **headers):
    """Return status, headers and contents."""
    request = urllib.request.Request(keyed.url + path, body, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=600) as response:
            return response.status, response.headers, response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read()


def authorization(text):
    return {"Authorization": text.encode().decode("latin-1")}


PATHS = {
    "/v1/models": {},
    "/v1/models/tiny": {},
    "/v1/completions": {
        "method": "POST",
        "body": b'{"prompt": "a", "max_tokens": 1}',
    },
    "/v1/chat/completions": {
        "method": "POST",
        "body": b'{"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}',
    },
}


@pytest.mark.parametrize("path", PATHS)
def test_only_those_with_the_key_are_answered(keyed, path):
    for wrong in (
        None,
        "",
        KEY,
        "Bearer",
        "Bearer a",
        f"Bearer {KEY}s",
        f"Basic {KEY}",
    ):
        headers = {} if wrong is None else authorization(wrong)
        status, headers, body = send(keyed, path, **PATHS[path], **headers)
        assert (status, headers["WWW-Authenticate"]) == (401, "Bearer")
        error = json.loads(body)["error"]
        assert error["code"] == "invalid_api_key" and "Bearer KEY" in error["message"]
    for right in (f"Bearer {KEY}", f"bearer  {KEY}"):
        status, _, body = send(keyed, path, **PATHS[path], **authorization(right))
        assert status == 200, body


def test_health_needs_no_key(keyed):
    assert send(keyed, "/health")[0] == 200


def test_web_pages_of_an_origin(keyed):
    """A browser asks first, without the key."""
    preflight = {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type",
    }
    asked = ("/v1/chat/completions", "OPTIONS")
    status, headers, _ = send(keyed, *asked, Origin=ORIGIN, **preflight)
    assert (status, headers["Access-Control-Allow-Origin"]) == (200, ORIGIN)
    assert "authorization" in headers["Access-Control-Allow-Headers"].lower()
    status, headers, _ = send(keyed, *asked, Origin="https://a.org", **preflight)
    assert (status, headers["Access-Control-Allow-Origin"]) == (400, None)
    for fields, expected in ((authorization(f"Bearer {KEY}"), 200), ({}, 401)):
        status, headers, _ = send(keyed, "/v1/models", Origin=ORIGIN, **fields)
        assert (status, headers["Access-Control-Allow-Origin"]) == (expected, ORIGIN)


def test_without_origins_web_pages_get_no_permission(served):
    _, headers, _ = send(served, "/health", Origin=ORIGIN)
    assert headers["Access-Control-Allow-Origin"] is None


def test_openai_client(serve, chat_tokenizer, chat_template):
    openai = pytest.importorskip("openai")
    with serve(chat_tokenizer, chat_template, api_key="key") as served:
        options = {"base_url": f"{served.url}/v1", "max_retries": 0}
        with openai.OpenAI(api_key="key", **options) as client:
            assert client.models.retrieve("tiny").id == "tiny"
        with openai.OpenAI(api_key="other", **options) as client:
            with pytest.raises(openai.AuthenticationError):
                client.models.retrieve("tiny")
