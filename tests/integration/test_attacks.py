"""One user attacks, another wants to be served: each limit of docs/security.md, against a system daemon. Attackers and
the bystander are different users, so this needs root."""
import contextlib
import os
import resource
import struct
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403

ATTACKER, SECOND, THIRD, BYSTANDER = 65534, 65533, 65532, 65531
SUBUIDS = (200000, 65536)  # the first attacker's


@contextlib.contextmanager
def as_user(uid):
    """Connections that are made meanwhile come from that user."""
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)


@contextlib.contextmanager
def system_daemon(**more):
    """One that every user can reach."""
    if os.getuid() != 0:
        raise Skip("needs root, to be several users")
    with tempfile.NamedTemporaryFile("w", prefix="tandem-subuid-") as f:
        f.write(f"{ATTACKER}:{SUBUIDS[0]}:{SUBUIDS[1]}\n")
        f.flush()
        with Daemon(system=True, env={"TANDEM_SUBUIDS": f.name}, **more) as d:
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


@test
def connections():
    """Three users take all the connections they can get: a fourth and root still get some. A user's subordinate uids
    are that user."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    with system_daemon() as d:
        held, counts = [], []
        for uid in (ATTACKER, SUBUIDS[0], SUBUIDS[0] + 777, SECOND, THIRD):
            wires, refusal = connect_all(d, uid)
            held += wires
            counts.append(len(wires))
            check(refusal, "more than a share is refused", uid, len(wires))
        print(f"connections of each: {counts}")
        equal(counts[1:3], [0, 0], "connections of subordinate uids beside their owner's")
        check(all(n >= 20 for n in (counts[0], *counts[3:])), "each user gets a share", counts)
        for uid in (BYSTANDER, 0):
            others, _ = connect_all(d, uid, most=8)
            equal(len(others), 8, f"connections of user {uid}")
            others[0].call("status", {})
            held += others
        for w in held:
            w.close()
        wait_for(lambda: len(connect_all(d, SUBUIDS[0] + 1, most=40)[0]) == 40, "all is given back")
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


main()
