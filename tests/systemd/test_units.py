"""The units as systemd reads them: `systemd-analyze verify` has nothing to say, the exposure that `security` sees is
low, and both flavours agree with the code about names. Bus and polkit files are well-formed and name the same
service."""
import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import xml.etree.ElementTree as ET

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403

UNITS = os.environ.get("TANDEM_UNITS") or os.path.join(TREE, "build", "systemd")
SOURCE = os.path.join(TREE, "systemd")
MOST = 1.5


def need(program):
    if not shutil.which(program):
        raise Skip(f"no {program} here (Debian: systemd)")


def text(*path):
    with open(os.path.join(SOURCE, *path)) as f:
        return f.read()


@test
def verify():
    """In a copy whose program exists: the installed one does not yet."""
    need("systemd-analyze")
    for flavour in ("system", "user"):
        with tempfile.TemporaryDirectory() as d:
            names = sorted(n for n in os.listdir(os.path.join(UNITS, flavour)) if not n.endswith(".d"))
            for name in names:
                with open(os.path.join(UNITS, flavour, name)) as f:
                    program = os.path.join(BIN, "tandemd" if name.startswith("tandemd") else name.rsplit(".", 1)[0])
                    unit = re.sub(r"^ExecStart=\S+", "ExecStart=" + program, f.read(), flags=re.M)
                unit = re.sub(r"^Documentation=.*\n", "", unit, flags=re.M)  # its pages are not installed either
                with open(os.path.join(d, name), "w") as f:
                    f.write(unit)
            command = ["systemd-analyze", "verify"] + (["--user"] if flavour == "user" else [])
            for name in os.listdir(os.path.join(UNITS, flavour)):
                if name.endswith(".d"):
                    shutil.copytree(os.path.join(UNITS, flavour, name), os.path.join(d, name))
            check(len(names) >= 6, "units", names)
            r = subprocess.run(command + [os.path.join(d, name) for name in names],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60,
                               env=dict(os.environ, SYSTEMD_UNIT_PATH=d + ":", XDG_RUNTIME_DIR=d))
            ours = [line for line in (r.stderr + r.stdout).splitlines() if d in line or "tandem" in line]
            equal((r.returncode, ours), (0, []), f"verify of the {flavour} units")


def exposure_of(path):
    r = subprocess.run(["systemd-analyze", "security", "--offline=true", "--no-pager", path], stdout=subprocess.PIPE,
                       stderr=subprocess.PIPE, text=True, timeout=60)
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", r.stdout)
    check(found, "a score", r.stdout[-400:], r.stderr)
    return float(found[1]), r


@test
def exposure():
    """Of each of the four, its drop-ins included. The one that hears from a network is held to less."""
    need("systemd-analyze")
    for unit, most in (("tandemd", MOST), ("tandem-npu-worker", MOST), ("tandem-gpu-worker", MOST),
                       ("tandem-http", 1.0)):
        found, r = exposure_of(os.path.join(UNITS, "system", unit + ".service"))
        if unit.endswith("worker"):
            check("char-accel" in r.stdout or "char-drm" in r.stdout, "the drop-ins are counted", r.stdout[-2000:])
        print(f"exposure of {unit}.service: {found}")
        check(found <= most, f"exposure of {unit} {found}, at most {most}")
    # The ruler takes a user's unit for one of root's. A copy that names another user is measured beside it.
    with tempfile.TemporaryDirectory() as d:
        unit = os.path.join(d, "tandem-http.service")
        shutil.copytree(os.path.join(UNITS, "user", "tandem-http.service.d"), unit + ".d")
        with open(os.path.join(UNITS, "user", "tandem-http.service")) as f:
            whole = f.read()
        for user, most in (("", 1.2), ("User=alice\n", 1.0)):
            with open(unit, "w") as f:
                f.write(whole.replace("[Service]\n", "[Service]\n" + user))
            found, _ = exposure_of(unit)
            print(f"exposure of the user's tandem-http.service{' as a user' if user else ''}: {found}")
            check(found <= most, f"exposure of the user's gateway {found}, at most {most}")


