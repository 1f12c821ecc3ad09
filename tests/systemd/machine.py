"""A bare Debian that boots with its own systemd, in a container: for tests of what is installed. Root only.

The root is made once (mmdebstrap) and kept as an archive; each machine is a fresh copy. Commands run inside through the
namespaces of its first process. Nothing of the host is visible to it but the folder that is bound at /host, read-only.
"""
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zlib

from tandem_test import BIN, SLOW, TREE, Skip, check, wait_for

CACHE = os.environ.get("TANDEM_TEST_CACHE") or os.path.join(TREE, "build", "test-models")
SUITE = next((a[8:] for a in sys.argv if a.startswith("--suite=")), "bookworm")
# What the packages need and a bare root lacks; python3 stands for programs that nobody here wrote.
PACKAGES = ("systemd-sysv,dbus,polkitd,procps,python3-minimal,libinih1,libprotobuf-c1,libseccomp2,liburing2,"
            "libdbus-1-3,libjansson4,libedit2,libjpeg62-turbo,libwebp7,libwebpdemux2,"
            + ("libmicrohttpd12,libcurl4,libpng16-16" if SUITE == "bookworm" else
               "libmicrohttpd12t64,libcurl4t64,libpng16-16t64"))
HIERARCHIES = ("", "unified", "systemd")  # below /sys/fs/cgroup: version 2 alone, or beside version 1


