"""The model card of an export, and its upload to a hub that runs in the test."""

import base64
import http.server
import json
import re
import threading

import huggingface_hub
import pytest
import yaml
from hf_fixtures import FIXTURES, run_of

import diffeq_former
from diffeq_former.conversion import hub, model_card
from diffeq_former.conversion.diffeq_former_hf import OWN
from diffeq_former.errors import UserError

OUT = "export_hf.py"


class Hub(http.server.BaseHTTPRequestHandler):
    """The requests of an upload: a repository, the kinds of its files, a commit."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        state = self.server.state
        if self.headers.get("Authorization") != "Bearer hf_right":
            return self._answer(401, {"error": "Invalid username or password."})
        if self.path == "/api/validate-yaml":
            state["validated"] = json.loads(body)["content"]
            return self._answer(200, {"errors": [], "warnings": []})
        if self.path == "/api/repos/create":
            return self._answer(200, {"url": f"{state['endpoint']}/me/small"})
        if self.path == "/api/models/me/small/preupload/main":
            paths = [file["path"] for file in json.loads(body)["files"]]
            kind = {"uploadMode": "regular", "shouldIgnore": False, "oid": None}
            return self._answer(200, {"files": [{"path": x, **kind} for x in paths]})
        assert self.path == "/api/models/me/small/commit/main"
        for line in map(json.loads, body.splitlines()):
            if line["key"] == "file":
                content = base64.b64decode(line["value"]["content"])
                state["files"][line["value"]["path"]] = content
        url = f"{state['endpoint']}/me/small/commit/{'a' * 40}"
        self._answer(200, {"commitUrl": url, "commitOid": "a" * 40})

    def _answer(self, code, content):
        self.send_response(code)
        self.end_headers()
        self.wfile.write(json.dumps(content).encode())

    def log_message(self, *args):
        pass


@pytest.fixture
def fake_hub(monkeypatch):
    """The requests that it received; huggingface_hub uses it, with its token."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        endpoint = f"http://127.0.0.1:{server.server_port}"
        server.state = {"endpoint": endpoint, "files": {}}
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", endpoint)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setenv("HF_TOKEN", "hf_right")
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.state
        server.shutdown()
        thread.join()


def test_an_export_is_uploaded_with_its_card(
    tool, trained, fake_hub, tmp_path, monkeypatch
):
    out = tmp_path / "small"
    flags = (f"--workdir={trained.workdir}", f"--output={out}", "--license=mit")
    result = tool(OUT, *flags, "--push_to_hub=me/small")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["url"].endswith("/me/small/commit/" + "a" * 40)
    files = {path.name: path.read_bytes() for path in out.iterdir()}
    assert fake_hub["files"] == files
    assert fake_hub["validated"] == files["README.md"].decode()

    card = huggingface_hub.ModelCard.load(out / "README.md")
    assert card.data.license == "mit"
    assert card.data.library_name == "transformers"
    assert card.data.datasets is None
    records = (trained.workdir / "metrics.jsonl").read_text().splitlines()
    [last] = [x for x in map(json.loads, records) if "validation/loss" in x]
    found = {x.metric_type: x.metric_value for x in card.data.eval_results}
    names = ("loss", "perplexity", "bits_per_byte")
    assert found == {name: last[f"validation/{name}"] for name in names}

    [start] = (trained.workdir / "provenance.jsonl").read_text().splitlines()
    start = json.loads(start)
    for value in (start["versions"]["jax"], start["commit"], start["data_sha256"]):
        assert str(value) in card.text
    assert "trust_remote_code=True" in card.text
    assert f'"small", num_steps={2 * trained.run.config.model.num_layers}' in card.text
    assert f"{last['validation/perplexity']:.4g}" in card.text
    _, depth = re.findall(r"```python\n(.*?)```", card.text, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(depth.replace("=50", "=4"), "README.md", "exec"), {})
    for place in (trained.dataset.path, trained.workdir, tmp_path):
        assert str(place) not in card.text


def test_metrics_of_other_depths_are_no_results_of_the_export(tool, trained, tmp_path):
    flags = (f"--workdir={trained.workdir}", f"--output={tmp_path / 'out'}")
    assert tool(OUT, *flags, "--num_steps=5").returncode == 0
    header = (tmp_path / "out/README.md").read_text().split("---\n")[1]
    assert not {"model-index", "license"} & yaml.safe_load(header).keys()
    assert "in the 2 steps of training" in (tmp_path / "out/README.md").read_text()


@pytest.mark.parametrize(
    "source, name",
    [
        ("hf:Skylion007/openwebtext", "Skylion007/openwebtext"),
        ("hf:dlwh/wikitext_103_detokenized:raw@validation", "dlwh/wikitext_103_det"),
        ("hf:a/b/c", None),
        ("hf:../texts", None),
        ("tfds:lm1b", None),
        ("text:books/*.txt", None),
    ],
)
def test_datasets_of_the_hub_are_named(source, name):
    found = model_card.hub_dataset(source)
    assert found is None if name is None else found.startswith(name)


