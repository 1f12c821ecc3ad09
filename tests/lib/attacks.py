"""What the tests of attacks share: several users of one system daemon, and how a bystander fares. They need root."""
import contextlib
import os
import random
import struct
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from tandem_test import *  # noqa: E402,F403

# Attackers draw at random. Printed, so that what a run drew can be drawn again.
SEED = int(os.environ.get("TANDEM_TEST_SEED") or random.randrange(1 << 30))
random.seed(SEED)
print("seed", SEED, "(TANDEM_TEST_SEED)", flush=True)

ATTACKER, SECOND, THIRD, BYSTANDER = 65534, 65533, 65532, 65531
SUBUIDS = (200000, 65536)  # the first attacker's


@contextlib.contextmanager
def system_daemon(**more):
    """One that every user can reach."""
    if os.getuid() != 0:
        raise Skip("needs root, to be several users")
    with tempfile.NamedTemporaryFile("w", prefix="tandem-subuid-") as f:
        f.write(f"{ATTACKER}:{SUBUIDS[0]}:{SUBUIDS[1]}\n")
        f.flush()
        with Daemon(system=True, env={"TANDEM_SUBUIDS": f.name}, **more) as d:
            d.subuids = f.name
            for path in (d.dir, os.path.dirname(d.socket)):
                os.chmod(path, 0o755)
            os.chmod(d.socket, 0o666)
            yield d


def wire_of(d, uid, **more):
    with as_user(uid):
        return d.wire(**more)


def connect_all(d, uid, most=600):
    """Connections until one is refused, and the code of the refusal."""
    wires = []
    try:
        while len(wires) < most:
            wires.append(wire_of(d, uid, timeout=20 * SLOW))
    except Refused as e:
        return wires, e.code
    except (Closed, OSError):
        return wires, "closed"
    return wires, None


def status_times(d, seconds, uid=BYSTANDER):
    """How long each status took that the bystander asked for meanwhile, in order of length, in seconds as they would
    have been on a machine of our own."""
    watch, taken = Stopwatch(), []
    with wire_of(d, uid) as w:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            begin = time.monotonic()
            w.call("status", {})
            taken.append(time.monotonic() - begin)
            time.sleep(0.01)
    share = watch.share()
    return sorted(t * share for t in taken)


def p99(times):
    return times[min(len(times) - 1, int(len(times) * 0.99))]


def p90(times):
    """What a short run is judged by: its p99 is its longest one or two, which a machine makes that stood still once.
    A daemon that keeps others waiting keeps most of them waiting."""
    return times[int(len(times) * 0.9)]


class Pusher:
    """Sends a request on all connections, as fast as it is taken, and throws the answers away."""

    def __init__(self, wires, kind, values):
        self.wires, self.over, self.sent, self.lost = wires, False, 0, 0
        self.body = SCHEMA.encode("Request", {kind: values})
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def frame(self):
        """An id of its own for each: fields may come in any order."""
        self.sent += 1
        payload = SCHEMA.encode("Request", {"id": 1000 + self.sent}) + self.body
        return struct.pack("<I", len(payload)) + payload

    def run(self):
        left = {w: b"" for w in self.wires}
        for w in self.wires:
            w.socket.setblocking(False)
        while not self.over:
            idle = True
            for w in list(left):
                try:
                    left[w] = left[w] or self.frame()
                    left[w] = left[w][w.socket.send(left[w]):]
                    idle = False
                except BlockingIOError:
                    pass
                except OSError:
                    self.lost += 1
                    del left[w]
                with contextlib.suppress(OSError):
                    w.socket.recv(1 << 20)
                    idle = False
            if idle:
                time.sleep(0.002)

    def stop(self):
        self.over = True
        self.thread.join()
        for w in self.wires:
            w.close()


@contextlib.contextmanager
def copies(n):
    """Small models, each a file of its own."""
    with tempfile.TemporaryDirectory(prefix="tandem-copies-") as folder:
        paths = [os.path.join(folder, f"copy-{i}.gguf") for i in range(n)]
        for path in paths:
            shutil.copyfile(make_model("tiny"), path)
        yield paths


def with_file(d, uid, path, kind, fields, name=None):
    """A request with a model of one's own; the last of its answers."""
    with wire_of(d, uid) as w, open(path, "rb") as f:
        rid = w.send(kind, dict(fields, model={"name": name or path, "from_fd": True}), fd=f.fileno())
        while True:
            what, m = w.receive(rid, 60 * SLOW)
            if what in ("error", "done", "tokenize"):
                return what, m


def generates(d, uid, path, **more):
    what, m = with_file(d, uid, path, "generate", request(ids=[2, 3, 4], n=2), **more)
    return what == "done" and m.get("reason") != "DONE_ERROR", m


def anonymous(pid):
    with open(f"/proc/{pid}/smaps_rollup") as f:
        return sum(int(line.split()[1]) for line in f if line.startswith("Pss_Anon:")) << 10


def string(text):
    return struct.pack("<Q", len(text)) + text


def array_of_strings(path, key, n, size):
    """A GGUF file of that size whose only metadata are n strings, in a hole: they are empty, if they fit."""
    with open(path, "wb") as f:
        f.write(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + string(key) + struct.pack("<IIQ", 9, 8, n))
        f.truncate(size)
    return path


TEBIBYTE = 1 << 40