@test
def walls():
    """What a worker's unit must not have, whatever the ruler says of it; and the one exception is one unit's alone."""
    for flavour in ("system", "user"):
        for name in ("npu", "gpu"):
            unit = text(flavour, f"tandem-{name}-worker.service.in")
            check("RestrictAddressFamilies=none\n" in unit, f"{flavour} {name}: no address family")
            check(re.search(r"^SystemCallFilter=~.*@network-io.* io_uring_setup io_uring_enter io_uring_register$",
                            unit, re.M),
                  f"{flavour} {name}: no io_uring")
            back = re.findall(r"^SystemCallFilter=([^~@].*)$", unit, re.M)
            equal(back, ["accept4 getsockopt recvfrom recvmsg sendmsg sendto shutdown"],
                  f"{flavour} {name}: what comes back")
            equal("MemoryDenyWriteExecute=yes\n" in unit, name == "npu", f"{flavour} {name}: executable memory")
            socket = text(flavour, f"tandem-{name}-worker.socket")
            check("SocketMode=0600\n" in socket, f"{flavour} {name}: who may connect")
            folder = "/run" if flavour == "system" else "%t"
            check(f"ListenStream={folder}/tandem/{name}-worker.socket\n" in socket, f"{flavour} {name}: where")
        check("Environment=TANDEM_WORKER_SOCKETS=%t/tandem\n" in text(flavour, "tandemd.service.in"),
              "tandemd looks there")
    for name in ("npu", "gpu"):
        unit = text("system", f"tandem-{name}-worker.service.in")
        for line in ("DynamicUser=yes", "PrivateNetwork=yes", "DevicePolicy=closed",
                     "CapabilityBoundingSet=", "StartLimitIntervalSec=0"):
            check(line + "\n" in unit, f"{name}: {line}")
        check("DeviceAllow" not in unit, f"{name}: devices are in the drop-ins")
    rules = text("polkit.rules")
    equal(set(re.findall(r'"(tandem[\w.-]*)"', rules)),
          {"tandem", "tandem-npu-worker.service", "tandem-gpu-worker.service"}, "whom polkit's rule is about")


@test
def http():
    """The gateway's port is systemd's and no other machine's, and the gateway can open no connection of its own."""
    for flavour in ("system", "user"):
        equal(re.findall(r"^ListenStream=(.*)$", text(flavour, "tandem-http.socket"), re.M), ["127.0.0.1:11434"],
              f"{flavour}: where")
        unit = text(flavour, "tandem-http.service.in")
        for line in ("RestrictAddressFamilies=AF_UNIX", "NoNewPrivileges=yes", "MemoryDenyWriteExecute=yes"):
            check(line + "\n" in unit, f"{flavour}: {line}")
    walls = text("user", "tandem-http.service.d", "10-namespaces.conf.in")
    for line in ("PrivateUsers=yes", "PrivateNetwork=yes", "CapabilityBoundingSet=", "ProtectHome=tmpfs"):
        check(line + "\n" in walls, f"user: {line}")
    unit = text("system", "tandem-http.service.in")
    for line in ("PrivateNetwork=yes", "PrivateUsers=yes", "CapabilityBoundingSet=", "ProcSubset=pid"):
        check(line + "\n" in unit, line)


