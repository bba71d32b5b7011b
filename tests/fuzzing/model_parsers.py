"""The parsers of published models and of the hub's answers, as functions of bytes."""

import contextlib
import json
import os
from collections.abc import Callable, Iterator

import httpx2
import safetensors.torch
import torch
from fuzzing.base import joined, parts, placed, slow_parser
from huggingface_hub.utils._http import default_client_factory

from p2pswarm.base.errors import BadMessage, Unusable
from p2pswarm.data.hub import ENDPOINT, Pinned, file_bytes, library, ranged
from p2pswarm.models.compute.inference import load_model
from p2pswarm.models.library.weight_files import INDEX, ONE_FILE, FolderFiles
from p2pswarm.models.model_source import CONFIG_FILE, _of_config
from p2pswarm.settings.config import ModelConfig, RunConfig
from p2pswarm.settings.parser import run_to_json, stored_run

HUB, MODEL, FILE = "http://hub.invalid", Pinned("owner/model", "0" * 40), "weights"
INSTEAD = "put it into a folder"
PART = "part.safetensors"


def _read_all(files: FolderFiles) -> None:
    places = files.places()
    for file in set(places.values()):
        names = [name for name, where in places.items() if where == file]
        files.shapes(file, names)
        for _, tensor in files.tensors(file, names):
            assert tensor.dtype


@slow_parser
def safetensors_file(data: bytes) -> None:
    """A file of a published model, by the library."""
    with contextlib.suppress(Unusable):
        _read_all(FolderFiles(placed(f"whole/{ONE_FILE}", data).parent))


@slow_parser
def weights_index(data: bytes) -> None:
    """The index of a model in parts."""
    placed(f"parts/{PART}", _tensors())
    with contextlib.suppress(Unusable):
        _read_all(FolderFiles(placed(f"parts/{INDEX}", data).parent))


@slow_parser
def run_weights(data: bytes) -> None:
    """The run in a file of weights; the file has few tensors, whatever its run says."""
    about = {"run": data.decode(errors="replace")}
    whole = safetensors.torch.save({"w": torch.zeros(2)}, metadata=about)
    with contextlib.suppress(Unusable):
        load_model(placed("run.safetensors", whole))


@slow_parser
def stored_settings(data: bytes) -> None:
    """The run of a checkpoint or a file of weights, of any version that is read."""
    with contextlib.suppress(BadMessage):
        stored_run(data)


@slow_parser
def model_config(data: bytes) -> None:
    """The config.json of a published model, and its class in transformers."""
    with contextlib.suppress(Unusable):
        found = _of_config(ModelConfig(family="hf"), placed(CONFIG_FILE, data))
        assert found.layers > 0


@slow_parser
def hub_answer(data: bytes) -> None:
    """Answers of a hub: the status, the headers a line each, the body; a part each."""
    status, headers, body, *_ = [*parts(data), b"", b"", b""]
    pairs = [line.partition(b":")[::2] for line in headers.split(b"\n") if b":" in line]

    code = 200 + int.from_bytes(status[:2], "little") % 400

    def answer(request: httpx2.Request) -> httpx2.Response:
        if MODEL.name not in request.url.path:  # the library asks for more, once a process
            return httpx2.Response(404)
        return httpx2.Response(code, headers=pairs, content=body)

    with _hub_of(answer):
        with contextlib.suppress(Unusable):
            file_bytes(MODEL, FILE, INSTEAD)
        with contextlib.suppress(Unusable):
            assert b"".join(ranged(MODEL, FILE, (2, 6), INSTEAD, pauses_s=())) == body


@contextlib.contextmanager
def _hub_of(answer: Callable[[httpx2.Request], httpx2.Response]) -> Iterator[None]:
    """In the block the library asks `answer`; afterwards it has its own client again."""
    hub, before = library().utils, os.environ.get(ENDPOINT)
    os.environ[ENDPOINT] = HUB
    hub.set_client_factory(lambda: httpx2.Client(transport=httpx2.MockTransport(answer)))
    try:
        yield
    finally:
        hub.set_client_factory(default_client_factory)
        os.environ.pop(ENDPOINT)
        if before is not None:
            os.environ[ENDPOINT] = before


def _tensors() -> bytes:
    values = torch.arange(4, dtype=torch.float32).reshape(2, 2)
    return bytes(safetensors.torch.save({"w": values, "b": values[0].bfloat16()}))


TINY = {
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "vocab_size": 300,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
    "id2label": {"0": "a"},
    "torch_dtype": "float32",
    "eos_token_id": [1, 2],
}
GPT2 = {"model_type": "gpt2", "n_layer": 2, "n_embd": 8, "n_head": 2, "vocab_size": 256}
MODEL_SEEDS = {
    "safetensors_file": lambda: [_tensors()],
    "weights_index": lambda: [
        json.dumps({"metadata": {"total_size": 20}, "weight_map": {"w": PART, "b": PART}}).encode()
    ],
    "run_weights": lambda: [run_to_json(RunConfig()), run_to_json(RunConfig(), 6)],
    "stored_settings": lambda: [run_to_json(RunConfig(), version) for version in (7, 6, 5)],
    "model_config": lambda: [json.dumps(TINY).encode(), json.dumps(GPT2).encode()],
    "hub_answer": lambda: [
        joined(
            (6).to_bytes(2, "little"),
            b"X-Repo-Commit: " + b"0" * 40 + b"\nContent-Range: bytes 2-5/10\nX-Linked-Size: 10",
            b"2345",
        ),
        joined((0).to_bytes(2, "little"), b"Content-Length: 7\nETag: abc", b"7 bytes"),
        joined((204).to_bytes(2, "little"), b"X-Error-Code: RepoNotFound", b'{"error":"no"}'),
        joined((102).to_bytes(2, "little"), b"Location: http://other.invalid/x", b""),
    ],
}
