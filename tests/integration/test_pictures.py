"""Files of pictures, odd ones included, through the decoder's process: the same pixels as Pillow, djpeg and dwebp give.

usage: test_pictures.py DECODE_PICTURE_FILE
Pillow has its own reader of PNG, and libjpeg-turbo and libwebp for the others. djpeg and dwebp are these libraries' own
programs. Each file is drawn here, from a seed, so that no file of another machine is needed.
"""
import os
import shutil
import subprocess
import sys
import tempfile

try:
    import numpy as np
    from PIL import Image, ImageOps, PngImagePlugin
except ImportError as e:
    print(f"SKIP: {e} (Debian: python3-numpy python3-pil)")
    sys.exit(77)

TREE = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
ORIENTATION = 0x112


def field(width, height, seed):
    """Colours that differ in every direction, under noise: a turned or shifted picture shows."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    waves = 127 + 120 * np.sin(x / 9 + y / 5)
    smooth = np.stack([255 * x / max(width - 1, 1), 255 * y / max(height - 1, 1), waves], -1)
    return np.clip(smooth + rng.integers(-20, 21, smooth.shape), 0, 255).astype(np.uint8)


def picture(width, height, seed=1, mode="RGB"):
    rgb = field(width, height, seed)
    if mode in ("RGBA", "LA"):
        alpha = field(width, height, seed + 1)[..., 2:]
        return Image.fromarray(np.concatenate([rgb, alpha], -1), "RGBA").convert(mode)
    return Image.fromarray(rgb).convert(mode)


def turned(number):
    exif = Image.Exif()
    exif[ORIENTATION] = number
    return exif.tobytes()


def draw(folder):
    """Writes the files and gives their names."""
    names = []

    def save(name, image, **options):
        image.save(os.path.join(folder, name), **options)
        names.append(name)

    for mode in ("1", "L", "LA", "RGB", "RGBA"):
        save(f"{mode}.png", picture(61, 33, mode=mode))
    for bits in (1, 2, 4):
        save(f"palette{bits}.png", picture(61, 33).quantize(1 << bits), bits=bits)
    save("palette8.png", picture(61, 33).quantize(200), transparency=3)
    info = PngImagePlugin.PngInfo()  # chunks that are skipped, however long and in whatever way they are compressed
    info.add_text("plain", "a" * 3000000)
    info.add_text("compressed", "a" * 30000000, zip=True)
    save("texts.png", picture(61, 33), pnginfo=info)
    save("grey16.png", Image.fromarray(np.arange(40 * 30, dtype=np.uint16).reshape(30, 40) * 54))
    for width, height in ((1, 1), (1, 300), (300, 1), (17, 9)):
        save(f"{width}x{height}.png", picture(width, height))
        save(f"{width}x{height}.jpg", picture(width, height), quality=90)
        save(f"{width}x{height}.webp", picture(width, height), quality=90)
    for number in range(1, 9):
        save(f"turned{number}.png", picture(31, 18, number), exif=turned(number))
        save(f"turned{number}.jpg", picture(31, 18, number), exif=turned(number), quality=90)
        save(f"turned{number}.webp", picture(31, 18, number), exif=turned(number), lossless=True)
    for sampling in (0, 1, 2):
        for progressive in (False, True):
            save(f"sampled{sampling}{'p' * progressive}.jpg", picture(101, 67), subsampling=sampling, quality=70,
                 progressive=progressive)
    save("grey.jpg", picture(101, 67, mode="L"), quality=80)
    save("cmyk.jpg", picture(101, 67, mode="CMYK"), quality=90)
    save("coarse.jpg", picture(101, 67), quality=5, optimize=True)
    for quality in (5, 50, 95):
        save(f"lossy{quality}.webp", picture(101, 67), quality=quality)
    save("lossless.webp", picture(101, 67), lossless=True)
    save("alpha-lossy.webp", picture(101, 67, mode="RGBA"), quality=80)
    save("alpha-lossless.webp", picture(101, 67, mode="RGBA"), lossless=True, exact=True)
    save("large.jpg", picture(1500, 1100), quality=85)
    return [os.path.join(folder, name) for name in names]


def by_pillow(path):
    """As docs/pictures.md says, where Pillow's own conversion does otherwise."""
    PngImagePlugin.MAX_TEXT_MEMORY = PngImagePlugin.MAX_TEXT_CHUNK = 1 << 26
    image = Image.open(path)
    if image.mode.startswith("I"):
        return np.repeat((np.asarray(image).astype(np.int64) >> 8).astype(np.uint8)[..., None], 3, 2)
    image = ImageOps.exif_transpose(image)
    if image.mode == "LA":
        image = Image.fromarray(np.asarray(image)[..., 0])
    if image.mode == "P":
        image.info.pop("transparency", None)
    if image.mode == "CMYK":
        inks = 255 - np.asarray(image).astype(np.int64)
        v = inks[..., :3] * inks[..., 3:] + 128
        return ((v + (v >> 8)) >> 8).astype(np.uint8)
    return np.asarray(image.convert("RGB"))


