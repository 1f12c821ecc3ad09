"""The packages on a bare Debian that boots its own systemd: installed, started by a socket and by the bus, used by
ordinary users, disturbed, watched over, upgraded and purged. One machine for all of it, in this order.

usage: test_nspawn.py [--suite=bookworm|trixie] [TEST…]   bookworm without
"""
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403
from machine import Machine, packages  # noqa: E402

HOSTILE = os.path.join(os.path.dirname(BIN), "hostile")
BUS = ("dev.tandem.Tandem1", "/dev/tandem/Tandem1", "dev.tandem.Tandem1.Manager")
# More than a pipe holds: until its reader goes on, the job is in the middle. Split: each worker is needed.
LONG = ("tandem", "generate", "--placement", "split", "--temp", "0", "-n", "1600", "--ignore-end", "--json", PROMPT)
PACKAGES = ("tandem", "libtandem0", "libtandem-dev", "tandem-model-tale")
RULE = """polkit.addRule(function(action, subject) {
    if (action.id == "dev.tandem.Tandem1.restart-worker" && subject.user == "bob")
        return polkit.Result.YES;
});
"""
IGNORED = re.compile(r"^/(proc|sys|dev|run/(?!tandem)|tmp|host"
                     r"|var/(log|tmp|lib/(dpkg|apt|systemd|private|pam|polkit-1)|cache)"
                     r"|etc/(ld\.so\.cache|passwd-?|group-?|shadow-?|gshadow-?|subuid-?|subgid-?|\.pwd\.lock"
                     r"|\.updated)$"
                     r"|root/|home/|var/lib/(alice|bob))|/__pycache__")


def files(m):
    """Everything that lies there, caches, logs and records of the package manager left out."""
    out = m.run("find", "/", "-xdev", "-path", "/proc", "-prune", "-o", "-print").stdout.splitlines()
    ours = m.run("find", "/var/cache", "/run/tandem", "-maxdepth", "1", "-name", "*tandem*", may_fail=True)
    return {p for p in out if not IGNORED.search(p)} | set(ours.stdout.splitlines())


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
        check("seccomp" in w["sandbox"] and "not dumpable" in w["sandbox"] and "no seccomp" not in w["sandbox"],
              "sandbox", w)
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


def own_file(m, text):
    """A model in a home that tandemd cannot see: alice's client opens it, a gate behind tandemd's walls receives it."""
    m.run("sh", "-c", "cp /usr/share/tandem/models/tale.gguf /home/alice/own.gguf; chmod 600 /home/alice/own.gguf; "
                      "chown alice: /home/alice /home/alice/own.gguf; chmod 700 /home/alice")
    equal(generate(m, "--model", "/home/alice/own.gguf"), text, "the same text from a file of alice's own")
    gates = [line for line in m.run("ps", "-eo", "user:32=,args=").stdout.splitlines() if "--gate" in line]
    check(any(line.split() == ["tandem", "tandemd", "--gate"] for line in gates), "the gate's process", gates)
    listed = m.run("tandem", "models", user="alice").stdout
    check(" own.gguf (handed over" in listed and "/home" not in listed, "alice sees the file's name", listed)
    check("own" not in m.run("tandem", "models", user="bob").stdout, "bob does not")
    listed = m.run("tandem", "models").stdout
    check(" own.gguf (handed over" in listed and "/home" not in listed, "root does", listed)
    r = m.run("tandem", "load", "/home/alice/own.gguf", user="alice", may_fail=True)
    check(r.returncode == 1, "alice may not load", r.stderr)
    check(m.run("tandem", "models").stdout.count("own.gguf") <= 1, "a refused load has opened nothing")
    m.run("rm", "/home/alice/own.gguf")
    print(f"     gate: {gates}")


