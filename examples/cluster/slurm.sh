#!/bin/bash
# Synchronous hosts on Slurm: `sbatch examples/cluster/slurm.sh examples/language_model.py --save model.keras --backup state`.
# With parameter servers: `PS=2 sbatch ...`; task 0 is the chief then, the next PS tasks are servers, the others workers.
#SBATCH --job-name=largeout
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@120
#SBATCH --requeue
set -eu

# Task i is on node i / (tasks per node), and its port is PORT plus its number on the node.
export PER_NODE=${SLURM_NTASKS_PER_NODE:-1} PORT=${PORT:-2222} PS=${PS:-0}
export NODES=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | xargs)

# When one task fails, Slurm ends the others.
srun --kill-on-bad-exit=1 bash -c '
    nodes=($NODES) addresses=()
    for ((i = 0; i < SLURM_NTASKS; i++)); do
        addresses+=("\"${nodes[i / PER_NODE]}:$((PORT + i % PER_NODE))\"")
    done
    list() { local IFS=,; echo "[$*]"; }
    if [ "$PS" = 0 ]; then
        cluster="\"worker\": $(list "${addresses[@]}")" job=worker index=$SLURM_PROCID
    else
        cluster="\"chief\": $(list "${addresses[0]}"), \"ps\": $(list "${addresses[@]:1:PS}")"
        cluster+=", \"worker\": $(list "${addresses[@]:PS + 1}")"
        job=chief index=0
        if ((SLURM_PROCID > PS)); then job=worker index=$((SLURM_PROCID - PS - 1));
        elif ((SLURM_PROCID > 0)); then job=ps index=$((SLURM_PROCID - 1)); fi
    fi
    export TF_CONFIG="{\"cluster\": {$cluster}, \"task\": {\"type\": \"$job\", \"index\": $index}}"
    trap : TERM  # Python gets it too, and says how it ended
    if [ "$PS" = 0 ]; then
        python "$@"
    elif [ $job = chief ]; then
        python "$@"
        code=$?
        scancel --signal=TERM "$SLURM_JOB_ID.$SLURM_STEP_ID"  # the servers would wait for another chief
        exit $code
    else
        python -m keras_largeout.distribute.server
        code=$?
        exit $((code == 143 ? 0 : code))  # 143: SIGTERM
    fi
' bash "$@"
