#!/usr/bin/env bash
# Measures this project on one GPU in at most ten minutes.
#
#   launch/measure_gpu.sh FOLDER KIND [--config.SECTION.FIELD=VALUE ...]
#
# KIND is the GPU's name in tools/plan.py, such as h100 or h200. FOLDER must not exist;
# for each measurement it gets NAME.jsonl, the results, and NAME.log. Flags at the end
# change all configs, for a trial with small models. A measurement that fails or takes
# longer than its limit is reported; the others continue, and the exit code is 1.
#
# What is measured: 20 steps of llama1b beside their plan; plain and per-step generated
# models beside the hypernetwork, and PyTorch if it is installed; text generation; and
# self-speculative generation with a small run that is trained for it.
#
# Assumes the package in `python`; PYTHON names another. Compiled programs are kept, so
# that a second call measures what the first had no time for.
set -u

if [[ $# -lt 2 || $1 == -* || $2 == -* ]]; then
    echo "usage: $0 FOLDER KIND [--config.SECTION.FIELD=VALUE ...]" >&2
    exit 2
fi
folder=$1 kind=$2
shift 2
changes=("$@")
python=${PYTHON:-python}
tools="$(dirname "$0")/../tools"
configs="$(dirname "$0")/../configs"
mkdir "$folder" || exit 2
failed=0

# measure NAME SECONDS TOOL [flags]
measure() {
    local name=$1 seconds=$2 tool=$3 start=$SECONDS
    shift 3
    if timeout "$seconds" "$python" "$tools/$tool" "$@" \
        > "$folder/$name.jsonl" 2> "$folder/$name.log" < /dev/null; then
        echo "$name: $((SECONDS - start)) s"
    else
        echo "$name: failed after $((SECONDS - start)) of $seconds s:" \
            "$(tail -n 1 "$folder/$name.log")" >&2
        failed=1
    fi
}

plain="plain: model.weights=layer_table model.solver=lie_trotter"
per_step="per_step: model.generate_weights=per_step model.remat=full"
beside=()
"$python" -c "import torch, transformers" 2> /dev/null && beside=(--beside=torch)

llama=(--config="$configs/llama1b.py" --config.training.batch_size=8
    --config.training.per_device_batch_size=4 "${changes[@]}")
measure llama1b_plan 20 plan.py "${llama[@]}" --target="gpu:$kind:1x1" --nocompile
measure llama1b 60 benchmark.py train "${llama[@]}" --rounds=2 --steps=10
measure gpt_small 150 benchmark.py train --config="$configs/gpt_small.py" \
    --config.training.batch_size=32 "${changes[@]}" --variant="$plain" \
    --variant="$per_step" --rounds=3 "${beside[@]}"
measure gpt_medium 60 benchmark.py train --config="$configs/gpt_medium.py" \
    --config.training.batch_size=32 --config.training.per_device_batch_size=16 \
    "${changes[@]}" --variant="$plain" --rounds=3
measure decode 150 benchmark.py decode --config="$configs/gpt_small.py" "${changes[@]}" \
    --rounds=3
measure demo 80 demo.py --folder="$folder/demo"
measure speculation 60 benchmark.py speculation --workdir="$folder/demo/runs/demo" \
    --prompt="def main():" --draft_steps=2,4 --draft_tokens=4 --rounds=3
exit "$failed"