def bus(m, text):
    """Bus activation, and a job that outlives the program that asked for it."""
    m.run("systemctl", "stop", "tandemd.service")
    version = busctl(m, "get-property", *BUS, "Version").stdout
    check(re.match(r's "\d+\.\d+', version), "Version over the bus", version)
    equal(m.show("tandemd.service", "ActiveState"), "active", "the daemon after a call")
    answer = busctl(m, "call", *BUS, "Generate", "sa{sv}", PROMPT, "2",
                    "linger", "b", "true", "max-tokens", "u", "12").stdout
    job = re.search(r'"(/dev/tandem/Tandem1/jobs/\w+)"', answer)[1]
    interface = ("dev.tandem.Tandem1", job, "dev.tandem.Tandem1.Job")
    m.wait(lambda: "done" in busctl(m, "get-property", *interface, "State").stdout, "the job's end")
    got = busctl(m, "call", *interface, "GetText", "t", "0").stdout
    check(text.strip().split("\n")[0][:20] in got.encode().decode("unicode_escape", "replace") or len(got) > 20,
          "its text", got)
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
    for what, name, act in (("systemctl restart tandem-gpu-worker", "gpu",
                             lambda: m.run("systemctl", "restart", "tandem-gpu-worker")),
                            ("tandem restart npu", "npu", lambda: m.run("tandem", "restart", "npu")),
                            ("systemctl stop tandem-npu-worker", "npu",
                             lambda: m.run("systemctl", "stop", "tandem-npu-worker")),
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
        print(f"     {what}: same {len(got)} ids, {done['recoveries']} recoveries, {time.monotonic() - begin:.1f} s",
              flush=True)
    log = m.journal()
    check("lost: killed by signal 9" in log and "killed by signal 15" in log, "how they ended is known", log[-2000:])
    check("stopped by a signal" in log and "asking systemd to kill tandem-npu-worker.service" in log and
          "systemd does not kill" not in log, "a stopped worker is killed by systemd", log[-2000:])
    lost = None
    for line in m.run("journalctl", "-u", "tandemd.service", "--no-pager", "-o", "short-unix").stdout.splitlines():
        if "stopped by a signal" in line and " lost: " in line:
            lost = float(line.split()[0])
        elif lost and re.search(r"worker: pid \d+, ", line):
            print("     from its loss to another process, stopped by a signal: "
                  f"{1000 * (float(line.split()[0]) - lost):.0f} ms")
            lost = None


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


# What a unit refuses by itself, the worker's own sandbox being off; and what that sandbox kills for.
BY_THE_UNIT = ("passwd", "passwd-write", "init", "parent-memory", "device", "inet", "unix", "netlink", "uring-passwd",
               "uring-device", "uring-socket")
BY_ITSELF = ("passwd", "device")
DEADLY = ("inet", "unix", "exec", "uring-passwd", "uring-device", "uring-socket")
NODE = "/dev/net/tun"  # a device that anybody else may open then


def hostile(m):
    """The program of tests/hostile, as the units run it: first behind the unit's walls alone, then with its own."""
    m.run("chmod", "666", NODE)
    m.run("python3", "-c", f"open('{NODE}', 'r+b', 0)", user="alice")

    def become(name, more="", **env):
        folder = f"/run/systemd/system/tandem-{name}-worker.service.d"
        lines = "".join(f"Environment={k}={v}\n" for k, v in env.items())
        m.run("sh", "-c", f"mkdir -p {folder}; cat >{folder}/99-hostile.conf",
              input=f"[Service]\nExecStart=\nExecStart=/host/hostile-{name}-worker\n"
                    f"Environment=TANDEM_HOSTILE_DEVICE={NODE}\n{lines}{more}")
        m.run("systemctl", "daemon-reload")
        m.run("journalctl", "--rotate")
        m.run("journalctl", "--vacuum-time=1ms", may_fail=True)
        m.run("tandem", "restart", name)

    def said(name):
        return m.journal(f"tandem-{name}-worker.service")
    for name in ("npu", "gpu"):
        shutil.copy(os.path.join(HOSTILE, f"tandem-{name}-worker"), os.path.join(m.host, f"hostile-{name}-worker"))
        generate(m)
        become(name, TANDEM_HOSTILE=",".join(BY_THE_UNIT), TANDEM_HOSTILE_AT="open", TANDEM_SANDBOX="off")
        m.wait(lambda: "hostile: done at open" in said(name), "the attempts")
        got = dict(re.findall(r"hostile: ([\w-]+) at open: (refused \(.*\)|GOT IN)", said(name)))
        equal({k for k, v in got.items() if v.startswith("refused")}, set(BY_THE_UNIT),
              f"refused by the {name} worker's unit")
        print(f"     the {name} unit refuses: " + ", ".join(f"{k} {v[8:]}" for k, v in got.items()), flush=True)
        # As a vendor's drop-in would have it: the node is there then, so it was the unit that refused it.
        become(name, TANDEM_HOSTILE="device", TANDEM_HOSTILE_AT="open", TANDEM_SANDBOX="off",
               more=f"DeviceAllow={NODE} rw\nBindPaths={NODE}\n")
        m.wait(lambda: "hostile: device at open: GOT IN" in said(name), "a node that is allowed")
        become(name, TANDEM_HOSTILE=",".join(BY_ITSELF))
        m.wait(lambda: "hostile: done at load" in said(name), "the attempts")
        equal(said(name).count(": refused ("), len(BY_ITSELF), "refused by its sandbox")
        for attempt in DEADLY:
            become(name, TANDEM_HOSTILE=attempt)
            m.wait(lambda: "a system call that its sandbox forbids" in m.journal(), f"{attempt} kills")
            check("trying" in said(name) and "GOT IN" not in said(name) and "done" not in said(name), attempt,
                  said(name)[-600:])
        m.run("rm", "-r", f"/run/systemd/system/tandem-{name}-worker.service.d")
        m.run("systemctl", "daemon-reload")
        m.run("tandem", "restart", name)
        check(len(generate(m)) > 10, "served after all that")


def user_units(m):
    """The same for one user: alice's own manager, her socket, her workers."""
    uid = m.run("id", "-u", "alice").stdout.strip()
    r = m.run("systemctl", "start", f"user@{uid}.service", may_fail=True)
    if r.returncode != 0:
        print(f"     no user manager here: {r.stderr.strip()[-200:]}")
        return
    runtime = f"/run/user/{uid}"

    def own(*args, **more):
        return m.run("env", f"XDG_RUNTIME_DIR={runtime}", "HOME=/home/alice", *args, user="alice", timeout=120, **more)
    own("systemctl", "--user", "start", "tandemd.socket")
    equal(m.run("stat", "-c", "%a %U", runtime + "/tandem/socket").stdout.strip(), "600 alice", "the socket")
    equal(own("systemctl", "--user", "is-active", "tandemd.service", may_fail=True).stdout.strip(), "inactive",
          "before a client")
    command = ("tandem", "--socket", runtime + "/tandem/socket")
    want, _ = ids(m, own(*command, *LONG[1:]).stdout)
    status = json.loads(own(*command, "status", "--json").stdout)
    for w in status["workers"]:
        equal(own("systemctl", "--user", "show", "-P", "MainPID", f"tandem-{w['name']}-worker.service").stdout.strip(),
              str(w["pid"]), "the unit's process")
        equal(m.run("ps", "-o", "user=", "-p", str(w["pid"])).stdout.strip(), "alice", "whose process")
        check("landlock" in w["sandbox"] or "no landlock" in w["sandbox"], "sandbox", w)
    for what, act in (("systemctl --user restart tandem-gpu-worker",
                       lambda: own("systemctl", "--user", "restart", "tandem-gpu-worker.service")),
                      ("kill -STOP npu",
                       lambda: own("systemctl", "--user", "kill", "-s", "STOP", "tandem-npu-worker.service"))):
        p = m.popen("env", f"XDG_RUNTIME_DIR={runtime}", *command, *LONG[1:], user="alice")
        lines = [p.stdout.readline() for _ in range(20)]
        act()
        out = p.stdout.read()
        p.wait(120 * SLOW)
        got, done = ids(m, "".join(lines) + out)
        same_ids(got, want, what)
        check(done["recoveries"] >= 1, what, done)
        print(f"     {what}: same ids", flush=True)
    user_gateway(m, own)
    own("systemctl", "--user", "stop", "tandemd.socket", "tandemd.service")
    m.run("systemctl", "stop", f"user@{uid}.service")
    m.wait(lambda: m.run("pgrep", "-u", "alice", "tandem", may_fail=True).stdout == "", "nothing of alice's runs")


def user_gateway(m, own):
    """The gateway of alice's manager behind its walls: namespaces of its own, keys as a credential, the rest hidden."""
    m.run("ip", "link", "set", "lo", "up", may_fail=True)
    drop_in = "/home/alice/.config/systemd/user/tandem-http.service.d"
    own("sh", "-c", f"mkdir -p {drop_in}; umask 077; cat >/home/alice/http-keys; printf '[Service]\n"
                    "LoadCredential=keys:%%h/http-keys\nEnvironment=\"TANDEM_HTTP_OPTIONS=--api-key-file %%d/keys\"\n'"
                    f" >{drop_in}/keys.conf", input=KEYS)
    own("systemctl", "--user", "daemon-reload")
    own("systemctl", "--user", "start", "tandem-http.socket")
    equal(ask_http(m, "GET", "/health"), (200, '{"status":"ok"}'), "alice's gateway")
    equal(ask_http(m, "GET", "/v1/models")[0], 401, "without a key")
    equal(ask_http(m, "GET", "/v1/models", key="alices-key-0123")[0], 200, "with one")
    pid = own("systemctl", "--user", "show", "-P", "MainPID", "tandem-http.service").stdout.strip()

    def inside(*args):
        return m.run("nsenter", "-t", pid, "-m", "-n", *args).stdout.split()
    equal(inside("ls", "-A", "/home", "/root"), ["/home:", "/root:"], "no home")
    uid = m.run("id", "-u", "alice").stdout.strip()
    equal(sorted(inside("ls", f"/run/user/{uid}")), ["credentials", "systemd", "tandem"], "of the runtime directory")
    # Devices that a container has and a service with PrivateDevices= has not.
    gone = set(m.run("ls", "/dev").stdout.split()) - set(inside("ls", "/dev"))
    check(gone, "no devices but the harmless ones", inside("ls", "/dev"))
    for kind in ("net", "user", "mnt", "ipc", "uts"):
        check(m.run("readlink", f"/proc/{pid}/ns/{kind}").stdout != m.run("readlink", f"/proc/1/ns/{kind}").stdout,
              f"a {kind} namespace of its own")
    bounding = m.run("grep", "CapBnd", f"/proc/{pid}/status").stdout.split()
    equal(bounding[1].strip("0"), "", "no capabilities, in its own namespace either")
    own("systemctl", "--user", "restart", "tandemd.service")
    equal(ask_http(m, "GET", "/v1/models", key="alices-key-0123")[0], 200, "after tandemd was restarted")
    own("ln", "-s", "/dev/null", drop_in + "/10-namespaces.conf")
    own("systemctl", "--user", "daemon-reload")
    own("systemctl", "--user", "restart", "tandem-http.service")
    equal(ask_http(m, "GET", "/health")[0], 200, "with the walls masked")
    own("systemctl", "--user", "stop", "tandem-http.socket", "tandem-http.service")
    m.run("rm", "-r", "/home/alice/.config", "/home/alice/http-keys")
    print("     alice's gateway: walls of namespaces", flush=True)


KEYS = "alice alices-key-0123\nbob bobs-key-0123\n"


def ask_http(m, method, path, body=None, key=None, user="alice", may_fail=False):
    """(status, body) through the gateway's port, with what a bare machine has: bash."""
    data = json.dumps(body) if body is not None else ""
    head = (f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(data)}\r\n" +
            (f"Authorization: Bearer {key}\r\n" if key else "") + "\r\n")
    r = m.run("bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/11434 && cat >&3 && cat <&3", user=user, input=head + data,
              may_fail=may_fail)
    if not r.stdout:
        return 0, r.stderr
    head, _, body = r.stdout.partition("\n\n")  # text mode makes one of each line end
    return int(head.split()[1]), body


