#!/bin/sh
# Continues each line of a file, eight at a time: jobs that run together share the work of reading the model's weights.
# Each answer goes into a file of its own; same seed, same answers, whatever ran beside them.
#
#     ./many.sh beginnings.txt answers/
set -eu
[ $# -eq 2 ] || { echo "usage: $0 FILE FOLDER" >&2; exit 2; }
mkdir -p "$2"
n=0
while IFS= read -r line; do
        [ -n "$line" ] || continue
        n=$((n + 1))
        printf '%s\0%s\0' "$2/$n.txt" "$line"
done <"$1" | xargs -0 -r -n 2 -P 8 sh -c \
        'printf "%s" "$2" | tandem generate --priority background --seed 1 -n 80 - >"$1"' sh
