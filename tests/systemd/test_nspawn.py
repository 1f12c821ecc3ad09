"""The packages on a bare Debian 12 that boots its own systemd: installed, started by a socket and by the bus, used by
ordinary users, disturbed, watched over, and purged. One machine for all of it, in this order."""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403
from machine import Machine, packages  # noqa: E402

BUS = ("dev.tandem.Tandem1", "/dev/tandem/Tandem1", "dev.tandem.Tandem1.Manager")
# More than a pipe holds: until its reader goes on, the job is in the middle.
LONG = ("tandem", "generate", "--temp", "0", "-n", "1600", "--ignore-end", "--json", PROMPT)
RULE = """polkit.addRule(function(action, subject) {
    if (action.id == "dev.tandem.Tandem1.restart-worker" && subject.user == "bob")
        return polkit.Result.YES;
});
"""
IGNORED = re.compile(r"^/(proc|sys|dev|run/(?!tandem)|tmp|host|var/(log|tmp|lib/(dpkg|apt|systemd|private|pam|polkit-1)|cache)"
                     r"|etc/(ld\.so\.cache|passwd-?|group-?|shadow-?|gshadow-?|subuid-?|subgid-?|\.pwd\.lock|\.updated)$"
                     r"|root/|home/|var/lib/(alice|bob))|/__pycache__")


def files(m):
    """Everything that lies there, caches, logs and records of the package manager left out."""
    out = m.run("find", "/", "-xdev", "-path", "/proc", "-prune", "-o", "-print").stdout.splitlines()
    return {p for p in out if not IGNORED.search(p)} | set(m.run("find", "/var/cache", "/run/tandem", "-maxdepth", "1", "-name",
                                                                 "*tandem*", may_fail=True).stdout.splitlines())


def names(m):
    return {line.split(":")[0] for f in ("passwd", "group") for line in m.run("cat", "/etc/" + f).stdout.splitlines()}


def ids(m, text):
    lines = [json.loads(line) for line in text.split("\n") if line]
    equal(lines[-1]["event"], "done", "the last event")
    return lines[-1]["ids"], lines[-1]


def generate(m, *more, user="alice"):
    return m.run("tandem", "generate", "--temp", "0", "-n", "12", *more, PROMPT, user=user).stdout


def busctl(m, *args, user="alice", may_fail=False):
    return m.run("busctl", "--system", *args, user=user, may_fail=may_fail)


def install(m, debs):
    for user in ("alice", "bob"):
        m.run("useradd", "-m", user)
    before = files(m), names(m)
    for deb in debs:
        shutil.copy(deb, m.host)
    m.run("sh", "-c", "dpkg -i /host/*.deb", timeout=180)
    return before


def activation(m):
    equal(m.show("tandemd.socket", "ActiveState"), "active", "the socket after installation")
    equal(m.show("tandemd.service", "ActiveState"), "inactive", "the daemon before its first client")
    equal(m.run("stat", "-c", "%a %U", "/run/tandem/socket").stdout.strip(), "666 root", "the socket")
    text = generate(m)
    check(len(text) > 10, "a story for an ordinary user", text)
    equal(m.show("tandemd.service", "ActiveState"), "active", "the daemon after its first client")
    status = json.loads(m.run("tandem", "status", "--json", user="alice").stdout)
    owners = []
    for w in status["workers"]:
        check("seccomp" in w["sandbox"] and "not dumpable" in w["sandbox"] and "no seccomp" not in w["sandbox"], "sandbox", w)
        print(f"     sandbox of the {w['name']} worker: {w['sandbox']}")
        unit = f"tandem-{w['name']}-worker"
        equal(m.show(unit + ".service", "MainPID"), str(w["pid"]), f"the process of {unit}.service")
        owner = m.run("ps", "-o", "user:32=", "-p", str(w["pid"])).stdout.strip()
        check(owner not in ("root", "tandem"), "a user of its own", owner)
        owners.append(owner)
    equal(len(set(owners)), 2, "two users")
    equal(m.run("stat", "-c", "%a %U", "/run/tandem/npu-worker.socket", "/run/tandem/gpu-worker.socket").stdout.split(),
          ["600", "tandem"] * 2, "the workers' sockets")
    return text


def bus(m, text):
    """Bus activation, and a job that outlives the program that asked for it."""
    m.run("systemctl", "stop", "tandemd.service")
    version = busctl(m, "get-property", *BUS, "Version").stdout
    check(re.match(r's "\d+\.\d+', version), "Version over the bus", version)
    equal(m.show("tandemd.service", "ActiveState"), "active", "the daemon after a call")
    job = re.search(r'"(/dev/tandem/Tandem1/jobs/\w+)"', busctl(m, "call", *BUS, "Generate", "sa{sv}", PROMPT, "2", "linger", "b",
                                                                "true", "max-tokens", "u", "12").stdout)[1]
    interface = ("dev.tandem.Tandem1", job, "dev.tandem.Tandem1.Job")
    m.wait(lambda: "done" in busctl(m, "get-property", *interface, "State").stdout, "the job's end")
    got = busctl(m, "call", *interface, "GetText", "t", "0").stdout
    check(text.strip().split("\n")[0][:20] in got.encode().decode("unicode_escape", "replace") or len(got) > 20, "its text", got)
    other = busctl(m, "call", *interface, "GetText", "t", "0", user="bob", may_fail=True)
    check(other.returncode != 0, "bob reads alice's job", other.stdout)
    root = busctl(m, "call", *interface, "GetText", "t", "0", user="root")
    equal(root.stdout, got, "what root reads")