def gateway_stream(m, n, key):
    """A stream under way, in its midst: the process, and what has come."""
    data = json.dumps({"model": "tale", "prompt": PROMPT, "max_tokens": n, "seed": 3, "temperature": 0, "stream": True})
    head = ("POST /v1/completions HTTP/1.0\r\nHost: localhost\r\n"  # no chunks in the text
            f"Content-Length: {len(data)}\r\nAuthorization: Bearer {key}\r\n\r\n")
    p = m.popen("bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/11434 && "
                              f"printf %s {shlex.quote(head + data)} >&3 && cat <&3", user="alice")
    return p, "".join(p.stdout.readline() for _ in range(30))


def http(m):
    """The gateway's units: the port is the manager's, keys are a credential, each key's owner is a user for tandemd."""
    m.run("ip", "link", "set", "lo", "up", may_fail=True)
    m.run("sh", "-c", "umask 077; mkdir -p /etc/tandem /run/systemd/system/tandem-http.service.d; "
                      "cat >/etc/tandem/http-keys", input=KEYS)
    m.run("sh", "-c", "cat >/run/systemd/system/tandem-http.service.d/keys.conf",
          input="[Service]\nLoadCredential=keys:/etc/tandem/http-keys\n"
                'Environment="TANDEM_HTTP_OPTIONS=--api-key-file %d/keys"\n')
    m.run("systemctl", "daemon-reload")
    m.run("systemctl", "start", "tandem-http.socket")
    equal(m.show("tandem-http.service", "ActiveState"), "inactive", "the gateway before its first client")
    equal(ask_http(m, "GET", "/health"), (200, '{"status":"ok"}'), "health needs no key")
    pid = m.show("tandem-http.service", "MainPID")
    equal(m.run("ps", "-o", "user:32=", "-p", pid).stdout.strip(), "tandem-http", "whose process")
    status, body = ask_http(m, "GET", "/v1/models")
    equal((status, json.loads(body)["error"]["code"]), (401, "invalid_api_key"), "without a key")
    equal(ask_http(m, "GET", "/v1/models", key="wrong-key-0123")[0], 401, "with a wrong one")
    ask = {"model": "tale", "prompt": PROMPT, "max_tokens": 12, "temperature": 0}
    status, body = ask_http(m, "POST", "/v1/completions", ask, "alices-key-0123")
    equal(status, 200, f"with a key: {body[:300]}, {m.journal('tandem-http.service')[-600:]}")
    equal(json.loads(body)["choices"][0]["text"].strip(), generate(m).strip(), "the text of the command")
    cached = json.loads(body)["usage"]
    equal(cached["prompt_tokens_details"]["cached_tokens"], 0, "nothing is known of the first")

    # A job of alice's key: root and the gateway's user see whose it is, bob's login does not see it at all.
    p, begun = gateway_stream(m, 1500, "alices-key-0123")
    check("data: {" in begun, "a stream", begun)
    check("key:alice" in m.run("tandem", "jobs").stdout, "root sees the key's name", m.run("tandem", "jobs").stdout)
    listed = m.run("tandem", "jobs", user="bob").stdout
    check("key:alice" not in listed, "an ordinary user does not", listed)
    # tandemd believes nobody else who speaks for others.
    own = m.run("sh", "-c", "install -m 600 -o bob /etc/tandem/http-keys /home/bob/keys; runuser -u bob -- timeout 20 "
                "tandem-http --socket /run/tandem/socket --listen 127.0.0.1:11500 --api-key-file /home/bob/keys "
                ">/tmp/bob.log 2>&1 & for i in $(seq 300); do grep -q 'answering on' /tmp/bob.log && break; sleep 0.1; "
                "done; printf 'GET /v1/models HTTP/1.0\r\nHost: localhost\r\n"
                "Authorization: Bearer bobs-key-0123\r\n\r\n' | bash -c 'exec 3<>/dev/tcp/127.0.0.1/11500; cat >&3; "
                "cat <&3'; cat /tmp/bob.log", may_fail=True).stdout
    check(" 403 " in own.split("\n")[0] + " ", "bob's own gateway may not speak for others", own)
    # The worker is killed in the midst: the stream goes on with the same text.
    m.run("systemctl", "kill", "-s", "KILL", "tandem-gpu-worker")
    rest = p.stdout.read()
    p.wait(120 * SLOW)
    want = json.loads(ask_http(m, "POST", "/v1/completions", dict(ask, max_tokens=1500, seed=3), "bobs-key-0123")[1])
    events = re.findall(r"^data: (\{.*\})\r?$", begun + rest, re.M)
    equal("".join(json.loads(e)["choices"][0]["text"] for e in events), want["choices"][0]["text"],
          "the stream through a killed worker")
    check("[DONE]" in rest, "its end", rest[-200:])
    # Restarted: the port stays open, tandemd's other clients notice nothing.
    other = m.popen(*LONG, user="alice")
    lines = [other.stdout.readline() for _ in range(20)]
    watch = Stopwatch(own=False)
    m.run("systemctl", "restart", "--no-block", "tandem-http")
    equal(ask_http(m, "GET", "/health")[0], 200, "a new connection at once")
    seconds = watch.seconds()
    check(seconds < 1.0 * SLOW, "within a second", seconds)
    got, done = ids(m, "".join(lines) + other.stdout.read())
    other.wait(120 * SLOW)
    same_ids(got, ids(m, m.run(*LONG, user="bob").stdout)[0], "a client of tandemd's beside it")
    m.wait(lambda: m.show("tandem-http.service", "MainPID") not in ("0", pid), "the next gateway")
    print(f"     a new connection while the gateway restarts: {seconds * 1e3:.0f} ms")
    for flavour in ("--system", "--user"):
        score = m.run("systemd-analyze", "security", "--no-pager", "tandem-http.service", may_fail=True).stdout \
            if flavour == "--system" else m.run("systemd-analyze", "security", "--no-pager", "--offline=true",
                                                "/usr/lib/systemd/user/tandem-http.service", may_fail=True).stdout
        print("     " + flavour + ": " + (score.strip().splitlines() or ["no systemd-analyze security"])[-1])
    m.run("systemctl", "stop", "tandem-http.socket", "tandem-http.service")
    m.wait(lambda: m.run("pgrep", "-u", "bob", "tandem", may_fail=True).stdout == "", "bob's gateway has left")
    m.run("rm", "-r", "/run/systemd/system/tandem-http.service.d", "/etc/tandem/http-keys", "/home/bob/keys",
          "/tmp/bob.log")
    m.run("systemctl", "daemon-reload")


