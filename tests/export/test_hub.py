"""An export on the hub: its card's metadata as huggingface_hub reads it, and an upload to a server with its API."""

import base64
import json
import os
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from diffrl.config.load import load_config
from diffrl.errors import ConfigError, NotHereError
from diffrl.export.hub import front_matter, require_repository
from tests.training.harness import settings, start

ROOT = Path(__file__).parents[2]
LORA = {"rank": 2, "alpha": 2}


class Hub(BaseHTTPRequestHandler):
    """The part of the hub's API that an upload asks for: who, a new repository, how each file goes, one commit."""

    def log_message(self, *arguments):
        pass

    def answer(self, value, code=200):
        body = json.dumps(value).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def handle_any(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        state = self.server.state
        if self.headers.get("Authorization") != "Bearer hf_good":
            return self.answer({"error": "Invalid username or password."}, 401)
        if self.path == "/api/whoami-v2":
            return self.answer({"name": "ada", "type": "user"})
        if self.path == "/api/repos/create":
            state["created"] = json.loads(body)
            return self.answer({"url": f"{state['address']}/ada/aligned", "id": "1"})
        if self.path == "/api/validate-yaml":
            return self.answer({"errors": [], "warnings": []})
        if "/preupload/" in self.path:
            names = [file["path"] for file in json.loads(body)["files"]]
            modes = [{"path": name, "uploadMode": "regular", "shouldIgnore": False, "oid": None} for name in names]
            return self.answer({"files": modes})
        if "/commit/" in self.path:
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    state["files"][line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            return self.answer({"commitUrl": f"{state['address']}/ada/aligned/commit/1", "commitOid": "1" * 40})
        return self.answer({"id": "ada/aligned", "sha": "1" * 40, "siblings": []})

    do_GET = do_POST = do_HEAD = handle_any  # noqa: N815 - names of the base class


@pytest.fixture
def hub():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.state = {"files": {}, "address": f"http://127.0.0.1:{server.server_port}"}
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.state
    server.shutdown()


PROGRAM = """
import json, os, sys
from diffrl.cli import main
for token, *words in json.loads(sys.argv[1]):
    os.environ["HF_TOKEN"] = token
    try:
        main(["export", *words])
    except SystemExit as end:
        print("code", end.code or 0)
"""


def exports(hub, *commands):
    """Commands, each with a token, in a process of their own: huggingface_hub reads its address when it is imported."""
    environment = os.environ | {"HF_ENDPOINT": hub["address"], "PYTHONPATH": str(ROOT)}
    environment |= {"HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
    told = json.dumps([[str(word) for word in command] for command in commands])
    program = [sys.executable, "-c", PROGRAM, told]
    return subprocess.run(program, capture_output=True, text=True, env=environment, timeout=600)


@pytest.mark.long
def test_an_export_is_uploaded_whole(random_sd3, tmp_path, hub):
    model = {"family": "sd3", "path": str(random_sd3), "device": "cpu", "lora": LORA}
    run, _ = start(settings(random_sd3, tmp_path, model=model), drawn=True)
    done = exports(
        hub,
        ("hf_bad", run, "--out", tmp_path / "a", "--push", "ada/aligned"),
        ("hf_good", run, "--out", tmp_path / "b", "--push", "ada/aligned", "--private"),
    )
    assert re.findall(r"^code (\d)", done.stdout, re.M) == ["2", "0"], done.stderr
    assert "hf auth login" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "a").exists(), "asked before anything is loaded"
    assert f"Pushed to {hub['address']}/ada/aligned." in done.stdout
    assert hub["created"].get("visibility") == "private" or hub["created"]["private"]  # as older versions say it
    here = {path.name: path.read_bytes() for path in (tmp_path / "b").iterdir()}
    assert hub["files"] == here and {"README.md", "pytorch_lora_weights.safetensors", "before_after.png"} <= set(here)
    assert "](before_after.png)" in ModelCard.load(tmp_path / "b/README.md").text


@pytest.mark.parametrize(
    ("recipe", "overrides", "expected"),
    [
        (
            "flux/flow_grpo",
            [],
            {
                "base_model": "black-forest-labs/FLUX.1-dev",
                "base_model_relation": "adapter",
                "license": "other",
                "license_name": "flux.1-dev-non-commercial-license",
                "license_link": "https://huggingface.co/black-forest-labs/FLUX.1-dev",
                "pipeline_tag": "text-to-image",
                "tags": ["diffrl", "reinforcement-learning", "lora"],
            },
        ),
        (
            "wan/flow_grpo",
            ["model.lora=null"],
            {"license": "apache-2.0", "pipeline_tag": "text-to-video", "base_model_relation": "finetune"},
        ),
        ("tiny-sd3/flow_grpo", ["model.path=/data/mine"], {"base_model": None, "license": None}),
    ],
)
def test_the_cards_metadata(recipe, overrides, expected):
    text = front_matter(load_config(ROOT / f"configs/{recipe}.yaml", overrides))
    data = ModelCard(f"---\n{text}\n---\n").data
    assert {name: data.get(name) for name in expected} == expected and data.library_name == "diffusers"
    text = front_matter(load_config(ROOT / f"configs/{recipe}.yaml", overrides), quantised=True)
    data = ModelCard(f"---\n{text}\n---\n").data
    assert data.base_model_relation == "quantized" and data.tags[-1] == "modelopt"


def test_what_cannot_be_pushed_to_is_refused():
    with pytest.raises(ConfigError, match="OWNER/NAME"):
        require_repository("aligned")
    with pytest.raises(NotHereError, match="leave --push out"):
        require_repository("ada/aligned")  # nobody may ask the hub here
