"""The official Python clients (tests/clients/python.txt) against a private tandem-http: tests/clients/clients.py.

The model has in its weights what it says (tests/lib/client_rounds.py), so every library's round can be compared word by
word. pip installs them under TANDEM_TEST_CACHE, once for each state of python.txt.
TANDEM_PYTHON_CLIENTS names an interpreter that has them already. Skipped where pip cannot reach its registry."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403
from client_packages import SOURCES, python_of  # noqa: E402
from client_rounds import WANT, rounds_model  # noqa: E402
from http_test import Gateway  # noqa: E402


@test
def official_clients():
    python = python_of("clients-python", os.path.join(SOURCES, "python.txt"), os.environ.get("TANDEM_PYTHON_CLIENTS"))
    with tempfile.TemporaryDirectory(prefix="tandem-test-") as folder, \
            Daemon(models=(rounds_model(folder),), placement=None) as d, Gateway(d) as g:
        r = subprocess.run([python, os.path.join(SOURCES, "clients.py")], cwd=folder, stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True, timeout=900 * SLOW,
                           env=dict(d.environment(), TANDEM_URL=f"http://127.0.0.1:{g.port}",
                                    TANDEM_WANT=json.dumps(WANT), PYTHONDONTWRITEBYTECODE="1"))
        print(r.stdout, end="")
        equal(r.returncode, 0, f"the clients' cases: {r.stdout[-4000:]}")
        equal(len(re.findall("^ok   ", r.stdout, re.M)), 12, "cases")


main()