@test
def a_taken_port():
    """Before systemd opens the port, its log says who has it and how to move Tandem's."""
    with contextlib.closing(socket.socket()) as taken, tempfile.TemporaryDirectory() as folder:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = "127.0.0.1:%d" % taken.getsockname()[1]
        with open(os.path.join(folder, "systemctl"), "w") as f:
            f.write(f'#!/bin/sh\necho "$@" >{folder}/asked\necho "{address} (Stream)"\n')
        os.chmod(f.name, 0o755)
        for flavour, manager in (("system", ""), ("user", "--user ")):
            with open(os.path.join(UNITS, flavour, "tandem-http.socket")) as f:
                unit = f.read()
            check("Environment=TANDEM_HTTP=/" in unit, "where the program is")
            command = re.search(r"^ExecStartPre=-/bin/sh -c '(.*)'$", unit, re.M)[1].replace("$$", "$").replace(
                "%n", "tandem-http.socket")
            r = subprocess.run(["/bin/sh", "-c", command], stderr=subprocess.PIPE, text=True,
                               env={"PATH": folder, "TANDEM_HTTP": os.path.join(BIN, "tandem-http")})
            equal(r.returncode, 1, "the status")
            for words in (f"{address} is taken by ", f"(pid {os.getpid()})", "systemctl edit tandem-http.socket",
                          "ListenStream="):
                check(words in r.stderr, words, r.stderr)
            with open(os.path.join(folder, "asked")) as f:
                equal(f.read().strip(), f"{manager}show --property=Listen --value tandem-http.socket", "what was asked")


@test
def names_agree():
    """What stands in two places is the same in both."""
    with open(os.path.join(TREE, "daemon", "service", "passed.h")) as f:
        name = re.search(r'TDM_LISTEN_NAME "(\w+)"', f.read())[1]
    for flavour in ("system", "user"):
        check(f"FileDescriptorName={name}\n" in text(flavour, "tandemd.socket"),
              f"{flavour}: the socket's name is {name}")
    check("ListenStream=/run/tandem/socket\n" in text("system", "tandemd.socket"), "the path that clients know")
    check("ListenStream=%t/tandem/socket\n" in text("user", "tandemd.socket"), "the path that clients know")
    for path in ("system.service", "session.service.in"):
        check("Name=dev.tandem.Tandem1\n" in text("dbus", path), "the bus name", path)
        check("SystemdService=tandemd.service\n" in text("dbus", path), "the unit", path)
    policy = ET.fromstring(text("dbus", "policy.conf"))
    owned = {a.get("own") for a in policy.iter("allow") if a.get("own")}
    equal(owned, {"dev.tandem.Tandem1"}, "the name in the policy")
    user = re.search(r"^User=(\w+)$", text("system", "tandemd.service.in"), re.M)[1]
    check(f'<policy user="{user}">' in text("dbus", "policy.conf") and f"\nu {user} " in text("sysusers.conf"),
          "the user", user)
    with open(os.path.join(TREE, "daemon", "service", "config.h")) as f:
        gateway = re.search(r'TDM_CONFIG_GATEWAY_USER "([\w-]+)"', f.read())[1]
    check(f"\nUser={gateway}\n" in text("system", "tandem-http.service.in"), "who may speak for others", gateway)
    check(f"\nu {gateway} " in text("sysusers.conf"), "and exists", gateway)


@test
def polkit_actions():
    """Each action that the daemon asks for is defined, and none is defined that it does not know."""
    root = ET.fromstring(text("dev.tandem.Tandem1.policy"))
    defined = {a.get("id") for a in root.iter("action")}
    for a in root.iter("action"):
        levels = {d.tag: d.text for d in a.find("defaults")}
        equal(set(levels), {"allow_any", "allow_inactive", "allow_active"}, f"defaults of {a.get('id')}")
        equal([n.text for n in a.findall("annotate") if n.get("key") == "org.freedesktop.policykit.owner"],
              ["unix-user:tandem"],
              f"the owner of {a.get('id')}: without it polkit does not answer a daemon that is not root")
        check(set(levels.values()) <= {"yes", "no", "auth_admin", "auth_admin_keep"}, "levels", levels)
    with open(os.path.join(TREE, "daemon", "faces", "dbus", "polkit.c")) as f:
        code = f.read()
    asked = {"dev.tandem.Tandem1." + name for name in re.findall(r'BUS_NAME "\.([a-z][a-z-]*)"', code)}
    equal(asked, defined, "actions in the daemon and in the policy")


main()