def manager(m):
    """Reload, restart by systemctl, and the watchdog."""
    m.run("sh", "-c", "mkdir -p /etc/tandem/tandem.conf.d; printf '[daemon]\\nmax-jobs-per-user = 3\\nodd = 1\\n' "
                      ">/etc/tandem/tandem.conf.d/50-test.conf")
    m.run("systemctl", "reload", "tandemd")
    m.wait(lambda: "max-jobs-per-user = 3" in m.journal(), "the reload in the journal")
    check("50-test.conf:3: key odd" in m.journal(), "the unknown key with file and line", m.journal()[-800:])
    m.wait(lambda: "Idle" in m.show("tandemd.service", "StatusText"),
           "the status line, which comes with the watchdog's pings")
    m.run("systemctl", "restart", "tandemd")
    check(len(generate(m)) > 10, "after systemctl restart")
    # A worker that hangs while tandemd goes is there still when the next one comes, and is in its way.
    m.run("systemctl", "kill", "-s", "STOP", "tandem-gpu-worker")
    stuck = m.show("tandem-gpu-worker.service", "MainPID")
    m.run("systemctl", "restart", "tandemd")
    check(len(generate(m)) > 10, "served by the other worker meanwhile")
    m.wait(lambda: '"gpu"' in m.run("tandem", "status", "--json").stdout and
           m.show("tandem-gpu-worker.service", "MainPID") not in ("0", stuck), "the next tandemd has it killed", 40)
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
    check(len(m.run("pgrep", "-f", "libexec/tandem/tandem-.*-worker", may_fail=True).stdout.split()) <= 2,
          "no worker was left over")
    m.run("rm", "-r", "/run/systemd/system/tandemd.service.d")
    m.run("systemctl", "daemon-reload")


