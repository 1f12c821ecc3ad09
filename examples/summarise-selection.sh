#!/bin/sh
# Summarises what is selected on the desktop, over D-Bus, and shows it as a notification; for a keyboard shortcut.
#
#     ./summarise-selection.sh                 the selection, by wl-paste or xclip; the answer as a notification
#     ./summarise-selection.sh - <letter.txt   standard input; the answer on standard output
#
# TANDEM_BUS=--system asks the system service (the default is the session's), TANDEM_MODEL another model than the
# default one. busctl leaves the bus after each call, so the job lingers until its text was fetched.
# Debian: systemd (busctl), python3; wl-clipboard or xclip, libnotify-bin.
set -eu
bus=${TANDEM_BUS:---user}
name=dev.tandem.Tandem1

if [ "${1:-}" = - ]; then
        text=$(cat)
elif [ -n "${WAYLAND_DISPLAY:-}" ]; then
        command -v wl-paste >/dev/null || { echo "this needs wl-paste (Debian: wl-clipboard)" >&2; exit 1; }
        text=$(wl-paste --primary --no-newline)
else
        command -v xclip >/dev/null || { echo "this needs xclip (Debian: xclip)" >&2; exit 1; }
        text=$(xclip -o -selection primary)
fi
tell() {
        if [ "${1:-}" = - ]; then cat; else notify-send "Summary" "$(cat)"; fi
}
[ -n "$text" ] || { echo "$0: nothing is selected" >&2; exit 1; }

# The first thing that a call returns.
call() {
        busctl "$bus" --json=short call $name "$@" |
                python3 -c 'import json, sys; print(json.load(sys.stdin)["data"][0])'
}
set -- "${1:-}" 4 max-tokens u 200 linger b true temperature d 0 priority s interactive
if [ -n "${TANDEM_MODEL:-}" ]; then
        first=$1
        shift 2
        set -- "$first" 5 model s "$TANDEM_MODEL" "$@"
fi
where=$1
shift
job=$(call /dev/tandem/Tandem1 $name.Manager Chat 'a(ss)a{sv}' 1 user \
        "Summarise this in two sentences:

$text" "$@")
until busctl "$bus" get-property $name "$job" $name.Job State | grep -q done; do sleep 0.2; done
call "$job" $name.Job GetText t 0 | tell "$where"
busctl "$bus" call $name "$job" $name.Job Release
