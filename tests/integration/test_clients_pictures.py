"""The official Python clients (tests/clients/python.txt) show a private tandem-http a picture, by
tests/clients/pictures.py.

What each is answered is what the same job has over the client socket. pip installs them as for test_clients_python.py;
TANDEM_PYTHON_CLIENTS names an interpreter that has them already. Skipped where pip cannot reach its registry."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403
from client_packages import SOURCES, python_of  # noqa: E402
from http_test import Gateway  # noqa: E402
from seeing import IMAGES, Seeing, picture  # noqa: E402

N = 6


@test
def official_clients():
    python = python_of("clients-python", os.path.join(SOURCES, "python.txt"), os.environ.get("TANDEM_PYTHON_CLIENTS"))
    with Seeing() as d, Gateway(d) as g:
        def said(*chat):
            return d.generate(chat=list(chat), pictures=[picture("wide.png")], n=N, temp=1.0, seed=1,
                              ignore_end=False)
        asked = ("user", "What is it?")
        first = said(asked)
        want = {"n": N, "text": first.text, "tokens": first.done["prompt_tokens"],
                "second": said(asked, ("assistant", "yes"), ("user", "And then?")).text}
        r = subprocess.run([python, os.path.join(SOURCES, "pictures.py")], stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True, timeout=900 * SLOW,
                           env=dict(d.environment(), TANDEM_URL=f"http://127.0.0.1:{g.port}",
                                    TANDEM_WANT=json.dumps(want), PYTHONDONTWRITEBYTECODE="1",
                                    TANDEM_PICTURE=os.path.join(IMAGES, "pictures", "wide.png")))
        print(r.stdout, end="")
        equal(r.returncode, 0, f"the clients' cases: {r.stdout[-4000:]}")
        equal(len(re.findall("^ok   ", r.stdout, re.M)), 4, "cases")


main()
