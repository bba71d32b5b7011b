"""Adapters and bases beside PEFT 0.21 and bitsandbytes 0.50, on tiny models of each family.

    python bench/adapters.py --json adapters.json

* gradients  every gradient of LoRA in two and three stages, beside PEFT's own, in float64
* export     the adapter's folder: scores of PeftModel and of AutoModelForCausalLM beside ours
* nf4        the bytes of NF4 beside bitsandbytes', of 1,048,576 weights in three dtypes each
* files      what is read of files that are quantised already, beside the libraries' own reading

Both libraries lie in .venv-peft, filled by the first run (pip, a minute). Differences are told
relative to the largest value of a gradient, and as they are of scores.
"""

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from results import command_line, show, write_json
from safetensors.torch import save_file
from torch import Tensor

from p2pswarm.commands.weights.export_folder import export
from p2pswarm.models.adapters.lora_modules import is_of_adapter
from p2pswarm.models.compute.base import BackwardSpec
from p2pswarm.models.compute.flat_parameters import FlatParameters, named_parameters
from p2pswarm.models.compute.inference import load_model
from p2pswarm.models.compute.reference import ReferenceTrainer
from p2pswarm.models.compute.torch_weights import torch_engine
from p2pswarm.models.formats.weight_formats import NF4_4BIT
from p2pswarm.models.library.compact_files import CompactFiles
from p2pswarm.models.library.hf_library import library_model
from p2pswarm.models.library.weight_files import EVERY_TYPE, ONE_FILE, FolderFiles
from p2pswarm.models.model_source import resolved
from p2pswarm.models.scope import full_name
from p2pswarm.settings.adapter_config import AdapterConfig
from p2pswarm.settings.config import BatchConfig, CodecConfig, ModelConfig, RunConfig
from p2pswarm.settings.parser import run_to_json

ROOT = Path(__file__).resolve().parent.parent
LIBRARIES = ROOT / ".venv-peft"
PACKAGES = ("peft==0.21.2", "accelerate==1.15.0", "psutil==7.2.2", "bitsandbytes==0.50.2")
CPU = torch.device("cpu")
PREFIX = "base_model.model."
LENGTH, ROWS, VOCABULARY = 24, 2, 256
WIDTHS = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "tie_word_embeddings": False,
}
GROUPED = WIDTHS | {"num_key_value_heads": 2}
NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
MIXTURE = GROUPED | {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2}
FAMILIES: dict[str, dict[str, object]] = {
    "llama": GROUPED,
    "qwen3": GROUPED | {"head_dim": 8},
    "gemma3_text": GROUPED | {"head_dim": 8, "tie_word_embeddings": True},
    "gpt2": WIDTHS | NO_DROPOUT | {"n_embd": 32, "n_inner": 48, "n_layer": 4, "n_head": 4},
    "gpt_neox": WIDTHS,
    "mixtral": {key: x for key, x in MIXTURE.items() if key != "num_experts"},
    "qwen3_moe": MIXTURE | {"head_dim": 8, "moe_intermediate_size": 24},
    "olmoe": MIXTURE | {"num_key_value_heads": 4},
}


def run_of(folder: Path, adapter: AdapterConfig, dtype: str, *, pretrained: bool) -> RunConfig:
    """A run that trains an adapter of the model in a folder."""
    return resolved(
        RunConfig(
            stages=2,
            start="pretrained" if pretrained else "random",
            adapter=adapter,
            model=ModelConfig(family="hf", folder=folder, sequence_length=LENGTH, dtype=dtype),
            batch=BatchConfig(rows=ROWS, microbatches=1),
            codecs=CodecConfig(activation="raw", gradient="raw"),
        )
    )


