"""The examples do what they say: each against a private daemon, those over D-Bus on a private bus. The GTK one runs
where GTK and Xvfb are."""
import json
import os
import select
import shutil
import signal
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403
from lives import PATIENT, end  # noqa: E402
from tandem_bus import Bus  # noqa: E402
from http_test import Gateway  # noqa: E402

EXAMPLES = os.path.join(TREE, "examples")
BUILT = os.path.join(os.path.dirname(BIN), "examples")


@test
def over_http():
    """curl's requests, the npm client's where it is, and applications' configurations as far as they can be read."""
    http = os.path.join(EXAMPLES, "http")
    for name in ("zed-settings.json", "vscode-settings.json"):
        with open(os.path.join(http, name)) as f:
            json.load(f)
    with Daemon(models=[], placement=None) as d, Gateway(d) as g:
        env = dict(d.environment(), TANDEM_URL=f"http://127.0.0.1:{g.port}")
        g.post("/v1/completions", {"model": "sprout", "prompt": "a", "max_tokens": 1})
        listed = [(m["id"], m["default"]) for m in g.get("/v1/models")["data"]]
        equal((listed[0], ("tale", True) in listed), (("sprout", False), True), "the first is not the default one")
        if shutil.which("curl"):
            r = subprocess.run([os.path.join(http, "curl.sh")], env=env, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, timeout=60 * SLOW)
            equal((r.returncode, r.stderr), (0, ""), "curl.sh")
            check(all(word in r.stdout for word in ("== tale, whole", '"finish_reason":"length"', "data: [DONE]",
                                                    '"done_reason":"length"')), "its answers", r.stdout)
        modules = os.environ.get("TANDEM_NPM_CLIENTS", "")
        if shutil.which("node") and os.path.isdir(os.path.join(modules, "openai")):
            with tempfile.TemporaryDirectory() as folder:
                shutil.copy(os.path.join(http, "openai.mjs"), folder)
                os.symlink(modules, os.path.join(folder, "node_modules"))
                r = subprocess.run(["node", "openai.mjs"], cwd=folder, env=env, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, timeout=60 * SLOW)
            equal((r.returncode, r.stderr), (0, ""), "openai.mjs")
            check(re.search(r"\[tale: \d+ tokens\]\n$", r.stdout), "its answer", r.stdout)


@test
def libtandem_in_c():
    with Daemon() as d:
        env = dict(d.environment(), TANDEM_SOCKET=d.socket)
        r = subprocess.run([os.path.join(BUILT, "example-story"), "The king said"], env=env, stdout=subprocess.PIPE,
                           stderr=subprocess.PIPE, text=True, timeout=60 * SLOW)
        equal((r.returncode, r.stderr), (0, ""), "example-story")
        check(len(r.stdout) > 100 and " tokens]" in r.stdout, "a story", r.stdout)
        env["TANDEM_SOCKET"] = "/nonexistent/socket"
        r = subprocess.run([os.path.join(BUILT, "example-story")], env=env, stderr=subprocess.PIPE, text=True,
                           timeout=60)
        check(r.returncode == 1 and "/nonexistent/socket" in r.stderr, "without a daemon", r.stderr)


@test
def shell():
    with Daemon() as d:
        env = dict(d.environment(), TANDEM_SOCKET=d.socket)
        env["PATH"] = BIN + ":" + env["PATH"]
        answers = []
        for folder in ("a", "b"):
            lines = "Once upon a time\nThe king said\n\nIn a \"dark\" $HOME wood\n"
            with open(os.path.join(d.dir, "lines"), "w") as f:
                f.write(lines)
            subprocess.run([os.path.join(EXAMPLES, "many.sh"), "lines", folder], cwd=d.dir, env=env, check=True,
                           timeout=120 * SLOW)
            out = {}
            for name in sorted(os.listdir(os.path.join(d.dir, folder))):
                with open(os.path.join(d.dir, folder, name), "rb") as f:
                    out[name] = f.read()
            answers.append(out)
        equal(sorted(answers[0]), ["1.txt", "2.txt", "3.txt"], "a file for each line")
        check(all(len(text) > 20 for text in answers[0].values()), "with an answer each", answers[0])
        equal(answers[0], answers[1], "same seed, same answers")


MAIL = "From: Anna <anna@example.org>\nSubject: beds\n\nDear Sirs, please send 12 beds by May 3rd. It is urgent!\n"


