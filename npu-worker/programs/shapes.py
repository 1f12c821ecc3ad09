"""What a set of NPU programs holds: the products of Gemma 3's attention blocks, in a few numbers of rows."""

# Inputs (K) and outputs (N) of q, k and v in one, and of the output.
PRODUCTS = {
    "gemma3-1b": ((1152, 1536), (1024, 1152)),
    "gemma3-4b": ((2560, 4096), (2048, 2560)),
    "gemma3-12b": ((3840, 8192), (4096, 3840)),
    "gemma3-27b": ((5376, 8192), (4096, 5376)),
}
# One row takes the program of 4: a core multiplies 4 rows at once, and what takes the time is the weights.
ROWS = (4, 16, 64)


def programs(models):
    """(name, M, K, N) of each program."""
    for model in models:
        for part, (k, n) in zip(("qkv", "out"), PRODUCTS[model]):
            for m in ROWS:
                yield f"{model}-{part}-{m}", m, k, n
