"""Three nodes behind HAProxy with the configuration of deploy/: one is killed with -9, one is drained. The streams of
the others go on, new requests are answered soon, and Debian's Prometheus knows what `tandem status` knows."""
import os
import random
import signal
import sys
import tempfile
import urllib.parse
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403
from http_test import *  # noqa: E402,F403

HAPROXY = shutil.which("haproxy", path=os.environ.get("PATH", "") + ":/usr/sbin")
DEPLOY = os.path.join(TREE, "deploy")
SOON = 0.5  # seconds in which most new requests are answered after a node's death, and each in some more
OPENERS = ["Once upon a time", "There was a king", "In a deep forest", "A miller had three sons", "Long ago",
           "The youngest daughter", "Beyond the seven hills", "When wishing still helped"]


def completion(prompt, n, seed=1, **more):
    return {"model": "tale", "prompt": prompt, "max_tokens": n, "seed": seed, **more}


class Node:
    """A daemon and its gateway: a machine, as far as the balancer sees."""

    def __enter__(self):
        self.daemon = Daemon(placement=None, hang_ms=STANDING_MS)
        self.daemon.__enter__()
        self.gateway = Gateway(self.daemon)
        try:
            self.gateway.__enter__()
        except BaseException:
            self.daemon.__exit__(*sys.exc_info())
            raise
        return self

    def __exit__(self, *exc):
        self.gateway.__exit__(*exc)
        return self.daemon.__exit__(*exc)

    def kill(self):
        """All of it at once, as when a machine loses its power."""
        self.gateway.expect_exit = None
        send_signal(self.gateway.process.pid, signal.SIGKILL)
        self.daemon.kill()
        self.gateway.process.wait()


class Program:
    """A server that is not ours."""

    def __init__(self, name, command, ready, fds=()):
        self.name, self.command, self.ready, self.fds = name, command, ready, fds

    def __enter__(self):
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
                                        pass_fds=self.fds)
        try:
            wait_for(self._is_ready, f"{self.name} ready")
        except BaseException:
            self.__exit__(AssertionError, None, None)
            raise
        return self

    def _is_ready(self):
        check(self.process.poll() is None, f"{self.name} left with {self.process.poll()}")
        try:
            return self.ready()
        except (OSError, http.client.HTTPException):
            return False

    def __exit__(self, kind, value, trace):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if kind not in (None, Skip):
            self.log.seek(0)
            print(f"---- {self.name}'s log\n{self.log.read().decode(errors='replace')[-4000:]}\n----", flush=True)
        return False


class Balancer(Gateway):
    """HAProxy in front of the nodes, with what deploy/haproxy has but for addresses."""

    def __init__(self, nodes, folder):
        self.listener, self.key = socket.create_server(("127.0.0.1", 0)), None
        self.port = self.listener.getsockname()[1]
        fd = self.listener.fileno()  # HAProxy inherits it: a free port that it looks for later may be taken by then
        self.admin = os.path.join(folder, "admin.sock")
        with open(os.path.join(DEPLOY, "haproxy", "haproxy.cfg")) as f:
            text = f.read().replace("/run/haproxy/admin.sock", self.admin)
        text = text.replace("bind :11434", f"bind fd@{fd}")
        # A node that gets no CPU for two seconds is late and not dead. One that is dead refuses a check at once.
        equal(text.count("    timeout connect 200ms\n"), 1, "a timeout")
        text = text.replace("    timeout connect 200ms\n", "    timeout connect 200ms\n    timeout check 30s\n")
        for name, address, node in zip("abc", ("10.0.0.11", "10.0.0.12", "10.0.0.13"), nodes):
            line = f"server {name} {address}:11434"
            equal(text.count(line), 1, line)
            text = text.replace(line, f"server {name} 127.0.0.1:{node.gateway.port}")
        path = os.path.join(folder, "haproxy.cfg")
        with open(path, "w") as f:
            f.write(text)
        r = subprocess.run([HAPROXY, "-c", "-f", path], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                           pass_fds=[fd])
        check(r.returncode == 0 and "WARNING" not in r.stdout, "the configuration is taken without a word", r.stdout)
        self.program = Program("haproxy", [HAPROXY, "-db", "-f", path], lambda: self.up() == ["a", "b", "c"], [fd])

    def __enter__(self):
        self.program.__enter__()
        return self

    def __exit__(self, *exc):
        self.listener.close()
        return self.program.__exit__(*exc)

    def command(self, text):
        with socket.socket(socket.AF_UNIX) as s:
            s.settimeout(PATIENCE)
            s.connect(self.admin)
            s.sendall(text.encode() + b"\n")
            return read_all(s).decode()

    def up(self):
        rows = [line.split(",") for line in self.command("show stat").splitlines() if line.startswith("nodes,")]
        return [r[1] for r in rows if r[1] in "abc" and r[17].startswith("UP")]

    def at_rest(self):
        """No request counts any more. One that does can send the next to another node, so that none has more than its
        share; HAProxy counts one until a moment after its answer."""
        def requests():
            rows = [line.split(",") for line in self.command("show stat").splitlines() if line.startswith("nodes,")]
            return sum(int(r[4]) for r in rows if r[1] in "abc")
        wait_for(lambda: requests() == 0, "no request at the nodes", pause=0.01)

    def ask(self, body):
        """(node, text, seconds of this machine's time)"""
        watch = Stopwatch(own=False)
        status, headers, data = self.request("POST", "/v1/completions", body)
        seconds = watch.seconds()
        equal(status, 200, f"a completion: {data[:300]}")
        return headers["x-served-by"], json.loads(data)["choices"][0]["text"], seconds