def mirror():
    """The archive that this machine installs Debian's packages from, whatever its release."""
    try:
        r = subprocess.run(["apt-get", "indextargets", "--format", "$(ORIGIN) $(COMPONENT) $(REPO_URI)",
                            "Created-By: Packages"],
                           stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        raise Skip("no apt here that says where Debian's packages are")
    found = [line.split()[2] for line in r.stdout.splitlines() if line.split()[:2] == ["Debian", "main"]]
    if not found:
        raise Skip("apt has no archive of Debian's in its sources")
    return found[0]


def base_archive():
    # another list is another root
    path = os.path.join(CACHE, f"debian-{SUITE}-{zlib.crc32(PACKAGES.encode()):08x}.tar")
    if os.path.exists(path):
        return path
    if not shutil.which("mmdebstrap"):
        raise Skip("no mmdebstrap here to make a root with (Debian: mmdebstrap)")
    os.makedirs(CACHE, exist_ok=True)
    part = path + ".part.tar"
    r = subprocess.run(["mmdebstrap", "--variant=minbase", "--include=" + PACKAGES, SUITE, part, mirror()],
                       stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                       timeout=900)
    if r.returncode != 0:
        raise Skip("mmdebstrap cannot make a root here: " + r.stdout[-300:].replace("\n", " "))
    os.rename(part, path)
    return path


built = []


def release():
    with open("/etc/os-release") as f:
        return dict(line.rstrip().split("=", 1) for line in f if "=" in line).get("VERSION_CODENAME", "").strip('"')


def packages():
    """The .deb files of this tree: those of $TANDEM_DEBS, else built now: of another release than this machine's in a
    fresh root of that release, from the committed state."""
    folder = os.environ.get("TANDEM_DEBS")
    if not folder and SUITE != release():
        root = os.path.join(os.path.dirname(BIN), "package-root-" + SUITE)
        if root not in built:
            shutil.rmtree(root, ignore_errors=True)
            r = subprocess.run([os.path.join(TREE, "tools", "fresh-debian"), "--suite", SUITE, "--keep", root,
                                "./bootstrap", "package"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               timeout=3000)
            check(r.returncode == 0, "./bootstrap package on " + SUITE, r.stdout[-2000:])
            built.append(root)
        folder = os.path.join(root, "src", "build-package")
    elif not folder:
        if not shutil.which("cpack") or not shutil.which("dpkg-shlibdeps"):
            raise Skip("no cpack or dpkg-shlibdeps here (Debian: cmake, dpkg-dev)")
        folder = os.path.join(os.path.dirname(BIN), "package")
        for command in (["cmake", "-S", TREE, "-B", folder, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=RelWithDebInfo",
                         "-DCMAKE_INSTALL_PREFIX=/usr", "-DBUILD_TESTING=OFF"],
                        ["ninja", "-C", folder, "-j2"], ["cpack", "-G", "DEB", "-B", folder, "--config",
                                                         os.path.join(folder, "CPackConfig.cmake")]):
            r = subprocess.run(command, cwd=TREE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               timeout=1500)
            check(r.returncode == 0, " ".join(command), r.stdout[-1500:])
    # Without tandem-xrt, which needs a library that the bare root has not: Tandem has to do without it.
    found = sorted(os.path.join(folder, n) for n in os.listdir(folder)
                   if n.endswith(".deb") and not n.startswith("tandem-xrt") and "-dbgsym_" not in n)
    # tandem-xrt comes only where XRT's headers were there, and needs packages that a bare root lacks.
    found = [f for f in found if not os.path.basename(f).startswith("tandem-xrt_")]
    check(len(found) == 4, "four packages", found)
    return found


class Machine:
    def __enter__(self):
        if os.geteuid() != 0:
            raise Skip("a container that boots needs root")
        if not shutil.which("systemd-nspawn"):
            raise Skip("no systemd-nspawn here (Debian: systemd-container)")
        archive = base_archive()
        self.dir = tempfile.mkdtemp(prefix="tandem-machine-")
        self.root, self.host = os.path.join(self.dir, "root"), os.path.join(self.dir, "host")
        os.mkdir(self.root)
        os.mkdir(self.host)
        self.process, self.leader, self.cgroups = None, None, []
        try:
            subprocess.run(["tar", "-xf", archive, "-C", self.root, "--numeric-owner", "--xattrs"], check=True)
            with open(os.path.join(self.root, "etc", "machine-id"), "w") as f:
                f.write("")
            self.boot()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def boot(self):
        name = f"tandem-test-{os.getpid()}"
        for h in HIERARCHIES:
            base = os.path.join("/sys/fs/cgroup", h)
            if (os.path.exists(os.path.join(base, "cgroup.procs"))
                    and (h or os.path.exists(base + "/cgroup.controllers"))):
                try:
                    os.makedirs(os.path.join(base, name), exist_ok=True)
                    self.cgroups.append(os.path.join(base, name))
                except OSError as e:
                    raise Skip(f"no control group for a container can be made here: {e}")
        enter = "".join(f"echo $$ >{g}/cgroup.procs; " for g in self.cgroups)
        self.log_path = os.path.join(self.dir, "console")
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                ["sh", "-c", enter + "exec \"$@\"", "sh",
                 "systemd-nspawn", "-q", "-D", self.root, "-b", "--register=no", "--keep-unit", "--private-network",
                 # nspawn's own filter is older than these; a real machine has them
                 "--system-call-filter=landlock_create_ruleset landlock_add_rule landlock_restrict_self",
                 "--bind-ro=" + self.host + ":/host", "--console=pipe"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env=dict(os.environ, SYSTEMD_NSPAWN_UNIFIED_HIERARCHY="1"))
        deadline = time.monotonic() + 60 * SLOW
        while time.monotonic() < deadline and self.process.poll() is None:
            self.leader = self.leader or self.first_process()
            if self.leader:
                state = self.run("systemctl", "is-system-running", may_fail=True).stdout.strip()
                if state in ("running", "degraded"):
                    return
            time.sleep(0.2)
        raise Skip("a container does not boot here: " + self.console()[-300:].replace("\n", " "))

    def first_process(self):
        """nspawn's grandchild that is process 1 of its own namespace."""
        todo, seen = [self.process.pid], []
        while todo:
            pid = todo.pop()
            seen.append(pid)
            try:
                with open(f"/proc/{pid}/task/{pid}/children") as f:
                    todo += [int(p) for p in f.read().split()]
                with open(f"/proc/{pid}/status") as f:
                    numbers = next(line for line in f if line.startswith("NSpid:")).split()
                if len(numbers) > 2 and numbers[-1] == "1":
                    return pid
            except (OSError, StopIteration):
                continue
        return None

    def console(self):
        with open(self.log_path, errors="replace") as f:
            return f.read()

    def command(self, *args, user=None):
        inside = ["nsenter", "-m", "-u", "-i", "-n", "-p", "-C", "-t", str(self.leader), "--wd=/"]
        env = ["env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"]
        return inside + env + (["runuser", "-u", user, "--"] if user else []) + list(args)

    def run(self, *args, user=None, may_fail=False, input=None, timeout=60):
        r = subprocess.run(self.command(*args, user=user), input=input,
                           stdin=subprocess.DEVNULL if input is None else None,
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=timeout * SLOW)
        if not may_fail:
            check(r.returncode == 0, " ".join(args), r.returncode, r.stdout[-800:], r.stderr[-800:])
        return r

    def popen(self, *args, user=None):
        return subprocess.Popen(self.command(*args, user=user), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True)

    def show(self, unit, name):
        return self.run("systemctl", "show", "-P", name, unit).stdout.strip()

    def wait(self, condition, what, timeout=30):
        wait_for(condition, what, timeout * SLOW, 0.1)

    def journal(self, unit="tandemd.service"):
        return self.run("journalctl", "-u", unit, "--no-pager", "-o", "cat", may_fail=True).stdout

    def __exit__(self, kind, value, trace):
        if kind and self.leader and kind is not Skip:
            print("---- the journal\n" + self.journal()[-6000:] + "\n----", flush=True)
        if self.process:
            if self.leader:
                try:
                    os.kill(self.leader, signal.SIGRTMIN + 4)  # powers off
                    self.process.wait(15 * SLOW)
                except (ProcessLookupError, subprocess.TimeoutExpired):
                    pass
            if self.process.poll() is None:
                self.process.kill()
            self.process.wait()
        for group in self.cgroups:
            for base, _, _ in os.walk(group, topdown=False):
                try:
                    os.rmdir(base)
                except OSError:
                    pass
        shutil.rmtree(self.dir, ignore_errors=True)
