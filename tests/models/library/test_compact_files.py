"""Files with quantised tensors are read as the dense ones that they stand for."""

import json

import pytest
import torch
from safetensors.torch import save_file

from p2pswarm.base.errors import Unusable
from p2pswarm.models.formats.weight_formats import NF4, NF4_4BIT
from p2pswarm.models.library.compact_files import FP4, CompactFiles
from p2pswarm.models.library.weight_files import EVERY_TYPE, ONE_FILE, FolderFiles

SHAPE = (6, 64)


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def bnb(values: torch.Tensor, **about: object) -> dict[str, torch.Tensor]:
    """A weight as bitsandbytes saves it."""
    data = torch.zeros(NF4_4BIT.size_bytes(values.shape), dtype=torch.uint8)
    NF4_4BIT.pack(values, data)
    count = values.numel()
    state = {"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": list(values.shape)}
    text = json.dumps(state | about).encode()
    return {
        "a.weight": data[: count // 2].view(-1, 1),
        "a.weight.absmax": data[-count // 64 * 4 :].view(torch.float32).clone(),
        "a.weight.quant_map": torch.tensor(NF4),
        "a.weight.quant_state.bitsandbytes__nf4": torch.tensor(list(text), dtype=torch.uint8),
    }


def read(tmp_path, tensors: dict[str, torch.Tensor]) -> CompactFiles:
    save_file(tensors, tmp_path / ONE_FILE)
    return CompactFiles(FolderFiles(tmp_path), FolderFiles(tmp_path, EVERY_TYPE))


def test_a_weight_of_bitsandbytes_is_one_tensor(tmp_path) -> None:
    values, plain = drawn(*SHAPE), drawn(3)
    files = read(tmp_path, bnb(values) | {"b.weight": plain})

    assert files.places() == {"a.weight": ONE_FILE, "b.weight": ONE_FILE}
    assert files.shapes(ONE_FILE, ["a.weight", "b.weight"]) == {"a.weight": SHAPE, "b.weight": (3,)}
    found = dict(files.tensors(ONE_FILE, ["a.weight", "b.weight"]))
    data = torch.zeros(NF4_4BIT.size_bytes(SHAPE), dtype=torch.uint8)
    NF4_4BIT.pack(values, data)
    assert torch.equal(found["a.weight"], NF4_4BIT.unpack(data, SHAPE, torch.float32))
    assert torch.equal(found["b.weight"], plain)


def test_what_was_nf4_has_the_same_bytes_when_it_is_packed_again(tmp_path) -> None:
    first = torch.zeros(NF4_4BIT.size_bytes(SHAPE), dtype=torch.uint8)
    again = first.clone()
    NF4_4BIT.pack(drawn(*SHAPE), first)
    files = read(tmp_path, bnb(drawn(*SHAPE)))
    NF4_4BIT.pack(dict(files.tensors(ONE_FILE, ["a.weight"]))["a.weight"], again)
    assert torch.equal(first, again)


def test_scales_may_be_quantised_themselves(tmp_path) -> None:
    values = drawn(*SHAPE)
    tensors = bnb(values, nested_blocksize=4, nested_offset=0.5, nested_dtype="float32")
    codes = torch.tensor([0, 255, 7, 8, 9, 10], dtype=torch.uint8)
    table = torch.linspace(-1, 1, 256)
    outer = torch.tensor([2.0, 3.0])
    tensors["a.weight.absmax"] = codes
    tensors["a.weight.nested_quant_map"], tensors["a.weight.nested_absmax"] = table, outer
    found = dict(read(tmp_path, tensors).tensors(ONE_FILE, ["a.weight"]))["a.weight"]

    scales = table[codes.long()] * outer.repeat_interleave(4)[:6] + 0.5
    pairs = tensors["a.weight"].view(-1)
    signs = torch.stack([pairs >> 4, pairs & 15], 1).view(6, 64)
    assert torch.equal(found, torch.tensor(NF4)[signs.long()] * scales[:, None])


def test_mxfp4_has_its_low_half_first_and_an_exponent_a_group(tmp_path) -> None:
    blocks = torch.arange(2 * 3 * 1 * 16, dtype=torch.uint8).view(2, 3, 1, 16)
    scales = torch.tensor([[[127], [128], [125]], [[126], [127], [120]]], dtype=torch.uint8)
    files = read(tmp_path, {"x.gate_up_proj_blocks": blocks, "x.gate_up_proj_scales": scales})

    assert files.shapes(ONE_FILE, ["x.gate_up_proj"]) == {"x.gate_up_proj": (2, 32, 3)}
    found = dict(files.tensors(ONE_FILE, ["x.gate_up_proj"]))["x.gate_up_proj"]
    for expert in range(2):
        for row in range(3):
            for place in range(16):
                byte = int(blocks[expert, row, 0, place])
                scale = 2.0 ** (int(scales[expert, row, 0]) - 127)
                assert found[expert, 2 * place, row] == FP4[byte & 15] * scale
                assert found[expert, 2 * place + 1, row] == FP4[byte >> 4] * scale


def test_fp8_has_a_scale_for_each_block_also_for_a_short_one(tmp_path) -> None:
    values = drawn(200, 130).to(torch.float8_e4m3fn)
    scales = torch.tensor([[1.0, 2.0], [0.5, 4.0]])
    files = read(tmp_path, {"a.weight": values, "a.weight_scale_inv": scales})

    assert files.places() == {"a.weight": ONE_FILE}
    found = dict(files.tensors(ONE_FILE, ["a.weight"]))["a.weight"]
    assert torch.equal(found[:128, :128], values.float()[:128, :128])
    assert torch.equal(found[128:, 128:], values.float()[128:, 128:] * 4.0)


BYTES = torch.zeros(2, 3, 1, 16, dtype=torch.uint8)
STATE = "a.weight.quant_state.bitsandbytes__nf4"
FP8 = torch.zeros(4, 4).to(torch.float8_e4m3fn)


def mxfp4(blocks: torch.Tensor, scales: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"a.weight_blocks": blocks, "a.weight_scales": scales}


def fp8(scales: torch.Tensor, values: torch.Tensor = FP8) -> dict[str, torch.Tensor]:
    return {"a.weight": values, "a.weight_scale_inv": scales}


def nested(**also: object) -> dict[str, torch.Tensor]:
    tensors = bnb(drawn(*SHAPE), **{"nested_blocksize": 4, "nested_offset": 0.5} | also)
    tensors["a.weight.absmax"] = torch.zeros(6, dtype=torch.uint8)
    maps = {"nested_absmax": torch.ones(2), "nested_quant_map": torch.zeros(256)}
    return tensors | {f"a.weight.{name}": x for name, x in maps.items()}


ODD = {
    "more than there is": bnb(drawn(*SHAPE), shape=[7, 64]),
    "less than there is": bnb(drawn(*SHAPE), shape=[5, 64]),
    "a block of text": bnb(drawn(*SHAPE), blocksize="x"),
    "a block of a fraction": bnb(drawn(*SHAPE), blocksize=64.5),
    "a block of nothing": bnb(drawn(*SHAPE), blocksize=0),
    "a block as large as a memory": bnb(drawn(*SHAPE), blocksize=400_000_000),
    "a shape of text": bnb(drawn(*SHAPE), shape="x"),
    "a size of text": bnb(drawn(*SHAPE), shape=[2, "x"]),
    "sizes below nothing": bnb(drawn(*SHAPE), shape=[-6, -64]),
    "no settings": bnb(drawn(*SHAPE)) | {STATE: torch.tensor(list(b"{"), dtype=torch.uint8)},
    "a list of settings": bnb(drawn(*SHAPE)) | {STATE: torch.tensor([91, 93], dtype=torch.uint8)},
    "many settings": bnb(drawn(*SHAPE), more="x" * 10_000),
    "a short table": bnb(drawn(*SHAPE)) | {"a.weight.quant_map": torch.zeros(15)},
    "scales without theirs": nested(nested_blocksize=7),
    "groups of one dimension": mxfp4(BYTES.view(-1), BYTES.view(-1).clone()),
    "groups of two dimensions": mxfp4(BYTES.view(6, 16), torch.zeros(6, dtype=torch.uint8)),
    "groups of another size": mxfp4(BYTES.view(2, 3, 2, 8), torch.zeros(2, 3, 2).byte()),
    "fewer exponents": mxfp4(BYTES, torch.zeros(2, 3, dtype=torch.uint8)),
    "no scales": fp8(torch.zeros(0, 0)),
    "more scales than values": fp8(torch.ones(9, 9)),
    "a scale for all": fp8(torch.tensor(1.0)),
    "a vector": fp8(torch.ones(1), FP8[0]),
    "other experts": fp8(torch.ones(2, 1, 1), FP8.expand(3, 4, 4).contiguous()),
}


@pytest.mark.parametrize("what", ODD)
def test_parts_that_do_not_go_together_are_one_line(tmp_path, what: str) -> None:
    files = read(tmp_path, ODD[what])
    with pytest.raises(Unusable, match=r"parts of a\.weight do not go together: .") as caught:
        files.shapes(ONE_FILE, ["a.weight"])
    assert "\n" not in str(caught.value)
    with pytest.raises(Unusable, match=r"parts of a\.weight do not go together: .") as caught:
        list(files.tensors(ONE_FILE, ["a.weight"]))


def test_a_block_larger_than_its_tensor_takes_no_memory(tmp_path) -> None:
    tensors = bnb(drawn(1, 64), blocksize=400_000_000_000)
    found = dict(read(tmp_path, tensors).tensors(ONE_FILE, ["a.weight"]))["a.weight"]
    save_file(bnb(drawn(1, 64)), tmp_path / ONE_FILE)
    usual = CompactFiles(FolderFiles(tmp_path), FolderFiles(tmp_path, EVERY_TYPE))
    assert torch.equal(found, dict(usual.tensors(ONE_FILE, ["a.weight"]))["a.weight"])
