"""The D-Bus face on a private bus: what it says it is, what it is, and that callers nobody here wrote can use it."""
import os
import sys
import xml.etree.ElementTree as ET

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403
from tandem_bus import *  # noqa: E402,F403

XML = os.path.join(TREE, "proto", "dev.tandem.Tandem1.xml")


TYPES = {"s": "String", "u": "UInt32", "t": "UInt64", "d": "Double", "b": "Boolean", "a{st}": "Dictionary"}


def shape(interface):
    """An interface of introspection XML as something that can be compared."""
    out = {}
    for e in interface:
        if e.tag == "annotation":
            continue
        args = tuple((a.get("name"), a.get("type"), a.get("direction")) for a in e if a.tag == "arg")
        notes = tuple((a.get("name"), a.get("value")) for a in e if a.tag == "annotation")
        out[(e.tag, e.get("name"))] = (args, e.get("type"), e.get("access"), notes)
    return out


@test
def the_xml_is_what_is_answered():
    want = {i.get("name"): i for i in ET.parse(XML).getroot() if i.tag == "interface"}
    with Bus() as bus, bus.daemon() as d:
        c = Client(bus).wait()
        d.generate(n=2)
        path, fd = c.generate(max_tokens=4, linger=True)
        read_all(fd)
        c.until_done(path)
        model = next(p for p in c.managed() if "/models/" in p)
        seen = {}
        for p, name in ((ROOT, MANAGER), (path, JOB), (ROOT + "/workers/npu", WORKER), (model, MODEL)):
            node = ET.fromstring(str(c.call(p, "org.freedesktop.DBus.Introspectable", "Introspect", "")))
            have = {i.get("name"): i for i in node if i.tag == "interface"}
            equal(shape(have[name]), shape(want[name]), f"interface {name} as answered and as in proto/")
            check(PROPERTIES in have, "Properties is introspected")
            # And the code does what both say: names and types of properties, arguments of methods.
            values = c.all(p, name)
            props = {n: s[1] for (t, n), s in shape(want[name]).items() if t == "property"}
            equal(sorted(values), sorted(props), f"properties of {name}")
            for n, t in props.items():
                equal(type(values[n]).__name__, TYPES[t], f"type of {name}.{n}")
                equal(c.get(p, name, n).__class__, values[n].__class__, f"Get and GetAll of {n}")
                equal(c.refused(p, PROPERTIES, "Set", "ssv", name, n, 1),
                      "org.freedesktop.DBus.Error.PropertyReadOnly", f"Set of {n}")
            for (t, n), s in shape(want[name]).items():
                if t == "method":
                    equal(c.refused(p, name, n, "yyyy", 1, 2, 3, 4), "org.freedesktop.DBus.Error.InvalidArgs",
                          f"{n} with wrong arguments")
            equal(c.refused(p, name, "Nonsense", ""), "org.freedesktop.DBus.Error.UnknownMethod", "an unknown method")
            seen[p] = have
        served = sorted(i for have in seen.values() for i in have if i.startswith(NAME))
        equal(served, sorted(want), "interfaces served")
        # The tree can be walked from the root.
        found, todo = set(), ["/"]
        while todo:
            p = todo.pop()
            node = ET.fromstring(str(c.call(p, "org.freedesktop.DBus.Introspectable", "Introspect", "")))
            found.add(p)
            todo += [p.rstrip("/") + "/" + n.get("name") for n in node if n.tag == "node"]
        check({path, model, ROOT, ROOT + "/workers/gpu"} <= found, "objects found by walking the tree", found)


