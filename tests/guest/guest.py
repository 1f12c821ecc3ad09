"""A virtual machine that boots a Debian kernel of its own, for what needs a newer kernel than the host has, or a device
node that only root could make: emulated by QEMU on any CPU, without root.

Both halves are unpacked from Debian's archive by mmdebstrap, once, and kept: the guest's files as one archive for the
kernel to unpack into memory, and QEMU with a kernel, which run from where they lie (nothing is installed). What a test
adds, programs and a script that is the guest's first process, comes behind the kept archive. The guest has no disk and
no network; all it says comes over its serial line.
"""
import hashlib
import os
import platform
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import TREE, Skip, check  # noqa: E402

CACHE = os.path.join(os.environ.get("TANDEM_TEST_CACHE") or os.path.join(TREE, "build", "test-models"), "guest")
# What the programs need, and a shell to start them from. Mesa is there for its driver that runs on CPUs.
USERLAND = ("dash,coreutils,mount,sed,libc6,libvulkan1,mesa-vulkan-drivers,libcmocka0,libdbus-1-3,libinih1,"
            "libprotobuf-c1,libseccomp2,liburing2")
TOOLS = "qemu-system-x86,linux-image-cloud-amd64"
BACKPORTS = ("bookworm",)  # whose own QEMU, kernel and Mesa are too old
UNUSED = re.compile(r"(usr/share/(doc|man|locale|info|lintian|bug|X11|zoneinfo|i18n|perl5?)"
                    r"|usr/lib/x86_64-linux-gnu/(perl|gconv|dri)"
                    r"|var|dev|proc|sys|boot)/")