def test_all_sources_of_a_mixture_are_named(trained, tmp_path):
    for path in trained.workdir.iterdir():
        (tmp_path / path.name).symlink_to(path)
    manifest = json.loads((tmp_path / "dataset.json").read_text())
    sources = [manifest | {"source": x} for x in ("hf:a/b", "hf:c", "tfds:lm1b")]
    (tmp_path / "dataset.json").unlink()
    (tmp_path / "dataset.json").write_text(json.dumps(manifest | {"sources": sources}))
    card = model_card.render(diffeq_former.load(tmp_path), OWN, "small", None)
    found = huggingface_hub.ModelCard(card)
    assert found.data.datasets == ["a/b", "c"]
    assert "| data | `hf:a/b`, `hf:c`, `tfds:lm1b` |" in found.text


def test_a_folder_is_no_dataset_of_the_hub(tmp_path, monkeypatch):
    (tmp_path / "my/texts").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert model_card.hub_dataset("hf:my/texts") is None


def test_what_the_hub_refuses_leaves_the_export(
    tool, trained, fake_hub, tmp_path, monkeypatch
):
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    out = tmp_path / "small"
    flags = (f"--workdir={trained.workdir}", f"--output={out}")
    result = tool(OUT, *flags, "--push_to_hub=me/small")
    assert (result.returncode, result.stdout) == (2, "")
    line = result.stderr.splitlines()[-1]
    assert line.startswith(f"error: {out} is complete but was not uploaded to me/small")
    assert line.endswith(
        f"log in with `hf auth login`, then run `hf upload me/small {out}`"
    )
    assert (out / "model.safetensors").exists() and not fake_hub["files"]


@pytest.mark.parametrize(
    "constant, value, reason",
    [
        ("HF_HUB_OFFLINE", True, "offline mode is enabled"),
        ("ENDPOINT", "http://127.0.0.1:9", "Connection refused"),
    ],
)
def test_without_a_connection(tmp_path, fake_hub, monkeypatch, constant, value, reason):
    monkeypatch.setattr(huggingface_hub.constants, constant, value)
    with pytest.raises(UserError, match=rf"^{tmp_path} is complete.*{reason}"):
        hub.push(tmp_path, "me/small")


def test_without_a_token(tmp_path, fake_hub, monkeypatch):
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", tmp_path / "none")
    with pytest.raises(UserError, match=r"was not uploaded to me/small \(.*401"):
        hub.push(tmp_path, "me/small")


@pytest.mark.parametrize(
    "flag, message",
    [
        ("--push_to_hub=me/my small", "the hub has no names like 'me/my small'"),
        ("--push_to_hub=", "the hub has no names like ''"),
        ("--license=MIT License", "license=MIT License: expected an identifier of the"),
    ],
)
def test_mistakes_are_seen_before_anything_is_written(
    refused, trained, tmp_path, flag, message
):
    flags = (f"--workdir={trained.workdir}", f"--output={tmp_path / 'out'}")
    assert refused(OUT, *flags, flag).startswith(message)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("line", ["{}\n", '{"modified": false, "versions": 1}\n'])
def test_damaged_provenance_is_one_line(trained, tmp_path, line):
    (tmp_path / "run").mkdir()
    for path in trained.workdir.iterdir():
        (tmp_path / "run" / path.name).symlink_to(path)
    (tmp_path / "run/provenance.jsonl").unlink()
    (tmp_path / "run/provenance.jsonl").write_text(line)
    run = diffeq_former.load(tmp_path / "run")
    with pytest.raises(UserError, match="provenance.jsonl is damaged: .*; remove it"):
        run.export(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_exported(trained, tmp_path):
    run = diffeq_former.load(FIXTURES / "llama")
    with pytest.raises(UserError, match="is a Hugging Face model, not a run: import"):
        run.export(tmp_path / "out")
    run = diffeq_former.load(trained.workdir, solver="heun")
    with pytest.raises(UserError, match="solver heun has no Hugging"):
        run.export(tmp_path / "out")
    run = diffeq_former.load(trained.workdir)
    with pytest.raises(UserError, match="dtype=int8: expected one of float32, bfloat1"):
        run.export(tmp_path / "out", dtype="int8")


def test_stored_layers_are_exported_in_other_steps(tmp_path):
    """Each in two steps, by Lie and Trotter's splitting, as the run computes them."""
    run_of(tmp_path / "run", {})
    run = diffeq_former.load(tmp_path / "run", num_steps=6)
    exported = run.export(tmp_path / "out")
    assert (exported.architecture.class_name, exported.num_layers) == (
        "GPT2LMHeadModel",
        6,
    )
    assert exported.difference < 1e-5
    card = huggingface_hub.ModelCard.load(tmp_path / "out/README.md")
    assert card.data.eval_results is None and "## Training" not in card.text