@test
def form_in_the_shell():
    with Daemon() as d:
        env = dict(d.environment(), TANDEM_SOCKET=d.socket)
        env["PATH"] = BIN + ":" + env["PATH"]
        with open(os.path.join(d.dir, "mail"), "w") as f:
            f.write(MAIL)
        r = subprocess.run([os.path.join(EXAMPLES, "form.sh"), "mail"], cwd=d.dir, env=env, stdout=subprocess.PIPE,
                           stderr=subprocess.PIPE, text=True, timeout=120 * SLOW)
        equal((r.returncode, r.stderr), (0, ""), "form.sh")
        form = json.loads(r.stdout)
        equal(list(form), ["sender", "wants", "date", "pieces", "urgent"], "the form's members, in their order")
        check(form["wants"] in ("offer", "invoice", "complaint", "other") and 0 <= form["pieces"] <= 9999, "values",
              form)


@test
def form_over_the_bus():
    with Bus() as bus, bus.daemon() as d:
        wait_for(lambda: "serving on bus" in d.log(), "tandemd on the bus", 20)
        env = dict(d.environment(), DBUS_SESSION_BUS_ADDRESS=bus.address)
        if subprocess.run(["/usr/bin/python3", "-c", "import gi"], stderr=subprocess.PIPE).returncode != 0:
            raise Skip("no python3-gi here")
        with open(os.path.join(d.dir, "mail"), "w") as f:
            f.write(MAIL)
        r = subprocess.run(["/usr/bin/python3", os.path.join(EXAMPLES, "form.py"), os.path.join(d.dir, "mail")],
                           env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120 * SLOW)
        equal((r.returncode, r.stderr), (0, ""), "form.py")
        equal([line.split(":")[0] for line in r.stdout.splitlines()], ["sender", "wants", "items", "urgent"],
              "the form's members")


@test
def python_over_the_bus():
    with Bus() as bus, bus.daemon() as d:
        wait_for(lambda: "serving on bus" in d.log(), "tandemd on the bus", 20)
        env = dict(d.environment(), DBUS_SESSION_BUS_ADDRESS=bus.address)
        r = subprocess.run(["/usr/bin/python3", "-c", "import gi"], stderr=subprocess.PIPE)
        if r.returncode != 0:
            raise Skip("no python3-gi here")
        r = subprocess.run(["/usr/bin/python3", os.path.join(EXAMPLES, "stream.py"), "The", "king", "said"], env=env,
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120 * SLOW)
        equal(r.returncode, 0, "stream.py: " + r.stderr)
        check(len(r.stdout) > 100 and re.search(r"\n\[(length|stop)\]\n$", r.stdout), "a story and its result",
              r.stdout)


@test
def python_goes_on():
    """The daemon is killed, and ends, in the midst of a text. The next one reads what came, and the text is that of an
    undisturbed run."""
    with Bus() as bus, bus.daemon(hang_ms=STANDING_MS) as d:
        if subprocess.run(["/usr/bin/python3", "-c", "import gi"], stderr=subprocess.PIPE).returncode != 0:
            raise Skip("no python3-gi here")
        env = dict(d.environment(), DBUS_SESSION_BUS_ADDRESS=bus.address, TANDEM_REATTACH=PATIENT)
        command = ["/usr/bin/python3", os.path.join(EXAMPLES, "stream.py"), "--tokens", "1000", "Two", "kings"]
        wait_for(lambda: "serving on bus" in d.log(), "tandemd on the bus", 20)
        want = subprocess.run(command, env=env, stdout=subprocess.PIPE, timeout=120 * SLOW).stdout
        check(len(want) > 500, "a text", want)
        for goes in (lambda d, workers: d.kill(), end):
            for _ in range(20):
                d.wait_ready()
                with d.standing() as workers, subprocess.Popen(command, env=env, stdout=subprocess.PIPE) as reader:
                    run_in_slices(workers, lambda: select.select([reader.stdout], [], [], 0)[0], "text")
                    goes(d, workers)
                    d.start()
                    d.expect_exit = 0
                    equal(reader.stdout.read(), want, "the text")
                drawn = d.status().get("tokens_generated", 0)
                if drawn > 0:
                    break
            check(0 < drawn < 1000, "the next daemon draws the rest", drawn)


