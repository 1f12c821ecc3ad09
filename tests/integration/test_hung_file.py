"""Files that hang when they are read or closed, and fds of every odd kind: they cost the user who passes them, and
nobody else. And a user database that hangs. Needs root, to mount such a file system and to be several users."""
import os
import select
import socket
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from attacks import *  # noqa: E402,F403
from hung_files import *  # noqa: E402,F403
import process_memory  # noqa: E402


@contextlib.contextmanager
def hung(uid=ATTACKER, source=None, n=1):
    """Ended before the daemon is: nothing of the test's own may hang either."""
    if not available():
        raise Skip("needs root and /dev/fuse, to mount a file system that hangs")
    with tempfile.TemporaryDirectory(prefix="tandem-hung-") as folder:
        with HungFiles(os.path.join(folder, "mnt"), source or make_model("tiny"), uid, n) as files:
            yield files


def tokenize_file(wire, fd, name="mine.gguf"):
    return wire.send("tokenize", {"text": b"Once", "model": {"name": name, "from_fd": True}}, fd=fd)


def close(fd):
    """One of a server that has gone: its flush fails."""
    with contextlib.suppress(OSError):
        os.close(fd)


def answer(wire, rid, timeout=20 * SLOW):
    try:
        what, m = wire.receive(rid, timeout)
    except Refused as e:  # the connection as a whole
        return e.code, str(e)
    return m.get("code", "error") if what == "error" else what, m.get("message", "")


def others_are_served(d, what):
    """A bystander has a file of its own, text and status meanwhile."""
    times = status_times(d, 2.0)
    print(f"FIGURE hung_file: {what}: {len(times)} statuses, p99 {1000 * p99(times):.0f} ms")
    check(p90(times) < 0.2 * SLOW, "a bystander's status", what, p90(times))
    with copies(1) as paths:
        ok, m = generates(d, BYSTANDER, paths[0])
        check(ok, "a bystander's own file", what, m)


@test
def closing_hangs():
    """A user's file never returns from close(): it is refused by name, some processes that receive files hang, and
    then the user may pass no more. The daemon ends at once."""
    with system_daemon() as d, hung() as files:
        d.generate(n=2)
        fd = os.open(files.path, os.O_RDONLY)
        files.hang("flush")
        wires = [wire_of(d, ATTACKER) for _ in range(24)]
        codes = [answer(w, tokenize_file(w, fd)) for w in wires]
        foreign = [text for code, text in codes if code == "no-model"]
        refused = [text for code, text in codes if code == "quota"]
        print(f"{len(foreign)} refused by name, {len(refused)} by number: {foreign[0]}; {refused[:1]}")
        check(all("FUSE" in text for text in foreign), "the refusal's text", foreign[0])
        equal(len(foreign) + len(refused), 24, "refusals")
        check(1 <= len(foreign) <= 8, "processes of one user that hang", len(foreign))
        others_are_served(d, "closing")
        wires[0].call("status", {})
        what, m = with_file(d, SECOND, make_model("tiny"), "tokenize", {"text": b"Once"})
        equal(what, "tokenize", f"another user's file {m}")
        for w in wires:
            w.close()
        watch = Stopwatch()
        d.process.send_signal(signal.SIGTERM)
        equal(exit_of(d.process), 0, "the daemon's exit status")
        print(f"FIGURE hung_file: ended after {watch.seconds():.2f} s with files that hang")
        check(watch.seconds() < 4 * SLOW, "the end", watch.seconds())
        d.expect_exit = None
        files.end()  # now they come back
        wait_for(lambda: not d.pids(), "no process is left", 5)
        close(fd)