def newer(debs, folder):
    """The same packages with a later version and another default in tandem.conf, as an upgrade brings them."""
    made = []
    for deb in debs:
        inside = os.path.join(folder, os.path.basename(deb) + ".d")
        subprocess.run(["dpkg-deb", "-R", deb, inside], check=True)
        control = os.path.join(inside, "DEBIAN", "control")
        with open(control) as f:
            text = f.read()
        version = re.search(r"^Version: (.*)$", text, re.M)[1]
        with open(control, "w") as f:
            f.write(text.replace(version, version + "+upgrade"))
        conf = os.path.join(inside, "etc", "tandem", "tandem.conf")
        if os.path.exists(conf):
            with open(conf, "a") as f:
                f.write("# of the newer version\n")
        made.append(os.path.join(folder, os.path.basename(deb)))
        subprocess.run(["dpkg-deb", "--root-owner-group", "-Zgzip", "-b", inside, made[-1]], check=True,
                       stdout=subprocess.DEVNULL)
    return made


def upgrade(m, debs):
    """Models, the administrator's configuration and what was disabled stay; the daemon becomes the new one."""
    m.run("cp", "/etc/hostname", "/var/lib/tandem/models/mine.gguf")
    m.run("sh", "-c", "mkdir -p /etc/tandem/tandem.conf.d; echo '# mine' >/etc/tandem/tandem.conf.d/60-mine.conf")
    m.run("systemctl", "disable", "--now", "tandem-http.socket")
    text, before = generate(m), m.show("tandemd.service", "MainPID")
    with tempfile.TemporaryDirectory() as folder:
        for deb in newer(debs, folder):
            shutil.copy(deb, m.host)
    m.run("sh", "-c", "dpkg -i /host/*.deb", timeout=180)
    check("+upgrade" in m.run("dpkg-query", "-W", "-f", "${Version}", "tandem").stdout, "the newer version")
    equal(generate(m), text, "the same text after the upgrade")
    check(m.show("tandemd.service", "MainPID") != before, "the daemon is the new one")
    equal(m.run("cmp", "/etc/hostname", "/var/lib/tandem/models/mine.gguf").stdout, "", "a model of one's own")
    equal(m.run("cat", "/etc/tandem/tandem.conf.d/60-mine.conf").stdout, "# mine\n", "configuration of one's own")
    check("of the newer version" in m.run("cat", "/etc/tandem/tandem.conf").stdout, "the package's configuration")
    equal(m.run("systemctl", "is-enabled", "tandem-http.socket", may_fail=True).stdout.strip(), "disabled",
          "what was disabled")
    equal(m.show("tandemd.socket", "ActiveState"), "active", "the socket")
    equal(m.run("systemctl", "--failed", "--no-legend").stdout.strip(), "", "failed units")
    m.run("rm", "/var/lib/tandem/models/mine.gguf", "/etc/tandem/tandem.conf.d/60-mine.conf")
    for deb in debs:
        shutil.copy(deb, m.host)