def by_tool(path):
    """None where there is no such tool for the file, or the tool does otherwise on purpose."""
    name = os.path.basename(path)
    if "turned" in name or "exif" in name or "cmyk" in name or "grey" in name or "alpha" in name:
        return None
    command = {".jpg": ["djpeg", "-ppm", path], ".webp": ["dwebp", "-quiet", "-ppm", path, "-o", "-"]}.get(
        os.path.splitext(name)[1])
    if not command:
        return None
    ppm = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    width, height = (int(v) for v in ppm.split(maxsplit=3)[1:3])
    # The first pixels may look like a space: count from the end.
    return np.frombuffer(ppm[-width * height * 3:], np.uint8).reshape(height, width, 3)


def decoded(program, paths):
    """[array or the text of the error]"""
    said = subprocess.run([program] + paths, stdout=subprocess.PIPE, check=True, cwd=TREE).stdout
    out, at = [], 0
    for _ in paths:
        end = said.index(b"\n", at)
        line, at = said[at:end].decode(), end + 1
        if line.startswith("error: "):
            out.append(line)
            continue
        width, height = (int(v) for v in line.split())
        out.append(np.frombuffer(said, np.uint8, width * height * 3, at).reshape(height, width, 3))
        at += width * height * 3
    if at != len(said):
        sys.exit("the program wrote more than it said")
    return out


def main():
    program = sys.argv[1]
    missing = [tool for tool in ("djpeg", "dwebp") if not shutil.which(tool)]
    if missing:
        print(f"SKIP: no {' and no '.join(missing)} (Debian: libjpeg-turbo-progs webp)")
        sys.exit(77)
    wrong = n_tool = 0
    with tempfile.TemporaryDirectory() as folder:
        here = os.path.join(TREE, "tests", "golden", "images", "pictures")
        paths = draw(folder) + [os.path.join(here, name) for name in sorted(os.listdir(here))]
        for path, got in zip(paths, decoded(program, paths)):
            for name, want in (("Pillow", by_pillow(path)), ("its tool", by_tool(path))):
                n_tool += name != "Pillow" and want is not None
                if want is None or not isinstance(got, str) and got.shape == want.shape and (got == want).all():
                    continue
                wrong += 1
                how = got if isinstance(got, str) else f"{got.shape}, not {want.shape}" if got.shape != want.shape \
                    else f"{(got != want).sum()} bytes differ, by {np.abs(got.astype(int) - want).max()} at most"
                print(f"{os.path.basename(path)} against {name}: {how}")
    print(f"{len(paths)} files against Pillow, {n_tool} of them against djpeg or dwebp too: {wrong} differ")
    sys.exit(1 if wrong or len(paths) < 40 or n_tool < 15 else 0)


main()