@test
def it_comes_back():
    """When the file system answers again the user's places are given back."""
    with system_daemon() as d:
        d.generate(n=2)
        for _ in range(3):
            with hung() as files, wire_of(d, ATTACKER) as w:
                fd = os.open(files.path, os.O_RDONLY)
                files.hang("flush")
                equal(answer(w, tokenize_file(w, fd))[0], "no-model", "the first")
                while answer(w, tokenize_file(w, fd))[0] != "quota":
                    pass
                files.end()
                close(fd)
                wait_for(lambda: with_file(d, ATTACKER, make_model("tiny"), "tokenize", {"text": b"a"})[0] ==
                         "tokenize", "files are received again", 10)
        wait_for(lambda: process_memory.open_files(d.process.pid) < 100, "no fd is left behind", 5)


@test
def asking_hangs():
    """A file system that does not even say what it is."""
    with system_daemon() as d, hung() as files:
        d.generate(n=2)
        fd = os.open(files.path, os.O_RDONLY)
        files.hang("statfs", "flush", "read")
        with wire_of(d, ATTACKER) as gone:
            tokenize_file(gone, fd)  # leaves before there is an answer
        with wire_of(d, ATTACKER) as w:
            rid = tokenize_file(w, fd)
            others_are_served(d, "asking")
            code, text = answer(w, rid)
            print(text)
            equal(code, "protocol", "the connection ends")
        wire_of(d, ATTACKER).close()
        watch = Stopwatch()
        d.process.send_signal(signal.SIGTERM)
        equal(exit_of(d.process), 0, "the daemon's exit status")
        check(watch.seconds() < 4 * SLOW, "the end", watch.seconds())
        d.expect_exit = None
        files.end()
        close(fd)


@test
def trusted_files():
    """A FUSE file that root mounted, and root's own, are read as any other."""
    with system_daemon() as d:
        for owner, uid in ((0, ATTACKER), (ATTACKER, 0)):
            with hung(uid=owner) as files:
                what, m = with_file(d, uid, files.path, "tokenize", {"text": b"Once"})
                equal(what, "tokenize", f"mounted by {owner}, passed by {uid}: {m}")


@test
def reading_hangs():
    """Files of a file system that root mounted (a network's, say) hang when they are read: their user may have no more
    of them read, and others may. Root has a reserve."""
    with system_daemon() as d, hung(uid=0, source=__file__, n=40) as files:
        d.generate(n=2)
        fds = [os.open(path, os.O_RDONLY) for path in files.paths]
        files.hang("read")
        def refused(w, rids):
            """How many of the answers have come, which are all refusals."""
            while select.select([w.socket], [], [], 0)[0]:
                w.call("status", {})
            come = [w.inbox[rid][0] for rid in rids if w.inbox[rid]]
            equal({reply.get("error", {}).get("code") for reply in come} - {"quota"}, set(), f"answers {come}")
            return len(come)

        refusals = []
        for uid, begin, n in ((ATTACKER, 0, 6), (SECOND, 20, 13)):  # the first has 14, the second 7
            w = wire_of(d, uid)
            rids = [tokenize_file(w, fd, f"{uid}-{fd}") for fd in fds[begin:begin + 20]]
            refusals.append((w, rids))
            wait_for(lambda: refused(w, rids) >= n, f"{n} refusals", 20)
        others_are_served(d, "reading")
        equal([refused(*r) for r in refusals], [6, 13], "refusals of the first and of the second")
        with copies(1) as paths:
            equal(with_file(d, 0, paths[0], "tokenize", {"text": b"Once"})[0], "tokenize", "root's file")
        files.end()
        for w, _ in refusals:
            w.close()
        for fd in fds:
            close(fd)
        wait_for(lambda: with_file(d, ATTACKER, make_model("tiny"), "tokenize", {"text": b"a"})[0] == "tokenize",
                 "files are read again", 10)


