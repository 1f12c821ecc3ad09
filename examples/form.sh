#!/bin/sh
# Fills a form from an e-mail: prints one JSON object that satisfies the schema, for jq or a database.
#
#     ./form.sh letter.eml
#
# A text that was cut at the limit is no form. The done event says so, and then nothing is printed.
set -eu
[ $# -eq 1 ] || { echo "usage: $0 E-MAIL" >&2; exit 2; }
[ -r "$1" ] || { echo "$0: cannot read $1" >&2; exit 1; }
schema=$(mktemp)
answer=$(mktemp)
trap 'rm -f "$schema" "$answer"' EXIT
cat >"$schema" <<'END'
{
  "type": "object",
  "properties": {
    "sender": {"type": "string", "maxLength": 60},
    "wants": {"enum": ["offer", "invoice", "complaint", "other"]},
    "date": {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]},
    "pieces": {"type": "integer", "minimum": 0, "maximum": 9999},
    "urgent": {"type": "boolean"}
  },
  "required": ["sender", "wants", "date", "pieces", "urgent"],
  "additionalProperties": false
}
END
{
        printf 'An e-mail:\n\n'
        cat "$1"
        printf '\n\nThe same as a form in JSON:\n'
} | tandem generate --schema "$schema" --temp 0 -n 300 --json - >"$answer"
python3 - "$answer" <<'END'
import json, sys

events = [json.loads(line) for line in open(sys.argv[1])]
if events[-1]["reason"] != "stop":
    sys.exit("the form is incomplete: " + events[-1]["reason"])
print(json.dumps(json.loads("".join(e["text"] for e in events[:-1]) + events[-1]["tail"])))
END
