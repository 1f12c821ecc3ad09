"""A daemon whose model takes pictures: a random pair of a text model and its projector, in one folder."""
import os
import shutil

from tandem_test import TALE, TREE, Daemon, Refused, check, make_folder, make_model

IMAGES = os.path.join(TREE, "tests", "golden", "images")
ROWS = 16  # of each picture, for this pair
HOST = {"TANDEM_NPU": "host", "TANDEM_GPU": "host"}


def file_of(name, folder="pictures"):
    with open(os.path.join(IMAGES, folder, name), "rb") as f:
        return f.read()


def picture(name, message=0, offset=0):
    return {"file": file_of(name) if isinstance(name, str) else name, "message": message, "offset": offset}


def make_pair(folder, size="a"):
    """The path of see.gguf there, which takes pictures. size: of the projector; None: there is none."""
    path = os.path.join(folder, "see.gguf")
    shutil.copy(make_model("a", "f32", arch="mmproj", text=True, seed=2, template=True), path)
    if size:
        shutil.copy(make_model(size, "f32", arch="mmproj", seed=1), os.path.join(folder, "mmproj-see.gguf"))
    return path


class Seeing(Daemon):
    """A daemon whose default model takes pictures. size: as make_pair() has it."""

    def __init__(self, size="a", **more):
        self.folder = make_folder()
        self.path = make_pair(self.folder, size)
        env = dict(HOST, **more.pop("env", {}))
        super().__init__(models=[self.path, TALE], env=env, **more)

    def __exit__(self, *exit):
        try:
            super().__exit__(*exit)
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    def readers(self):
        """The processes that have a vision tower."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as f:
                    name, _, rest = f.read().partition("(")[2].rpartition(")")
                if name.startswith("tandem-picture-") and int(rest.split()[1]) == self.process.pid:
                    if rest.split()[0] != "Z":
                        found.append(int(pid))
            except (OSError, IndexError):
                continue
        return found

    def refuses(self, code, words, **fields):
        try:
            error = self.generate(**fields).error
        except Refused as e:
            error = {"code": e.code, "message": str(e)}
        check(error and error["code"] == code, f"{code} expected", error)
        for word in [words] if isinstance(words, str) else words:
            check(word in error["message"], f"{word} expected in the message", error)