@test
def manager():
    with Bus() as bus, bus.daemon(models=(TALE, SPROUT), hang_ms=STANDING_MS) as d:
        c = Client(bus).wait()
        p = c.all(ROOT, MANAGER)
        equal((str(p["DefaultModel"]), bool(p["Draining"]), int(p["InterfaceVersion"])), ("tale", False, 1),
              "properties")
        equal(str(p["Version"]), d.status()["version"], "version")
        s = c.call(ROOT, MANAGER, "GetStatus", "a{sv}", {})
        equal(int(s["pid"]), d.process.pid, "pid")
        with open(os.path.join(TREE, "common", "status-fields.def")) as f:
            rows = {key: kind
                    for kind, key in re.findall(r"^DAEMON_FIELD\(\w+, \w+, '(.)', \"([^\"]*)\"", f.read(), re.M)}
        equal({str(k) for k in s}, set(rows) | {"worker-npu", "worker-gpu"}, "keys of GetStatus and rows of the table")
        for key, kind in rows.items():
            equal(type(s[key]).__name__, TYPES[kind], f"type of {key} in GetStatus")
        models = {str(m["name"]): m for m in c.call(ROOT, MANAGER, "ListModels", "a{sv}", {})}
        check({"tale", "sprout"} <= set(models), "models", list(models))
        path = c.call(ROOT, MANAGER, "LoadModel", "sa{sv}", "sprout", {"wait": True})
        m = c.all(path, MODEL)
        equal((str(m["Name"]), str(m["State"]), float(m["Progress"])), ("sprout", "loaded", 1.0), "model object")
        check(m["Context"] > 0 and m["WeightsBytes"] > 0, "model details", m)
        c.call(ROOT, MANAGER, "UnloadModel", "sa{sv}", "sprout", {})
        check(str(path) not in c.managed(), "an unloaded model has no object")
        path = c.call(ROOT, MANAGER, "LoadModel", "sa{sv}", "sprout", {})
        wait_for(lambda: c.get(path, MODEL, "State") == "loaded", "the model, loaded without waiting")
        c.call(path, MODEL, "Unload", "a{sv}", {})
        for name, error in (("nonesuch", "NoModel"), ("../etc/passwd", "NoModel")):
            equal(c.refused(ROOT, MANAGER, "LoadModel", "sa{sv}", name, {}), ERROR + error, f"load {name}")
        equal(c.refused(ROOT, MANAGER, "UnloadModel", "sa{sv}", "sprout", {}), ERROR + "NoModel", "unload twice")
        equal(c.refused(ROOT, MANAGER, "LoadModel", "sa{sv}", "tale", {"weight": True}), ERROR + "BadRequest", "option")
        # Workers.
        d.wait_ready()
        before = c.all(ROOT + "/workers/npu", WORKER)
        equal(str(before["State"]), "ready", "worker state")
        pid = d.worker_pid("npu")
        equal(int(before["ProcessId"]), pid, "worker pid")
        c.call(ROOT, MANAGER, "RestartWorker", "sa{sv}", "npu", {})
        wait_for(lambda: c.get(ROOT + "/workers/npu", WORKER, "ProcessId") not in (0, pid), "a new worker")
        wait_for(lambda: c.get(ROOT + "/workers/npu", WORKER, "State") == "ready", "the worker to be ready")
        c.call(ROOT + "/workers/gpu", WORKER, "Restart", "a{sv}", {})
        wait_for(lambda: c.get(ROOT + "/workers/gpu", WORKER, "Restarts") == 1, "restart through the object")
        equal(c.refused(ROOT, MANAGER, "RestartWorker", "sa{sv}", "tpu", {}), ERROR + "BadRequest", "no such worker")
        for path, interface, error in (("/", MANAGER, "UnknownMethod"), (ROOT + "/x", MANAGER, "UnknownObject"),
                                       (ROOT + "/models/99", MODEL, "UnknownObject"),
                                       (ROOT + "/workers/tpu", WORKER, "UnknownObject"),
                                       (ROOT + "/jobs/1", JOB, "UnknownObject")):
            equal(c.refused(path, interface, "Cancel", ""), "org.freedesktop.DBus.Error." + error, f"call on {path}")
        equal(c.refused(ROOT, PROPERTIES, "Get", "ss", MANAGER, "Nonsense"),
              "org.freedesktop.DBus.Error.UnknownProperty", "unknown property")
        equal(c.refused(ROOT, PROPERTIES, "GetAll", "s", "a.b"), "org.freedesktop.DBus.Error.UnknownInterface",
              "unknown interface")


@test
def the_bus_goes_and_comes_back():
    with Bus() as bus, bus.daemon(hang_ms=STANDING_MS) as d:
        c = Client(bus).wait()
        d.generate(n=1)  # a worker that stands while it takes a model is replaced after 10 s
        with d.standing():  # so that none ends before the bus does
            owned, fd = c.generate(max_tokens=4000, ignore_end=True)
            lingering, fd2 = c.generate(max_tokens=12, ignore_end=True, linger=True)
            equal(len(d.jobs()), 2, "jobs run")
            bus.stop()
        wait_for(lambda: not d.jobs(), "the owned job to end with its owner's bus", 10)
        equal(len(d.generate(n=4).ids), 4, "the socket is served without a bus")
        bus.start()
        c = Client(bus).wait()
        equal(str(c.until_done(lingering)["Result"]), "length", "the lingering job outlived the bus")
        equal(c.text(lingering).encode(), read_all(fd2), "its text")
        equal(c.refused(owned, JOB, "Cancel", ""), "org.freedesktop.DBus.Error.UnknownObject", "the owned job")
        os.close(fd)
    # No bus when it starts: served on the socket at once, on the bus when that comes.
    with Bus() as bus:
        bus.stop()
        with bus.daemon() as d:
            equal(len(d.generate(n=4).ids), 4, "served without a bus")
            bus.start()
            Client(bus).wait()


@test
def two_daemons_one_name():
    with Bus() as bus, bus.daemon() as first:
        c = Client(bus).wait()
        with bus.daemon() as second:
            wait_for(lambda: "belongs to somebody else" in second.log(), "the second to notice")
            equal(int(c.call(ROOT, MANAGER, "GetStatus", "a{sv}", {})["pid"]), first.process.pid, "who answers")
            first.stop()
            first.expect_exit = None
            wait_for(lambda: c.connection.name_has_owner(NAME), "the second to take over")
            equal(int(c.call(ROOT, MANAGER, "GetStatus", "a{sv}", {})["pid"]), second.process.pid, "who answers")


if __name__ == "__main__":
    main()
