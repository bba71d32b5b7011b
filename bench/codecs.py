"""What each codec makes of Gaussian values: bytes, speed and error.

    python bench/codecs.py [--mib 64] [--device cuda] [--unbiased [--draws 4096]] [--json FILE]

Speed is of the tensor's own bytes, the best of several rounds, in CPU time of one thread, and
beside it the share of int8's in the same run. Gbit/s are those of the wire that one core fills.
Memory is used again, as between peers that stream tensors all the time. What has compiled loops is
measured by them and by torch; `NUMBA_CACHE_DIR=$(mktemp -d)` before the command has them compiled
anew.

int-grid is measured with whole numbers of spread 12, as its sums are. The last line is of what
comes before them: the rounding of a microbatch's gradient.

With `--device cuda` there is a second table: how long one tensor takes while the GPU computes,
behind it and beside it. With `--unbiased` there is one of the mean error of codecs with a key, over
as many keys.

The file has the speed of each codec with float32 under its name, and all `rows`.
"""

import sys
import time
from typing import Any

import torch
from results import command_line, write_json

from p2pswarm.models.rounding.gradient_grid import GradientGrid, Leaf, kernels_for
from p2pswarm.settings.config import INT_GRID, RunConfig
from p2pswarm.tensors.codecs.base import TORCH
from p2pswarm.tensors.codecs.codec import Codec, CodecKind
from p2pswarm.tensors.codecs.meta import Dtype
from p2pswarm.tensors.codecs.registry import CODECS, EncodedTensor, decoder, encode, round_trip
from p2pswarm.tensors.codecs.self_test import use_kernels
from p2pswarm.tensors.codecs.tensor_pool import TensorPool
from p2pswarm.tensors.flat_layout import flat_layout

ROUNDS = 7
WIDTH = 1_024  # of a row
KEY = bytes(8)
DRAWS = 4_096
SQUARE, PRODUCTS = 8_192, 20  # 22 TFLOP: a second at 22 TFLOP/s
DTYPES = (Dtype.FLOAT32, Dtype.BFLOAT16, Dtype.FLOAT64)
TINIEST = 2.0**-149
SPREAD = 12.0  # of whole numbers on a grid
KERNELS, TORCH_ALONE = "kernels", "torch"
IN_PLACE_MB_PER_S = 1e6  # past any memory: nothing was copied


def best_s(work: Any, device: torch.device) -> float:
    """Seconds of the fastest round; on a CPU those of our thread, other programs' left out."""
    clock = time.perf_counter if device.type == "cuda" else time.thread_time
    taken_s = []
    for _ in range(ROUNDS):
        begin_s = clock()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        taken_s.append(clock() - begin_s)
    return min(taken_s)


def loops_of(codec: Codec, tensor: torch.Tensor) -> Any:
    """The compiled loops that a codec uses for such a tensor, or None."""
    here = tensor.device.type == "cpu" and (codec.name != INT_GRID or tensor.dtype == torch.float32)
    return getattr(codec, "kernels", None) if here else None


def measure(codec: Codec, tensor: torch.Tensor) -> dict[str, Any]:
    """One row of the table."""
    pool = TensorPool(tensor.device)

    def pack() -> EncodedTensor:
        return encode(tensor, codec.name, inline_bytes=0, pool=pool, key=KEY)

    encoded = pack()
    place = decoder(encoded.meta, pool, KEY)
    place.buffer[:] = encoded.data
    error = (place.finish().double() - tensor.double()).abs()
    encode_s = best_s(pack, tensor.device)
    decode_s = best_s(lambda: decoder(encoded.meta, pool, KEY), tensor.device)
    decode_s += best_s(place.finish, tensor.device)
    return {
        "codec": codec.name,
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "by": TORCH_ALONE if loops_of(codec, tensor) is None else KERNELS,
        "device": tensor.device.type,
        "bytes": tensor.nbytes,
        "ratio": tensor.nbytes / encoded.meta.encoded_bytes,
        "encode_mb_per_s": tensor.nbytes / encode_s / 1e6,
        "decode_mb_per_s": tensor.nbytes / decode_s / 1e6,
        "error_max": error.max().item() / tensor.double().abs().max().item(),
        "error_rms": (error.square().mean().sqrt() / tensor.double().std()).item(),
    }