def sources():
    """(codename, lines of sources): the archive that this machine installs from."""
    codename = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    try:
        r = subprocess.run(["apt-get", "indextargets", "--format", "$(CODENAME) $(COMPONENT) $(REPO_URI)",
                            "Created-By: Packages"],
                           stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        raise Skip("no apt here that says where Debian's packages are")
    found = [line.split()[2] for line in r.stdout.splitlines() if line.split()[:2] == [codename, "main"]]
    if platform.machine() != "x86_64" or platform.freedesktop_os_release().get("ID") != "debian" or not found:
        raise Skip("a guest is made on Debian and x86-64, from the archive that apt has in its sources")
    suites = [codename] + [codename + "-backports"] * (codename in BACKPORTS)
    return codename, suites[-1], [f"deb {found[0]} {suite} main" for suite in suites]


def unpack(packages, target):
    """Downloads packages and what they need, and unpacks them: into a folder, or a .tar."""
    if not shutil.which("mmdebstrap"):
        raise Skip("no mmdebstrap here to unpack a guest with (Debian: mmdebstrap)")
    codename, newest, lines = sources()
    r = subprocess.run(["mmdebstrap", "--variant=extract", f"--aptopt=APT::Default-Release \"{newest}\"",
                        "--include=" + packages, codename, target] + lines,
                       stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                       timeout=1200)
    if r.returncode != 0:
        raise Skip("mmdebstrap cannot get a guest's packages here: " + r.stdout[-400:].replace("\n", " "))


def kept(name, recipe, make):
    """The file or folder that make() makes at a path, made anew when the recipe is another one."""
    os.makedirs(CACHE, exist_ok=True)
    path = os.path.join(CACHE, f"{name}-{hashlib.sha256(repr(recipe).encode()).hexdigest()[:12]}")
    if os.path.exists(path):
        return path
    for old in os.listdir(CACHE):
        if old.startswith(name + "-"):
            (shutil.rmtree if os.path.isdir(os.path.join(CACHE, old)) else os.unlink)(os.path.join(CACHE, old))
    begin = time.monotonic()
    try:
        make(path + ".part")
    except BaseException:
        shutil.rmtree(path + ".part", ignore_errors=True)
        if os.path.exists(path + ".part"):
            os.unlink(path + ".part")
        raise
    os.rename(path + ".part", path)
    print(f"     made {name} in {time.monotonic() - begin:.0f} s", flush=True)
    return path


# ---- the archive that a kernel unpacks: "newc" of cpio(5)


class Archive:
    def __init__(self, path, mode="wb"):
        self.file, self.n = open(path, mode), 0

    def put(self, name, mode, data=b"", major=0, minor=0):
        self.n += 1
        name = name.encode() + b"\0"
        head = "070701" + "".join(
            f"{v:08x}" for v in (self.n, mode, 0, 0, 1, 0, len(data), 0, 0, major, minor, len(name), 0))
        for part in (head.encode() + name, data):
            self.file.write(part + b"\0" * (-len(part) % 4))

    def folder(self, name):
        self.put(name, stat.S_IFDIR | 0o755)

    def add(self, path, name, mode=0o755):
        with open(path, "rb") as f:
            self.put(name, stat.S_IFREG | mode, f.read())

    def close(self):
        self.put("TRAILER!!!", 0)
        self.file.write(b"\0" * (-self.file.tell() % 512))
        self.file.close()


def is_used(name):
    """Of Mesa's drivers the one that runs on CPUs."""
    if "libvulkan_" in name or "/icd.d/" in name:
        return "lvp" in name
    return name and not UNUSED.match(name)


def userland():
    def make(path):
        with tempfile.TemporaryDirectory(dir=CACHE) as d:
            tar = os.path.join(d, "userland.tar")
            unpack(USERLAND, tar)
            archive = Archive(path)
            there = set()
            with tarfile.open(tar) as t:
                for m in t:
                    name = m.name.lstrip("./")
                    if not is_used(name):
                        continue
                    there.add(name)
                    if m.isdir():
                        archive.put(name, stat.S_IFDIR | m.mode)
                    elif m.issym():
                        archive.put(name, stat.S_IFLNK | 0o777, m.linkname.encode())
                    elif m.isreg() or m.islnk():
                        archive.put(name, stat.S_IFREG | m.mode, t.extractfile(m).read())
            for name in ("bin", "sbin", "lib", "lib64"):
                if name not in there:
                    archive.put(name, stat.S_IFLNK | 0o777, b"usr/" + name.encode())
            # Before anything of ours runs the kernel wants a console to give it.
            for folder in ("dev", "proc", "sys", "tmp", "run"):
                archive.folder(folder)
            archive.put("dev/console", stat.S_IFCHR | 0o600, major=5, minor=1)
            archive.close()
    return kept("userland.cpio", (USERLAND, UNUSED.pattern, sources()), make)


class Tools:
    """QEMU and a kernel, unpacked. QEMU finds its libraries, modules and firmware where they lie."""

    def __init__(self):
        self.root = kept("tools", (TOOLS, sources()), lambda path: unpack(TOOLS, path))
        kernels = [os.path.join(self.root, "boot", n) for n in os.listdir(os.path.join(self.root, "boot"))
                   if n.startswith("vmlinuz")]
        check(len(kernels) == 1, "one kernel", kernels)
        self.kernel = kernels[0]

    def at(self, *parts):
        return os.path.join(self.root, *parts)

    def qemu(self):
        lib = "x86_64-linux-gnu"
        folders = [self.at(p, lib) for p in ("lib", "usr/lib")]
        folders += [f for f, _, names in os.walk(self.at("usr/lib", lib))
                    if any(".so" in n for n in names) and f not in folders]
        loader = next(p for p in (self.at("lib64/ld-linux-x86-64.so.2"), self.at("usr/lib64/ld-linux-x86-64.so.2"))
                      if os.path.exists(p))
        return ([loader, "--library-path", ":".join(folders), self.at("usr/bin/qemu-system-x86_64"),
                 "-L", self.at("usr/share/qemu"), "-L", self.at("usr/share/seabios")],
                dict(os.environ, QEMU_MODULE_DIR=self.at("usr/lib", lib, "qemu")))


def boot(init, files, timeout, memory_mib=3072):
    """Runs the script `init` as the guest's first process, with files {name in the guest: path here}; what its serial
    line said. The guest has to power itself off within this many seconds."""
    base, tools = userland(), Tools()
    with tempfile.TemporaryDirectory(prefix="tandem-guest-") as d:
        initrd, log = os.path.join(d, "initrd"), os.path.join(d, "serial")
        shutil.copyfile(base, initrd)
        archive = Archive(initrd, "ab")
        folders = set()
        for name, path in files.items():
            parts = name.split("/")[:-1]
            for i in range(1, len(parts) + 1):
                if "/".join(parts[:i]) not in folders:
                    folders.add("/".join(parts[:i]))
                    archive.folder("/".join(parts[:i]))
            archive.add(path, name)
        archive.put("init", stat.S_IFREG | 0o755, init.encode())
        archive.close()
        command, env = tools.qemu()
        command += ["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
                    "-machine", "q35", "-accel", "tcg,thread=multi",
                    "-cpu", "max", "-smp", "2", "-m", str(memory_mib), "-kernel", tools.kernel, "-initrd", initrd,
                    "-append", "console=ttyS0 quiet loglevel=3 panic=-1 mitigations=off", "-serial", "file:" + log]
        process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT)
        try:
            said = process.communicate(timeout=timeout)[0].decode(errors="replace")
            late = ""
        except subprocess.TimeoutExpired:
            process.kill()
            said, late = process.communicate()[0].decode(errors="replace"), f"it did not power off within {timeout} s"
        text = ""
        if os.path.exists(log):
            with open(log, errors="replace") as f:
                text = f.read().replace("\r", "")
        if late or process.returncode != 0:
            print("---- the guest's serial line\n" + text[-6000:] + "\n----", flush=True)
        check(not late, late)
        check(process.returncode == 0, "QEMU", process.returncode, said[-1500:])
        return text
