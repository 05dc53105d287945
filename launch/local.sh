#!/usr/bin/env bash
# Trains with several processes on this machine, and starts them again when they fail.
#
#   launch/local.sh NUM_PROCESSES --config=... --workdir=... [any flags of main]
#
# Ctrl-C, SIGTERM and SIGUSR1 ask all processes to save and end. The script then exits
# with 75, and the same command continues. A second Ctrl-C kills them.
#
# When a process fails, the others get 3 seconds for their last words. Then all start
# again, from the last checkpoint; also when something else than this script had them
# stop (75). That happens at most MAX_RESTARTS times (3), RESTART_PAUSE seconds (5) after
# the end. Wrong input (2) is never tried again. The exit code is 0, 2, 75, or that of the
# process that failed.
#
# Process 0 writes to the terminal; what the others write stands on stderr, after their
# number: [1], [2].
#
# Assumes Linux and the package in `python`; PYTHON names another. On GPUs let one process
# drive them all: NUM_PROCESSES is 1. With more, process 0 has GPU 0 alone, and so on.
set -u

if [[ ! ${1:-} =~ ^[1-9][0-9]*$ ]]; then
    echo "usage: $0 NUM_PROCESSES [flags of diffeq_former.main]" >&2
    exit 2
fi
num_processes=$1
shift
python=${PYTHON:-python}
max_restarts=${MAX_RESTARTS:-3}
pause=${RESTART_PAUSE:-5}
asked=""  # the signal that came
pids=()
codes=()  # of those that have ended

say() { echo "local.sh: $*" >&2; }

send() {
    local i
    for i in "${!pids[@]}"; do
        [[ -n ${codes[i]:-} ]] || kill "-$1" "${pids[i]}" 2> /dev/null
    done
}

ask() {
    [[ $1 == INT && -n $asked ]] && send KILL
    asked=$1
    send "${1/INT/TERM}"
}

trap 'ask INT' INT
trap 'ask TERM' TERM
trap 'ask USR1' USR1
trap 'send KILL' EXIT

# A signal ends it; while bash waits for a command in front it may lose a Ctrl-C.
pause_shortly() {
    sleep 0.2 &
    wait "$!"
}

free_port() {
    "$python" -c 'import socket
with socket.create_server(("127.0.0.1", 0)) as server:
    print(server.getsockname()[1])'
}

label() {
    trap '' INT TERM USR1
    exec sed -u "s/^/[$1] /" >&2
}

start_all() {
    local i address
    address=127.0.0.1:$(free_port) || exit 2
    export JAX_COORDINATOR_BIND_ADDRESS=$address
    codes=() pids=()
    for ((i = 0; i < num_processes; i++)); do
        place=(--coordinator="$address" --num_processes="$num_processes"
            --process_id="$i")
        ((num_processes == 1)) || export JAX_LOCAL_DEVICE_IDS=$i
        if ((i == 0)); then
            "$python" -m diffeq_former.main "$@" "${place[@]}" &
        else
            "$python" -m diffeq_former.main "$@" "${place[@]}" > >(label "$i") 2>&1 &
        fi
        pids[i]=$!
    done
    [[ -z $asked ]] || send "${asked/INT/TERM}"  # it came while they were started
}

# Waits for all, and tells in `code` and `reason` how they ended.
wait_for_all() {
    local i kill_at=""
    code=0 reason=""
    while ((${#codes[@]} < num_processes)); do
        pause_shortly
        for i in "${!pids[@]}"; do
            if [[ -z ${codes[i]:-} ]] && ! kill -0 "${pids[i]}" 2> /dev/null; then
                wait "${pids[i]}"
                judge "$i" $?
            fi
        done
        if ((code != 0 && code != 75)); then
            : "${kill_at:=$((SECONDS + 3))}"
            ((SECONDS < kill_at)) || send KILL
        fi
    done
}

# What weighs most: wrong input, then the first failure, then a stop, then the end.
judge() {
    local i=$1
    codes[i]=$2
    if [[ -n $asked ]] && (($2 == 128 + 15 || $2 == 128 + 10)); then
        codes[i]=75  # the signal came before the process could handle it
    fi
    if ((codes[i] == 2)); then
        code=2
    elif ((codes[i] == 75 && code == 0)); then
        code=75 reason="stopped by another than this script"
    elif ((codes[i] != 0 && codes[i] != 75 && (code == 0 || code == 75))); then
        code=${codes[i]} reason="process $i exited with $code"
        ((code <= 128)) || reason+=" ($(kill -l "$code"))"
    fi
}

for ((restarts = 0; ; restarts++)); do
    start_all "$@"
    wait_for_all
    if ((code == 0 || code == 2)) || [[ -n $asked ]]; then
        exit "$code"
    fi
    if ((restarts >= max_restarts)); then
        say "$reason; gave up after $restarts restarts"
        exit "$code"
    fi
    say "$reason; restart $((restarts + 1)) of $max_restarts in $pause s"
    for ((until = SECONDS + pause; SECONDS < until; )); do
        [[ -z $asked ]] || exit 75
        pause_shortly
    done
done
