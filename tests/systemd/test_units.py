"""The units as systemd reads them: `systemd-analyze verify` has nothing to say, the exposure that `security` sees is low,
and both flavours agree with the code about names. Bus and polkit files are well-formed and name the same service."""
import os
import re
import shutil
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
            for name in os.listdir(os.path.join(UNITS, flavour)):
                with open(os.path.join(UNITS, flavour, name)) as f:
                    unit = re.sub(r"^ExecStart=\S+", "ExecStart=" + os.path.join(BIN, "tandemd"), f.read(), flags=re.M)
                unit = re.sub(r"^Documentation=.*\n", "", unit, flags=re.M)  # its pages are not installed either
                with open(os.path.join(d, name), "w") as f:
                    f.write(unit)
            command = ["systemd-analyze", "verify"] + (["--user"] if flavour == "user" else [])
            r = subprocess.run(command + [os.path.join(d, "tandemd.service"), os.path.join(d, "tandemd.socket")],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60,
                               env=dict(os.environ, SYSTEMD_UNIT_PATH=d + ":", XDG_RUNTIME_DIR=d))
            ours = [line for line in (r.stderr + r.stdout).splitlines() if d in line or "tandem" in line]
            equal((r.returncode, ours), (0, []), f"verify of the {flavour} units")


@test
def exposure():
    need("systemd-analyze")
    r = subprocess.run(["systemd-analyze", "security", "--offline=true", "--no-pager",
                        os.path.join(UNITS, "system", "tandemd.service")],
                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60)
    found = re.search(r"Overall exposure level for tandemd.service: ([\d.]+)", r.stdout)
    check(found, "a score", r.stdout[-400:], r.stderr)
    print(f"exposure of tandemd.service: {found[1]}")
    check(float(found[1]) <= MOST, f"exposure {found[1]}, at most {MOST}")


@test
def names_agree():
    """What stands in two places is the same in both."""
    with open(os.path.join(TREE, "daemon", "notify.h")) as f:
        name = re.search(r'TDM_LISTEN_NAME "(\w+)"', f.read())[1]
    for flavour in ("system", "user"):
        check(f"FileDescriptorName={name}\n" in text(flavour, "tandemd.socket"), f"{flavour}: the socket's name is {name}")
    check("ListenStream=/run/tandem/socket\n" in text("system", "tandemd.socket"), "the path that clients know")
    check("ListenStream=%t/tandem/socket\n" in text("user", "tandemd.socket"), "the path that clients know")
    for path in ("system.service", "session.service.in"):
        check("Name=dev.tandem.Tandem1\n" in text("dbus", path), "the bus name", path)
        check("SystemdService=tandemd.service\n" in text("dbus", path), "the unit", path)
    policy = ET.fromstring(text("dbus", "policy.conf"))
    equal({a.get("own") for a in policy.iter("allow") if a.get("own")}, {"dev.tandem.Tandem1"}, "the name in the policy")
    user = re.search(r"^User=(\w+)$", text("system", "tandemd.service.in"), re.M)[1]
    check(f'<policy user="{user}">' in text("dbus", "policy.conf") and f"\nu {user} " in text("sysusers.conf"), "the user", user)


@test
def polkit_actions():
    """Each action that the daemon asks for is defined, and none is defined that it does not know."""
    root = ET.fromstring(text("dev.tandem.Tandem1.policy"))
    defined = {a.get("id") for a in root.iter("action")}
    for a in root.iter("action"):
        levels = {d.tag: d.text for d in a.find("defaults")}
        equal(set(levels), {"allow_any", "allow_inactive", "allow_active"}, f"defaults of {a.get('id')}")
        equal([n.text for n in a.findall("annotate") if n.get("key") == "org.freedesktop.policykit.owner"], ["unix-user:tandem"],
              f"the owner of {a.get('id')}: without it polkit does not answer a daemon that is not root")
        check(set(levels.values()) <= {"yes", "no", "auth_admin", "auth_admin_keep"}, "levels", levels)
    source = os.path.join(TREE, "daemon", "dbus-polkit.c")
    if not os.path.exists(source):
        raise Skip("this daemon asks polkit for nothing")
    with open(source) as f:
        code = f.read()
    asked = {"dev.tandem.Tandem1." + name for name in re.findall(r'BUS_NAME "\.([a-z][a-z-]*)"', code)}
    equal(asked, defined, "actions in the daemon and in the policy")


main()
