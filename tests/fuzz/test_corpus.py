"""The archives of inputs are as corpus.py packs them, and corpus.py does what its head says: checked on archives of the
test's own. A damaged, a doubled and a wrongly named input must be found."""
import gzip
import os
import sys
import tempfile

import corpus


def main():
    wrong = corpus.problems()
    if not corpus.names():
        wrong.append("there are no archives")
    with tempfile.TemporaryDirectory() as folder:
        corpus.CORPUS = folder
        files = [os.path.join(folder, n) for n in ("b", "a", "again")]
        for file, data in zip(files, (b"two", b"", b"two")):
            with open(file, "wb") as f:
                f.write(data)
        os.utime(files[0], (1, 1))
        corpus.main(["add", "x", files[0], files[1] + "=found", files[2]])
        corpus.main(["add", "y", files[1] + "=found", files[0]])
        with open(corpus.path_of("x"), "rb") as x, open(corpus.path_of("y"), "rb") as y:
            if x.read() != y.read():
                wrong.append("self-test: the order of adding changes the archive")
        corpus.main(["unpack", os.path.join(folder, "out")])
        out = os.path.join(folder, "out", "x")
        if sorted(os.listdir(out)) != ["ad782ecdac770fc6eb9a62e44f90873fb97fb26b", "found"]:
            wrong.append(f"self-test: unpacked {sorted(os.listdir(out))}")
        if corpus.problems():
            wrong.append(f"self-test: {corpus.problems()}")
        planted = (corpus.packed({"found": b"1"})[:-512], "not as corpus.py packs it"), \
            (corpus.packed({"0" * 40: b"1"}), "is not the SHA-1"), (corpus.packed({"a": b"1", "b": b"1"}), "twice")
        for data, word in planted:
            with open(corpus.path_of("x"), "wb") as f:
                f.write(gzip.compress(data))
            if not any(word in line for line in corpus.problems()):
                wrong.append(f"self-test: what is planted is not found: {word}")
    print("\n".join(wrong) if wrong else "ok")
    return 1 if wrong else 0


sys.exit(main())