@test
def selection_over_the_bus():
    with Bus() as bus, bus.daemon() as d:
        wait_for(lambda: "serving on bus" in d.log(), "tandemd on the bus", 20)
        env = dict(d.environment(), DBUS_SESSION_BUS_ADDRESS=bus.address)
        for more in ({}, {"TANDEM_MODEL": "tale"}):
            r = subprocess.run([os.path.join(EXAMPLES, "summarise-selection.sh"), "-"], env=dict(env, **more),
                               input="A fox \"went\" to the river.\n\nIt saw $HOME.\n", stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, timeout=120 * SLOW)
            equal((r.returncode, r.stderr), (0, ""), "summarise-selection.sh")
            check(len(r.stdout) > 20, "an answer", r.stdout)
        equal(d.status()["jobs_done"], 2, "jobs")
        # Without a desktop: the selection comes from xclip and the answer goes to notify-send, which stand here.
        os.makedirs(d.dir + "/bin")
        for name, text in (("xclip", 'echo "what is selected"'), ("notify-send", 'printf "%s" "$2" >"$0.said"')):
            with open(f"{d.dir}/bin/{name}", "w") as f:
                f.write("#!/bin/sh\n" + text + "\n")
            os.chmod(f"{d.dir}/bin/{name}", 0o755)
        r = subprocess.run([os.path.join(EXAMPLES, "summarise-selection.sh")],
                           env=dict(env, PATH=d.dir + "/bin:" + env["PATH"]), stdout=subprocess.PIPE,
                           stderr=subprocess.PIPE, text=True, timeout=120 * SLOW)
        equal((r.returncode, r.stdout, r.stderr), (0, "", ""), "summarise-selection.sh")
        check(os.path.getsize(d.dir + "/bin/notify-send.said") > 20, "the notification")


@test
def folder_of_texts():
    """Each text gets one answer, once; what fails leaves no half answer and is tried again."""
    with Daemon() as d:
        env = dict(d.environment(), TANDEM_SOCKET=d.socket)
        env["PATH"] = BIN + ":" + env["PATH"]
        folder = d.dir + "/Texts"
        os.makedirs(folder)
        script = os.path.join(EXAMPLES, "folder", "tandem-folder")
        equal(subprocess.run([script, folder], env=env).returncode, 0, "an empty folder")
        for name in ("a b", "c"):
            with open(f"{folder}/{name}.txt", "w") as f:
                f.write(f"The tale of {name}.\n")
        r = subprocess.run([script, folder], env=dict(env, TANDEM_SOCKET="/nonexistent"), stderr=subprocess.PIPE)
        check(r.returncode == 1, "without a daemon", r)
        equal(sorted(os.listdir(folder)), ["a b.txt", "c.txt"], "no half answers")
        for _ in range(2):
            check(subprocess.run([script, folder], env=env, timeout=120 * SLOW).returncode == 0, "exit status")
            equal(sorted(os.listdir(folder)), ["a b.answer.txt", "a b.txt", "c.answer.txt", "c.txt"], "answers")
        equal(d.status()["jobs_done"], 2, "jobs: each text was answered once")
        units = [os.path.join(EXAMPLES, "folder", "tandem-folder." + kind) for kind in ("service", "timer")]
        if shutil.which("systemd-analyze"):
            os.makedirs(d.dir + "/units")
            for unit in units:
                with open(unit) as f, open(os.path.join(d.dir, "units", os.path.basename(unit)), "w") as to:
                    to.write(f.read().replace("%h/.local/bin/tandem-folder", script))
            r = subprocess.run(["systemd-analyze", "verify", "--man=no",
                                *(os.path.join(d.dir, "units", os.path.basename(u)) for u in units)],
                               stderr=subprocess.PIPE, text=True)
            equal([line for line in r.stderr.splitlines() if "tandem-folder" in line], [], "systemd-analyze verify")


