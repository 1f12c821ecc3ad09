# Completion of tandem(1) for bash. Names of models and numbers of jobs are asked of the daemon, with a short wait.
# test-completions.py holds the flags against the command's own tables.

_tandem_sampling='--model --max-tokens --temp --top-k --top-p --min-p --repeat-penalty --repeat-last --seed --stop
        --priority --verbose --ignore-end --prefill-chunk --placement --system --socket --help'

_tandem_names()
{
        # {"name":"…"} of each model, {"job":N} of each job: no other program is needed to take them out.
        local text
        text=$(timeout 1 "${COMP_WORDS[0]}" "$1" --json 2>/dev/null </dev/null) || return
        grep -o "\"$2\":\"\\?[^\",}]*" <<<"$text" | sed 's/.*:"\?//'
}

_tandem()
{
        local cur prev command='' i
        cur=${COMP_WORDS[COMP_CWORD]}
        prev=${COMP_WORDS[COMP_CWORD - 1]}
        COMPREPLY=()
        for ((i = 1; i < COMP_CWORD; i++)); do
                case ${COMP_WORDS[i]} in
                --socket) ((i++)) ;;
                -*) ;;
                *)
                        command=${COMP_WORDS[i]}
                        break
                        ;;
                esac
        done

        case $prev in
        -m | --model)
                mapfile -t COMPREPLY < <(compgen -W "$(_tandem_names models name)" -- "$cur"; compgen -f -X '!*.gguf' -- "$cur"
                        compgen -d -S / -- "$cur")
                return
                ;;
        --priority)
                mapfile -t COMPREPLY < <(compgen -W 'interactive background' -- "$cur")
                return
                ;;
        --placement)
                mapfile -t COMPREPLY < <(compgen -W 'split npu gpu' -- "$cur")
                return
                ;;
        --socket | -o | --output | --ids | --text)
                mapfile -t COMPREPLY < <(compgen -f -- "$cur")
                return
                ;;
        esac

        local words=''
        case $command in
        '') words='generate chat status models jobs cancel restart load unload tokenize score bench top trace help
                --socket --version --help' ;;
        generate) words="$_tandem_sampling --raw --chat --json" ;;
        chat) words=$_tandem_sampling ;;
        status | models | jobs) words='--json --socket --help' ;;
        cancel) words="$(_tandem_names jobs job) --socket --help" ;;
        restart) words='npu gpu --socket --help' ;;
        load | unload) words="$(_tandem_names models name) --socket --help" ;;
        tokenize) words='--model --special --no-bos --socket --help' ;;
        score) words='--model --top --ids --text --socket --help' ;;
        bench) words='--model --prompt-tokens --max-tokens --batch --json --socket --help' ;;
        top) words='--delay --rounds --socket --help' ;;
        trace) words='--output --seconds --past --socket --help' ;;
        help) words='generate chat status models jobs cancel restart load unload tokenize score bench top trace help --socket --help' ;;
        esac
        mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")
        if [[ $command == load ]]; then
                mapfile -t -O ${#COMPREPLY[@]} COMPREPLY < <(compgen -f -X '!*.gguf' -- "$cur")
        fi
}

_tandemd()
{
        local cur=${COMP_WORDS[COMP_CWORD]}
        case ${COMP_WORDS[COMP_CWORD - 1]} in
        --bus) mapfile -t COMPREPLY < <(compgen -W 'session system none' -- "$cur") ;;
        --socket | --model | --config) mapfile -t COMPREPLY < <(compgen -f -- "$cur") ;;
        *) mapfile -t COMPREPLY < <(compgen -W '--user --system --socket --bus --model --config --check-config --version --help' -- "$cur") ;;
        esac
}

complete -o filenames -F _tandem tandem
complete -o filenames -F _tandemd tandemd