def beside_computing(codec: Codec, tensor: torch.Tensor) -> dict[str, Any]:
    """Milliseconds of one tensor's encoding and decoding while the GPU is busy for longer.

    Behind: on the stream that computes. Beside: as a node does it (`device_streams.py`).
    """
    pool = TensorPool(tensor.device)
    square = torch.randn(SQUARE, SQUARE, device=tensor.device)

    def there_and_back() -> None:
        encoded = encode(tensor, codec.name, inline_bytes=0, pool=pool, key=KEY)
        place = decoder(encoded.meta, pool, KEY)
        place.buffer[:] = encoded.data
        place.finish()

    ways = {
        "idle_ms": (0, there_and_back),
        "behind_ms": (PRODUCTS, there_and_back),
        "beside_ms": (PRODUCTS, lambda: pool.streams.aside(there_and_back)),
    }
    row: dict[str, Any] = {"codec": codec.name}
    for name, (products, work) in ways.items():
        taken_s = []
        for _ in range(ROUNDS):
            torch.cuda.synchronize()
            for _ in range(products):
                square @ square
            begin_s = time.perf_counter()
            work()
            taken_s.append(time.perf_counter() - begin_s)
            row["computing_left"] = not torch.cuda.current_stream().query()
        row[name] = min(taken_s) * 1e3
    return row