@test
def rows_for_steps_hang():
    """A model of which each token takes a row of the file, which a file system does not bring: its own job waits, and
    nobody else. When the file system is gone, the job ends with the reason."""
    with system_daemon() as d, hung(uid=0, source=make_model("a", "q4_0", arch="gemma3n")) as files:
        d.generate(n=2)
        fd = os.open(files.path, os.O_RDONLY)
        with wire_of(d, ATTACKER, timeout=60 * SLOW) as w:
            job = dict(request(ids=[2] + list(range(300, 340)), n=2), model={"name": "mine.gguf", "from_fd": True})
            rid = w.send("generate", job, fd=fd)
            while w.receive(rid)[0] != "done":
                pass
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            files.hang("read")
            job["prompt_ids"] = [2] + list(range(900, 940))
            rid = w.send("generate", job, fd=fd)
            others_are_served(d, "reading rows for a step")
            files.end()
            while (last := w.receive(rid))[0] != "done":
                pass
            equal(last[1]["error"]["code"], "model-changed", "the job that waited")
            print(last[1]["error"]["message"])
        close(fd)


@test
def of_the_users_own_daemon():
    """A daemon that serves one user reads that user's FUSE files. One that hangs in read() or close() delays its own
    load, not the loop; 12 s after SIGTERM the process ends without the thread."""
    with Daemon() as d, hung(uid=0) as files:
        d.generate(n=2)
        fd = os.open(files.path, os.O_RDONLY)
        with d.wire() as w:
            equal(answer(w, tokenize_file(w, fd))[0], "tokenize", "a file that does not hang")
        files.hang("read", "flush")
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        d.call("unload", {"name": "mine"})  # so that the file is read again
        w = d.wire()
        tokenize_file(w, fd, "other.gguf")
        time.sleep(0.3)
        times, watch = [], Stopwatch()
        for _ in range(100):
            begin = time.monotonic()
            d.status()
            times.append(time.monotonic() - begin)
        times.sort()
        check(p90(times) * watch.share() < 1.0 * SLOW, "status meanwhile", p90(times), watch.share())
        equal(len(d.generate(n=8).ids), 8, "tokens meanwhile")
        d.process.send_signal(signal.SIGTERM)
        begin = time.monotonic()

        def ended():
            with open(f"/proc/{d.process.pid}/stat") as f:
                return f.read().rsplit(")", 1)[1].split()[0] == "Z"
        wait_for(ended, "the daemon's end", 20)
        print(f"FIGURE hung_file: a user's own daemon ended {time.monotonic() - begin:.1f} s after the signal")
        files.end()
        equal(exit_of(d.process), 0, "exit status")
        d.expect_exit = None
        w.close()
        close(fd)