def disturbed(m):
    """The same ids whatever happens to a worker in the middle."""
    want, _ = ids(m, m.run(*LONG, user="alice", timeout=120).stdout)

    def worker(name):
        status = json.loads(m.run("tandem", "status", "--json").stdout)
        return next(w for w in status["workers"] if w["name"] == name)["pid"]

    def kill(signal_name, name):
        return lambda: m.run("kill", "-" + signal_name, str(worker(name)))
    for what, name, act in (("systemctl restart tandem-gpu-worker", "gpu", lambda: m.run("systemctl", "restart", "tandem-gpu-worker")),
                            ("tandem restart npu", "npu", lambda: m.run("tandem", "restart", "npu")),
                            ("systemctl stop tandem-npu-worker", "npu", lambda: m.run("systemctl", "stop", "tandem-npu-worker")),
                            ("kill -9 gpu", "gpu", kill("KILL", "gpu")), ("kill -STOP npu", "npu", kill("STOP", "npu")),
                            ("kill -STOP gpu", "gpu", kill("STOP", "gpu"))):
        before, begin = worker(name), time.monotonic()
        p = m.popen(*LONG, user="alice")
        lines = [p.stdout.readline() for _ in range(20)]
        act()
        out = p.stdout.read()  # not communicate(): it forgets what readline() had read ahead
        p.wait(120 * SLOW)
        got, done = ids(m, "".join(lines) + out)
        same_ids(got, want, what)
        check(done["recoveries"] >= 1, f"{what}: a recovery", done)
        m.wait(lambda: worker(name) not in (0, before), f"{what}: another process")
        equal(m.show(f"tandem-{name}-worker.service", "MainPID"), str(worker(name)), "the unit's process")
        print(f"     {what}: same {len(got)} ids, {done['recoveries']} recoveries, {time.monotonic() - begin:.1f} s", flush=True)
    log = m.journal()
    check("lost: killed by signal 9" in log and "killed by signal 15" in log, "how they ended is known", log[-2000:])
    check("stopped by a signal" in log and "asking systemd to kill tandem-npu-worker.service" in log and
          "systemd does not kill" not in log, "a stopped worker is killed by systemd", log[-2000:])


def rights(m):
    def ask(user):
        return busctl(m, "call", *BUS, "RestartWorker", "sa{sv}", "npu", "0", user=user, may_fail=True)
    r = m.run("tandem", "restart", "npu", user="alice", may_fail=True)
    check(r.returncode == 1 and "root" in r.stderr, "alice over the socket", r.stderr)
    r = ask("alice")
    check(r.returncode != 0, "alice over the bus", r.stdout)
    r = ask("bob")
    check(r.returncode != 0, "bob before there is a rule", r.stdout)
    m.run("sh", "-c", "cat >/etc/polkit-1/rules.d/50-bob.rules", input=RULE)
    m.wait(lambda: ask("bob").returncode == 0, "bob with a rule")
    check(ask("alice").returncode != 0, "alice with bob's rule")
    m.run("rm", "/etc/polkit-1/rules.d/50-bob.rules")
    # What lets tandemd kill its workers lets it kill nothing else, and nobody else kill them.
    for who, unit, verb in (("tandem", "dbus.service", "kill"), ("tandem", "tandem-npu-worker.service", "stop"),
                            ("alice", "tandem-npu-worker.service", "kill")):
        r = m.run("systemctl", "--no-ask-password", verb, unit, user=who, may_fail=True)
        check(r.returncode != 0, f"{who} may {verb} {unit}", r.stdout, r.stderr)
    p = m.popen("tandem", "generate", "-n", "600", "--ignore-end", "--json", PROMPT, user="alice")
    p.stdout.readline()
    job = json.loads(m.run("tandem", "jobs", "--json").stdout)
    check("[]" in m.run("tandem", "jobs", "--json", user="bob").stdout, "bob sees alice's jobs")
    number = re.search(r'"job":\s*(\d+)', json.dumps(job))[1]
    check(m.run("tandem", "cancel", number, user="bob", may_fail=True).returncode == 1, "bob cancels alice's job")
    m.run("tandem", "cancel", number, user="alice")
    p.stdout.read()
    p.wait(60 * SLOW)