def print_beside(device: torch.device, mib: int) -> list[dict[str, Any]]:
    """The second table."""
    rows = []
    tensor = torch.randn((mib << 20) // 4, device=device).view(-1, WIDTH)
    print(f"\nfloat32, there and back beside {PRODUCTS} products of {SQUARE} x {SQUARE}")
    print(f"{'codec':12} {'idle ms':>10} {'behind ms':>10} {'beside ms':>10}   done before them")
    for codec in (c for c in CODECS if Dtype.FLOAT32 in c.dtypes):
        row = beside_computing(codec, tensor)
        rows.append(row)
        print(f"{row['codec']:12} {row['idle_ms']:10.1f} {row['behind_ms']:10.1f}", end=" ")
        print(f"{row['beside_ms']:10.1f}   {'yes' if row['computing_left'] else 'no'}", flush=True)
    return rows


def unbiased(codec: Codec, tensor: torch.Tensor, draws: int) -> dict[str, Any]:
    """The mean error of a tensor over keys, in standard errors and as a share of its length."""
    exact = tensor.double()
    total, square = torch.zeros_like(exact), torch.zeros_like(exact)
    for draw in range(draws):
        error = round_trip(tensor, codec.name, draw.to_bytes(8)).double() - exact
        total += error
        square += error.square()
    mean, sigma = total / draws, (square / draws).sqrt() / draws**0.5
    return {
        "codec": codec.name,
        "draws": draws,
        "values": tensor.numel(),
        "worst_sigma": (mean.abs() / sigma.clamp(min=TINIEST)).max().item(),
        "sum_sigma": (mean.sum().abs() / sigma.square().sum().sqrt()).item(),
        "bias": (mean.norm() / exact.norm()).item(),
        "noise": (sigma.norm() / exact.norm()).item(),
    }


def print_unbiased(draws: int, device: torch.device) -> list[dict[str, Any]]:
    """The table of mean errors; of 128 values one in 130 tables has one past 4 sigma by chance."""
    plain = torch.randn(2, 64, generator=torch.Generator().manual_seed(0))
    spike = plain.clone()
    spike[:, 5] = 100.0
    tensors = {
        "gaussian": plain,
        "spike": spike,
        "channels": plain * torch.linspace(0, 3, 64).exp(),
        "denormal": plain * 1e-39,
    }
    rows = []
    print(f"\nmean error over {draws} keys: its length, what chance makes of it, in sigmas")
    print(f"{'codec':12} {'tensor':9} {'length':>9} {'chance':>9} {'worst':>6} {'sum':>6}")
    for codec in (c for c in CODECS if c.kind is CodecKind.KEYED):
        for name, tensor in tensors.items():
            row = {"tensor": name, **unbiased(codec, tensor.to(device), draws)}
            rows.append(row)
            print(f"{row['codec']:12} {name:9} {row['bias']:9.1e} {row['noise']:9.1e}", end=" ")
            print(f"{row['worst_sigma']:6.1f} {row['sum_sigma']:6.1f}", flush=True)
    return rows


def shown(rate_mb_per_s: float) -> str:
    return "in place" if rate_mb_per_s > IN_PLACE_MB_PER_S else f"{rate_mb_per_s:,.0f}"


def by_both(codec: Codec, tensor: torch.Tensor) -> list[dict[str, Any]]:
    """The row of the way that a server takes; then, if that has compiled loops, torch's."""
    rows, kernels = [measure(codec, tensor)], loops_of(codec, tensor)
    if kernels is not None:
        vars(codec)["kernels"] = None
        rows.append(measure(codec, tensor))
        vars(codec)["kernels"] = kernels
    return rows


def print_row(row: dict[str, Any], int8: dict[str, Any] | None) -> None:
    ways = ("encode_mb_per_s", "decode_mb_per_s")
    print(f"{row['codec']:12} {row['dtype']:9} {row['by']:8} {row['ratio']:6.2f}", end=" ")
    for way in ways:
        print(f"{shown(row[way]):>12}", end=" ")
    if int8 is None or row[ways[0]] > IN_PLACE_MB_PER_S:
        print(f"{'':>6} {'':>6} {'':>7}", end=" ")
    else:
        wire_gbit_s = row["encode_mb_per_s"] / row["ratio"] * 8 / 1e3
        shares = [row[way] / int8[way] for way in ways]
        print(f"{shares[0]:6.2f} {shares[1]:6.2f} {wire_gbit_s:7.1f}", end=" ")
    print(f"{row['error_max']:10.1e} {row['error_rms']:10.1e}", flush=True)


def grid_rounding_ns(values: int) -> dict[str, float]:
    """Nanoseconds a weight that the rounding of one microbatch's gradient to a grid takes."""
    layout = flat_layout(("float32",) * 3, [("weights", (values // WIDTH, WIDTH))])
    squares = torch.full((layout.length,), 1e-6)
    part = torch.randn(values // WIDTH, WIDTH) * 1e-3
    total, square = torch.zeros_like(part), part.square().sum().item()
    kernels, taken_ns = kernels_for(squares), {}
    for name, loops in {KERNELS: kernels, TORCH_ALONE: None}.items():
        if loops is not None or name == TORCH_ALONE:
            grid = GradientGrid(RunConfig(), layout, squares, loops)

            def add(grid: GradientGrid = grid) -> None:
                grid.add([Leaf(0, 0)], [part], [total], [square], (1, 0), 1)

            add()  # reads the grid of the version
            taken_ns[name] = best_s(add, part.device) / part.numel() * 1e9
    return taken_ns


def codec_rows(mib: int, device: torch.device) -> list[dict[str, Any]]:
    """The first table."""
    rows = []
    print(f"{'':51} {'share of int8':>27}  wire")
    print(f"{'codec':12} {'dtype':9} {'by':8} {'ratio':>6} {'encode MB/s':>12}", end=" ")
    print(
        f"{'decode MB/s':>12} {'encode':>6} {'decode':>6} {'Gbit/s':>7} {'max error':>10}", end=" "
    )
    print(f"{'rms error':>10}   relative to the largest value, to the spread")
    for dtype in DTYPES:
        kind = TORCH[dtype]
        values = (mib << 20) // kind.itemsize
        rng = torch.Generator(device).manual_seed(0)
        tensor = torch.randn(values, generator=rng, device=device).to(kind).view(-1, WIDTH)
        whole = (tensor * SPREAD).round_() * 2.0**-20 + 0.0
        int8 = None
        for codec in (c for c in CODECS if dtype in c.dtypes):
            for row in by_both(codec, whole if codec.name == INT_GRID else tensor):
                int8 = row if codec.name == "int8" else int8
                rows.append(row)
                print_row(row, int8)
    return rows


def main() -> int:
    parser = command_line(__doc__)
    parser.add_argument("--mib", type=int, default=64, help="size of each tensor")
    parser.add_argument("--device", default="cpu", help="where the tensors live: cpu or cuda")
    parser.add_argument("--unbiased", action="store_true", help="the mean error over keys as well")
    parser.add_argument("--draws", type=int, default=DRAWS, help="of keys, with --unbiased")
    args = parser.parse_args()
    device = torch.device(args.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print("no CUDA device here: use --device cpu", file=sys.stderr)
        return 2
    torch.set_num_threads(1)

    begin_s = time.process_time()
    use_kernels([codec.name for codec in CODECS])
    print(f"compiled loops took {time.process_time() - begin_s:.1f} s of processor time to load\n")
    rows = codec_rows(args.mib, device)
    if device.type == "cpu":
        taken_ns = grid_rounding_ns((args.mib << 20) // 4)
        each = ", ".join(f"{ns:.2f} ns by {name}" for name, ns in taken_ns.items())
        print(f"\na gradient rounded to a grid and added, float32, a weight: {each}")
    if device.type == "cuda":
        rows += print_beside(device, args.mib)
    if args.unbiased:
        rows += print_unbiased(args.draws, device)
    speeds_of = {
        row["codec"]: {"encode_mb_s": row["encode_mb_per_s"], "decode_mb_s": row["decode_mb_per_s"]}
        for row in reversed(rows)  # the first of a codec is what a server does
        if row.get("dtype") == "float32"
    }
    write_json(args.json, {**speeds_of, "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