def forbidden(m):
    """Where a policy forbids packages to stop and start services, purge and installation leave a service that works."""
    text, main_pid = generate(m), m.show("tandemd.service", "MainPID")
    m.run("cp", "/etc/hostname", "/var/lib/tandem/models/mine.gguf")
    m.run("sh", "-c", "printf '#!/bin/sh\\nexit 101\\n' >/usr/sbin/policy-rc.d; chmod 755 /usr/sbin/policy-rc.d")
    said = m.run("dpkg", "-P", *PACKAGES, timeout=120).stdout
    check("it runs on" in said, "purge says so", said)
    equal(m.run("ps", "-o", "comm=", "-p", main_pid).stdout.strip(), "tandemd", "the process goes on")
    equal(m.run("cmp", "/etc/hostname", "/var/lib/tandem/models/mine.gguf").stdout, "", "a model of one's own")
    m.run("sh", "-c", "dpkg -i /host/*.deb", timeout=180)
    equal(m.show("tandemd.service", "MainPID"), main_pid, "nothing was restarted")

    def states():
        return {w["name"]: w["state"] for w in json.loads(m.run("tandem", "status", "--json").stdout)["workers"]}
    equal(set(states().values()), {"ready"}, "the workers after purge and installation")
    equal(generate(m), text, "the same text")
    m.run("systemctl", "kill", "-s", "KILL", "tandem-gpu-worker")
    m.run("tandem", "restart", "npu")
    m.wait(lambda: set(states().values()) == {"ready"}, "both workers", 60)
    equal(generate(m, "--placement", "split"), text, "the same text by both workers")
    m.run("rm", "/usr/sbin/policy-rc.d", "/var/lib/tandem/models/mine.gguf")
    m.run("systemctl", "restart", "tandemd")
    equal(generate(m), text, "the same text of the new daemon")
    equal(m.run("systemctl", "--failed", "--no-legend").stdout.strip(), "", "failed units")


