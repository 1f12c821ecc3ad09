#!/usr/bin/python3
"""tandem add and rm as their users meet them, and what comes of a model folder when a process is killed at any of its
system calls, when files are swapped under it, when the file system lacks what is asked of it, and when another user's
folder lies. Usage: test-store.py TANDEM [TEST…]. Standard library only."""

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(1, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "lib"))

import model_parts
import test_steps as steps
from test_models_support import Case, MODEL, MODEL_PATH, TANDEM

NOBODY = 65534
# At which calls a process is killed, and at which its files are swapped.
KILL_CALLS = ("openat", "write", "flock", "fsync", "fchmod", "linkat", "symlinkat", "unlinkat", "renameat2")
SWAP_CALLS = ("openat", "newfstatat", "readlinkat", "readlink", "pread64", "linkat", "symlinkat")
NO_TMPFILE = ("openat", errno.EOPNOTSUPP, 2, steps.O_TMPFILE_BIT)


def content(path):
    with open(path, "rb") as f:
        return f.read()


class Add(Case):
    def test_link_and_copy(self):
        path = self.write_model(self.dir + "/some/where/x.gguf")
        self.assertIn("x: ", self.tandem("add", path))
        self.assertEqual(os.path.realpath(self.models + "/x.gguf"), os.path.realpath(path))
        self.assertIn("there already", self.tandem("add", path))
        self.tandem("add", "--copy", "--name", "y", path)
        self.assertFalse(os.path.islink(self.models + "/y.gguf"))
        other = self.write_model(self.dir + "/else/x.gguf")
        self.assertIn("another", self.tandem("add", other, status=1))
        self.assertIn("it is not a GGUF file",
                      self.tandem("add", self.write_model(self.dir + "/text.gguf", b"hello " * 9), status=1))
        self.assertIn("cannot open", self.tandem("add", self.dir + "/none.gguf", status=1))
        self.assertIn("its file stays", self.tandem("rm", "x"))
        self.assertIn("did you mean y?", self.tandem("rm", "z", status=1))
        self.tandem("rm", "y.gguf")
        self.assertEqual(self.files(), [])
        self.assertTrue(os.path.exists(path))
        self.tandem("rm", "../x", status=2)
        self.tandem("add", status=2)
        self.tandem("add", "--from", "ollama", path, status=2)

    def test_rm_of_one_name(self):
        """A single file and models in parts that are called alike are several models."""
        def parts(n):
            return [f"m-{i + 1:05}-of-{n:05}.gguf" for i in range(n)]

        for name in ["m.gguf", *parts(2), *parts(3)]:
            self.write_model(self.models + "/" + name)
        self.tandem("rm", "m")
        self.assertEqual(self.files(), sorted(parts(2) + parts(3)))
        self.assertIn("several models", self.tandem("rm", "m", status=1))
        self.assertEqual(self.files(), sorted(parts(2) + parts(3)))
        self.tandem("rm", "m-00001-of-00003")
        self.assertEqual(self.files(), sorted(parts(2)))
        self.tandem("rm", "m")
        self.assertEqual(self.files(), [])

    def test_damaged(self):
        """What the daemon would refuse is refused here."""
        cut = self.write_model(self.dir + "/cut.gguf", MODEL[:len(MODEL) // 2])
        self.assertIn("truncated download?", self.tandem("add", cut, status=1))
        other = MODEL.replace(b"gemma3", b"gemma9")
        self.assertIn("gemma9", self.tandem("add", self.write_model(self.dir + "/other.gguf", other), status=1))
        self.tandem("add", self.write_model(self.dir + "/empty.gguf", b""), status=1)
        self.assertEqual(self.files(), [])

    def test_system_folder(self):
        """The service follows no link into a home: nothing is linked there, and the option that helps is named."""
        folder = "/var/lib/tandem/models"
        there = os.path.exists(folder + "/x.gguf")
        said = self.tandem("add", "--to", folder, self.write_model(self.dir + "/x.gguf"), status=1)
        self.assertIn("--copy copies instead", said)
        said = self.tandem("add", "--from", "ollama", "--to", folder + "/", status=1)
        self.assertIn("--copy copies instead", said)
        self.assertEqual(os.path.exists(folder + "/x.gguf"), there)

    def test_rm_elsewhere(self):
        """A name that only the daemon knows: rm says where it is."""
        self.assertIn("--to names another folder", self.tandem("rm", "x", status=1))

    def test_from_others(self):
        digest = "ab" * 32
        root = self.dir + "/.ollama/models"
        self.write_model(root + "/blobs/sha256-" + digest)
        manifest = {"layers": [{"mediaType": "application/vnd.ollama.image.template", "digest": "sha256:" + "0" * 64},
                               {"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:" + digest}]}
        self.write_model(root + "/manifests/registry/library/gemma3/1b", json.dumps(manifest).encode())
        self.write_model(root + "/manifests/registry/library/broken/1b", b"{")
        self.assertIn("gemma3-1b: ", self.tandem("add", "--from", "ollama"))
        self.write_model(self.dir + "/.lmstudio/models/o/r/lm-Q4_0.gguf")
        self.tandem("add", "--from", "lmstudio")
        blob = self.write_model(self.dir + "/.cache/huggingface/hub/models--o--r/blobs/123")
        snapshot = self.dir + "/.cache/huggingface/hub/models--o--r/snapshots/1"
        os.makedirs(snapshot)
        os.symlink(blob, snapshot + "/hf-Q4_0.gguf")
        self.tandem("add", "--from", "hf")
        self.assertEqual(self.files(), ["gemma3-1b.gguf", "hf-Q4_0.gguf", "lm-Q4_0.gguf"])

    def test_none(self):
        self.assertIn("/.ollama/models", self.tandem("add", "--from", "ollama", status=1))

    def test_broken_link(self):
        """The file that a link leads to is gone: the name can be removed, and then given anew."""
        path = self.write_model(self.dir + "/some/x.gguf")
        self.tandem("add", path)
        os.rename(path, self.dir + "/some/y.gguf")
        self.assertIn("there is another", self.tandem("add", "--name", "x", self.dir + "/some/y.gguf", status=1))
        self.assertIn("the link is removed", self.tandem("rm", "x"))
        self.tandem("add", "--name", "x", self.dir + "/some/y.gguf")

    def test_parts(self):
        """Of a model in several files all are added or none; the first, by which it is found, comes last."""
        os.mkdir(self.dir + "/parts")
        paths = model_parts.split(MODEL_PATH, self.dir + "/parts", "m", 3)
        names = sorted(os.path.basename(p) for p in paths)
        self.assertIn("m-00001-of-00003: ", self.tandem("add", "--copy", paths[0]))
        self.assertEqual(self.files(), names)
        self.assertIn("there is another", self.tandem("add", "--copy", paths[0], status=1))
        self.tandem("rm", "m")
        self.write_model(self.models + "/" + names[1], b"another")
        self.assertIn("there is another", self.tandem("add", "--copy", paths[0], status=1))
        self.assertEqual(self.files(), [names[1]])
        self.tandem("rm", "m")
        hub = self.dir + "/.lmstudio/models/o/r"
        os.makedirs(hub)
        model_parts.split(MODEL_PATH, hub, "lm", 2)
        self.assertIn("lm: ", self.tandem("add", "--from", "lmstudio", "--copy"))
        self.assertEqual(self.files(), ["lm-00001-of-00002.gguf", "lm-00002-of-00002.gguf"])

    def test_modes(self):
        """Others may read what is whole, as the caller's mask allows, and nothing before that."""
        path = self.write_model(self.dir + "/x.gguf")
        self.tandem("add", "--copy", "--name", "a", path, before=lambda: os.umask(0o022))
        self.tandem("add", "--copy", "--name", "b", path, before=lambda: os.umask(0o077))
        self.assertEqual([os.stat(self.models + "/%s.gguf" % n).st_mode & 0o777 for n in "ab"], [0o644, 0o600])


class Killed(Case):
    """A process that is killed before or behind any of its system calls in the folder."""

    def setUp(self):
        super().setUp()
        if steps.NUMBERS is None:
            self.skipTest("the numbers of this machine's system calls are not known")
        self.path = self.write_model(self.dir + "/from/x.gguf")

    def check_folder(self, command, at):
        """The name is there and whole, or not there. Nothing lies beside it but what the next run and rm know."""
        left = self.files()
        self.assertLessEqual(set(left), {"x.gguf", "x.gguf.part"}, at)
        if "x.gguf" in left:
            self.assertEqual(content(self.models + "/x.gguf"), MODEL, at)
        if at.nth % 2:
            r = self.run_tandem("rm", "x")
            self.assertEqual(r.returncode, 0 if left else 1, (at, left, r))
            self.assertEqual(self.files(), [], at)
        status = 1 if "x.gguf" in self.files() and "--copy" in command else 0
        self.tandem(*command, status=status)
        self.assertEqual(self.files()[0], "x.gguf", at)
        self.tandem("rm", "x")
        self.assertEqual(self.files(), [], at)

    def kill_everywhere(self, *command, env=None):
        argv, env = [TANDEM, *command], env or self.environment()
        stops, status = steps.stops_of(argv, env, KILL_CALLS, since="mkdir")
        self.assertEqual((status, self.files()), (0, ["x.gguf"]))
        self.tandem("rm", "x")
        seen = set()
        for at in stops:
            p = steps.Stepped(argv, env)
            self.assertTrue(p.step_to(at))
            p.kill()
            seen.add(tuple(self.files()))
            self.check_folder(command, at)
        self.assertGreater(len(stops), 15)
        return seen

    def test_copy(self):
        self.assertEqual(self.kill_everywhere("add", "--copy", "--name", "x", self.path),
                         {(), ("x.gguf.part",), ("x.gguf",), ("x.gguf", "x.gguf.part")})

    def test_link(self):
        self.assertIn(("x.gguf.part",), self.kill_everywhere("add", self.path))

    def test_copy_takes_no_room(self):
        """The bytes of a copy that is killed are gone with it, where the file system has files without a name."""
        argv, env = [TANDEM, "add", "--copy", "--name", "x", self.path], self.environment()
        stops, _ = steps.stops_of(argv, env, ["fsync"])
        os.unlink(self.models + "/x.gguf")
        p = steps.Stepped(argv, env)
        self.assertTrue(p.step_to(stops[0]))  # all bytes are written
        p.kill()
        self.assertEqual([os.stat(self.models + "/" + f).st_blocks for f in self.files()], [0])

    def test_copy_is_stopped(self):
        """Ctrl-C leaves nothing."""
        argv, env = [TANDEM, "add", "--copy", "--name", "x", self.path], self.environment()
        stops, _ = steps.stops_of(argv, env, ["flock"])
        os.unlink(self.models + "/x.gguf")
        p = steps.Stepped(argv, env)
        self.assertTrue(p.step_to(stops[0]))
        os.kill(p.pid, signal.SIGINT)
        self.assertEqual((p.finish(), self.files()), (130, []))

    def test_parts(self):
        """A model in parts has its first part, by which it is found, only when it has all."""
        os.mkdir(self.dir + "/parts")
        paths = model_parts.split(MODEL_PATH, self.dir + "/parts", "m", 3)
        argv, env = [TANDEM, "add", "--copy", "--to", self.models, paths[0]], self.environment()
        stops, _ = steps.stops_of(argv, env, ["linkat", "unlinkat"])
        names = [os.path.basename(p) for p in paths]
        self.tandem("rm", "m")
        for at in stops:
            p = steps.Stepped(argv, env)
            self.assertTrue(p.step_to(at))
            p.kill()
            whole = [n for n in self.files() if n.endswith(".gguf")]
            self.assertIn(whole, (names[i:] for i in range(4)), at)
            for n in whole:
                self.assertEqual(content(self.models + "/" + n), content(self.dir + "/parts/" + n), at)
            r = self.run_tandem("rm", "m")
            self.assertEqual((r.returncode, self.files()), (0, []), (at, r))


class Swapped(Case):
    """The file is replaced at each system call of the process that adds it."""

    def swap_everywhere(self, *options, every_second=False):
        """x.gguf changes places with another file, once in each run. What came into the folder, and what was said."""
        path, other = self.dir + "/from/x.gguf", self.dir + "/from/y"
        argv = [TANDEM, "add", *options, "--name", "x", path]
        stops, status = steps.stops_of(argv, self.environment(), SWAP_CALLS, since="mkdir")
        self.assertEqual(status, 0)
        came, said = set(), set()
        for at in stops[::1 if "--copy" in options and not every_second else 2]:
            for f in self.files():
                os.unlink(self.models + "/" + f)
            log = self.dir + "/log"
            p = steps.Stepped(argv, self.environment(), log)
            self.assertTrue(p.step_to(at))
            os.rename(path, path + ".kept")
            os.rename(other, path)
            p.finish()
            os.rename(path, other)
            os.rename(path + ".kept", path)
            if self.files():
                at_end = self.models + "/x.gguf"
                self.assertEqual(self.files(), ["x.gguf"])
                came.add(os.readlink(at_end) if os.path.islink(at_end) else content(at_end))
            said.add(content(log).decode())
            os.unlink(log)
        return came, "".join(said)

    def setUp(self):
        super().setUp()
        if steps.NUMBERS is None:
            self.skipTest("the numbers of this machine's system calls are not known")
        self.write_model(self.dir + "/from/x.gguf")

    def test_by_a_link_to_a_secret(self):
        self.write_model(self.dir + "/secret", b"root:$6$secret-hash:::\n")
        os.symlink(self.dir + "/secret", self.dir + "/from/y")
        came, said = self.swap_everywhere("--copy")
        self.assertEqual(came, {MODEL})
        self.assertIn("it has only 23 bytes", said)

    def test_another_part(self):
        """The second file of a model is replaced: what comes is all of the model, or nothing."""
        secret = self.write_model(self.dir + "/secret", b"GGUF" + b"secret" * 100)
        os.mkdir(self.dir + "/parts")
        paths = model_parts.split(MODEL_PATH, self.dir + "/parts", "m", 2)
        argv = [TANDEM, "add", "--copy", "--to", self.models, paths[0]]
        stops, _ = steps.stops_of(argv, self.environment(), SWAP_CALLS, since="mkdir")
        right, outcomes = [content(p) for p in paths], set()
        for at in stops[::2]:
            for f in self.files():
                os.unlink(self.models + "/" + f)
            p = steps.Stepped(argv, self.environment())
            self.assertTrue(p.step_to(at))
            os.rename(paths[1], paths[1] + ".kept")
            os.symlink(secret, paths[1])
            p.finish()
            os.rename(paths[1] + ".kept", paths[1])
            outcomes.add(p.status)
            self.assertEqual([content(self.models + "/" + f) for f in self.files()], right if p.status == 0 else [], at)
        self.assertEqual(outcomes, {0, 1})

    def test_by_a_fifo(self):
        os.mkfifo(self.dir + "/from/y")
        came, said = self.swap_everywhere("--copy", every_second=True)
        self.assertEqual(came, {MODEL})
        self.assertIn("it is not a regular file", said)

    def test_before_a_link(self):
        """A link leads to the file that was examined, or none is made."""
        self.write_model(self.dir + "/from/y", b"another")
        came, said = self.swap_everywhere()
        self.assertEqual(came, {self.dir + "/from/x.gguf"})
        self.assertIn("became another file meanwhile", said)

    def test_changed_while_copied(self):
        """The file's owner cuts, lengthens or rewrites it at any call: the copy is whole, or there is none."""
        path = self.dir + "/from/x.gguf"
        argv = [TANDEM, "add", "--copy", "--name", "x", path]
        stops, _ = steps.stops_of(argv, self.environment(), ["pread64", "write", "openat"], since="mkdir")

        def cut(f):
            f.truncate(len(MODEL) // 2)

        def grow(f):
            f.seek(0, os.SEEK_END)
            f.write(b"more")

        def rewrite(f):
            f.write(b"0" * 4096)

        outcomes = set()
        for change in (cut, grow, rewrite):
            for at in stops[::3]:
                self.run_tandem("rm", "x")
                self.write_model(path)
                p = steps.Stepped(argv, self.environment(), self.dir + "/log")
                self.assertTrue(p.step_to(at))
                with open(path, "r+b") as f:
                    change(f)
                p.finish()
                if self.files():
                    with open(self.models + "/x.gguf", "rb") as f:
                        data = f.read()
                    self.assertIn(data, (MODEL, MODEL + b"more"), (change, at))  # whole, before or after
                outcomes.add((change.__name__, bool(self.files())))
        self.assertEqual(len(outcomes), 6, outcomes)
        self.assertRegex(content(self.dir + "/log").decode(), "shrank while it was copied")


class FileSystems(Case):
    """What some file systems lack, or answer."""

    def setUp(self):
        super().setUp()
        if steps.NUMBERS is None:
            self.skipTest("the numbers of this machine's system calls are not known")
        self.path = self.write_model(self.dir + "/from/x.gguf")

    def add(self, *rules, status=0):
        return self.tandem("add", "--copy", "--name", "x", self.path, status=status, before=steps.failing(*rules))

    def test_without_tmpfile(self):
        """The bytes go to the part file; a process that is killed leaves them, and the next one and rm know them."""
        self.add(NO_TMPFILE)
        self.assertEqual((self.files(), content(self.models + "/x.gguf")), (["x.gguf"], MODEL))
        for fill in (b"", b"GGUF" + b"x" * len(MODEL) * 2):
            os.unlink(self.models + "/x.gguf")
            self.write_model(self.models + "/x.gguf.part", fill)
            self.write_model(self.models + "/x.gguf.part.info", b"old")
            self.add(NO_TMPFILE)
            self.assertEqual((self.files(), content(self.models + "/x.gguf")), (["x.gguf"], MODEL))

    def test_killed_without_tmpfile(self):
        command = ["add", "--copy", "--name", "x", self.path]
        install = steps.failing(NO_TMPFILE)
        argv, real, seen = [TANDEM, *command], os.execve, set()

        def filtered(program, args, env):
            install()
            real(program, args, env)

        steps.os.execve = filtered
        try:
            stops, status = steps.stops_of(argv, self.environment(), ["write", "flock", "fsync", "linkat", "unlinkat"],
                                           since="mkdir")
            self.assertEqual((status, self.files()), (0, ["x.gguf"]))
            for at in stops:
                self.tandem("rm", "x", status=0 if self.files() else 1)
                p = steps.Stepped(argv, self.environment())
                self.assertTrue(p.step_to(at))
                p.kill()
                seen.add(tuple(self.files()))
                if "x.gguf" in self.files():
                    self.assertEqual(content(self.models + "/x.gguf"), MODEL, at)
                else:
                    self.add(NO_TMPFILE)
                    self.assertEqual((self.files(), content(self.models + "/x.gguf")), (["x.gguf"], MODEL), at)
        finally:
            steps.os.execve = real
        self.assertEqual(seen, {("x.gguf.part",), ("x.gguf", "x.gguf.part"), ("x.gguf",)})

    def test_without_links(self):
        for more in ((), (("renameat2", errno.EINVAL),)):
            self.add(NO_TMPFILE, ("linkat", errno.EPERM), *more)
            self.assertEqual((self.files(), content(self.models + "/x.gguf")), (["x.gguf"], MODEL))
            self.assertIn("there is another", self.add(NO_TMPFILE, ("linkat", errno.EPERM), *more, status=1))
            self.assertEqual(self.files(), ["x.gguf"])
            self.tandem("rm", "x")

    def test_errors(self):
        """Whatever call fails, the name is not there, and nothing else is."""
        for rule, said in ((("fsync", errno.EIO), "Input/output error"),
                           (("linkat", errno.ENOSPC), "No space left"), (("linkat", errno.EDQUOT), "quota"),
                           (("linkat", errno.EROFS), "Read-only"), (("flock", errno.ENOLCK), "cannot lock"),
                           (("write", errno.ENOSPC, 2, 1 << 20), "No space left"),
                           (("openat", errno.ENOSPC, 2, steps.O_TMPFILE_BIT), "No space left"),
                           (("openat", errno.EDQUOT, 2, os.O_CREAT), "quota")):
            self.assertIn(said, self.add(rule, status=1), rule)
            self.assertEqual([f for f in self.files() if rule[0] != "flock"], [], rule)
        self.add()

    def test_small_disk(self):
        """The room is looked at before the first byte."""
        script = ("mkdir -p $0/small && mount -t tmpfs -o size=1024k small $0/small || exit 99; "
                  "%s add --copy --to $0/small %s; s=$?; echo files: $(ls -A $0/small); exit $s" % (TANDEM, self.path))
        r = subprocess.run(["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, self.dir],
                           stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120,
                           env=self.environment())
        if r.returncode == 99 or "unshare" in r.stderr:
            self.skipTest("no mount namespace here: " + r.stderr)
        self.assertEqual((r.returncode, r.stdout), (1, "files:\n"), r)
        self.assertRegex(r.stderr, r"needs [1-9]\d* MB more, and its disk has \d+ MB left")


class Leftovers(Case):
    """What lies under the names that a copy or a download uses."""

    def setUp(self):
        super().setUp()
        self.path = self.write_model(self.dir + "/from/x.gguf")
        self.part = self.models + "/x.gguf.part"
        os.makedirs(self.models)

    def test_removed(self):
        """rm removes what is left of a name, with and without the model, and only of that name."""
        for name in ("x.gguf.part", "x.gguf.part.info", "y.gguf.part", "x-00001-of-00002.gguf.part"):
            self.write_model(self.models + "/" + name, b"z" * 8192)
        self.assertIn("what was left of it is removed, ", self.tandem("rm", "x"))
        self.assertEqual(self.files(), ["y.gguf.part"])
        self.write_model(self.models + "/y.gguf")
        self.tandem("rm", "y")
        self.assertEqual(self.files(), [])

    def test_held(self):
        """While a process brings a name, neither add nor rm touches it."""
        with open(self.part, "w") as f:
            fcntl.flock(f, fcntl.LOCK_EX)
            self.assertIn("by another process", self.tandem("add", "--copy", self.path, status=1))
            self.assertIn("by another process", self.tandem("add", self.path, status=1))
            self.assertIn("by another process", self.tandem("rm", "x", status=1))
            self.assertEqual(self.files(), ["x.gguf.part"])
        self.tandem("add", "--copy", self.path)
        self.assertEqual(self.files(), ["x.gguf"])

    def test_odd_files(self):
        """A part file that is none: nothing is written through it, and rm removes it."""
        secret = self.write_model(self.dir + "/secret", b"secret")

        def link():
            os.symlink(secret, self.part)

        def broken_link():
            os.symlink(self.dir + "/made", self.part)

        def fifo():
            os.mkfifo(self.part)

        for make in (link, broken_link, fifo):
            make()
            self.assertIn("remove that first", self.tandem("add", "--copy", self.path, status=1))
            self.tandem("rm", "x")
            self.assertEqual((self.files(), content(secret)), ([], b"secret"))
        self.assertFalse(os.path.exists(self.dir + "/made"))

    def test_second_name(self):
        """A part file with another name is not written to: it is a model that was linked just before a kill, or not
        ours."""
        other = self.write_model(self.dir + "/other.gguf", b"other")
        os.link(other, self.part)
        self.tandem("add", "--copy", self.path, before=steps.NUMBERS and steps.failing(NO_TMPFILE))
        self.assertEqual((self.files(), content(other)), (["x.gguf"], b"other"))


class Others(Case):
    """Folders of other programs and of other users."""

    def write_manifest(self, name, text):
        return self.write_model(self.dir + "/.ollama/models/manifests/registry/library/%s" % name, text)

    def ollama(self, digest):
        layer = {"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:" + digest}
        return json.dumps({"layers": [layer]}).encode()

    def test_lying_manifests(self):
        """Each is looked at for a bounded time, and names no file outside its store."""
        digest = "ab" * 32
        self.write_model(self.dir + "/.ollama/models/blobs/sha256-" + digest)
        self.write_model(self.dir + "/.ollama/models/blobs/sha256-x/y")
        self.write_manifest("million/1", b'{"layers":[' + b",".join([b"{}"] * 1_000_000) + b"]}")
        self.write_manifest("deep/1", b"[" * 900_000)
        self.write_manifest("up/1", self.ollama("../../../../secret"))
        self.write_manifest("short/1", self.ollama("ab"))
        layers = json.loads(self.ollama(digest))["layers"]
        self.write_manifest("twice/1", json.dumps({"layers": layers * 1000}).encode())
        os.mkfifo(self.dir + "/.ollama/models/manifests/registry/library/fifo")
        os.symlink("/dev/zero", self.dir + "/.ollama/models/manifests/registry/library/zero")
        self.write_manifest("gone/1", self.ollama("cd" * 32))
        begin = time.monotonic()
        r = self.run_tandem("add", "--from", "ollama")
        self.assertEqual(r.returncode, 1, r)
        self.assertEqual(r.stdout, "twice-1: 1.9 MiB, linked\n")
        self.assertRegex(r.stderr, "^tandem: cannot open .*/blobs/sha256-(cd){32}: No such file or directory\n$")
        self.assertEqual(self.files(), ["twice-1.gguf"])
        self.assertLess(time.monotonic() - begin, 20)

    def test_deep_folders(self):
        at = self.dir + "/.lmstudio/models"
        for i in range(40):
            at += "/d"
        self.write_model(at + "/x.gguf")
        os.symlink("..", self.dir + "/.lmstudio/models/up")
        self.assertIn("there are no GGUF files", self.tandem("add", "--from", "lmstudio", status=1))

    @unittest.skipIf(os.getuid() != 0, "needs root to become another user")
    def test_another_users_links(self):
        """Root copies what another user could read as well, and nothing else that this user points at."""
        os.chmod(self.dir, 0o755)
        mine, user = self.dir + "/mine", self.dir + "/user"
        for folder in (mine, user, mine + "/closed", user + "/closed"):
            os.mkdir(folder)
        os.chmod(mine + "/closed", 0o700)
        os.chmod(user + "/closed", 0o700)
        for path, mode in ((mine + "/private", 0o600), (mine + "/open", 0o644), (mine + "/closed/open", 0o644),
                           (user + "/his", 0o600), (user + "/closed/mine", 0o644), (user + "/mine", 0o600)):
            self.write_model(path)
            os.chmod(path, mode)
        for path in (user, user + "/his", user + "/closed"):
            os.chown(path, NOBODY, NOBODY)

        def link(name, target):
            os.symlink(target, user + "/" + name)
            os.lchown(user + "/" + name, NOBODY, NOBODY)

        link("l-private", mine + "/private")
        link("l-open", mine + "/open")
        link("l-closed", "../mine/closed/open")
        link("l-folder", mine + "/closed")
        link("l-his", "his")
        link("l-twice", "l-private")
        os.symlink(user + "/l-private", mine + "/to-his-link")
        os.symlink(mine + "/private", mine + "/to-mine")
        for path, right in ((mine + "/private", True), (mine + "/to-mine", True), (user + "/his", True),
                            (user + "/l-his", True), (user + "/l-open", True), (user + "/closed/mine", True),
                            (user + "/mine", False), (user + "/l-private", False), (user + "/l-closed", False),
                            (user + "/l-folder/open", False), (user + "/l-twice", False),
                            (mine + "/to-his-link", False)):
            said = self.tandem("add", "--copy", "--name", "x", path, status=0 if right else 1)
            self.assertIn("copied" if right else "may not read", said, path)
            self.assertEqual(self.files(), ["x.gguf"] if right else [], path)
            if right:
                self.tandem("rm", "x")

    @unittest.skipIf(os.getuid() != 0, "needs root to become another user")
    def test_another_users_leftover(self):
        """A part file of another user is neither believed nor written to."""
        self.write_model(self.models + "/x.gguf.part", b"his")
        os.chown(self.models + "/x.gguf.part", NOBODY, NOBODY)
        path = self.write_model(self.dir + "/x.gguf")
        self.assertIn("belongs to another user", self.tandem("add", "--copy", path, status=1))
        self.assertEqual(content(self.models + "/x.gguf.part"), b"his")
        self.tandem("rm", "x")
        self.tandem("add", "--copy", path)
        self.assertEqual(self.files(), ["x.gguf"])


class Results(unittest.TextTestResult):
    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        print("SKIP %s: %s" % (test.id().split(".")[-1], reason), flush=True)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], testRunner=unittest.TextTestRunner(resultclass=Results))
