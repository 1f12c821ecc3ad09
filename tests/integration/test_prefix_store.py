"""Prefixes on disk: what a daemon has read, the next one does not read again. The reference for ids is a daemon that
keeps nothing. Damage of every kind costs time, and changes no id."""
import contextlib
import os
import random
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403

STORE = {"TANDEM_PREFIX_STORE": "1G", "TANDEM_LOG": "debug"}
PAGE = 32


def text(i, n=400):
    return [2] + [300 + (x * 31 + i * 977) % 5000 for x in range(n - 1)]


def cached(result):
    return result.done.get("cached_tokens", 0)


def store_of(d):
    return os.path.join(d.dir, "cache", "tandem", "prefixes")


def pages(d):
    """The files of pages, in the order of their texts."""
    return sorted(glob.glob(os.path.join(store_of(d), "v1", "u*", "*", "*.page")), key=os.path.basename)


def kept(d, n):
    """The daemon writes behind. Waits for n pages."""
    wait_for(lambda: len(pages(d)) >= n, f"{n} pages on disk", 30)


def restart(d):
    check(d.stop() is None, "the daemon's end")
    d.start()


def disk_tokens(d):
    return d.status().get("disk_tokens", 0)


def n_slow(d):
    """How often reading took longer than computing, by the daemon's clock: it ends then, and for a minute nothing of
    the model is read. So it is where a thread that reads has to wait for a CPU."""
    return d.log().count("longer than computing them")


def from_disk(d, forget, ask):
    """What ask() gives after forget(), which leaves the daemon what is on disk. Again where reading was slow: then
    nobody can say how many tokens are known."""
    for _ in range(20):
        forget()
        before = n_slow(d)
        got = ask()
        if n_slow(d) == before:
            return got
    raise AssertionError("reading was always slow")


