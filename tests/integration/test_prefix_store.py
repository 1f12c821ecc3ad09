"""Prefixes on disk: what a daemon has read, the next one does not read again. The reference for ids is a daemon that
keeps nothing. Damage of every kind costs time, and changes no id."""
import os
import random
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403

STORE = {"TANDEM_PREFIX_STORE": "1G"}
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


@test
def after_a_restart():
    """The same text and another one that begins alike, after a restart, a kill, and an unload."""
    with Daemon(env=STORE) as d, Daemon() as plain:
        a, b = text(1), text(1)[:-1] + [700, 701]
        d.generate(ids=a, n=40)
        kept(d, len(a) // PAGE)
        for how in ("restart", "kill", "unload"):
            if how == "restart":
                restart(d)
            elif how == "kill":
                d._kill()
                d.start()
            else:
                d.cli("stop", "tale", check_exit=0)
            before = disk_tokens(d)
            for ids in (b, a):
                r = d.generate(ids=ids, n=24, temp=0.8, seed=5)
                want = plain.generate(ids=ids, n=24, temp=0.8, seed=5)
                check(cached(r) >= len(ids) // PAGE * PAGE - PAGE, f"{how}: tokens that were known", cached(r))
                same_ids(r.ids, want.ids, f"{how}: ids")
                check(r.logprobs == want.logprobs, f"{how}: log-probabilities")
            check(disk_tokens(d) - before >= 384, f"{how}: tokens from disk", disk_tokens(d) - before)
        equal(plain.status().get("disk_tokens", 0), 0, "tokens from disk where nothing is kept")


@test
def answers_too():
    """The next turn of a conversation goes on behind the answer of a daemon that has gone."""
    with Daemon(env=STORE) as d, Daemon() as plain:
        ids = text(2, 100)
        for turn in range(3):
            r = d.generate(ids=ids, n=70, temp=0.7, seed=turn)
            same_ids(r.ids, plain.generate(ids=ids, n=70, temp=0.7, seed=turn).ids, f"turn {turn}")
            if turn:
                check(cached(r) >= known - 2 * PAGE, f"turn {turn}: known", cached(r), known)
            known = len(ids) + len(r.ids) - 1
            kept(d, known // PAGE)
            ids = ids + r.ids + [600 + turn] * 20
            restart(d)


main()