@test
def sandboxed():
    """What Flatpak's proxy lets through with the one right of the manifest: everything that an app needs, and no other
    name."""
    if not shutil.which("xdg-dbus-proxy"):
        raise Skip("no xdg-dbus-proxy here (Debian: xdg-dbus-proxy)")
    if subprocess.run(["/usr/bin/python3", "-c", "import gi"], stderr=subprocess.PIPE).returncode != 0:
        raise Skip("no python3-gi here")
    with open(os.path.join(EXAMPLES, "flatpak", "dev.tandem.Story.yml")) as f:
        rights = re.findall(r"^  - --(.*)$", f.read(), re.M)
    equal(sorted(rights), ["share=ipc", "socket=fallback-x11", "socket=wayland", "talk-name=dev.tandem.Tandem1"],
          "the rights in the manifest")
    with Bus() as bus, bus.daemon() as d:
        wait_for(lambda: "serving on bus" in d.log(), "tandemd on the bus", 20)
        proxy = subprocess.Popen(["xdg-dbus-proxy", bus.address, d.dir + "/proxy", "--filter",
                                  "--talk=dev.tandem.Tandem1"], stdin=subprocess.DEVNULL)
        try:
            wait_for(lambda: listens(d.dir + "/proxy"), "the proxy", 10 * SLOW)
            env = dict(d.environment(), DBUS_SESSION_BUS_ADDRESS="unix:path=" + d.dir + "/proxy")
            r = subprocess.run(["/usr/bin/python3", os.path.join(EXAMPLES, "stream.py"), "The", "king", "said"],
                               env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120 * SLOW)
            equal(r.returncode, 0, "stream.py behind the proxy: " + r.stderr)
            check(len(r.stdout) > 100, "a story through the pipe", r.stdout)
            # gdbus: the proxy of Debian 12 does not understand how busctl greets it.
            names = subprocess.run(["gdbus", "call", "--session", "--dest", "org.freedesktop.DBus", "--object-path",
                                    "/org/freedesktop/DBus", "--method", "org.freedesktop.DBus.ListNames"], env=env,
                                   stdout=subprocess.PIPE, text=True).stdout
            seen = {n for n in re.findall(r"'([^']+)'", names) if not n.startswith(":")}
            equal(seen, {"org.freedesktop.DBus", "dev.tandem.Tandem1"}, "names that are seen")
            r = subprocess.run(["gdbus", "call", "--session", "--dest", "dev.tandem.Tandem1", "--object-path",
                                "/dev/tandem/Tandem1", "--method", "dev.tandem.Tandem1.Manager.ListModels", "{}"],
                               env=env, stdout=subprocess.PIPE, text=True)
            check("tale" in r.stdout, "the models", r.stdout)
        finally:
            proxy.kill()
            proxy.wait()


@test
def gtk_over_the_bus():
    """Under Xvfb. What it shows is seen in what the daemon was asked: a job from the bus that generates."""
    program = os.path.join(BUILT, "example-gtk")
    if not os.path.exists(program):
        raise Skip("the GTK example was not built (Debian: libgtk-4-dev)")
    if not shutil.which("Xvfb") or not shutil.which("xdotool"):
        raise Skip("no Xvfb or xdotool here (Debian: xvfb, xdotool)")
    with Bus() as bus, bus.daemon() as d:
        wait_for(lambda: "serving on bus" in d.log(), "tandemd on the bus", 20)
        read, write = os.pipe()
        server = subprocess.Popen(["Xvfb", "-displayfd", str(write), "-screen", "0", "800x600x24", "-nolisten", "tcp"],
                                  pass_fds=[write], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(write)
        app = None
        try:
            with os.fdopen(read) as f:
                display = ":" + f.readline().strip()
            env = dict(d.environment(), DBUS_SESSION_BUS_ADDRESS=bus.address, DISPLAY=display, GDK_BACKEND="x11",
                       GSK_RENDERER="cairo", GTK_A11Y="none", GSETTINGS_BACKEND="memory")
            app = subprocess.Popen([program], env=env, stdin=subprocess.DEVNULL)

            def window():
                check(app.poll() is None, "the app has left", app.returncode)
                r = subprocess.run(["xdotool", "search", "--name", "Tandem Story"], env=env, stdout=subprocess.PIPE,
                                   stderr=subprocess.DEVNULL, text=True)
                return r.stdout.split()
            wait_for(window, "the window", 60 * SLOW)
            before = d.status().get("tokens_generated", 0)

            def asked():
                """A window that is there may not listen yet, so a key that had no effect is pressed again."""
                subprocess.run(["xdotool", "windowfocus", window()[0]], env=env, stderr=subprocess.DEVNULL)
                # Without a window manager a key goes where the pointer is.
                subprocess.run(["xdotool", "mousemove", "--window", window()[0], "300", "30", "click", "1",
                                "key", "Return"], env=env, check=True)
                end = time.monotonic() + 5
                while time.monotonic() < end:
                    if d.jobs() or d.status().get("tokens_generated", 0) > before:
                        return True
                    time.sleep(0.05)
                return False
            wait_for(asked, "a story is asked for", 60 * SLOW)
            wait_for(lambda: d.status().get("tokens_generated", 0) > before + 30, "a story is told", 60 * SLOW)
            wait_for(lambda: d.status().get("jobs_done", 0) >= 1, "to its end", 60 * SLOW)
            time.sleep(0.5)
            check(app.poll() is None, "the app goes on", app.returncode)
            if os.environ.get("TANDEM_TEST_PICTURE"):
                subprocess.run(["import", "-window", window()[0], os.environ["TANDEM_TEST_PICTURE"]], env=env,
                               check=True)
        finally:
            for p in (app, server):
                if p:
                    p.terminate()
                    p.wait()


main()
