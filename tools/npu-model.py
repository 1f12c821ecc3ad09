#!/usr/bin/python3
"""A paper model of attention's products on AMD's NPUs: what public figures allow at best, for each shape and number of
rows. Nothing of it was measured. It is there so that the first owner's report has a prediction to be held against:
`tandem bench` and the worker's counters on one side, this on the other.

usage: npu-model.py [--device phoenix|hawk-point|strix] [--model NAME] [--rows 1,8,64,256] [--submission-us N] [--json]
                    [--programs]

With --programs the products are those of npu-worker/programs/, as they cut them: fewer ports carry weights there, and a
program has 4, 16 or 64 rows. For them it counts the words of each port of the busiest core, one a cycle.

What it reckons, for y [rows][N] = x [rows][K] * w [N][K]:

- tiles: the array's columns share the outputs, its rows of tiles the rows of x; both are padded to what one step of a
  tile takes. A tile holds its part of x, w and y twice (double buffers), which sets the pieces in which K is cut.
- bytes: the weights once from memory, x once for all columns that can share it (memory tiles), y once back.
- time: the longer of arithmetic and of bytes at the narrower of the array's ports to memory and of the memory itself,
  plus a submission. What the firmware needs for a submission is public for no device: it is an argument.

Where the figures come from:

- AM020, Versal AIE-ML Architecture Manual: a tile of AIE-ML makes 256 products of 8 x 8 bits, 512 of 4 x 8 bits or 128
  of bf16 a cycle; 64 KB in a tile, 512 KB in a memory tile; DMA channels are streams of 32 bits a cycle. A shim tile
  has two channels each way.
- mlir-aie's architecture reference: Phoenix and Hawk Point are AIE2 (AIE-ML) with 4 usable columns of 4 tiles, Strix
  and Krackan are AIE2P with 8 columns of 4.
- AMD's product pages: 10 TOPS (Phoenix, 20 tiles), 16 (Hawk Point, 20 tiles), 50 (Strix, 32 tiles). The clock follows:
  TOPS / (2 * tiles * products of int8 a cycle).
- AIE2P: 512 products of 8 x 8 bits a cycle, as the 50 TOPS and its 1.5 to 1.8 GHz want (Linux, amdxdna's tables of
  clocks). For bf16 and for 4 bits no manual is public: as on AIE-ML in proportion, an assumption.
- Memory: LPDDR5X-7500 at 128 bits, what laptops with these chips commonly have: 120 GB/s for everything in them.
"""
import argparse
import json
import math
import os
import sys

DEVICES = {
    # columns and rows of tiles that a program may use; tiles that the product page counts; TOPS of int8
    "phoenix": {"columns": 4, "rows": 4, "counted": 20, "tops": 10, "macs": {"bf16": 128, "int8": 256, "int4": 512}},
    "hawk-point": {"columns": 4, "rows": 4, "counted": 20, "tops": 16,
                   "macs": {"bf16": 128, "int8": 256, "int4": 512}},
    "strix": {"columns": 8, "rows": 4, "counted": 32, "tops": 50, "macs": {"bf16": 256, "int8": 512, "int4": 1024}},
}
TILE_BYTES, STACK_BYTES = 64 << 10, 4 << 10
CHANNELS, CHANNEL_BYTES = 2, 4  # of a shim tile each way; a cycle
MEMORY_BYTES_PER_S = 120e9
STEP = 8  # rows and outputs of one step of a tile
WEIGHT_BYTES = {"bf16": 2, "int8": 1, "int4": 18 / 32}  # of int4 with a scale of 2 bytes for each 32
ROW_BYTES = {"bf16": 2, "int8": 1, "int4": 1 + 4 / 32}  # activations stay int8 beside weights of 4 bits
OUT_BYTES = 4
SHAPES = {  # d_model, heads, heads of keys and values, head's width, layers
    "gemma3-1b": (1152, 4, 1, 256, 26),
    "gemma3-4b": (2560, 8, 4, 256, 34),
    "gemma3-12b": (3840, 16, 8, 256, 48),
    "gemma3-27b": (5376, 32, 16, 128, 62),
}


def clock(device):
    return device["tops"] * 1e12 / (2 * device["counted"] * device["macs"]["int8"])


def piece_of_k(rows, outputs, kind):
    """The longest piece of K, a power of two, for which a tile has room twice."""
    for k in (1024, 512, 256, 128, 64, 32):
        need = 2 * (rows * k * ROW_BYTES[kind] + outputs * k * WEIGHT_BYTES[kind]) + rows * outputs * OUT_BYTES
        if need <= TILE_BYTES - STACK_BYTES:
            return k
    return 0


