"""What each server downloads of a model on the hub, beside the bytes of its own stage.

    python bench/hub_download.py [--stages 3] [--d-model 512] [--layers 12] [--parts 0] [--steps 2]

A hub on this host (tests/local_hub.py) has a Llama in bfloat16. A trainer names it, and a server of
each stage fine-tunes it, all as processes of the real command line; each asks the hub under an
address of its own, so the hub can tell who has downloaded how much. The last column is 1 for a
server that downloads what it serves and not a byte more; 1.02 is asked.
"""

import argparse
import json
import os
import resource
import sys
import tempfile
from pathlib import Path

from swarm_processes import ROOT, STANDARD_LIBRARY, Nodes, Site, events

sys.path.append(str(ROOT / "tests"))

import torch
from local_hub import LocalHub, local_hub
from safetensors.torch import save

from p2pswarm.models.blocks import make_blocks, stage_blocks
from p2pswarm.models.compute.flat_parameters import named_parameters
from p2pswarm.models.library.hf_library import config_text, library_model
from p2pswarm.models.model_source import resolved
from p2pswarm.progress.events import Stepped
from p2pswarm.settings.config import ModelConfig
from p2pswarm.settings.parser import load

MODEL = "owner/llama"
ASKED_SHARE = 0.02
ITEM_BYTES = 2  # of bfloat16
PATIENCE_S = 550.0
RUN = f"""
[train]
data = {json.dumps(str(STANDARD_LIBRARY / "json"))}
suffixes = [".py"]
progress = "json"
weights = ""
[run]
name = "fine-tune"
model = "hf:{MODEL}"
start = "pretrained"
stages = STAGES
steps = STEPS
[run.batch]
microbatches = 2
rows = 1
evaluate_every = 0
"""


def publish(hub: LocalHub, options: argparse.Namespace) -> int:
    """Put a model on the hub; returns the bytes of its weights."""
    config = {
        "model_type": "llama",
        "hidden_size": options.d_model,
        "intermediate_size": options.d_model * 3,
        "num_hidden_layers": options.layers,
        "num_attention_heads": 4,
        "vocab_size": 4_096,
        "tie_word_embeddings": False,
    }
    model = ModelConfig(family="hf:llama", config=config_text(config))
    torch.manual_seed(1)
    whole = library_model(model, torch.bfloat16)
    tensors = {name: parameter.detach() for name, parameter in whole.named_parameters()}
    files = {"config.json": json.dumps(config).encode()}
    if options.parts:
        at = {n: f"part-{number % options.parts}" for number, n in enumerate(sorted(tensors))}
        for part in sorted(set(at.values())):
            files[part] = save({n: t for n, t in tensors.items() if at[n] == part})
        files["model.safetensors.index.json"] = json.dumps({"weight_map": at}).encode()
    else:
        files["model.safetensors"] = save(tensors)
    hub.publish(MODEL, files)
    return sum(tensor.numel() * ITEM_BYTES for tensor in tensors.values())


def fine_tune(hub: LocalHub, folder: Path, options: argparse.Namespace) -> Path:
    """Train on it with a server a stage; returns the trainer's settings."""
    settings = RUN.replace("STAGES", str(options.stages)).replace("STEPS", str(options.steps))
    with Nodes(Site(), folder, PATIENCE_S) as nodes:
        nodes.start_bootstrap()
        asks(hub, folder, "trainer")
        nodes.start("trainer", 0, f'{nodes.joining}role = "trainer"\n{settings}')
        for stage in range(options.stages):
            asks(hub, folder, f"stage-{stage}")
            serve = f'[serve]\nstage = {stage}\ndevice = "cpu"\npretrained = "hf:{MODEL}"\n'
            nodes.start_server(serve)
        for event in events(nodes.lines("trainer")):
            if isinstance(event, Stepped):
                print(f"  step {event.step}, {event.seconds:.1f} s", flush=True)
    return folder / "trainer.toml"


def asks(hub: LocalHub, folder: Path, who: str) -> None:
    """Whoever is started next asks the hub under that name, and has a cache of its own."""
    os.environ |= {"HF_ENDPOINT": hub.at(who), "HF_HOME": str(folder / f"cache-{who}")}


def main() -> int:
    """Fine-tune, and print who downloaded what."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name, default in (("stages", 3), ("d-model", 512), ("layers", 12), ("parts", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--steps", type=int, default=2)
    options = parser.parse_args()
    bad = 0
    with local_hub() as hub, tempfile.TemporaryDirectory() as made:
        total = publish(hub, options)
        config = fine_tune(hub, Path(made), options)
        sent, requests = hub.sent.copy(), len(hub.asked)
        asks(hub, Path(made), "bench")
        run = resolved(load(config).run)
        print(f"{total:,} bytes of weights, {options.parts or 1} file(s), {requests} requests")
        for stage in range(options.stages):
            numbers = stage_blocks(run, stage)
            with torch.device("meta"):
                named = named_parameters(numbers, make_blocks(run, numbers))
                own = sum(parameter.numel() * ITEM_BYTES for _, parameter in named)
            got = sent[f"stage-{stage}"]
            bad += not own <= got <= own * (1 + ASKED_SHARE)
            print(f"stage {stage}: own {own:>12,}  downloaded {got:>12,}  {got / own:.5f}")
        print(f"trainer: {sent['trainer']:,}, to prove what stages begin with")
    cpu = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{cpu.ru_utime + cpu.ru_stime:.0f} s of processor in all nodes")
    return bad


if __name__ == "__main__":
    sys.exit(main())