def purge(m, before):
    m.run("dpkg", "-r", *PACKAGES, timeout=120)
    check(m.run("pgrep", "tandem", may_fail=True).stdout == "", "processes after removal")
    left = {p for p in files(m) - before[0] if "tandem" in p}
    check(left, "configuration stays until purge")
    m.run("cp", "/etc/hostname", "/var/lib/tandem/models/mine.gguf")
    said = m.run("dpkg", "-P", *PACKAGES, timeout=120).stdout
    check("/var/lib/tandem/models stay" in said, "purge says what stays", said)
    mine = {"/var/lib/tandem", "/var/lib/tandem/models", "/var/lib/tandem/models/mine.gguf"}
    equal(sorted(files(m) - before[0] - mine), [], "files that purge leaves behind")
    equal(m.run("cmp", "/etc/hostname", "/var/lib/tandem/models/mine.gguf").stdout, "", "a model that purge keeps")
    equal(m.run("stat", "-c", "%U", "/var/lib/tandem/models/mine.gguf").stdout, "root\n", "whose it is then")
    m.run("rm", "-r", "/var/lib/tandem")
    # render and kvm are udev's groups, which a bare root without udev lacks: others may own devices by them now.
    equal(sorted(names(m) - before[1] - {"render", "kvm"}), [], "users and groups that purge leaves behind")
    equal(m.run("systemctl", "list-units", "--all", "--no-legend", "tandem*").stdout.strip(), "", "units that are left")