class Stream(threading.Thread):
    """A stream through the balancer; read slowly, so that it lasts for as long as the test wants."""

    def __init__(self, balancer, body):
        super().__init__()
        self.balancer, self.body = balancer, body
        self.served_by = None
        self.go_on = threading.Event()
        self.begun = threading.Event()
        self.text, self.ended, self.error = "", False, None
        self.start()

    def run(self):
        c = http.client.HTTPConnection("127.0.0.1", self.balancer.port, timeout=PATIENCE)
        try:
            c.request("POST", "/v1/completions", json.dumps(dict(self.body, stream=True)),
                      {"Content-Type": "application/json"})
            r = c.getresponse()
            self.served_by = r.getheader("x-served-by")
            data = r.readline()
            self.begun.set()
            self.go_on.wait(PATIENCE)
            data += r.read()
            events = parse_events(data.decode())
            self.text = "".join(e["choices"][0]["text"] for _, e in events if isinstance(e, dict))
            self.ended = events[-1][1] == "[DONE]"
        except (OSError, http.client.HTTPException) as e:
            self.error = e
        finally:
            self.begun.set()
            c.close()


class Paused:
    """The workers of some daemons sleep, so that jobs are in their midst."""

    def __init__(self, nodes):
        self.pids = [n.daemon.worker_pid(w) for n in nodes for w in ("npu", "gpu")]

    def __enter__(self):
        for pid in self.pids:
            send_signal(pid, signal.SIGSTOP)

    def __exit__(self, *exc):
        for pid in self.pids:
            if alive(pid):
                send_signal(pid, signal.SIGCONT)


def three(test_body):
    if not HAPROXY:
        raise Skip("no haproxy (Debian: haproxy)")
    with tempfile.TemporaryDirectory(prefix="tandem-nodes-") as folder, Node() as a, Node() as b, Node() as c:
        with Balancer([a, b, c], folder) as balancer:
            test_body(dict(zip("abc", (a, b, c))), balancer, folder)


def streams_in_midst(balancer, daemon, node):
    """Streams that have begun: all, those on this node, whose daemon has more to say in each, and the others. Its
    workers stand. On a busy machine a stream may be over before it is looked at: then there are new ones."""
    for _ in range(20):
        daemon.wait_ready()
        stopped = daemon.worker_pids()
        for pid in stopped:
            send_signal(pid, signal.SIGSTOP)
        streams = [Stream(balancer, completion(p, 600, seed=7)) for p in OPENERS]
        run_in_slices(stopped, lambda: all(s.begun.is_set() for s in streams), "the streams begin")
        for s in streams:
            check(not s.error, "a stream begins", s.error)
        lost = [s for s in streams if s.served_by == node]
        kept = [s for s in streams if s.served_by != node]
        check(lost and kept, "streams on the victim and on others", [s.served_by for s in streams])
        if len(daemon.jobs()) == len(lost):
            return streams, lost, kept
        for pid in stopped:
            send_signal(pid, signal.SIGCONT)
        for s in streams:
            s.go_on.set()
            s.join()
        wait_for(lambda: not daemon.jobs(), "its jobs have ended")
    raise AssertionError("the streams were never in their midst")


