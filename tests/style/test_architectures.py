"""No architecture is claimed that no golden file holds. The table of docs/model-files.md is the one source: it names
what engine/model/ reads, each architecture has golden files that a test compares on the host device, and on Vulkan
where the table says so, and README's rows of families are made of it.

usage: test_architectures.py [--write]
--write: writes README's rows.
"""
import os
import re
import sys

sys.path[:0] = [os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", d) for d in ("lib", "golden")]
import test_archs  # noqa: E402
import test_gemma  # noqa: E402
import test_shelf  # noqa: E402
from gguf_peek import Gguf  # noqa: E402
from tandem_test import SPROUT, TALE, TREE  # noqa: E402

DOCS = os.path.join(TREE, "docs", "model-files.md")
README = os.path.join(TREE, "README.md")
HEAD = "| architecture | models | Vulkan | NPU | what is its own |"
RAN_ON = "| ran on |"  # README's families stand below it
WIDTH = 100
NPU = {"attention": "attention", "products": "attention's products", "no": "no"}
# Another converter's name for the same models: tests/integration/test_converters.py compares what becomes of both.
SAME = {"gptoss": "gpt-oss"}


def read(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


def table():
    """(architectures, models, Vulkan, NPU) of each row."""
    lines = read(DOCS).split("\n")
    rows = []
    for line in lines[lines.index(HEAD) + 2:]:
        if not line.startswith("|"):
            break
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        rows.append((re.findall(r"`([^`]+)`", cells[0]), *cells[1:4]))
    return rows


def in_code():
    """What general.architecture may be: of each name in the list, the string in its file."""
    folder = os.path.join(TREE, "engine", "model")
    sources = "".join(read(os.path.join(folder, name)) for name in sorted(os.listdir(folder)) if name.endswith(".c"))
    names = dict(re.findall(r"const struct tdm_architecture tdm_architecture_(\w+) = \{\s*\.name = \"([^\"]+)\"",
                            sources))
    header = read(os.path.join(folder, "private.h"))
    listed = re.findall(r"^ +X\((\w+)\)", header[header.index("#define TDM_ARCHITECTURES(X)"):], re.M)
    return {names.get(name, name) for name in listed}


def held():
    """The architectures of golden files that are there and that a test compares: on the host device, on Vulkan."""
    host, vulkan = set(), set()
    for module in (test_archs, test_shelf):
        host |= {key[0] for key in module.FAMILY.limits if os.path.exists(module.FAMILY.golden(key))}
        vulkan |= {key[0] for key in module.VULKAN if os.path.exists(module.FAMILY.golden(key))}
    host |= {key[0] for key in test_gemma.MODELS if os.path.exists(test_gemma.golden(key, "golden"))}
    vulkan |= {key[0] for key in test_gemma.VULKAN if os.path.exists(test_gemma.golden(key, "golden"))}
    both = {"gemma-embedding" for size in test_gemma.EMBEDDING
            if os.path.exists(test_gemma.golden(("gemma-embedding", size, "f32"), "golden"))}
    # Vectors of encoders are compared behind a daemon, by tests/integration/test_encoders.py.
    host |= {"bert" for size in ("mean", "cls", "unigram")
             if os.path.exists(test_gemma.golden(("bert", size, "f32"), "golden"))}
    for path in (TALE, SPROUT):  # golden-host-tale-… and golden-vulkan-tale-… (CMakeLists.txt)
        name = os.path.basename(path).replace(".gguf", ".golden.json")
        if os.path.exists(os.path.join(TREE, "tests", "golden", name)):
            both.add(Gguf(path).kv["general.architecture"].decode())
    return host | both, vulkan | both


def families(rows):
    """README's rows: models that run on the same devices, as many in a row as there is room for."""
    groups = {}
    for _, models, vulkan, npu in rows:
        groups.setdefault((vulkan, npu), []).append(models)
    lines = []
    for (vulkan, npu), all_models in groups.items():
        ending = f" | yes | {vulkan} | {NPU[npu]} |"
        cell = ""
        for models in all_models:
            longer = f"{cell}; {models}" if cell else models
            if cell and len(f"| {longer}{ending}") > WIDTH:
                lines.append(f"| {cell}{ending}")
                longer = models
            cell = longer
        lines.append(f"| {cell}{ending}")
    return lines


def main():
    rows = table()
    claimed = [name for names, *_ in rows for name in names]
    on_vulkan = [name for names, _, vulkan, _ in rows if vulkan == "yes" for name in names]
    host, vulkan = held()
    wrong = [f"{name} is there twice" for name in sorted(set(claimed)) if claimed.count(name) > 1]
    wrong += [f"{name} is claimed, and engine/model does not read it" for name in sorted(set(claimed) - in_code())]
    wrong += [f"{name} is read, and has no row" for name in sorted(in_code() - set(claimed))]
    wrong += [f"{name} is claimed, and no golden file holds it" for name in claimed
              if SAME.get(name, name) not in host]
    wrong += [f"{name} is claimed for Vulkan, and no golden file holds it there" for name in on_vulkan
              if SAME.get(name, name) not in vulkan]
    wrong += [f"{name} runs on Vulkan, and its row does not say so" for name in claimed
              if name in vulkan and name not in on_vulkan]
    for what in wrong:
        print(f"docs/model-files.md: {what}")
    lines = read(README).split("\n")
    first = next(i for i, line in enumerate(lines) if line.startswith(RAN_ON)) + 1
    end = next(i for i in range(first, len(lines)) if not lines[i].startswith("|"))
    if lines[first:end] != families(rows):
        if "--write" in sys.argv:
            lines[first:end] = families(rows)
            with open(README, "w", encoding="utf-8") as f:
                f.write("\n".join(lines))
        else:
            print("README.md: its families are not those of docs/model-files.md; --write makes these of it:",
                  *families(rows), sep="\n")
            wrong.append("README")
    print(f"{len(claimed)} architectures, {len(host)} with golden files, {len(vulkan)} of them on Vulkan; "
          f"{len(wrong)} wrong")
    return 1 if wrong else 0


sys.exit(main())
