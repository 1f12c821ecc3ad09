"""How far Tandem's log-probabilities of released files are from their makers'."""
import json
import tempfile

from tandem_test import check

NEAR = 0.2  # a gap in log-probability between first and second choice that rounding may close: a near tie


def positions(ids):
    """Those that are compared: of a long text its end, where its beginning is out of the window."""
    return range(8, len(ids)) if len(ids) < 200 else range(len(ids) - 100, len(ids))


def score(d, model, ids, top=64):
    with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
        json.dump(ids, f)
        f.flush()
        return d.cli_json("score", "-m", model, "--top", str(top), "--ids", f.name, timeout=600)[0]


class Distance:
    """Golden distance: at each position the largest difference in log-probability over the makers' top ten."""

    def __init__(self):
        self.values, self.clear, self.first = [], 0, 0

    def add(self, want, got):
        have = dict((int(k), v) for k, v in got)
        missing = [k for k, _ in want[:10] if k not in have]
        check(len(missing) < 2, "the makers' top ten within the top 64", want, got)
        least = min(have.values())
        self.values.append(max(abs(have.get(k, least) - v) for k, v in want[:10]))
        if want[0][1] - want[1][1] > NEAR:
            self.clear += 1
            self.first += max(have, key=have.get) == want[0][0]

    def mean(self):
        return sum(self.values) / len(self.values)

    def same(self):
        return self.first / self.clear

    def __str__(self):
        return (f"mean {self.mean():.5f}, worst {max(self.values):.5f}, first choice {100 * self.same():.1f}% of "
                f"{self.clear}")


def of_sequences(d, model, sequences, wanted):
    """The distance, and the largest difference of a token's log-probability. wanted: what maker.py answers."""
    out, nll = Distance(), 0.0
    for ids, want in zip(sequences, wanted):
        got = score(d, model, ids)
        nll = max([nll] + [abs(a - b) for a, b in zip(got["nll"], want["nll"])])
        for i in positions(ids):
            out.add(want["top"][i], got["top"][i])
    return out, nll