@test
def one_dies_and_one_is_drained():
    def body(nodes, balancer, folder):
        alone = {p: nodes["a"].gateway.post("/v1/completions", completion(p, 60))["choices"][0]["text"]
                 for p in OPENERS}
        home = {}
        for p in OPENERS: # a prompt has a node, and the same text wherever that is
            for _ in range(2):
                balancer.at_rest()
                node, text, _ = balancer.ask(completion(p, 60))
                equal(text, alone[p], f"the text of {p!r} on {node}")
                equal(home.setdefault(p, node), node, f"the node of {p!r}")
        chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Tell me of a king"}]
        said = set()
        for more in ([], [{"role": "assistant", "content": "A king."}, {"role": "user", "content": "And then?"}]):
            balancer.at_rest()
            status, headers, data = balancer.request("POST", "/v1/chat/completions",
                                                     {"model": "tale", "messages": chat + more, "max_tokens": 4})
            equal(status, 200, f"chat: {data[:200]}")
            said.add(headers["x-served-by"])
        equal(len(said), 1, "nodes of one conversation")
        check(len(set(home.values())) >= 2, "the prompts are spread", home)
        equal(balancer.request("GET", "/metrics")[0], 404, "metrics are each node's")

        # kill -9 of a node in the midst of streams
        victim = home[OPENERS[0]]
        streams, lost, kept = streams_in_midst(balancer, nodes[victim].daemon, victim)
        nodes[victim].kill()
        took = []
        for i in range(20): # those whose prompt lived on the dead node are among them
            node, _, seconds = balancer.ask(completion(OPENERS[i % len(OPENERS)], 1))
            check(node != victim, "another node answers", node)
            took.append(seconds)
        took.sort()
        check(took[10] < SOON * SLOW and took[-1] < 6 * SOON * SLOW, "new requests are answered soon", took)
        print(f"FIGURE after kill -9 of one of three nodes: 20 new requests, the slowest took {took[-1] * 1e3:.0f} ms")
        for s in streams:
            s.go_on.set()
        for s in streams:
            s.join()
        other = nodes[next(n for n in nodes if n != victim)]
        for s in kept:
            check(s.ended and not s.error, f"the stream on {s.served_by} ends well", s.error)
            equal(s.text, other.gateway.post("/v1/completions", s.body)["choices"][0]["text"], "its text")
        for s in lost:
            check(not s.ended, "a stream of the dead node does not pretend to be complete")
        wait_for(lambda: len(balancer.up()) == 2, "the dead node is down")

        # drain: what runs goes on, new requests go elsewhere
        leaving, stays = [n for n in nodes if n != victim]
        stream = next((s for s in (Stream(balancer, completion(p + " there", 300)) for p in OPENERS)
                       if s.begun.wait(PATIENCE) and (s.served_by == leaving or s.go_on.set())), None)
        check(stream, f"a stream on {leaving}")
        equal(balancer.command(f"set server nodes/{leaving} state drain").strip(), "", "drain")
        for p in OPENERS:
            equal(balancer.ask(completion(p, 1))[0], stays, "who answers while the other drains")
        stream.go_on.set()
        stream.join()
        check(stream.ended and not stream.error, "the stream on the drained node ends well", stream.error)
        balancer.command(f"set server nodes/{leaving} state ready")

        # a gateway that is told to leave: nobody notices
        nodes[leaving].gateway.process.terminate()
        nodes[leaving].gateway.process.wait()
        for p in OPENERS:
            equal(balancer.ask(completion(p, 1))[0], stays, "who answers when the other has left")
        nodes[leaving].gateway.expect_exit = None
    three(body)