def product(device, kind, m, k, n):
    """Tiles, bytes, cycles and time of one product."""
    up = lambda x, to: math.ceil(x / to) * to  # noqa: E731
    f = clock(device)
    columns, rows = device["columns"], device["rows"]
    # Few rows: all tiles share the outputs. Many: a column's tiles take different rows.
    over_rows = min(rows, math.ceil(m / STEP))
    over_outputs = columns * (rows // over_rows)
    tile_m, tile_n = up(math.ceil(m / over_rows), STEP), up(math.ceil(n / over_outputs), STEP)
    inner_m, inner_n = min(tile_m, 64), min(tile_n, 64)
    cut = piece_of_k(inner_m, inner_n, kind)
    compute = tile_m * tile_n * up(k, cut) / device["macs"][kind]
    weights, x, y = n * k * WEIGHT_BYTES[kind], m * k * ROW_BYTES[kind], m * n * OUT_BYTES
    port = columns * CHANNELS * CHANNEL_BYTES * f
    bandwidth = min(port, MEMORY_BYTES_PER_S)
    # Each inner block of rows reads the weights again, unless the column's memory tile keeps its share of them.
    again = math.ceil(tile_m / inner_m) if weights / columns > (512 << 10) else 1
    moved = weights * again + x
    transfer = max(moved / bandwidth, y / bandwidth) * f
    return {"tile": f"{inner_m}x{cut}x{inner_n}", "tiles_over": f"{over_rows}x{over_outputs}", "bytes": moved + y,
            "compute_cycles": round(compute), "memory_cycles": round(transfer),
            "bound": "arithmetic" if compute > transfer else "memory",
            "us": 1e6 * max(compute, transfer) / f, "commands": 1}


def program(name, kind, m, k, n):
    """The same of a product as npu-worker/programs/ builds it: for its smallest number of rows that holds m."""
    sys.dont_write_bytecode = True
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "npu-worker", "programs"))
    import layout
    import shapes
    device = layout.DEVICES["npu2" if name == "strix" else "npu1"]
    rows = min(r for r in shapes.ROWS + (max(shapes.ROWS) * math.ceil(m / max(shapes.ROWS)),) if r >= m)
    times = math.ceil(rows / max(shapes.ROWS))  # one command after the other
    plan = layout.Plan(device, layout.kind(kind, device.name), rows // times, k, n)
    busiest = layout.cores(device)[0]
    words = lambda t: math.prod(t.sizes)  # noqa: E731
    # Two halves of a number each take a pass over weights of 4 bits.
    passes = 2 if kind == "int4" else 1
    compute = plan.m * plan.share(busiest)[1] * layout.OUTPUTS * k / DEVICES[name]["macs"][kind] * passes
    transfer = max(words(plan.a()), words(plan.b(busiest)), words(plan.c(busiest)))
    return {"tile": f"{layout.ROWS}x{layout.PIECE}x{layout.OUTPUTS}", "tiles_over": f"1x{len(layout.cores(device))}",
            "bytes": 4 * sum(plan.sizes_words()) * times, "compute_cycles": round(compute) * times,
            "memory_cycles": transfer * times, "bound": "arithmetic" if compute > transfer else "memory",
            "us": 1e6 * times * max(compute, transfer) / clock(DEVICES[name]), "commands": times}


def layer(name, kind, shape, m, programs):
    d, heads, kv, width, _ = SHAPES[shape]
    made = [program(name, kind, m, k, n) if programs else product(DEVICES[name], kind, m, k, n)
            for k, n in ((d, (heads + 2 * kv) * width), (heads * width, d))]
    return dict(zip(("qkv", "output"), made))


def main():
    p = argparse.ArgumentParser(description="What attention's products take on an NPU at best, on paper.")
    p.add_argument("--device", choices=sorted(DEVICES), action="append")
    p.add_argument("--model", choices=sorted(SHAPES), action="append")
    p.add_argument("--rows", default="1,8,64,256")
    p.add_argument("--submission-us", type=float, default=0)
    p.add_argument("--json", action="store_true")
    p.add_argument("--programs", action="store_true")
    args = p.parse_args()
    found = []
    for name in args.device or DEVICES:
        device = DEVICES[name]
        for shape in args.model or SHAPES:
            for kind in ("bf16", "int8", "int4"):
                for m in (int(x) for x in args.rows.split(",")):
                    parts = layer(name, kind, shape, m, args.programs)
                    us = sum(part["us"] + args.submission_us * part["commands"] for part in parts.values())
                    found.append({"device": name, "ghz": round(clock(device) / 1e9, 3), "model": shape, "type": kind,
                                  "rows": m, "layer_us": us, "model_ms": us * SHAPES[shape][4] / 1e3, **parts})
    if args.json:
        print(json.dumps(found))
        return
    for r in found:
        print(f"{r['device']:<11}{r['model']:<12}{r['type']:<5}{r['rows']:>4} rows: a layer {r['layer_us']:9.1f} us, "
              f"all {r['model_ms']:8.2f} ms; " +
              "; ".join(f"{part} {r[part]['tile']} on {r[part]['tiles_over']}, {r[part]['bytes'] / 1e6:.2f} MB, "
                        f"{r[part]['compute_cycles']} and {r[part]['memory_cycles']} cycles ({r[part]['bound']})"
                        for part in ("qkv", "output")))


if __name__ == "__main__":
    main()