def manager(m):
    """Reload, restart by systemctl, and the watchdog."""
    m.run("sh", "-c", "mkdir -p /etc/tandem/tandem.conf.d; printf '[daemon]\\nmax-jobs-per-user = 3\\nodd = 1\\n' "
                      ">/etc/tandem/tandem.conf.d/50-test.conf")
    m.run("systemctl", "reload", "tandemd")
    m.wait(lambda: "max-jobs-per-user = 3" in m.journal(), "the reload in the journal")
    check("50-test.conf:3: key odd" in m.journal(), "the unknown key with file and line", m.journal()[-800:])
    m.wait(lambda: "Idle" in m.show("tandemd.service", "StatusText"), "the status line, which comes with the watchdog's pings")
    m.run("systemctl", "restart", "tandemd")
    check(len(generate(m)) > 10, "after systemctl restart")
    m.run("sh", "-c", "mkdir -p /run/systemd/system/tandemd.service.d; printf '[Service]\\nWatchdogSec=2s\\n' "
                      ">/run/systemd/system/tandemd.service.d/test.conf")
    m.run("systemctl", "daemon-reload")
    m.run("systemctl", "restart", "tandemd")
    generate(m)
    main_pid = m.show("tandemd.service", "MainPID")
    m.run("sleep", "4")
    equal(m.show("tandemd.service", "MainPID"), main_pid, "an idle daemon lives on")
    m.run("kill", "-STOP", main_pid)
    m.wait(lambda: m.show("tandemd.service", "NRestarts") not in ("", "0") and
           m.show("tandemd.service", "MainPID") not in ("0", main_pid), "the watchdog restarts a stuck daemon", 30)
    check(len(generate(m)) > 10, "after the watchdog")
    check(len(m.run("pgrep", "-f", "libexec/tandem/tandem-.*-worker", may_fail=True).stdout.split()) <= 2, "no worker was left over")
    m.run("rm", "-r", "/run/systemd/system/tandemd.service.d")
    m.run("systemctl", "daemon-reload")


def purge(m, before):
    packages_ = ("tandem", "libtandem0", "libtandem-dev", "tandem-model-tale")
    m.run("dpkg", "-r", *packages_, timeout=120)
    check(m.run("pgrep", "tandem", may_fail=True).stdout == "", "processes after removal")
    left = {p for p in files(m) - before[0] if "tandem" in p}
    check(left, "configuration stays until purge")
    m.run("dpkg", "-P", *packages_, timeout=120)
    equal(sorted(files(m) - before[0]), [], "files that purge leaves behind")
    # render is udev's group, which a bare root without udev lacks: others may own devices by it now.
    equal(sorted(names(m) - before[1] - {"render"}), [], "users and groups that purge leaves behind")
    equal(m.run("systemctl", "list-units", "--all", "--no-legend", "tandem*").stdout.strip(), "", "units that are left")


@test
def policy():
    """Debian's own judge has no error to name."""
    if SANITIZER:
        raise Skip("packages are built without sanitizers")
    if not shutil.which("lintian"):
        raise Skip("no lintian here (Debian: lintian)")
    r = subprocess.run(["lintian", "--tag-display-limit", "0", "--fail-on", "error", *packages()], stdout=subprocess.PIPE,
                       stderr=subprocess.PIPE, text=True, timeout=300)
    equal((r.returncode, [line for line in r.stdout.splitlines() if line.startswith("E:")]), (0, []), "lintian")


@test
def development():
    """A program is built from what the development package holds, by pkg-config alone, and needs the library by soname."""
    if SANITIZER:
        raise Skip("packages are built without sanitizers")
    with tempfile.TemporaryDirectory() as d:
        for deb in packages():
            if os.path.basename(deb).startswith("libtandem"):
                subprocess.run(["dpkg-deb", "-x", deb, d], check=True)
        folder = subprocess.run(["find", d, "-name", "pkgconfig"], stdout=subprocess.PIPE, text=True).stdout.strip()
        flags = subprocess.run(["pkg-config", "--cflags", "--libs", "libtandem"], stdout=subprocess.PIPE, text=True, check=True,
                               env=dict(os.environ, PKG_CONFIG_LIBDIR=folder, PKG_CONFIG_SYSROOT_DIR=d,
                                        PKG_CONFIG_ALLOW_SYSTEM_CFLAGS="1", PKG_CONFIG_ALLOW_SYSTEM_LIBS="1")).stdout.split()
        example = os.path.join(d, "usr/share/doc/libtandem-dev/examples/story.c")
        subprocess.run(["cc", "-Wall", "-Werror", example, *flags, "-o", os.path.join(d, "story")], check=True, timeout=60)
        needed = subprocess.run(["objdump", "-p", os.path.join(d, "story")], stdout=subprocess.PIPE, text=True, check=True).stdout
        check(re.search(r"NEEDED\s+libtandem\.so\.\d+\n", needed), "the library by soname", needed[:600])
        check(re.search(r"TANDEM_0\.1", needed), "with symbol versions", needed[:600])


@test
def from_install_to_purge():
    if SANITIZER:
        raise Skip("packages are built without sanitizers")
    debs = packages()
    with Machine() as m:
        before = install(m, debs)
        text = activation(m)
        bus(m, text)
        for part in (disturbed, rights, manager):
            begin = time.monotonic()
            part(m)
            print(f"     {part.__name__} ({time.monotonic() - begin:.1f} s)", flush=True)
        purge(m, before)


main()
