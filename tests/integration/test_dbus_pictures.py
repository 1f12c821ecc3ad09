"""Pictures over D-Bus, as bytes and as open files: the same answers as over the socket, and files of odd kinds.

usage: test_dbus_pictures.py
"""
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from seeing import HOST, IMAGES, Seeing, file_of, make_pair, picture  # noqa: E402
from tandem_bus import ERROR, JOB, MANAGER, ROOT, Bus, Client, read_all  # noqa: E402
from tandem_test import SLOW, TREE, Skip, check, equal, main, make_folder, test, wait_for  # noqa: E402

N = 6


def on_bus(bus, **more):
    return Seeing(args=["--bus", bus.address], **more)


def pictures(c, *items):
    """items: (message, byte, bytes or fd)"""
    d = c.dbus
    return d.Array([d.Struct((d.UInt32(m), d.UInt32(at), d.ByteArray(f) if isinstance(f, bytes) else d.types.UnixFd(f)),
                             signature="uuv") for m, at, f in items], signature="(uuv)")


def memory_file(data):
    fd = os.memfd_create("picture", 0)
    os.write(fd, data)
    return fd


def opened(name):
    return os.open(os.path.join(IMAGES, "pictures", name), os.O_RDONLY)


def answer(c, seen, prompt=None, chat=None):
    """Ids and log-probabilities of a job with pictures, by its events."""
    options = c.options({"output": "events", "max_tokens": N, "ignore_end": True, "pictures": pictures(c, *seen)})
    if chat:
        messages = c.dbus.Array(chat, signature="(ss)")
        path, fd = c.call(ROOT, MANAGER, "Chat", "a(ss)a{sv}", messages, options)
    else:
        path, fd = c.call(ROOT, MANAGER, "Generate", "sa{sv}", prompt, options)
    events = [json.loads(line) for line in read_all(fd.take()).decode().splitlines()]
    equal(events[-1]["event"], "done", "the last event")
    check(events[-1]["reason"] != "error", "no error", events[-1])
    tokens = [e for e in events if e["event"] == "token"]
    return [e["id"] for e in tokens], [round(e["logprob"], 4) for e in tokens]


def wanted(d, **job):
    result = d.generate(n=N, **job)
    equal(result.error, None, "the socket's job")
    return result.ids, [round(p, 4) for p in result.logprobs]


def has_open(d, *parts):
    """Whether tandemd has a file open whose name has one of these parts."""
    folder = f"/proc/{d.process.pid}/fd"
    for fd in os.listdir(folder):
        try:
            name = os.readlink(os.path.join(folder, fd))
        except FileNotFoundError:
            continue
        if any(part in name for part in parts):
            return True
    return False


def refused(c, d, code, words, *seen, prompt="x", **more):
    """The call, or the job that it began, ends with this error."""
    try:
        path, fd = c.generate(prompt, max_tokens=1, pictures=pictures(c, *seen), **more)
    except c.dbus.DBusException as e:
        name, text = e.get_dbus_name(), e.get_dbus_message()
    else:
        read_all(fd)
        properties = c.until_done(path)
        name, text = str(properties["ErrorName"]), str(properties["ErrorMessage"])
    equal(name, ERROR + code, f"the error for {words}: {text}")
    check(words in text, f"{words} expected", text)


@test
def same_as_socket():
    """Raw and in a chat, as bytes, files and memfds: the bits of the socket's jobs."""
    with Bus() as bus, on_bus(bus) as d:
        c = Client(bus).wait()
        want = wanted(d, prompt="What is it?", pictures=[picture("wide.png")])
        check(want != wanted(d, prompt="What is it?", pictures=[picture("tall.png")]), "a picture matters")
        for file in (file_of("wide.png"), opened("wide.png"), memory_file(file_of("wide.png"))):
            equal(answer(c, [(0, 0, file)], prompt="What is it?"), want, "a raw prompt")
            if not isinstance(file, bytes):
                os.close(file)
        chat = [("system", "Be kind."), ("user", "One"), ("assistant", "yes"), ("user", "and another")]
        want = wanted(d, chat=chat, pictures=[picture("exif.jpg", 1), picture("lossy.webp", 3, 4),
                                              picture("alpha.png", 3, 11)])
        fd = memory_file(file_of("lossy.webp"))
        os.lseek(fd, 7, os.SEEK_SET)  # it is read from its beginning wherever it stands
        other = opened("alpha.png")
        equal(answer(c, [(1, 0, file_of("exif.jpg")), (3, 4, fd), (3, 11, other)], chat=chat), want, "a chat")
        os.close(fd)
        os.close(other)