@test
def the_user_database_hangs():
    """The system's user database may be on a network. Where it does not answer, everybody is served without it; where
    it answers while the daemon ends, the end is an orderly one."""
    with tempfile.TemporaryDirectory() as folder:
        passwd = os.path.join(folder, "passwd")  # whoever opens it waits for a writer
        os.mkfifo(passwd)
        prefix = ("unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/passwd && exec "$@"', passwd)
        if not available() or subprocess.run([*prefix, "true"], stderr=subprocess.DEVNULL).returncode != 0:
            raise Skip("needs root, to put another /etc/passwd in place")
        with Daemon(system=True, prefix=prefix, env={"TANDEM_SUBUIDS": "/dev/null"}) as d:
            d.generate(n=2)
            check("gateway-user" not in d.log(), "nothing is known of the gateway's user yet", d.log())
            d.process.send_signal(signal.SIGTERM)
            wait_for(lambda: "tandemd: ended" in d.log(), "the end of its work", 10)
            os.close(os.open(passwd, os.O_WRONLY | os.O_NONBLOCK))  # an error where nobody waits for it
            equal(exit_of(d.process), 0, "exit status")
            check("there is no user tandem-http" in d.log(), "the answer came before the end", d.log())
            d.expect_exit = None


def settled_files(pid):
    """Open files of the daemon but for sockets: the user's gate has one, and may have ended since. What the daemon has
    let go of is closed beside its loop, so this waits until the number has stayed the same for half a second."""
    files, since = None, time.monotonic()
    folder = f"/proc/{pid}/fd/"

    def kind(fd):
        try:
            return os.readlink(folder + fd)
        except FileNotFoundError:
            return "socket: closed meanwhile"

    while time.monotonic() - since < 0.5:
        now = sum(not kind(fd).startswith("socket:") for fd in os.listdir(folder))
        if now != files:
            files, since = now, time.monotonic()
        time.sleep(0.02)
    return files


@test
def odd_fds():
    """fds that are no model: each gets an error of its own, the connection goes on, nothing is left open."""
    with system_daemon() as d, tempfile.TemporaryDirectory(prefix="tandem-odd-") as folder:
        os.chmod(folder, 0o755)
        os.mkfifo(os.path.join(folder, "fifo"))
        empty = os.path.join(folder, "empty")
        open(empty, "w").close()
        unlinked = os.open(os.path.join(folder, "gone"), os.O_RDWR | os.O_CREAT)
        os.unlink(os.path.join(folder, "gone"))
        pair = socket.socketpair()
        read_end, write_end = os.pipe()
        libc = ctypes.CDLL(None)
        memfd = os.memfd_create("mine")
        os.write(memfd, open(make_model("tiny"), "rb").read())
        kinds = {
            "pipe": read_end, "pipe to write": write_end, "socket": pair[0].fileno(),
            "fifo": os.open(os.path.join(folder, "fifo"), os.O_RDWR), "folder": os.open(folder, os.O_RDONLY),
            "/dev/zero": os.open("/dev/zero", os.O_RDONLY), "O_PATH": os.open(empty, os.O_PATH),
            "to write": os.open(empty, os.O_WRONLY), "empty": os.open(empty, os.O_RDONLY), "unlinked": unlinked,
            "/proc/self/mem": os.open("/proc/self/mem", os.O_RDONLY), "eventfd": libc.eventfd(0, 0),
            "epoll": libc.epoll_create1(0), "timerfd": libc.timerfd_create(1, 0),
            "pidfd": os.pidfd_open(os.getpid()), "/proc/self/maps": os.open("/proc/self/maps", os.O_RDONLY),
        }
        d.generate(n=2)
        with wire_of(d, ATTACKER) as w:
            before = None
            for turn in range(3):
                for kind, fd in kinds.items():
                    code, text = answer(w, tokenize_file(w, fd))
                    if turn == 0:
                        print(f"{kind}: {code}: {text}")
                    check(code in ("no-model", "bad-model", "bad-request"), kind, code, text)
                equal(answer(w, tokenize_file(w, memfd))[0], "tokenize", "a model in a memfd")
                before = before or settled_files(d.process.pid)
                wait_for(lambda: settled_files(d.process.pid) <= before, f"as few open files of the daemon as {before}")
            # several at once, and at a byte where no frame begins
            rid = w.send("tokenize", {"text": b"Once"})
            equal(answer(w, rid)[0], "tokenize", "without any")
        with wire_of(d, ATTACKER) as w:
            w.send_bytes(struct.pack("<I", 8) + b"ab")
            socket.send_fds(w.socket, [b"cd"], [memfd])
            w.wait_closed(10 * SLOW)
        with wire_of(d, ATTACKER) as w:
            payload = SCHEMA.encode("Request", {"id": 77}) + SCHEMA.encode(
                "Request", {"tokenize": {"text": b"a", "model": {"name": "m", "from_fd": True}}})
            socket.send_fds(w.socket, [struct.pack("<I", len(payload)) + payload], [memfd] * 200)
            equal(answer(w, 77)[0], "bad-request", "200 fds")
            equal(answer(w, tokenize_file(w, memfd))[0], "tokenize", "the same connection afterwards")
        for fd in (*kinds.values(), memfd):
            with contextlib.suppress(OSError):
                os.close(fd)


main()