@test
def after_a_restart():
    """The same text and another one that begins alike, after a restart, a kill, and an unload."""
    with Daemon(env=STORE) as d, Daemon() as plain:
        a, b = text(1), text(1)[:-1] + [700, 701]
        d.generate(ids=a, n=40)
        kept(d, len(a) // PAGE)
        want = [plain.generate(ids=ids, n=24, temp=0.8, seed=5) for ids in (b, a)]

        def begin_anew(how):
            if how == "restart":
                restart(d)
            elif how == "kill":
                d.kill()
                d.start()
                d.expect_exit = 0
            else:
                d.cli("stop", "tale", check_exit=0)

        def ask():
            before, known = disk_tokens(d), []
            for ids, w in zip((b, a), want):
                r = d.generate(ids=ids, n=24, temp=0.8, seed=5)
                same_ids(r.ids, w.ids, "ids")
                check(r.logprobs == w.logprobs, "log-probabilities")
                known.append(cached(r))
            return known, disk_tokens(d) - before

        for how in ("restart", "unload", "kill")[:times(2, 3)]:
            known, of_disk = from_disk(d, lambda how=how: begin_anew(how), ask)
            for ids, n in zip((b, a), known):
                check(n >= len(ids) // PAGE * PAGE - PAGE, f"{how}: tokens that were known", n)
            check(of_disk >= 384, f"{how}: tokens from disk", of_disk)
        equal(plain.status().get("disk_tokens", 0), 0, "tokens from disk where nothing is kept")


@test
def answers_too():
    """The next turn of a conversation goes on behind the answer of a daemon that has gone."""
    with Daemon(env=STORE) as d, Daemon() as plain:
        ids = text(2, 100)
        for turn in range(times(2, 6)):
            want = plain.generate(ids=ids, n=70, temp=0.7, seed=turn).ids

            def ask():
                r = d.generate(ids=ids, n=70, temp=0.7, seed=turn)
                same_ids(r.ids, want, f"turn {turn}")
                return cached(r)

            n = from_disk(d, lambda: restart(d), ask)
            if turn:
                check(n >= known - 2 * PAGE, f"turn {turn}: known", n, known)
            known = len(ids) + len(want) - 1
            kept(d, known // PAGE)
            ids = ids + want + [600 + turn] * 20


def damage(rng, paths, n):
    """n of the files are not what was written any more."""
    for path in rng.sample(paths, min(n, len(paths))):
        kind, size = rng.randrange(5), os.path.getsize(path)
        if kind == 0:
            with open(path, "r+b") as f:
                at = rng.randrange(size)
                f.seek(at)
                byte = f.read(1)[0] ^ (1 << rng.randrange(8))
                f.seek(at)
                f.write(bytes([byte]))
        elif kind == 1:
            os.truncate(path, rng.randrange(size))
        elif kind == 2:
            others = [p for p in paths if p != path and os.path.isfile(p)]
            shutil.copyfile(rng.choice(others), path) if others else os.truncate(path, 0)
        elif kind == 3:
            os.truncate(path, size // 2)
            os.truncate(path, size)
        else:
            os.unlink(path)
            os.mkfifo(path)


@test
def damaged_pages():
    """Whatever became of the files: the same ids, and the log says what was not used."""
    rng, n_damaged = random.Random(5), 0
    with Daemon(env=STORE) as d, Daemon() as plain:
        want = {}
        for turn in range(times(4, 200)):
            i = turn % 3
            r = d.generate(ids=text(i), n=12)
            if i not in want:
                want[i] = plain.generate(ids=text(i), n=12).ids
            same_ids(r.ids, want[i], f"ids in turn {turn}")
            kept(d, len(text(i)) // PAGE)
            files = [p for p in pages(d) if os.path.isfile(p) and os.path.getsize(p)]  # some were damaged before
            damage(rng, files, 12)
            n_damaged += min(12, len(files))
            d.cli("stop", "tale", check_exit=0)
        r = d.generate(ids=text(0), n=12)
        same_ids(r.ids, want[0], "ids at last")
        refused = d.status().get("disk_refused", 0)
        check(refused > 0, "pages that were refused", refused)
        check("is damaged and not used; its tokens are read anew" in d.log(), "the log says so")
        print(f"FIGURE {n_damaged} files damaged, {refused} of them met and refused")


@test
def a_damaged_secret():
    """What was kept cannot be found any more. The daemon says so, and begins anew."""
    with Daemon(env=STORE) as d, Daemon() as plain:
        want = plain.generate(ids=text(1), n=12).ids
        same_ids(d.generate(ids=text(1), n=12).ids, want, "ids")
        kept(d, 12)
        os.truncate(os.path.join(store_of(d), "key"), 5)
        restart(d)
        r = d.generate(ids=text(1), n=12)
        same_ids(r.ids, want, "ids behind another secret")
        equal(cached(r), 0, "tokens from disk")
        check("key is damaged" in d.log(), "the log says so")
        kept(d, 24)


@test
def many_at_once():
    """Jobs that begin alike, jobs that leave while their pages are read, and jobs that generate meanwhile."""
    with Daemon(env=STORE) as d, Daemon() as plain:
        long = text(3, 1200)
        want = [plain.generate(ids=long + [500 + i], n=8).ids for i in range(6)]
        d.generate(ids=long, n=2)
        kept(d, len(long) // PAGE)
        turn = 0
        while turn < times(2, 40) or (disk_tokens(d) < 1184 and turn < 60 and n_slow(d)):
            d.cli("stop", "tale", check_exit=0)
            other = d.start_job(ids=text(9, 40), n=60)
            jobs = [d.start_job(ids=long + [500 + i], n=8) for i in range(6)]
            gone = [d.start_job(ids=long + [600 + i], n=8) for i in range(4)]
            for job in gone:
                job.vanish()
            for i, job in enumerate(jobs):
                same_ids(job.wait().ids, want[i], f"turn {turn}, job {i}")
            equal(len(other.wait().ids), 60, "tokens of the job beside them")
            turn += 1
        check(disk_tokens(d) >= 1184, "tokens from disk", disk_tokens(d))


@test
def other_users():
    """What one user's prompts left is not found by another one, over lives of the daemon."""
    if os.getuid() != 0:
        raise Skip("needs root, to be two users")
    with Daemon(system=True, env={**STORE, "CACHE_DIRECTORY": "/nonexistent"}) as d:
        d.extra_env["CACHE_DIRECTORY"] = os.path.join(d.dir, "cache", "tandem")
        restart(d)
        for path in (d.dir, os.path.dirname(d.socket)):
            os.chmod(path, 0o755)
        os.chmod(d.socket, 0o666)
        d.generate(ids=text(4), n=4)
        kept(d, 12)
        equal(os.stat(store_of(d)).st_mode & 0o777, 0o700, "mode of the folder")
        restart(d)
        os.chmod(d.socket, 0o666)
        for expected in (0, 384):
            with as_user(65534):
                job = d.start_job(ids=text(4), n=4)
            equal(cached(job.wait()), expected, "another user's cached tokens")
        kept(d, 24)
        equal(len(glob.glob(os.path.join(store_of(d), "v1", "u*"))), 2, "folders of users")
        n = from_disk(d, lambda: d.cli("stop", "tale", check_exit=0), lambda: cached(d.generate(ids=text(4), n=4)))
        check(n >= 384, "one's own", n)


@test
def only_where_it_is_wanted():
    """A system's daemon keeps nothing unless it is told to, and one that is told not to neither."""
    for system, value in ((True, "auto"), (False, "off")):
        with Daemon(system=system, env={"TANDEM_PREFIX_STORE": value}) as d:
            d.extra_env["CACHE_DIRECTORY"] = os.path.join(d.dir, "cache", "tandem")
            restart(d)
            d.generate(ids=text(5), n=4)
            check(not os.path.exists(store_of(d)), "no folder", system, value)


@test
def the_command():
    """tandem cache shows and drops, without a daemon too."""
    with Daemon(env=STORE) as d:
        shown = json.loads(d.cli("cache", "--json", check_exit=0).stdout)
        equal((shown["pages"], shown["bytes"]), (0, 0), "nothing at first")
        d.generate(ids=text(6), n=4)
        kept(d, 12)
        wait_for(lambda: json.loads(d.cli("cache", "--json", check_exit=0).stdout)["pages"] == len(pages(d)),
                 "all pages counted", 20)
        check(b"pages, " in d.cli("cache", check_exit=0).stdout, "for people")
        check(b"dropped" in d.cli("cache", "drop", check_exit=0).stdout, "what drop says")
        equal(pages(d), [], "files behind")
        equal(cached(d.generate(ids=text(6), n=4)), 384, "what is in memory stays")
        restart(d)
        equal(cached(d.generate(ids=text(6), n=4)), 0, "what was dropped is read anew")
        kept(d, 12)


def rendered(d, system, question):
    chat = {"messages": [{"role": "system", "content": system}, {"role": "user", "content": question}]}
    return json.loads(d.cli("render", "-m", "tale", "--json", input=json.dumps(chat).encode(), check_exit=0).stdout)


@test
def warmed():
    """What tandem warm has read, a chat with that system message does not read, in the next life of the daemon too."""
    with Daemon(env=STORE) as d, Daemon() as plain:
        system = "You tell stories of kings. " * 40
        path = os.path.join(d.dir, "system.txt")
        with open(path, "w") as f:
            f.write(system)

        def ask(of, question):
            r = of.cli("generate", "--chat", "--json", "-m", "tale", "-n", "12", "--temp", "0", "--system", system,
                       question, check_exit=0)
            return json.loads(r.stdout.splitlines()[-1])

        def warm():
            return json.loads(d.cli("warm", "-m", "tale", "-f", path, "--json", check_exit=0).stdout)
        chats = [of["ids"] for of in (rendered(d, system, question) for question in (".", "Who?"))]
        shared = len(os.path.commonprefix(chats)) // PAGE * PAGE
        check(shared >= 4 * PAGE, "a text of some pages", shared)
        equal(warm(), {"prompt_tokens": len(chats[0]), "cached_tokens": 0}, "nothing is known at first")
        equal(warm()["cached_tokens"], (len(chats[0]) - 1) // PAGE * PAGE, "all is known then")
        want = ask(plain, "Who?")["ids"]
        answer = ask(d, "Who?")
        equal(answer["cached_tokens"], shared, "tokens that were known")
        same_ids(answer["ids"], want, "ids")
        kept(d, shared // PAGE)
        answer = from_disk(d, lambda: restart(d), lambda: ask(d, "Who?"))
        check(answer["cached_tokens"] >= shared, "tokens that were known in the next life", answer["cached_tokens"])
        same_ids(answer["ids"], want, "ids in the next life")
        check(b"tokens are ready" in d.cli("warm", "-m", "tale", "-f", path, check_exit=0).stdout, "for people")
        check(disk_tokens(d) >= shared, "tokens from disk", disk_tokens(d))


def mounted(path, *options):
    os.makedirs(path, mode=0o700, exist_ok=True)
    r = subprocess.run(["mount", "-t", "tmpfs", "-o", ",".join(("mode=0700",) + options), "none", path],
                       capture_output=True, text=True)
    if r.returncode != 0:
        raise Skip(f"cannot mount: {r.stderr.strip()}")


@test
def a_full_disk():
    """Where there is no room, some pages are kept or none, and jobs do not notice."""
    with Daemon(env=STORE) as d, Daemon() as plain:
        place = os.path.join(d.dir, "small")
        mounted(place, "size=1m")
        try:
            d.extra_env["XDG_CACHE_HOME"] = place
            restart(d)
            for i in range(times(3, 40)):
                same_ids(d.generate(ids=text(i), n=12).ids, plain.generate(ids=text(i), n=12).ids, f"ids {i}")
            with contextlib.suppress(OSError), open(os.path.join(place, "filler"), "wb") as f:
                f.write(bytes(1 << 20))  # what is left of it when there is no room fails at the end of the file
            for i in range(20, 22):
                same_ids(d.generate(ids=text(i), n=12).ids, plain.generate(ids=text(i), n=12).ids, f"ids {i}")
            d.cli("stop", "tale", check_exit=0)
            same_ids(d.generate(ids=text(20), n=12).ids, plain.generate(ids=text(20), n=12).ids, "after an unload")
            check(d.stop() is None, "the daemon's end")
            subprocess.run(["mount", "-o", "remount,ro", place], check=True)
            d.start()
            for i in range(24, 25):
                same_ids(d.generate(ids=text(i), n=12).ids, plain.generate(ids=text(i), n=12).ids, f"read-only, {i}")
            wait_for(lambda: "not written to disk now: " in d.log() or "not kept on disk: " in d.log(), "a word", 20)
        finally:
            d.kill()
            subprocess.run(["umount", "-l", place], check=False)


main()