# What is asked of Prometheus, and the same from each node's status.
QUERIES = {
    "sum(tandem_generated_tokens_total)": lambda all: sum(s["tokens_generated"] for s in all),
    "sum(tandem_prompt_tokens_total)": lambda all: sum(s["prompt_tokens"] for s in all),
    "sum(tandem_jobs_done_total)": lambda all: sum(s["jobs_done"] for s in all),
    "sum(tandem_jobs_cancelled_total)": lambda all: sum(s["jobs_cancelled"] for s in all),
    "sum(vllm:num_requests_running)": lambda all: sum(s["jobs_running"] for s in all),
    "max(tandem_kv_pages)":
        lambda all: max(m["kv_pages_full"] + m["kv_pages_window"] for s in all for m in s["models"]),
    "sum(tandem_worker_restarts_total)": lambda all: sum(w["restarts"] for s in all for w in s["workers"]),
    "count(tandem_up == 1)": len,
    "sum(vllm:gpu_prefix_cache_hits_total) / sum(vllm:gpu_prefix_cache_queries_total)":
        lambda all: sum(s["cached_tokens"] for s in all) / sum(s["prompt_tokens"] for s in all),
}


@full_only
def prometheus():
    if not shutil.which("prometheus"):
        raise Skip("no prometheus (Debian: prometheus)")

    def body(nodes, balancer, folder):
        # An address of this machine's own network that nobody else takes, where a free port may be taken by then.
        address = "127.%d.%d.%d:9090" % tuple(random.randrange(1, 255) for _ in range(3))
        with open(os.path.join(DEPLOY, "prometheus", "tandem.yml")) as f:
            text = f.read().replace("scrape_interval: 15s", "scrape_interval: 1s")
        for host, node in zip(("10.0.0.11", "10.0.0.12", "10.0.0.13"), nodes.values()):
            equal(text.count(f"{host}:11434"), 1, "an address")
            text = text.replace(f"{host}:11434", f"127.0.0.1:{node.gateway.port}")
        path = os.path.join(folder, "prometheus.yml")
        with open(path, "w") as f:
            f.write(text)

        def query(text):
            url = f"http://{address}/api/v1/query?" + urllib.parse.urlencode({"query": text})
            with urllib.request.urlopen(url, timeout=PATIENCE) as r:
                found = json.load(r)["data"]["result"]
            return float(found[0]["value"][1]) if found else None

        for i, p in enumerate(OPENERS * 2):
            balancer.ask(completion(p + " in a castle by the sea" * 6, 5 + i))
        nodes["b"].daemon.signal_worker("gpu")
        wait_for(lambda: nodes["b"].daemon.workers()["gpu"]["state"] == "ready" and
                 nodes["b"].daemon.workers()["gpu"].get("restarts"), "the worker again")
        command = ["prometheus", f"--config.file={path}", f"--storage.tsdb.path={folder}/tsdb",
                   f"--web.listen-address={address}", "--log.level=warn"]
        with Program("prometheus", command, lambda: query("count(up == 1)") == 3):
            statuses = [json.loads(n.daemon.cli("status", "--json", check_exit=0).stdout) for n in nodes.values()]
            for text, of_status in QUERIES.items():
                want = of_status(statuses)

                def told():  # after a whole scrape of all since the last job
                    got = query(text)
                    return got is not None and abs(got - want) < 1e-9 * max(1, want)
                wait_for(told, f"{text} to be {want}", pause=0.2)
            check(query("sum(tandem_generated_tokens_total)") > 100, "there is something to count")
            check(query("sum(tandem_worker_restarts_total)") >= 1, "a restart is counted")
            equal(query("sum(tandem_http_time_to_first_token_seconds_count)"), len(OPENERS) * 2.0, "first tokens")
            late = query("histogram_quantile(0.99, sum by (le) (tandem_http_time_to_first_token_seconds_bucket))")
            check(0 < late <= 60, "a quantile", late)
            nodes["c"].kill()
            wait_for(lambda: query("count(up == 1)") == 2, "the dead node is seen")
    three(body)


main()