@test
def policy():
    """Debian's own judge has nothing to name but that these packages close no bug of Debian's."""
    if SANITIZER:
        raise Skip("packages are built without sanitizers")
    if not shutil.which("lintian"):
        raise Skip("no lintian here (Debian: lintian)")
    r = subprocess.run(["lintian", "--tag-display-limit", "0", *packages()],
                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=300)
    check(r.returncode in (0, 2) and "initial-upload" in r.stdout, "lintian ran", r.returncode, r.stderr[-600:])
    equal([line for line in r.stdout.splitlines() if line[:2] in ("E:", "W:") and "initial-upload" not in line], [],
          "lintian")


@test
def development():
    """pkg-config and the files of the development package suffice to build a program, which needs the library by its
    soname."""
    if SANITIZER:
        raise Skip("packages are built without sanitizers")
    with tempfile.TemporaryDirectory() as d:
        for deb in packages():
            if os.path.basename(deb).startswith("libtandem"):
                subprocess.run(["dpkg-deb", "-x", deb, d], check=True)
        folder = subprocess.run(["find", d, "-name", "pkgconfig"], stdout=subprocess.PIPE, text=True).stdout.strip()
        env = dict(os.environ, PKG_CONFIG_LIBDIR=folder, PKG_CONFIG_SYSROOT_DIR=d,
                   PKG_CONFIG_ALLOW_SYSTEM_CFLAGS="1", PKG_CONFIG_ALLOW_SYSTEM_LIBS="1")
        flags = subprocess.run(["pkg-config", "--cflags", "--libs", "libtandem"], stdout=subprocess.PIPE, text=True,
                               check=True, env=env).stdout.split()
        example = os.path.join(d, "usr/share/doc/libtandem-dev/examples/story.c")
        subprocess.run(["cc", "-Wall", "-Werror", example, *flags, "-o", os.path.join(d, "story")], check=True,
                       timeout=60)
        needed = subprocess.run(["objdump", "-p", os.path.join(d, "story")],
                                stdout=subprocess.PIPE, text=True, check=True).stdout
        check(re.search(r"NEEDED\s+libtandem\.so\.\d+\n", needed), "the library by soname", needed[:600])
        check(re.search(r"TANDEM_0\.1", needed), "with symbol versions", needed[:600])


@test
def from_install_to_purge():
    if SANITIZER:
        raise Skip("packages are built without sanitizers")
    debs = packages()
    parts = [disturbed, rights, hostile, user_units, http, manager]
    if not os.path.exists(os.path.join(HOSTILE, "tandem-gpu-worker")):
        parts.remove(hostile)
        print(f"     no hostile workers in {HOSTILE} (built with the tests): that part is left out")
    if os.environ.get("TANDEM_NSPAWN_PARTS"):  # while one works on one of them
        parts = [p for p in parts if p.__name__ in os.environ["TANDEM_NSPAWN_PARTS"].split(",")]
    with Machine() as m:
        before = install(m, debs)
        text = activation(m)
        own_file(m, text)
        bus(m, text)
        for part in parts:
            begin = time.monotonic()
            part(m)
            print(f"     {part.__name__} ({time.monotonic() - begin:.1f} s)", flush=True)
        upgrade(m, debs)
        forbidden(m)
        purge(m, before)


main()