@test
def odd_files():
    """Each is refused by name and at once, none is kept open, and the next job is served."""
    with Bus() as bus, on_bus(bus) as d, tempfile.TemporaryDirectory() as folder:
        c = Client(bus).wait()
        good = file_of("wide.png")
        want = answer(c, [(0, 0, good)], prompt="What is it?")
        fifo, sparse, empty, large = (os.path.join(folder, n) for n in ("fifo", "sparse", "empty", "large"))
        os.mkfifo(fifo)
        for path, size in ((sparse, 1 << 40), (empty, 0), (large, 5 << 20)):
            with open(path, "wb") as f:
                f.truncate(size)
        pipe = os.pipe()
        pair = socket.socketpair()
        kinds = [
            (os.open(folder, os.O_RDONLY), "BadRequest", "picture 2 is a directory"),
            (os.dup(pipe[0]), "BadRequest", "picture 2 is a pipe"),
            (os.open(fifo, os.O_RDONLY | os.O_NONBLOCK), "BadRequest", "picture 2 is a pipe"),
            (os.open("/dev/zero", os.O_RDONLY), "BadRequest", "picture 2 is a device"),
            (os.dup(pair[0].fileno()), "BadRequest", "picture 2 is a socket"),
            (os.open(large, os.O_PATH), "BadRequest", "not open for reading"),
            (os.open(large, os.O_WRONLY), "BadRequest", "not open for reading"),
            (os.open(sparse, os.O_RDONLY), "TooLong", "more than 8 MiB"),
            (os.open(empty, os.O_RDONLY), "BadRequest", "picture 2 is empty"),
            (os.open("/proc/version", os.O_RDONLY), "BadRequest", "grew while it was read"),  # its size is 0
            (os.open(__file__, os.O_RDONLY), "BadRequest", "picture 2: "),
        ]
        if os.path.exists("/sys/kernel/mm/transparent_hugepage/enabled"):  # a line in a file of 4096 bytes
            kinds.append((os.open("/sys/kernel/mm/transparent_hugepage/enabled", os.O_RDONLY), "BadRequest",
                          "shrank while it was read"))
        for fd, code, words in kinds:
            refused(c, d, code, words, (0, 0, good), (0, 0, fd))
            os.close(fd)
        two = os.open(large, os.O_RDONLY)
        refused(c, d, "TooLong", "more than 8 MiB", (0, 0, two), (0, 1, two))
        os.close(two)
        wait_for(lambda: not has_open(d, folder, "/dev/zero", __file__, "/proc/version", "/sys/"), "files to be closed")
        equal(answer(c, [(0, 0, good)], prompt="What is it?"), want, "the next job")


@test
def wrong_calls():
    """Places that are not there, values of other types, a caller that leaves while its picture is read."""
    with Bus() as bus, on_bus(bus) as d:
        c = Client(bus).wait()
        D, good = c.dbus, file_of("wide.png")
        refused(c, d, "BadRequest", "picture 1 stands at byte 2", (0, 2, good))
        refused(c, d, "BadRequest", "message 2", (1, 0, good))
        refused(c, d, "BadRequest", "picture 2 stands before picture 1", (0, 1, good), (0, 0, good))
        refused(c, d, "BadRequest", "at most 64", *[(0, 0, good[:9])] * 65)
        refused(c, d, "BadRequest", "picture 1 is empty", (0, 0, b""))
        refused(c, d, "Unsupported", "model tale takes no pictures", (0, 0, good), model="tale")
        refused(c, d, "BadRequest", "continued", (0, 0, good), prompt="", prompt_ids=[5, 6])
        for value, words in ((D.String("x"), "wants an array of (uuv)"), (D.Array([], signature="(uus)"), "(uuv)"),
                             (D.Array([D.Struct((D.UInt32(0), D.UInt32(0), D.String("x")), signature="uuv")],
                                      signature="(uuv)"), "picture 1 is neither")):
            try:
                c.generate("x", pictures=value)
            except D.DBusException as e:
                equal(e.get_dbus_name(), ERROR + "BadRequest", "the error")
                check(words in e.get_dbus_message(), f"{words} expected", e.get_dbus_message())
            else:
                raise AssertionError(f"{value!r} was taken")
        equal(len(answer(c, [], prompt="x")[0]), N, "tokens of a job with an empty list")
        for _ in range(20):
            other = Client(bus)
            fd = opened("wide.png")
            m = D.lowlevel.MethodCallMessage("dev.tandem.Tandem1", ROOT, MANAGER, "Generate")
            m.append("x", c.options({"pictures": pictures(other, (0, 0, fd))}), signature="sa{sv}")
            other.connection.send_message(m)
            other.connection.flush()
            other.close()
            os.close(fd)
        wait_for(lambda: not d.jobs() and not has_open(d, "wide.png"), "their jobs and files to go")
        equal(len(answer(c, [(0, 0, good)], prompt="x")[0]), N, "tokens of the next job")


@test
def example():
    """examples/look.py, which speaks by GDBus."""
    if subprocess.run(["/usr/bin/python3", "-c", "import gi"], stderr=subprocess.PIPE).returncode != 0:
        raise Skip("no python3-gi here")
    with Bus() as bus, on_bus(bus) as d:
        Client(bus).wait()

        def look(path):
            return subprocess.run(["/usr/bin/python3", os.path.join(TREE, "examples", "look.py"), path, "What is it?"],
                                  env=dict(d.environment(), DBUS_SESSION_BUS_ADDRESS=bus.address),
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120 * SLOW)
        r = look(os.path.join(IMAGES, "pictures", "wide.png"))
        equal((r.returncode, r.stderr), (0, ""), "look.py")
        check(len(r.stdout) > 1, "an answer", r.stdout)
        r = look(__file__)
        check(r.returncode == 1 and "picture 1" in r.stderr, "a file that is no picture", r.stderr)


@test
def for_all_users():
    """A daemon that serves several users reads what lies in memory, and no file that may never answer."""
    folder = make_folder()
    try:
        with Bus("system") as bus, bus.daemon(system=True, models=[make_pair(folder)], env=HOST) as d:
            c = Client(bus).wait()
            want = answer(c, [(0, 0, file_of("wide.png"))], prompt="What is it?")
            fd = memory_file(file_of("wide.png"))
            equal(answer(c, [(0, 0, fd)], prompt="What is it?"), want, "a memfd")
            os.close(fd)
            fd = os.open("/proc/version", os.O_RDONLY)
            refused(c, d, "Denied", "or a memfd", (0, 0, fd))
            os.close(fd)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


main()