def folder_of(family: str, place: Path) -> Path:
    """A folder with the config of a tiny model."""
    folder = place / family
    folder.mkdir(exist_ok=True)
    known = FAMILIES[family]
    if family == "gpt2":
        known = {key: x for key, x in known.items() if key not in WIDTHS} | {
            "vocab_size": VOCABULARY,
            "tie_word_embeddings": False,
        }
    (folder / "config.json").write_text(json.dumps({"model_type": family, **known}))
    return folder


def drawn(run: RunConfig, generator: torch.Generator) -> FlatParameters:
    """The whole model, with factors of which none is zero."""
    flat = ReferenceTrainer(dataclasses.replace(run, stages=1)).flat
    with torch.no_grad():
        for parameter in flat.parameters:
            values = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            parameter.copy_(values * 0.1)
    return flat


def in_peft(run: RunConfig, flat: FlatParameters, adapter: AdapterConfig) -> Any:
    """The library's model with PEFT's adapter and the same numbers."""
    from peft import LoraConfig, get_peft_model  # noqa: PLC0415  it is installed by then

    whole = library_model(run.model, torch.float64)
    values = {
        full_name(number, block, name): parameter.detach()
        for number, block in zip(flat.numbers, flat.blocks, strict=True)
        for name, parameter in block.named_parameters()
        if not is_of_adapter(name)
    }
    whole.load_state_dict(values, strict=False)
    model = get_peft_model(
        whole,
        LoraConfig(
            r=adapter.rank,
            lora_alpha=adapter.alpha or adapter.rank,
            target_modules=adapter.targets,
            use_rslora=adapter.rslora,
            task_type="CAUSAL_LM",
        ),
    )
    ours = {f"{PREFIX}{n}": p for n, p in named_parameters(flat.numbers, flat.blocks)}
    theirs = trained(model)
    if ours.keys() != theirs.keys():
        raise SystemExit(f"names differ: {sorted(ours.keys() ^ theirs.keys())[:3]}")
    with torch.no_grad():
        for name, parameter in theirs.items():
            parameter.copy_(ours[name])
    return model.train()


def trained(model: Any) -> dict[str, Tensor]:
    """PEFT's trained parameters, as its files name them."""
    named = model.named_parameters()
    return {name.replace(".default", ""): p for name, p in named if p.requires_grad}


def gradients(run: RunConfig, flat: FlatParameters, tokens_BS: Tensor) -> dict[str, Tensor]:  # noqa: N803
    """Ours, through the run's stages."""
    whole = dict(named_parameters(flat.numbers, flat.blocks))
    engines = [torch_engine(run, stage, CPU, 1 << 30) for stage in range(run.stages)]
    found: dict[str, Tensor] = {}
    flats = [engine.weights._flat for engine in engines]  # noqa: SLF001
    for each in flats:
        for name, parameter in named_parameters(each.numbers, each.blocks):
            with torch.no_grad():
                parameter.copy_(whole[name])
    given: Any = {}
    for engine in engines[:-1]:
        given = engine.stage.forward((0, 0), tokens_BS, given)
    back = engines[-1].stage.finish(tokens_BS, given, BackwardSpec(True, run.stages > 1)).gradient
    for stage in range(run.stages - 2, -1, -1):
        back = engines[stage].stage.backward((0, 0), back, BackwardSpec(True, stage > 0))
    for each in flats:
        names = (name for name, _ in named_parameters(each.numbers, each.blocks))
        found |= dict(zip(names, each.sums, strict=True))
    return found


