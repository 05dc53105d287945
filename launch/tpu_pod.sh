#!/usr/bin/env bash
# Trains on all hosts of a Cloud TPU (one host, or a pod), and starts them again when they
# fail. Run it where gcloud is logged in, inside tmux or the like.
#
#   launch/tpu_pod.sh TPU_NAME ZONE --config=... --workdir=... [any flags of main]
#
# Ctrl-C and SIGTERM ask all hosts to save and end; the script then exits with 75, and the
# same command continues. After a crash, or when something else stopped the processes (75),
# all start again, from the last checkpoint, at most MAX_RESTARTS times (3), RESTART_PAUSE
# seconds (15) after the end. Wrong input (2) is never tried again. A TPU that was taken
# back must be created again; then the same command continues.
#
# Assumes: FOLDER (diffeq_former, in the home of every host) is a checkout, with the
# package in .venv; data and workdir are at the same path on every host, on shared storage
# (Filestore, or a bucket that is mounted). To get there, from a checkout:
#
#   gcloud compute tpus tpu-vm scp --recurse --worker=all --zone=ZONE . NAME:diffeq_former
#   gcloud compute tpus tpu-vm ssh NAME --worker=all --zone=ZONE --command='
#     cd diffeq_former && python3 -m venv .venv &&
#     .venv/bin/pip install -c constraints.txt ".[tpu]"'
set -u

if (($# < 2)) || [[ $1 == -* || $2 == -* ]]; then
    echo "usage: $0 TPU_NAME ZONE [flags of diffeq_former.main]" >&2
    exit 2
fi
name=$1 zone=$2
shift 2
max_restarts=${MAX_RESTARTS:-3}
pause=${RESTART_PAUSE:-15}
asked=""

say() { echo "tpu_pod.sh: $*" >&2; }

on_all_hosts() {
    gcloud compute tpus tpu-vm ssh "$name" --zone="$zone" --worker=all --command="$1"
}

# Gathers of weights run beside products, instead of cutting these into pieces
# (docs/performance.md).
libtpu="--xla_jf_spmd_threshold_for_windowed_einsum_mib=1000000"
libtpu+=" --xla_enable_async_all_gather=true"
libtpu+=" --xla_tpu_enable_async_collective_fusion=true"
libtpu+=" --xla_tpu_enable_async_collective_fusion_fuse_all_gather=true"
libtpu+=" --xla_tpu_enable_async_collective_fusion_multiple_steps=true"
libtpu+=" --xla_tpu_overlap_compute_collective_tc=true"

# On a host: ends what an attempt before may have left there, then trains.
printf -v folder %q "${FOLDER:-diffeq_former}"
printf -v flags ' %q' "$@"
train="cd $folder || exit 2
pkill -KILL -F train.pid -f diffeq_former.main 2> /dev/null
echo \$\$ > train.pid
export LIBTPU_INIT_ARGS='$libtpu'
exec .venv/bin/python -u -m diffeq_former.main$flags"
stop="pkill -TERM -F $folder/train.pid -f diffeq_former.main"

trap 'asked=1; on_all_hosts "$stop"' INT TERM

for ((restarts = 0; ; restarts++)); do
    set -m  # puts it into a process group of its own, which Ctrl-C does not reach
    on_all_hosts "$train" < /dev/null &
    pid=$!
    set +m
    while kill -0 "$pid" 2> /dev/null; do
        sleep 0.5
    done
    wait "$pid"
    code=$?
    if ((code == 0 || code == 2)) || [[ -n $asked ]]; then
        exit "$code"
    fi
    if ((restarts >= max_restarts)); then
        say "exit code $code; gave up after $restarts restarts"
        exit "$code"
    fi
    say "exit code $code; restart $((restarts + 1)) of $max_restarts in $pause s"
    for ((until = SECONDS + pause; SECONDS < until; )); do
        [[ -z $asked ]] || exit 75
        sleep 0.2
    done
done
