#!/bin/sh
# A story through the HTTP gateway with curl: whole, as a stream, and as Ollama's lines.
# usage: curl.sh [MODEL]        TANDEM_URL names another gateway than 127.0.0.1:11434, TANDEM_KEY an API key
# Without MODEL it takes the default one: of the lines "true NAME" and "false NAME", that with true.
set -eu
url=${TANDEM_URL:-http://127.0.0.1:11434}
model=${1:-$(curl -sS --fail-with-body -H "Authorization: Bearer ${TANDEM_KEY:-none}" "$url/v1/models" |
        sed 's/{"id":/\n&/g' | sed -n 's/^{"id":"\([^"]*\)".*"default":\([a-z]*\).*/\2 \1/p' |
        sort -r | sed -n '1s/^[a-z]* //p')}
[ -n "$model" ] || { echo "$0: no model at $url; is tandem-http running?" >&2; exit 1; }

ask() { # PATH JSON
        curl -sS --fail-with-body --no-buffer "$url$1" -H "Authorization: Bearer ${TANDEM_KEY:-none}" \
                -H 'Content-Type: application/json' -d "$2"
        echo
}

echo "== $model, whole"
ask /v1/chat/completions '{"model": "'"$model"'", "max_tokens": 24, "seed": 1,
        "messages": [{"role": "user", "content": "Tell me of a king"}]}'
echo "== as server-sent events"
ask /v1/completions '{"model": "'"$model"'", "max_tokens": 8, "seed": 1, "stream": true, "prompt": "Once upon a time"}'
echo "== as Ollama's lines"
ask /api/generate '{"model": "'"$model"'", "prompt": "Once upon a time", "options": {"num_predict": 8, "seed": 1}}'