def gradient_difference(family: str, stages: int, place: Path, *, rslora: bool = False) -> float:
    """The largest difference from PEFT's gradients, over each one's largest value."""
    adapter = AdapterConfig(rank=4, alpha=8.0, rslora=rslora)
    run = run_of(folder_of(family, place), adapter, "float64", pretrained=False)
    run = dataclasses.replace(run, stages=stages)
    generator = torch.Generator().manual_seed(3)
    flat = drawn(run, generator)
    model = in_peft(run, flat, adapter)
    tokens_BS = torch.randint(0, VOCABULARY, (ROWS, LENGTH + 1), generator=generator)  # noqa: N806
    scores = model(input_ids=tokens_BS[:, :-1]).logits.flatten(0, 1)
    nats = torch.nn.functional.cross_entropy(scores, tokens_BS[:, 1:].flatten(), reduction="sum")
    (nats * run.share_of_token).backward()
    theirs, worst = trained(model), 0.0
    for name, ours in gradients(run, flat, tokens_BS).items():
        gradient = theirs[f"{PREFIX}{name}"].grad
        scale = gradient.abs().max().item() or 1.0
        worst = max(worst, (ours - gradient).abs().max().item() / scale)
    return worst


def export_differences(family: str, place: Path) -> tuple[float, float]:
    """The largest difference of scores: of PeftModel's, and of AutoModelForCausalLM's."""
    from peft import PeftModel  # noqa: PLC0415
    from transformers import AutoModelForCausalLM  # noqa: PLC0415

    generator = torch.Generator().manual_seed(1)
    folder = folder_of(family, place)
    adapter = AdapterConfig(rank=4, alpha=8.0)
    base: Any = library_model(
        run_of(folder, adapter, "float32", pretrained=False).model, torch.float32
    )
    with torch.no_grad():
        for parameter in base.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.05)
    base.save_pretrained(folder)
    run = run_of(folder, adapter, "float32", pretrained=True)
    flat = drawn(run, generator)
    named = {name: p.detach().clone() for name, p in named_parameters(flat.numbers, flat.blocks)}
    weights, out = place / f"{family}.safetensors", place / f"{family}-adapter"
    save_file(named, weights, metadata={"run": run_to_json(run).decode()})
    export(weights, out, 1_000, base=str(folder))
    tokens_BT = torch.randint(0, VOCABULARY, (ROWS, LENGTH), generator=generator)  # noqa: N806
    ours = load_model(weights, base=folder).scores(tokens_BT)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        plain = AutoModelForCausalLM.from_pretrained(folder)
        peft = PeftModel.from_pretrained(plain, out).eval()(input_ids=tokens_BT).logits
        auto = AutoModelForCausalLM.from_pretrained(out).eval()(input_ids=tokens_BT).logits
    return (peft - ours).abs().max().item(), (auto - ours).abs().max().item()


def nf4_differences() -> tuple[int, int, int]:
    """Of how many bytes how many differ from bitsandbytes', and of the values they stand for."""
    import bitsandbytes.functional as bnb  # noqa: PLC0415

    count = codes_off = values_off = 0
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        values = torch.randn(1024, 1024, generator=torch.Generator().manual_seed(7)) * 0.02
        values[0] = values[3, :64] = 0
        values = values.to(dtype)
        codes, state = bnb.quantize_4bit(values, blocksize=64, quant_type="nf4")
        data = torch.zeros(NF4_4BIT.size_bytes(values.shape), dtype=torch.uint8)
        NF4_4BIT.pack(values, data)
        own = data[: codes.numel()]
        count += codes.numel()
        codes_off += int((codes.view(-1) != own).sum())
        for out in (torch.float32, torch.bfloat16):
            state.dtype = out
            theirs = bnb.dequantize_4bit(codes, state)
            values_off += int((theirs != NF4_4BIT.unpack(data, values.shape, out)).sum())
    return count, codes_off, values_off


