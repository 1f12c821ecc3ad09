# Completion of tandem(1) for fish; test-completions.py holds the flags against the command's own tables.

set -l commands generate chat status models jobs cancel restart load unload tokenize score bench top trace help

function __tandem_names
    timeout 1 tandem $argv[1] --json 2>/dev/null </dev/null | string match -rga '"'$argv[2]'":"?([^",}]*)'
end

complete -c tandem -f
complete -c tandem -l socket -r -F -d 'where tandemd listens'
complete -c tandem -s h -l help -d 'a short text'
complete -c tandem -n "not __fish_seen_subcommand_from $commands" -l version -d versions

complete -c tandem -n "not __fish_seen_subcommand_from $commands" -a generate -d 'continue a text, or answer one message'
complete -c tandem -n "not __fish_seen_subcommand_from $commands" -a chat -d 'hold a conversation'
complete -c tandem -n "not __fish_seen_subcommand_from $commands" -a status -d 'the daemon, its workers, its models'
complete -c tandem -n "not __fish_seen_subcommand_from $commands" -a models -d 'the models there are'
complete -c tandem -n "not __fish_seen_subcommand_from $commands" -a jobs -d 'the jobs that run or wait'
complete -c tandem -n "not __fish_seen_subcommand_from $commands" -a cancel -d 'stop a job'
complete -c tandem -n "not __fish_seen_subcommand_from $commands" -a restart -d 'restart a worker'
complete -c tandem -n "not __fish_seen_subcommand_from $commands" -a load -d 'load a model before its first job'
complete -c tandem -n "not __fish_seen_subcommand_from $commands" -a unload -d 'give a model\'s memory back'
complete -c tandem -n "not __fish_seen_subcommand_from $commands" -a tokenize -d 'a text as token ids'
complete -c tandem -n "not __fish_seen_subcommand_from $commands" -a score -d 'how likely a model finds a text'
complete -c tandem -n "not __fish_seen_subcommand_from $commands" -a bench -d 'measure speed'
complete -c tandem -n "not __fish_seen_subcommand_from $commands" -a top -d 'what runs now'
complete -c tandem -n "not __fish_seen_subcommand_from $commands" -a trace -d 'record what the workers do'
complete -c tandem -n "not __fish_seen_subcommand_from $commands" -a help -d 'about a command'

set -l model '__fish_seen_subcommand_from generate chat tokenize score bench'
set -l sampling '__fish_seen_subcommand_from generate chat'
complete -c tandem -n $model -s m -l model -r -F -a '(__tandem_names models name)' -d model
complete -c tandem -n '__fish_seen_subcommand_from generate chat bench' -s n -l max-tokens -x -d 'at most this many tokens'
complete -c tandem -n $sampling -l temp -x -d temperature
complete -c tandem -n $sampling -l top-k -x -d 'only the likeliest'
complete -c tandem -n $sampling -l top-p -x -d 'only the likeliest that sum up to it'
complete -c tandem -n $sampling -l min-p -x -d 'at least so likely beside the first'
complete -c tandem -n $sampling -l repeat-penalty -x -d 'against repetition'
complete -c tandem -n $sampling -l repeat-last -x -d 'how far back'
complete -c tandem -n $sampling -l seed -x -d 'same seed, same tokens'
complete -c tandem -n $sampling -l stop -x -d 'end before this text'
complete -c tandem -n $sampling -l priority -x -a 'interactive background' -d 'who goes first'
complete -c tandem -n $sampling -s v -l verbose -d 'the summary always'
complete -c tandem -n $sampling -l system -x -d 'what the model is told first'
complete -c tandem -n $sampling -l ignore-end -d 'go on behind the end token'
complete -c tandem -n $sampling -l prefill-chunk -x -d 'tokens of the prompt in a step'
complete -c tandem -n $sampling -l placement -x -a 'split npu gpu' -d 'which workers'
complete -c tandem -n '__fish_seen_subcommand_from generate' -l raw -d 'continue as it stands'
complete -c tandem -n '__fish_seen_subcommand_from generate' -l chat -d 'as a message'
complete -c tandem -n '__fish_seen_subcommand_from generate status models jobs bench' -l json -d 'machine-readable'
complete -c tandem -n '__fish_seen_subcommand_from cancel' -a '(__tandem_names jobs job)'
complete -c tandem -n '__fish_seen_subcommand_from restart' -a 'npu gpu'
complete -c tandem -n '__fish_seen_subcommand_from load unload' -F -a '(__tandem_names models name)'
complete -c tandem -n '__fish_seen_subcommand_from tokenize' -l special -d 'recognise control pieces'
complete -c tandem -n '__fish_seen_subcommand_from tokenize' -l no-bos -d 'no first token'
complete -c tandem -n '__fish_seen_subcommand_from score' -l top -x -d 'likeliest at each position'
complete -c tandem -n '__fish_seen_subcommand_from score' -l ids -r -F -d 'array of ids'
complete -c tandem -n '__fish_seen_subcommand_from score' -l text -r -F -d 'a text'
complete -c tandem -n '__fish_seen_subcommand_from bench' -s p -l prompt-tokens -x -d 'in each prompt'
complete -c tandem -n '__fish_seen_subcommand_from bench' -s b -l batch -x -d 'numbers of jobs'
complete -c tandem -n '__fish_seen_subcommand_from top' -s d -l delay -x -d 'seconds between two rounds'
complete -c tandem -n '__fish_seen_subcommand_from top' -s n -l rounds -x -d 'how many'
complete -c tandem -n '__fish_seen_subcommand_from trace' -s o -l output -r -F -d 'where to'
complete -c tandem -n '__fish_seen_subcommand_from trace' -l seconds -x -d 'how long'
complete -c tandem -n '__fish_seen_subcommand_from trace' -l past -d 'begin with what happened last'
complete -c tandem -n '__fish_seen_subcommand_from help' -a "$commands"