def file_differences() -> dict[str, int]:
    """How many values of a million differ from what the libraries read, by kinds of files."""
    import bitsandbytes.functional as bnb  # noqa: PLC0415
    from transformers.integrations import finegrained_fp8, mxfp4  # noqa: PLC0415

    generator = torch.Generator().manual_seed(1)
    values = (torch.randn(1024, 1024, generator=generator) * 0.02).bfloat16()
    found = {}
    for kind in ("nf4", "fp4"):
        for nested in (False, True):
            codes, state = bnb.quantize_4bit(
                values, blocksize=64, quant_type=kind, compress_statistics=nested
            )
            parts = {f"a.weight.{name}": x for name, x in state.as_dict(packed=True).items()}
            theirs = bnb.dequantize_4bit(codes, state)
            name = f"bitsandbytes {kind}{', nested' if nested else ''}"
            found[name] = read_difference({"a.weight": codes} | parts, "a.weight", theirs)
    blocks = torch.randint(0, 256, (16, 64, 32, 16), dtype=torch.uint8, generator=generator)
    scales = torch.randint(100, 140, (16, 64, 32), dtype=torch.uint8, generator=generator)
    theirs = mxfp4.convert_moe_packed_tensors(blocks, scales)
    found["MXFP4"] = read_difference({"a_blocks": blocks, "a_scales": scales}, "a", theirs)
    codes = torch.randn(1024, 1280, generator=generator).to(torch.float8_e4m3fn)
    scales = torch.rand(8, 10, generator=generator)
    reader: Any = finegrained_fp8.Fp8Dequantize(None)
    theirs = reader._dequantize_one(codes, scales)  # noqa: SLF001
    parts = {"a.weight": codes, "a.weight_scale_inv": scales}
    found["fp8 by blocks"] = read_difference(parts, "a.weight", theirs)
    return found


def read_difference(parts: dict[str, Tensor], name: str, theirs: Tensor) -> int:
    """How many values that are read of a file with these tensors are others."""
    with tempfile.TemporaryDirectory() as folder:
        save_file({key: x.contiguous() for key, x in parts.items()}, Path(folder) / ONE_FILE)
        files = CompactFiles(FolderFiles(Path(folder)), FolderFiles(Path(folder), EVERY_TYPE))
        ours = dict(files.tensors(ONE_FILE, [name]))[name]
    return int((ours.to(theirs.dtype) != theirs).sum())


def main() -> int:
    """Compare, print, write."""
    options = _options()
    torch.set_num_threads(1)
    _require_libraries()
    figures: dict[str, Any] = {"gradients": {}, "export": {}}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        rows = []
        for family in options.families:
            off = {stages: gradient_difference(family, stages, place) for stages in (2, 3)}
            figures["gradients"][family] = off
            rows.append((family, *(f"{x:.2g}" for x in off.values())))
        for family in ("llama", "qwen3"):
            off = gradient_difference(family, 2, place, rslora=True)
            figures["gradients"][f"{family} rslora"] = {2: off}
            rows.append((f"{family}, rslora", f"{off:.2g}", ""))
        show(("LoRA's gradients", "2 stages", "3 stages"), rows)
        rows = []
        for family in options.families:
            found = export_differences(family, place)
            figures["export"][family] = found
            rows.append((family, *(f"{x:.2g}" for x in found)))
        show(("scores of the folder", "PeftModel", "AutoModel"), rows)
    count, codes, values = nf4_differences()
    figures["nf4"] = {"bytes": count, "bytes_differ": codes, "values_differ": values}
    print(f"NF4: {codes} of {count:,} bytes differ from bitsandbytes', and {values} values")
    figures["files"] = file_differences()
    show(("files of", "values differ"), list(figures["files"].items()))
    write_json(options.json, figures)
    return 0


def install() -> None:
    """Have PEFT and bitsandbytes in a folder of their own."""
    if not LIBRARIES.exists():
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target"]
        subprocess.run([*pip, str(LIBRARIES), *PACKAGES], check=True)


def _require_libraries() -> None:
    """Start again where they can be imported."""
    install()
    if str(LIBRARIES) not in sys.path:
        paths = os.pathsep.join([str(ROOT), str(LIBRARIES)])
        os.environ["PYTHONPATH"] = paths
        os.execv(sys.executable, [sys.executable, *sys.argv])


def _options() -> Any:
    parser = command_line(__doc__)
    parser.add_argument("--families", nargs="+", default=list(FAMILIES), choices=list(FAMILIES))
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
